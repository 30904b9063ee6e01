//! A program of work as data: hosts, wires, queue pairs, what each posts and when, what the network does to it, and at most one deliberate
//! fault. It is made by `generate`, cut down by `shrink`, and printed when it fails. It knows no keys and no addresses; `run` finds those.

use sim::{ConnectOptions, LinkConfig, ReceiveBuffer};
use std::fmt;
use transport::{Capabilities, Status};

/// Everything that decides a run.
#[derive(Clone, Debug)]
pub struct Program {
    /// Of the simulation and of what the bytes are.
    pub seed: u64,
    pub hosts: Vec<HostPlan>,
    /// Every direction between two hosts, and of a host to itself.
    pub links: Vec<(usize, usize, LinkConfig)>,
    pub adversary: Adversary,
    pub channels: Vec<Channel>,
    pub shared: Vec<SharedQueue>,
    /// What happens at what time, in order.
    pub disturbances: Vec<(u64, Disturbance)>,
    pub fault: Option<Fault>,
    /// When all is over, the queue pairs are reset and connected anew, and everything is done once more.
    pub encore: bool,
}

#[derive(Clone, Debug)]
pub struct HostPlan {
    pub receive_buffer: ReceiveBuffer,
    /// Nanoseconds per packet.
    pub service: u64,
    /// The largest congestion window.
    pub window: u64,
}

/// Faults the network commits by script, on top of what its links do. It relents where a retry budget is about to run out, so that a
/// reliable connection must survive it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Adversary {
    pub loss: f64,
    pub duplication: f64,
    pub delay: f64,
    /// The longest delay, in nanoseconds.
    pub delay_by: u64,
    pub corruption: f64,
    pub marking: f64,
}

impl Adversary {
    pub fn is_idle(&self) -> bool {
        self.loss + self.duplication + self.delay + self.corruption + self.marking == 0.0
    }
}

/// The service of a channel. The first end of an XRC channel is the initiator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    Rc,
    Uc,
    Ud,
    Xrc,
}

impl Service {
    pub fn is_reliable(self) -> bool {
        matches!(self, Service::Rc | Service::Xrc)
    }
}

/// Two queue pairs that know each other.
#[derive(Clone, Debug)]
pub struct Channel {
    pub service: Service,
    pub options: ConnectOptions,
    pub ends: [End; 2],
}

/// A queue pair, the work it posts, and the receives for what its peer sends. The work of an end has memory to itself: `source` and
/// `landing` on its own host, `target` on its peer's.
#[derive(Clone, Debug)]
pub struct End {
    pub host: usize,
    pub steps: Vec<Step>,
    pub areas: Areas,
    pub receives: Receives,
    pub capabilities: Capabilities,
    pub signal_all: bool,
}

/// Lengths of the areas an end's work uses, and whether each has a key of its own or that of all the host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Areas {
    pub source: u32,
    pub landing: u32,
    pub target: u32,
    pub own_keys: bool,
    /// The window over the target that steps may bind: type 1 or 2.
    pub window: Option<u8>,
}

/// Where messages to an end find their receives.
#[derive(Clone, Debug)]
pub enum Receives {
    Own(Vec<Receive>),
    /// The shared receive queue of this number; of an XRC target every message names its own.
    Shared(usize),
    Nowhere,
}

/// One receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// When it is posted; 0 is before any work.
    pub at: u64,
    /// Lengths of its pieces.
    pub pieces: Vec<u32>,
    /// Its last piece names memory it may not write.
    pub flawed: bool,
}

#[derive(Clone, Debug)]
pub struct SharedQueue {
    pub host: usize,
    pub xrc: bool,
    pub receives: Vec<Receive>,
}

/// What an end does next.
#[derive(Clone, Debug)]
pub enum Step {
    Post(Item),
    /// Until all its work has completed.
    Wait,
    Pause(u64),
    /// Puts new bytes into part of its source; only after a wait.
    Refill {
        offset: u32,
        length: u32,
        seed: u64,
    },
    /// To SQD, `posts` more pieces of work, and back once drained.
    Drain {
        posts: usize,
    },
    /// Waits, then has the peer bind the window to part of the target.
    Bind {
        offset: u32,
        length: u32,
        zero_based: bool,
    },
    /// Waits, then has the peer take the window away.
    Unbind,
}

/// One work request.
#[derive(Clone, Debug)]
pub struct Item {
    pub action: Action,
    pub pieces: Vec<Piece>,
    pub inline: bool,
    pub signaled: bool,
    pub fenced: bool,
    pub solicited: bool,
    /// Reaches the target through the window.
    pub by_window: bool,
    /// XRC: which shared receive queue. UD: which end, if not the peer.
    pub to: Option<usize>,
    /// What is wrong with it.
    pub flaw: Option<Flaw>,
}

