//! The objects of all processes on a device. Processes number theirs without knowing of each other, so two objects of
//! two processes may have one number, but for queue pairs: those numbers are the host's.

use crate::devices::handle;
use crate::message::{MAX_MESSAGE_BYTES, Message};
use crate::numbers::errno::{EINVAL, ENOENT};
use crate::numbers::{attribute, command};
use crate::requests::{Asked, Errno, Exchange};
use crate::{Device, Host};
use inventory::{ConnectionId, Process, QueuePair, Report};
use std::collections::HashMap;
use std::net::SocketAddr;

/// A state of ids of the connection manager.
const STATE_LISTEN: u8 = 8;

/// A kind of object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Domain,
    CompletionQueue,
    QueuePair,
    ConnectionId,
    Region,
    Context,
    SharedQueue,
}

impl Kind {
    /// As the kernel lists them.
    const ALL: [Kind; 7] = [
        Kind::Domain,
        Kind::CompletionQueue,
        Kind::QueuePair,
        Kind::ConnectionId,
        Kind::Region,
        Kind::Context,
        Kind::SharedQueue,
    ];

    /// The kind that a command asks for.
    pub fn of(number: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.command() == number)
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Domain => "pd",
            Kind::CompletionQueue => "cq",
            Kind::QueuePair => "qp",
            Kind::ConnectionId => "cm_id",
            Kind::Region => "mr",
            Kind::Context => "ctx",
            Kind::SharedQueue => "srq",
        }
    }

    fn command(self) -> u16 {
        match self {
            Kind::Domain => command::RES_PD_GET,
            Kind::CompletionQueue => command::RES_CQ_GET,
            Kind::QueuePair => command::RES_QP_GET,
            Kind::ConnectionId => command::RES_CM_ID_GET,
            Kind::Region => command::RES_MR_GET,
            Kind::Context => command::RES_CTX_GET,
            Kind::SharedQueue => command::RES_SRQ_GET,
        }
    }

    /// Attributes: of the list, of an entry, and of the number.
    fn attributes(self) -> (u16, u16, u16) {
        use attribute as is;
        match self {
            Kind::Domain => (is::RES_PD, is::RES_PD_ENTRY, is::RES_PDN),
            Kind::CompletionQueue => (is::RES_CQ, is::RES_CQ_ENTRY, is::RES_CQN),
            Kind::QueuePair => (is::RES_QP, is::RES_QP_ENTRY, is::RES_LQPN),
            Kind::ConnectionId => (is::RES_CM_ID, is::RES_CM_ID_ENTRY, is::RES_CM_IDN),
            Kind::Region => (is::RES_MR, is::RES_MR_ENTRY, is::RES_MRN),
            Kind::Context => (is::RES_CTX, is::RES_CTX_ENTRY, is::RES_CTXN),
            Kind::SharedQueue => (is::RES_SRQ, is::RES_SRQ_ENTRY, is::RES_SRQN),
        }
    }
}

/// An object: its number, and what is said of it.
struct ResourceEntry {
    number: u32,
    port: Option<u8>,
    attributes: Message,
}

/// The objects of a kind on a device.
struct Entries<'a> {
    device: &'a Device,
    kind: Kind,
    administrator: bool,
    found: Vec<ResourceEntry>,
}

