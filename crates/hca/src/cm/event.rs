//! What the connection manager tells a program, on a channel whose descriptor is a real one.

use super::id::Id;
use crate::objects::channel::Channel;
use crate::objects::completion_queue::Observer;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use transport::AddressVector;
use wire::{Qkey, Qpn};

/// Where events of ids arrive, oldest first.
#[derive(Debug)]
#[doc(alias = "rdma_event_channel")]
pub struct EventChannel {
    events: Channel<Event>,
    observer: OnceLock<Observer>,
    /// Something was added that the observer has not been told of.
    fresh: AtomicBool,
}

impl EventChannel {
    /// An empty one.
    pub fn new() -> io::Result<EventChannel> {
        Ok(EventChannel { events: Channel::new()?, observer: OnceLock::new(), fresh: AtomicBool::new(false) })
    }

    /// A number that no other channel of the process has.
    pub fn number(&self) -> u32 {
        self.events.number()
    }

    /// The oldest event. Waits for one unless the descriptor is non-blocking; the error is `WouldBlock` then.
    #[doc(alias = "rdma_get_cm_event")]
    pub fn take(&self) -> io::Result<Event> {
        self.events.take().inspect(Event::seen)
    }

    /// The oldest event, if there is one.
    pub fn try_take(&self) -> Option<Event> {
        self.events.try_take().inspect(Event::seen)
    }

    /// Whether the program has made the descriptor non-blocking.
    pub fn is_nonblocking(&self) -> io::Result<bool> {
        self.events.is_nonblocking()
    }

    /// The descriptor to wait for: readable while there are events.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }

    /// The descriptor's number, for programs.
    pub fn raw_fd(&self) -> RawFd {
        self.events.raw_fd()
    }

    /// Calls `observer` after something was added, in whichever thread did so, with no lock held. Set once; false if
    /// there was one.
    pub fn observe(&self, observer: impl Fn() + Send + Sync + 'static) -> bool {
        self.observer.set(Observer(Box::new(observer))).is_ok()
    }

    pub(crate) fn push(&self, event: Event) {
        self.events.push(event);
        self.fresh.store(true, Ordering::Release);
    }

    /// Whether there is something to tell an observer.
    pub(crate) fn has_news(&self) -> bool {
        self.observer.get().is_some() && self.fresh.load(Ordering::Acquire)
    }

    /// Tells the observer, which may call the connection manager: nothing of it must be locked.
    pub(crate) fn announce(&self) {
        if let Some(Observer(observer)) = self.observer.get()
            && self.fresh.swap(false, Ordering::AcqRel)
        {
            observer();
        }
    }

    pub(crate) fn extract(&self, wanted: impl FnMut(&Event) -> bool) -> Vec<Event> {
        self.events.extract(wanted)
    }
}

/// What happened, with the numbers of `rdma_cm_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The address has a device and a source address.
    AddressResolved = 0,
    /// It has not.
    AddressError = 1,
    /// The way is known.
    RouteResolved = 2,
    /// It is not.
    RouteError = 3,
    /// A peer asks a listener for a connection.
    ConnectRequest = 4,
    /// The peer accepted; the queue pair is to be made ready, and then [`Id::establish`] is due.
    ConnectResponse = 5,
    /// Something went wrong while connecting.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer does not want to.
    Rejected = 8,
    /// The connection stands.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
    /// The group was joined.
    MulticastJoin = 12,
    /// It was not, or no longer.
    MulticastError = 13,
    /// The address of the device changed.
    AddressChange = 14,
    /// The queue pair's number may be used again.
    TimewaitExit = 15,
    /// A name was looked up.
    AddressInfoResolved = 16,
    /// It could not be.
    AddressInfoError = 17,
    /// What the program itself has to say.
    User = 18,
}

/// What comes with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Body {
    /// Nothing.
    #[default]
    None,
    /// What a peer said of a connection, from our point of view.
    Connection(ConnectionBody),
    /// How to reach a queue pair of datagrams, or a group.
    Datagram(DatagramBody),
    /// What the program wrote itself.
    Number(u64),
}

/// What a peer said of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionBody {
    /// What it wants its peer to know: as long as the field of the message, filled up with zeros.
    pub private_data: Vec<u8>,
    /// How many READs and atomics of the peer's we are asked to answer at a time.
    pub responder_resources: u8,
    /// How many of ours the peer answers at a time.
    pub initiator_depth: u8,
    /// Whether the peer does end-to-end flow control.
    pub flow_control: bool,
    /// How often to retry.
    pub retry_count: u8,
    /// How often to retry when the receiver is not ready.
    pub rnr_retry_count: u8,
    /// Whether the peer's queue pair has a shared receive queue.
    pub srq: bool,
    /// The peer's queue pair.
    pub qpn: u32,
    /// Vendor and options of the peer's enhanced connection establishment.
    pub ece: ::cm::Ece,
    /// How the connection ended, with [`EventKind::Disconnected`].
    pub end: Option<trace::ConnectionEnd>,
}

/// How to reach a queue pair of datagrams.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramBody {
    /// As in [`ConnectionBody`].
    pub private_data: Vec<u8>,
    /// The way.
    pub av: AddressVector,
    /// The queue pair, or the number that stands for a group.
    pub qpn: Qpn,
    /// The key its datagrams show.
    pub qkey: Qkey,
    /// What the program gave when it joined a group.
    pub user: u64,
}

/// Something that happened to an id.
#[derive(Clone, Debug)]
pub struct Event {
    /// To which. A request comes with an id of its own.
    pub id: Arc<Id>,
    /// The id that listens, if it is a request.
    pub listener: Option<Arc<Id>>,
    /// What.
    pub kind: EventKind,
    /// 0, a negative errno, or the reason of a rejection.
    pub status: i32,
    /// What comes with it.
    pub body: Body,
}

impl Event {
    /// A program has it: a request no longer counts towards the backlog.
    fn seen(&self) {
        if self.kind == EventKind::ConnectRequest {
            self.id.taken();
        }
    }
}