impl Item {
    pub fn length(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.length).sum()
    }

    /// Whether it uses a receive.
    pub fn consumes(&self) -> bool {
        match self.action {
            Action::Send { .. } | Action::SendInvalidate => true,
            Action::Write { immediate, .. } => immediate.is_some(),
            _ => false,
        }
    }
}

/// What a work request does; `at` is an offset into the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Send {
        immediate: Option<u32>,
    },
    /// Invalidates the window.
    SendInvalidate,
    Write {
        at: u32,
        immediate: Option<u32>,
    },
    Read {
        at: u32,
    },
    /// Swaps if `hit`: then it compares with what the model says is there.
    CompareSwap {
        at: u32,
        hit: bool,
        swap: u64,
    },
    FetchAdd {
        at: u32,
        add: u64,
    },
    /// Adds to a counter of the peer's host that others add to as well.
    SharedAdd {
        counter: usize,
        add: u64,
    },
    AtomicWrite {
        at: u32,
    },
    Flush {
        at: u32,
        length: u32,
    },
    /// Invalidates a key that is none of its window's.
    LocalInvalidate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemorySide {
    Source,
    Landing,
}

/// Part of an end's own memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub place: MemorySide,
    pub offset: u32,
    pub length: u32,
}

/// What can be wrong with one work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    RemoteKeyUnknown,
    RemoteDomain,
    RemoteRight,
    RemoteBeyond,
    Misaligned,
    /// Longer than its receive.
    TooLong,
    /// Its receive is flawed.
    BadReceive,
    InvalidateUnknown,
    WindowGone,
    LocalKeyUnknown,
    LocalDomain,
    LocalBeyond,
    /// The landing may not be written.
    LocalRight,
    /// An atomic with less than eight bytes to land in.
    ShortLanding,
    /// Local invalidate of a key that cannot be invalidated.
    LocalInvalidate,
    /// A datagram longer than the port carries.
    TooLongForPort,
    /// No receive will ever be posted for it.
    NeverReady,
}

impl Flaw {
    /// Whether the sender's own NIC finds it.
    pub fn is_local(self) -> bool {
        matches!(
            self,
            Flaw::LocalKeyUnknown
                | Flaw::LocalDomain
                | Flaw::LocalBeyond
                | Flaw::LocalRight
                | Flaw::ShortLanding
                | Flaw::LocalInvalidate
                | Flaw::TooLongForPort
        )
    }

    /// Whether it needs a receive of its own.
    pub fn is_of_receives(self) -> bool {
        matches!(self, Flaw::TooLong | Flaw::BadReceive | Flaw::NeverReady)
    }

    /// How the sender may learn of it.
    pub fn statuses(self) -> &'static [Status] {
        match self {
            Flaw::RemoteKeyUnknown | Flaw::RemoteDomain | Flaw::RemoteRight | Flaw::RemoteBeyond | Flaw::WindowGone => {
                &[Status::RemoteAccess]
            }
            Flaw::Misaligned | Flaw::TooLong => &[Status::RemoteInvalidRequest],
            Flaw::BadReceive => &[Status::RemoteOperation],
            Flaw::InvalidateUnknown => &[Status::RemoteAccess, Status::RemoteInvalidRequest, Status::RemoteOperation],
            Flaw::LocalKeyUnknown | Flaw::LocalDomain | Flaw::LocalBeyond | Flaw::LocalRight => {
                &[Status::LocalProtection]
            }
            Flaw::ShortLanding | Flaw::TooLongForPort => &[Status::LocalLength],
            Flaw::LocalInvalidate => &[Status::LocalQpOperation, Status::LocalProtection, Status::MemoryWindowBind],
            Flaw::NeverReady => &[Status::RnrRetryExceeded],
        }
    }
}

/// The deliberate fault of a program: which end suffers from it, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Counted over all channels: channel `end / 2`, side `end % 2`.
    pub end: usize,
    pub kind: FaultKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// One of its work requests has a flaw.
    Work(Flaw),
    /// At this time nothing passes on its channel any more.
    Silence(u64),
    /// At this time its peer leaves for this state, or is destroyed.
    PeerLeaves(u64, Leave),
    /// At this time its own program moves it to ERR.
    Aborts(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leave {
    Error,
    Reset,
    Destroyed,
}

impl FaultKind {
    /// Whether a queue pair ceases to exist.
    pub fn is_destruction(self) -> bool {
        matches!(self, FaultKind::PeerLeaves(_, Leave::Destroyed))
    }

    /// Where the work stops depends on the moment, not on the work.
    pub fn is_timed(self) -> bool {
        !matches!(self, FaultKind::Work(_))
    }
}

/// Something that happens to hosts and links.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Disturbance {
    Link(usize, usize, LinkConfig),
    Partition(usize, usize),
    Heal(usize, usize),
    Pause(usize),
    Resume(usize),
    Service(usize, u64),
}

