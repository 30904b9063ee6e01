//! The links of the NIC, in order of preference: the first that leads to a peer is the one its queue pairs use. Adding
//! a link is a folder in the crate `link` and a line in [`Registry::new`].

use crate::links::path;
use crate::links::udp::Udp;
use crate::objects::numbers::Numbers;
use ::host::slots::Slot;
use link::Link;
use link::faults::{Faulty, Plan, Rule};
use link::process::Process;
use link::shared::Exchange;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use wire::Qpn;

/// The links of the NIC.
#[derive(Debug)]
pub(crate) struct Registry {
    /// In order of preference.
    entries: Vec<Arc<LinkEntry>>,
    /// Those that the NIC receives from through the trait.
    received: Vec<ReceivedLink>,
    /// These and shared memory, once faults are asked for while the program runs.
    under_faults: OnceLock<UnderFaults>,
    /// What a thread that sleeps waits for, beside the sockets and the bells of shared memory.
    descriptors: Vec<RawFd>,
    /// Shared memory is among those received through the trait: packets from there meet faults.
    rings_meet_faults: AtomicBool,
    /// The faults that the environment asks for.
    plan: Option<Plan>,
    exchange: Arc<Exchange>,
}

/// A link that is received from, perhaps below faults, and the link as queue pairs know it.
#[derive(Debug)]
pub(crate) struct ReceivedLink {
    pub link: Arc<dyn Link>,
    pub known_as: Arc<dyn Link>,
}

/// Links with faults that may change.
#[derive(Debug)]
struct UnderFaults {
    received: Vec<ReceivedLink>,
    faulty: Vec<Arc<Faulty<Arc<dyn Link>>>>,
}

/// Returns the way to a peer, if a link leads there.
type Leads = fn(&Host<'_>, &Peer, &Arc<LinkEntry>) -> Option<path::Link>;

/// A link, and where it leads.
#[derive(Debug)]
pub(crate) struct LinkEntry {
    link: Arc<dyn Link>,
    leads: Leads,
    /// Whether it is used through the trait alone.
    is_general: bool,
    /// Whether the NIC receives from it through the trait.
    is_received: bool,
}

/// What a link may ask to know where it leads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    /// The queue pair numbers of this process.
    pub numbers: &'a Numbers,
    /// The links through shared memory.
    pub exchange: &'a Exchange,
}

/// The peer that a way is sought to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub qpn: Qpn,
    /// Its address is one of this host's, and links inside the host may be used.
    pub is_here: bool,
    /// Of several ways to one process, this one is preferred.
    pub lane: u32,
}

impl LinkEntry {
    /// A link that is used through the trait alone.
    pub fn general(link: Arc<dyn Link>, leads: Leads) -> LinkEntry {
        LinkEntry { link, leads, is_general: true, is_received: true }
    }

    /// A link that the NIC sends over, sleeps on, and mostly receives from, in ways of its own.
    fn with_fast_ways(link: Arc<dyn Link>, leads: Leads, is_received: bool) -> LinkEntry {
        LinkEntry { link, leads, is_general: false, is_received }
    }

    pub fn link(&self) -> &dyn Link {
        &*self.link
    }
}

impl Registry {
    /// The links of a NIC, `first` those that are preferred to all others. UDP has its own place for faults, below the
    /// check of its ICRC; the others meet them where the NIC receives.
    pub fn new(first: Vec<LinkEntry>, exchange: &Arc<Exchange>, udp: &Arc<Udp>, plan: Option<&Plan>) -> Registry {
        let mut entries = first;
        entries.extend([
            LinkEntry::general(with_faults(Process::default(), plan), inside_the_process),
            LinkEntry::with_fast_ways(with_faults(Arc::clone(exchange), plan), through_shared_memory, plan.is_some()),
            LinkEntry::with_fast_ways(Arc::<Udp>::clone(udp), over_udp, false),
        ]);
        let same = |link: &Arc<dyn Link>| ReceivedLink { link: Arc::clone(link), known_as: Arc::clone(link) };
        let received = entries.iter().filter(|entry| entry.is_received).map(|entry| same(&entry.link)).collect();
        let descriptors = entries.iter().filter(|entry| entry.is_general).filter_map(|entry| entry.link.descriptor());
        Registry {
            received,
            descriptors: descriptors.collect(),
            entries: entries.into_iter().map(Arc::new).collect(),
            rings_meet_faults: AtomicBool::new(plan.is_some()),
            under_faults: OnceLock::new(),
            plan: plan.cloned(),
            exchange: Arc::clone(exchange),
        }
    }