impl Entries<'_> {
    fn of_all(device: &Device, kind: Kind, host: &mut impl Host) -> Vec<ResourceEntry> {
        let administrator = host.is_administrator();
        let mut entries = Entries { device, kind, administrator, found: Vec::new() };
        for process in host.processes().iter() {
            if let Ok(report) = &process.report {
                entries.of_process(process, report);
            }
        }
        entries.found
    }

    fn add(&mut self, process: &Process, number: u32, port: Option<u8>, fill: impl FnOnce(&mut Message)) {
        // Only its attributes will be used.
        let mut attributes = Message::new(0, 0, 0, 0);
        if let Some(port) = port {
            attributes.u32(attribute::PORT_INDEX, port.into());
        }
        fill(&mut attributes);
        attributes.u32(attribute::RES_PID, process.pid as u32);
        self.found.push(ResourceEntry { number, port, attributes });
    }

    fn of_process(&mut self, process: &Process, report: &Report) {
        let here = self.device.number;
        let context = report.contexts.iter().find(|context| context.interface == here).map(|context| context.number);
        match self.kind {
            Kind::Domain => {
                for domain in report.domains.iter().filter(|domain| domain.interface == here) {
                    self.add(process, domain.number, None, |to| {
                        to.u64(attribute::RES_USECNT, domain.users.into()).u32(attribute::RES_PDN, domain.number);
                        context.map(|context| to.u32(attribute::RES_CTXN, context));
                    });
                }
            }
            Kind::CompletionQueue => {
                for queue in report.completion_queues.iter().filter(|queue| queue.interface == here) {
                    self.add(process, queue.number, None, |to| {
                        to.u32(attribute::RES_CQE, queue.entries)
                            .u64(attribute::RES_USECNT, queue.users.into())
                            .u8(attribute::DEV_DIM, 0)
                            .u32(attribute::RES_CQN, queue.number);
                        context.map(|context| to.u32(attribute::RES_CTXN, context));
                    });
                }
            }
            Kind::QueuePair => {
                for pair in report.queue_pairs.iter().filter(|pair| pair.interface == here) {
                    // One in RESET has no port yet.
                    self.add(process, pair.number, (pair.state > 0).then_some(pair.port), |to| {
                        describe_queue_pair(to, pair)
                    });
                }
            }
            Kind::ConnectionId => {
                // One that listens to all addresses has no device, and is of each.
                let listens = |id: &ConnectionId| id.interface == 0 && id.state == STATE_LISTEN;
                for id in report.ids.iter().filter(|id| id.interface == here || listens(id)) {
                    self.add(process, id.number, Some(id.port), |to| {
                        if id.queue_pair > 0 {
                            to.u32(attribute::RES_LQPN, id.queue_pair).u8(attribute::RES_TYPE, id.kind);
                        }
                        to.u32(attribute::RES_PS, id.space.into()).u8(attribute::RES_STATE, id.state);
                        for (kind, address) in
                            [(attribute::RES_SRC_ADDR, id.source), (attribute::RES_DST_ADDR, id.destination)]
                        {
                            address.map(|address| to.bytes(kind, &storage(address)));
                        }
                        to.u32(attribute::RES_CM_IDN, id.number);
                    });
                }
            }
            Kind::Region => {
                let administrator = self.administrator;
                for region in report.regions.iter().filter(|region| region.interface == here) {
                    self.add(process, region.number, None, |to| {
                        if administrator {
                            to.u32(attribute::RES_RKEY, region.key).u32(attribute::RES_LKEY, region.local_key());
                        }
                        to.u64(attribute::RES_MRLEN, region.length)
                            .u32(attribute::RES_MRN, region.number)
                            .u32(attribute::RES_PDN, region.domain);
                    });
                }
            }
            Kind::Context => {
                for context in report.contexts.iter().filter(|context| context.interface == here) {
                    let number = context.number;
                    self.add(process, number, None, |to| {
                        to.u32(attribute::RES_CTXN, number);
                    });
                }
            }
            Kind::SharedQueue => {
                let mut users: HashMap<u32, Vec<u32>> = HashMap::new();
                for pair in report.queue_pairs.iter().filter(|pair| pair.shared_queue > 0) {
                    users.entry(pair.shared_queue).or_default().push(pair.number);
                }
                for queue in report.shared_queues.iter().filter(|queue| queue.interface == here) {
                    self.add(process, queue.number, None, |to| {
                        to.u32(attribute::RES_SRQN, queue.number)
                            .u8(attribute::RES_TYPE, queue.kind)
                            .u32(attribute::RES_PDN, queue.domain);
                        if queue.completion_queue > 0 {
                            to.u32(attribute::RES_CQN, queue.completion_queue);
                        }
                        to.nested(attribute::RES_QP, |to| {
                            // More would not fit into a message, and nobody reads so many.
                            for pair in users.get(&queue.number).into_iter().flatten().take(64) {
                                to.nested(attribute::RES_QP_ENTRY, |to| {
                                    to.u32(attribute::RES_LQPN, *pair);
                                });
                            }
                        });
                    });
                }
            }
        }
    }
}