impl Program {
    pub fn end(&self, end: usize) -> &End {
        &self.channels[end / 2].ends[end % 2]
    }

    pub fn ends(&self) -> usize {
        2 * self.channels.len()
    }

    /// Whether every receive is there before the message for it.
    pub fn is_prompt(&self) -> bool {
        let early = |receives: &[Receive]| receives.iter().all(|receive| receive.at == 0);
        let own = self.channels.iter().flat_map(|channel| &channel.ends).all(|end| match &end.receives {
            Receives::Own(receives) => early(receives),
            _ => true,
        });
        own && self.shared.iter().all(|queue| early(&queue.receives))
    }
}

impl Program {
    /// Whether nothing happens to any packet, and nobody is late.
    pub fn is_calm(&self) -> bool {
        let calm = |link: &LinkConfig| {
            link.loss + link.duplication + link.reordering + link.corruption == 0.0 && link.bandwidth.is_none()
        };
        self.adversary.is_idle()
            && self.disturbances.is_empty()
            && self.is_prompt()
            && self.hosts.iter().all(|host| host.service == 0)
            && self.links.iter().all(|(_, _, link)| calm(link))
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "simulation seed {}", self.seed)?;
        for (number, host) in self.hosts.iter().enumerate() {
            let HostPlan { receive_buffer, service, window } = host;
            writeln!(f, "host {number}: buffer {receive_buffer:?}, {service} ns per packet, window up to {window}")?;
        }
        for (from, to, link) in &self.links {
            writeln!(f, "link {from} -> {to}: {link:?}")?;
        }
        writeln!(f, "{:?}", self.adversary)?;
        for (at, what) in &self.disturbances {
            writeln!(f, "at {at} ns: {what:?}")?;
        }
        for (number, queue) in self.shared.iter().enumerate() {
            let kind = if queue.xrc { "XRC shared queue" } else { "shared queue" };
            write!(f, "{kind} {number} of host {}:", queue.host)?;
            receives(f, &queue.receives)?;
        }
        for (number, channel) in self.channels.iter().enumerate() {
            writeln!(f, "channel {number}: {:?}, {:?}", channel.service, channel.options)?;
            for (side, end) in channel.ends.iter().enumerate() {
                let End { host, areas, capabilities, signal_all, .. } = end;
                let signal = if *signal_all { ", all signaled" } else { "" };
                writeln!(f, "  end {}: host {host}{signal}, {areas:?}, {capabilities:?}", 2 * number + side)?;
                match &end.receives {
                    Receives::Own(own) => {
                        write!(f, "    receives:")?;
                        receives(f, own)?;
                    }
                    Receives::Shared(queue) => writeln!(f, "    receives from shared queue {queue}")?,
                    Receives::Nowhere => {}
                }
                for step in &end.steps {
                    match step {
                        Step::Post(item) => writeln!(f, "    {item}")?,
                        other => writeln!(f, "    {other:?}")?,
                    }
                }
            }
        }
        match &self.fault {
            Some(fault) => writeln!(f, "the fault: {fault:?}")?,
            None => writeln!(f, "no fault")?,
        }
        if self.encore { writeln!(f, "and all of it once more after a reset") } else { Ok(()) }
    }
}

fn receives(f: &mut fmt::Formatter<'_>, receives: &[Receive]) -> fmt::Result {
    for receive in receives {
        write!(f, " {:?}", receive.pieces)?;
        if receive.at > 0 {
            write!(f, "@{}", receive.at)?;
        }
        if receive.flawed {
            f.write_str("!")?;
        }
    }
    writeln!(f)
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {} bytes from", self.action, self.length())?;
        for Piece { place, offset, length } in &self.pieces {
            write!(f, " {place:?}[{offset}+{length}]")?;
        }
        let words = [
            (self.inline, "inline"),
            (!self.signaled, "unsignaled"),
            (self.fenced, "fenced"),
            (self.solicited, "solicited"),
            (self.by_window, "through the window"),
        ];
        for (_, word) in words.iter().filter(|(given, _)| *given) {
            write!(f, ", {word}")?;
        }
        if let Some(to) = self.to {
            write!(f, ", to {to}")?;
        }
        match self.flaw {
            Some(flaw) => write!(f, ", flawed: {flaw:?}"),
            None => Ok(()),
        }
    }
}
