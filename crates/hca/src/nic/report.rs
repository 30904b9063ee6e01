//! What this process has, for another process of the host that asks: `rdma`, `ubiverbs ps`, programs that read
//! counters.

use crate::nic::Nic;
use crate::nic::process::sockets_of;
use crate::objects::context::Context;
use crate::progress::lock_tries::LockTries;
use inventory::{Activity, CompletionQueue, Domain, Drops, Port, Region, Report, SharedReceiveQueue};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use trace::DropReason;
use transport::Counters;

/// How often something is used, by its number.
#[derive(Default)]
struct Users(HashMap<u32, u32>);

impl Users {
    fn add(&mut self, number: u32) {
        *self.0.entry(number).or_default() += 1;
    }

    fn of(&self, number: u32) -> u32 {
        self.0.get(&number).copied().unwrap_or(0)
    }
}

impl Nic {
    /// Everything that this process has, and what it has counted.
    pub fn report(&self) -> Report {
        let mut queue_pairs = Vec::new();
        let mut tries = LockTries::default();
        let mut of_ports = HashMap::<u32, Counters>::new();
        self.each_qp(|qp| {
            let report = qp.report(&self.ground, &mut tries);
            *of_ports.entry(qp.port_device().port_id()).or_default() += report.counters;
            queue_pairs.push(report);
        });
        let contexts: Vec<Arc<Context>> = self.objects.contexts.lock().iter().filter_map(Weak::upgrade).collect();
        let regions = self.ground.memory.regions();
        let shared = self.ground.shared_queues.all();
        let (mut of_domain, mut of_queue) = (Users::default(), Users::default());
        for pair in &queue_pairs {
            of_domain.add(pair.domain);
            of_queue.add(pair.send_queue);
            if pair.receive_queue != pair.send_queue {
                of_queue.add(pair.receive_queue);
            }
        }
        regions.iter().for_each(|region| of_domain.add(region.domain.0));
        shared.iter().for_each(|queue| of_domain.add(queue.domain().0));
        let mut domains = Vec::new();
        for context in &contexts {
            let interface = context.device().number();
            let domain = |number| Domain { number, interface, users: of_domain.of(number) };
            domains.extend(context.domains().into_iter().map(domain));
        }
        let device_of: HashMap<u32, u32> = domains.iter().map(|domain| (domain.number, domain.interface)).collect();
        let interface_of = |domain: u32| device_of.get(&domain).copied().unwrap_or(0);
        let queues: Vec<_> = self.objects.cqs.lock().iter().filter_map(Weak::upgrade).collect();
        let mut shared_queues: Vec<_> = shared
            .iter()
            .map(|queue| SharedReceiveQueue {
                number: queue.number().value(),
                interface: interface_of(queue.domain().0),
                domain: queue.domain().0,
                kind: u8::from(queue.xrc().is_some()),
                completion_queue: queue.xrc().map_or(0, |xrc| xrc.cq.id),
            })
            .collect();
        shared_queues.sort_by_key(|queue| queue.number);
        Report {
            ports: self
                .living_counters_of(of_ports)
                .into_iter()
                .map(|(device, counters)| Port {
                    device: device.port_name().to_owned(),
                    interface: device.number(),
                    counters,
                })
                .collect(),
            contexts: contexts
                .iter()
                .map(|context| inventory::Context { number: context.number(), interface: context.device().number() })
                .collect(),
            domains,
            queue_pairs,
            completion_queues: queues
                .iter()
                .map(|queue| CompletionQueue {
                    number: queue.id,
                    interface: queue.interface(),
                    entries: queue.try_capacity(&mut tries).unwrap_or(0),
                    waiting: queue.waiting(),
                    overflowed: u8::from(queue.has_overflowed()),
                    users: of_queue.of(queue.id),
                })
                .collect(),
            regions: regions
                .iter()
                .zip(1..)
                .map(|(region, number)| Region {
                    number,
                    interface: interface_of(region.domain.0),
                    key: region.key.value(),
                    address: region.address,
                    length: region.length,
                    domain: region.domain.0,
                })
                .collect(),
            shared_queues,
            ids: self.ids(),
            activity: self.activity(),
            sockets: sockets_of(self),
        }
    }

    fn activity(&self) -> Activity {
        let engine = &self.ground.progress.engine;
        let dropped = |reason: &DropReason| Drops { reason: reason.name().to_owned(), count: self.drops(*reason) };
        Activity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            age_nanos: self.ground.now().as_nanos(),
            engine_thread: engine.thread.load(Ordering::Relaxed),
            empty_polls: engine.polls().polls,
            driven_by_program: u8::from(engine.is_leased()),
            blocked_callers: engine.waiters.load(Ordering::Relaxed),
            drops: DropReason::ALL.iter().map(dropped).filter(|drops| drops.count > 0).collect(),
        }
    }

    /// Tells other processes that ask. A report takes long where there is much to tell, so a thread writes it.
    pub(crate) fn answer_inquiries(self: &Arc<Nic>) {
        let weak = Arc::downgrade(self);
        self.background.inquiries.does(move |sockets| {
            let Some(nic) = weak.upgrade() else { return };
            for socket in sockets {
                // A process that asked and has gone does not miss the answer.
                let _ = ::host::inquiry::answer(&socket, &nic.report().encode());
            }
        });
    }

    /// Ids of the connection manager. One that is bound to the loopback has no device before its peer is known; others
    /// see it where it listens.
    fn ids(&self) -> Vec<inventory::ConnectionId> {
        let mut ids = self.cm.report();
        for id in ids.iter_mut().filter(|id| id.interface == 0) {
            if let Some(source) = id.source.filter(|source| !source.ip().is_unspecified()) {
                let device = self.ground.host.device_with(wire::Gid::from_ip(source.ip()));
                id.interface = device.map_or(0, |device| device.number());
            }
        }
        ids
    }

    /// Has the host remember what this process counted, because it ends. Once.
    pub(crate) fn count_as_ended(&self) {
        if self.counted_as_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let ports: Vec<_> = self
            .counters_before_exit()
            .into_iter()
            .map(|(device, counters)| (device.port_name().to_owned(), counters))
            .collect();
        inventory::ended::add(&ports);
    }
}