fn describe_queue_pair(to: &mut Message, pair: &QueuePair) {
    const RC: u8 = 2;
    const UC: u8 = 3;
    const XRC: [u8; 2] = [9, 10];
    to.u32(attribute::RES_LQPN, pair.number);
    if matches!(pair.kind, RC | UC) {
        to.u32(attribute::RES_RQPN, pair.peer).u32(attribute::RES_RQ_PSN, pair.receive_psn);
    }
    to.u32(attribute::RES_SQ_PSN, pair.send_psn);
    if matches!(pair.kind, RC | UC) || XRC.contains(&pair.kind) {
        to.u8(attribute::RES_PATH_MIG_STATE, 0);
    }
    to.u8(attribute::RES_TYPE, pair.kind).u8(attribute::RES_STATE, pair.state).u32(attribute::RES_PDN, pair.domain);
}

/// An address as `struct sockaddr_storage`.
fn storage(address: SocketAddr) -> [u8; 128] {
    const INET: u16 = 2;
    const INET6: u16 = 10;
    let mut bytes = Vec::with_capacity(128);
    match address {
        SocketAddr::V4(address) => {
            bytes.extend(INET.to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.ip().octets());
        }
        SocketAddr::V6(address) => {
            bytes.extend(INET6.to_ne_bytes());
            bytes.extend(address.port().to_be_bytes());
            bytes.extend(address.flowinfo().to_ne_bytes());
            bytes.extend(address.ip().octets());
            bytes.extend(address.scope_id().to_ne_bytes());
        }
    }
    bytes.resize(128, 0);
    bytes.try_into().unwrap_or([0; 128])
}

/// How many objects of each kind there are.
pub(crate) fn summary(
    exchange: &mut Exchange<'_>,
    asked: &Asked,
    dumps: bool,
    host: &mut impl Host,
) -> Result<(), Errno> {
    let devices: Vec<(u32, Device)> = match dumps {
        true => host.devices().into_iter().map(|device| (device.number, device)).collect(),
        false => vec![asked.device(host)?],
    };
    for (number, device) in devices {
        let mut message = exchange.message(command::RES_GET);
        handle(&mut message, number, &device);
        let counts = Kind::ALL.map(|kind| (kind.name(), Entries::of_all(&device, kind, host).len() as u64));
        message.nested(attribute::RES_SUMMARY, |to| {
            for (name, count) in counts {
                to.nested(attribute::RES_SUMMARY_ENTRY, |to| {
                    to.text(attribute::RES_SUMMARY_ENTRY_NAME, name).u64(attribute::RES_SUMMARY_ENTRY_CURR, count);
                });
            }
        });
        exchange.send(message);
    }
    Ok(())
}

/// The objects of a kind, or the one with a number.
pub(crate) fn tell(
    exchange: &mut Exchange<'_>,
    kind: Kind,
    asked: &Asked,
    dumps: bool,
    host: &mut impl Host,
) -> Result<(), Errno> {
    let (number, device) = asked.device(host)?;
    let (list, entry, id) = kind.attributes();
    let port = asked.port(&device)?;
    let wanted = match dumps {
        true => None,
        false => Some(asked.number(id).ok_or(EINVAL)?),
    };
    let mut entries = Entries::of_all(&device, kind, host);
    // Objects that have no port, or none yet, are of all ports where ports do not matter.
    let has_ports = matches!(kind, Kind::QueuePair | Kind::ConnectionId);
    let is_on = |entry: &ResourceEntry| match port {
        Some(port) if has_ports => entry.port.map(u32::from) == Some(port),
        _ => true,
    };
    entries.retain(|entry| is_on(entry) && wanted.is_none_or(|id| entry.number == id));
    if wanted.is_some() {
        let found = entries.first().ok_or(ENOENT)?;
        let mut message = exchange.message(kind.command());
        handle(&mut message, number, &device);
        message.raw(found.attributes.attributes());
        exchange.send(message);
        return Ok(());
    }
    let mut entries = entries.into_iter().peekable();
    while entries.peek().is_some() {
        let mut message = exchange.message(kind.command());
        handle(&mut message, number, &device);
        message.nested(list, |to| {
            while let Some(next) = entries.next_if(|next| fits(to, next)) {
                to.nested(entry, |to| {
                    to.raw(next.attributes.attributes());
                });
            }
        });
        exchange.send(message);
    }
    Ok(())
}

/// Whether one more may be in this message: the first always.
fn fits(message: &Message, next: &ResourceEntry) -> bool {
    message.length() < 256 || message.length() + next.attributes.length() <= MAX_MESSAGE_BYTES
}