    /// Changes what goes wrong with packets that arrive by other links than UDP, beside what the environment asks for:
    /// all rules that fit a packet act on it. What is late stays so until there are no rules any more.
    pub fn add_faults(&self, rules: &[Rule], seed: u64) {
        if rules.is_empty() && self.under_faults.get().is_none() {
            return;
        }
        let under_faults = self.under_faults.get_or_init(|| self.put_under_faults());
        for link in &under_faults.faulty {
            link.change(Plan { added: rules.to_vec(), seed, ..Plan::default() });
        }
        if !rules.is_empty() {
            self.rings_meet_faults.store(true, Ordering::SeqCst);
        }
    }

    /// After the last rule was taken away and what was late has been received: packets go the usual way again. Returns
    /// whether they do.
    pub fn end_faults(&self) -> bool {
        let is_over = self.under_faults.get().is_none_or(|under| under.faulty.iter().all(|link| link.is_spent()));
        if is_over && self.plan.is_none() {
            self.rings_meet_faults.store(false, Ordering::SeqCst);
        }
        is_over
    }

    /// The faults that the environment asks for.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    fn put_under_faults(&self) -> UnderFaults {
        let mut inner: Vec<(Arc<dyn Link>, Arc<dyn Link>)> = self
            .received
            .iter()
            .map(|ReceivedLink { link, known_as }| (Arc::clone(link), Arc::clone(known_as)))
            .collect();
        if self.plan.is_none() {
            let exchange: Arc<dyn Link> = Arc::<Exchange>::clone(&self.exchange);
            inner.push((Arc::clone(&exchange), exchange));
        }
        let faulty: Vec<_> =
            inner.iter().map(|(link, _)| Arc::new(Faulty::new(Arc::clone(link), Plan::default()))).collect();
        let received = faulty.iter().zip(inner).map(|(link, (_, known_as))| {
            let link: Arc<dyn Link> = Arc::<Faulty<Arc<dyn Link>>>::clone(link);
            ReceivedLink { link, known_as }
        });
        UnderFaults { received: received.collect(), faulty }
    }

    /// The way to a peer.
    pub fn way(&self, host: &Host<'_>, peer: &Peer) -> path::Link {
        self.entries.iter().find_map(|entry| (entry.leads)(host, peer, entry)).unwrap_or_default()
    }

    /// Those that the NIC receives from through the trait.
    #[inline]
    pub fn received(&self) -> &[ReceivedLink] {
        match self.under_faults.get() {
            Some(under) if self.rings_meet_faults() => &under.received,
            _ => &self.received,
        }
    }

    /// Whether these have nothing, at a glance.
    #[inline]
    pub fn seem_empty(&self) -> bool {
        self.received().iter().all(|received| received.link.seems_empty())
    }

    /// When one of these wants to be received from though nothing arrives.
    pub fn deadline(&self) -> Option<Instant> {
        self.received().iter().filter_map(|received| received.link.deadline()).min()
    }

    /// What a thread that sleeps waits for, beside the sockets and the bells of shared memory.
    pub fn descriptors(&self) -> &[RawFd] {
        &self.descriptors
    }

    /// Whether what comes through shared memory is received through the trait.
    #[inline]
    pub fn rings_meet_faults(&self) -> bool {
        self.rings_meet_faults.load(Ordering::Relaxed)
    }
}

fn with_faults<L: Link + 'static>(link: L, plan: Option<&Plan>) -> Arc<dyn Link> {
    match plan {
        Some(plan) => Arc::new(Faulty::new(link, plan.clone())),
        None => Arc::new(link),
    }
}

fn inside_the_process(host: &Host<'_>, peer: &Peer, entry: &Arc<LinkEntry>) -> Option<path::Link> {
    (peer.is_here && host.numbers.owns(peer.qpn)).then(|| path::Link::General(Arc::clone(entry)))
}

fn through_shared_memory(host: &Host<'_>, peer: &Peer, _: &Arc<LinkEntry>) -> Option<path::Link> {
    let slot = Slot::of(peer.qpn).filter(|_| peer.is_here)?;
    host.exchange.reach(slot, peer.lane).map(path::Link::Shared)
}

fn over_udp(_: &Host<'_>, _: &Peer, _: &Arc<LinkEntry>) -> Option<path::Link> {
    Some(path::Link::Udp)
}

#[cfg(test)]
mod tests;
