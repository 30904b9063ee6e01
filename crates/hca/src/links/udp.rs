//! The NIC's share of the host's UDP port, and a few sockets to send from, chosen by queue pair so that its packets
//! keep their order and different queue pairs do not wait for one another.

use crate::tuning::{PORT_TRIES, SEND_SOCKETS};
use ::host::forward::{Forwarder, Loss};
use ::host::names::{ManagementClass, Name};
use ::host::ports::Ports;
use ::host::slots::{Slot, Slots};
use latch::Rank;
use latch::plain::Mutex;
use link::Dropped;
use link::faults::Plan;
use link::udp::attachment::{AttachError, Attachment, Target};
use link::udp::{Arrival, BindError, Cargo, Family, Group, Route, SendError, Sender};
use memory::Guard;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use trace::DropReason;
use wire::{Headers, Qpn};

/// How packets of other hosts reach this process, in one address family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reach {
    /// By a socket of its own.
    Direct,
    /// Through ubiverbs of another user, which has the port.
    Forwarded {
        /// The user.
        uid: u32,
    },
    /// Not at all: a program that does not share it has the port, or the kernel has.
    Taken,
    /// Not at all: the system does not have the family.
    NoFamily,
    /// Not at all: the system gave no socket.
    Refused(String),
}

#[derive(Debug)]
pub(crate) struct Udp {
    attachment: Mutex<Attachment>,
    /// Messages of connection management to processes of this host take no socket: see [`tell`](Udp::tell).
    local: Mutex<Forwarder>,
    slots: Slots,
    /// The slot of this process by whose name it speaks to itself.
    slot: Option<Slot>,
    fd: RawFd,
    /// To send from: as many as it should be, or none where the family is switched off.
    v4: Vec<Socket>,
    v6: Vec<Socket>,
}

/// What a look at the sockets found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Anything: then there may be more.
    pub any: bool,
    /// Something beside the socket that brought packets last.
    pub elsewhere: bool,
    /// Hosts that should be made to send something, and the addresses of ours that they sent to.
    pub questions: Vec<(Ipv4Addr, Ipv4Addr)>,
    /// What went no further.
    pub drops: Vec<Dropped>,
    /// Datagrams that the kernel has dropped because a socket of ours was full, since the last look.
    pub overflow: u64,
}

/// A socket to send from.
#[derive(Debug)]
struct Socket {
    family: Family,
    port: u16,
    /// Of the kind that queue pairs are locked with: a thread that uses its right to those must not wait for one that
    /// sends and wants one.
    sender: latch::Mutex<Sender>,
}

impl Udp {
    /// Joins the other processes of the host. Without the port the NIC still works inside the host.
    pub fn open(slots: &Slots, ports: &Ports) -> Result<Udp, AttachError> {
        let attachment = Attachment::open(slots, ports)?;
        let fd = attachment.fd();
        let (v4, v6) = sockets()?;
        let attachment = Mutex::new(Rank::Attachment, attachment);
        let local = Mutex::new(Rank::LocalMessages, Forwarder::new());
        let slot = slots.owned().first().copied();
        Ok(Udp { attachment, local, slots: slots.clone(), slot, fd, v4, v6 })
    }

    /// Readable when something has arrived.
    pub fn fd(&self) -> RawFd {
        self.fd
    }

    /// The smallest receive buffer: what all our READ answers together must fit.
    pub fn buffer_size(&self) -> Option<u64> {
        let attachment = self.attachment.lock();
        let sizes = [Family::V4, Family::V6].into_iter().filter_map(|family| {
            let receiver = attachment.receiver(family)?;
            receiver.buffer_size().ok()
        });
        sizes.min().map(|size| size as u64)
    }

    /// Datagrams that the kernel dropped because the buffer of one of our sockets was full.
    pub fn overflowed(&self) -> u64 {
        self.attachment.lock().traffic().overflowed
    }

    /// How packets of other hosts reach us.
    pub fn reach(&self, family: Family) -> Reach {
        match self.attachment.lock().error(family) {
            None => Reach::Direct,
            Some(BindError::OtherUser { uid }) => Reach::Forwarded { uid: *uid },
            Some(BindError::Taken) => Reach::Taken,
            Some(BindError::NoFamily(_)) => Reach::NoFamily,
            Some(error) => Reach::Refused(error.to_string()),
        }
    }

    /// What keeps packets of other hosts from us for good: nothing, if another user's processes forward them.
    pub fn obstacle(&self, family: Family) -> Option<&'static str> {
        Some(match self.attachment.lock().error(family)? {
            BindError::OtherUser { .. } => return None,
            BindError::Taken => {
                "UDP port 4791 is held by something that does not share it (kernel Soft-RoCE, or another program), \
                 so no answer would arrive; only queue pairs of this process can be reached"
            }
            BindError::NoFamily(Family::V4) => "the system has no IPv4",
            BindError::NoFamily(Family::V6) => "the system has no IPv6",
            _ => "the system gave no socket for UDP port 4791, so no answer would arrive",
        })
    }

    /// Lets packets tell from now on their class and how many hops they had left.
    pub fn tell_all(&self) {
        self.attachment.lock().tell_all();
    }

    /// Changes what goes wrong with packets that arrive, before their ICRC is checked.
    pub fn change_faults(&self, plan: &Plan) {
        self.attachment.lock().change_faults(plan);
    }

    /// Joins a multicast group, as often as it is left again.
    pub fn join(&self, group: Group) -> std::io::Result<()> {
        self.attachment.lock().join(group)
    }

    /// Leaves it once.
    pub fn leave(&self, group: Group) {
        self.attachment.lock().leave(group);
    }

    /// The process is about to end: what comes for others should no longer come here.
    pub fn leave_soon(&self) {
        self.attachment.lock().leave_soon();
    }

    /// Whether a thread is at it. Gives it a moment to finish.
    pub fn is_tended(&self) -> bool {
        let tended = self.attachment.try_lock().is_none();
        if tended {
            let _shield = ::host::thread::Shield::up();
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        tended
    }

    /// Takes what has arrived; with a single system call, mostly, if only the socket that brought packets last is to be
    /// looked at. If another thread is at it, leaves it to that one.
    pub fn receive(&self, hot_only: bool, take: impl FnMut(&[Arrival<'_>])) -> Found {
        let Some(mut attachment) = self.attachment.try_lock() else { return Found::default() };
        // Packets that could not be passed on are among what went no further.
        let (any, elsewhere) = match hot_only {
            true => (attachment.poll_runs(take, |_, _| ()), false),
            false => (attachment.receive_runs(take, |_, _| ()), attachment.found_elsewhere()),
        };
        let drops = if attachment.has_drops() { attachment.take_drops() } else { Vec::new() };
        let overflow = if hot_only { 0 } else { attachment.take_overflow() };
        Found { any, elsewhere, questions: attachment.questions(), drops, overflow }
    }

    /// When the attachment wants to be looked at, though nothing arrives.
    pub fn next_deadline(&self) -> Option<std::time::Instant> {
        self.attachment.lock().deadline()
    }

    /// Begins to send what one queue pair has to send, which may be nothing. What is not sent is told to `teller`.
    pub fn outgoing<'a>(&'a self, teller: &'a dyn Teller, from: Qpn) -> Outgoing<'a> {
        Outgoing { teller, udp: self, from, sender: None }
    }

    /// Gives a message of connection management to the process of this host that it is for, over a connection on which
    /// the kernel says who speaks. One that no process has an ear for comes back to this one, which says so like any
    /// other that is asked for what it does not have. A request of another management class is for the process that has
    /// the class. False if it is lost: its process takes no more.
    pub fn tell(&self, arrival: &Arrival<'_>, class: Option<ManagementClass>) -> bool {
        let mut local = self.local.lock();
        let names = match Target::of(arrival) {
            Target::Queue(slot) | Target::Communication(slot) => [Some(Name::Slot(slot)), None],
            Target::Service(space, port) => local.names_of_port(space, port, std::time::Instant::now()).map(Some),
            Target::AllProcesses => {
                let Some(all) = local.all_slots(std::time::Instant::now()) else { return false };
                // A process that has gone has no request any more.
                let told = all.into_iter().map(|slot| local.tell(Name::Slot(slot), arrival));
                return told.fold(true, |all, told| all & matches!(told, Ok(()) | Err(Loss::NoOwner)));
            }
            Target::Here | Target::NoProcess => [class.map(Name::Class), None],
        };
        let own = self.slot.map(Name::Slot);
        for name in names.into_iter().flatten().chain(own) {
            // What is for this process goes one way, too, so that it keeps its order.
            let ours = own.filter(|_| self.slots.registry().has(name));
            match local.tell(ours.unwrap_or(name), arrival) {
                Ok(()) => return true,
                Err(Loss::NoOwner) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Passes a packet on to the process that has a management class. False if there is none.
    pub fn pass_on(&self, class: ManagementClass, arrival: &Arrival<'_>) -> Result<bool, Loss> {
        let mut local = self.local.lock();
        let (name, mut lost) = (Name::Class(class), None);
        if !local.reaches(name) {
            return Ok(false);
        }
        local.push(name, arrival, |_, loss| lost = Some(loss));
        local.flush(|_, loss| lost = Some(loss));
        match lost {
            None => Ok(true),
            Some(Loss::NoOwner) => Ok(false),
            Some(loss) => Err(loss),
        }
    }

    /// The port that packets of a queue pair come from; 0 if there is no socket to send them.
    pub fn port(&self, route: &Route, from: Qpn) -> u16 {
        self.socket(route, from).map_or(0, |socket| socket.port)
    }

    /// The socket that packets of a queue pair are sent from.
    fn socket(&self, route: &Route, from: Qpn) -> Option<&Socket> {
        let sockets = if route.destination.is_ipv4() { &self.v4 } else { &self.v6 };
        sockets.get(from.value() as usize % SEND_SOCKETS)
    }
}

/// Sockets to send from, of both families; none of one that is switched off, and none at all while others hold all
/// ports: what needs no UDP works all the same. Any other error is returned: the NIC could never send. A socket of each
/// family has the same port, so that no other user can have one with this port: a peer on this host believes a port if
/// all sockets that have it are of one user.
fn sockets() -> Result<(Vec<Socket>, Vec<Socket>), AttachError> {
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    for _ in 0..SEND_SOCKETS {
        match pair() {
            Ok((one, other)) => {
                v4.extend(one);
                v6.extend(other);
            }
            Err(error) if is_in_use(&error) => {
                let holder = ::host::holders::greatest_holder()
                    .map_or(String::new(), |(uid, count)| format!(" (user {uid} has {count} sockets)"));
                ::host::standard_error::say(format_args!(
                    "no UDP port is free to send from{holder}: only processes of this user and host are reached"
                ));
                return Ok(Default::default());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((v4, v6))
}

fn is_in_use(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EADDRINUSE)
}

/// A socket of each family with the same port.
fn pair() -> io::Result<(Option<Socket>, Option<Socket>)> {
    let mut taken = Vec::new();
    for tries in 1.. {
        // The system's choice; then any, for others may hold all that it chooses from.
        let port = if tries <= PORT_TRIES { 0 } else { 1024 + (::host::random() % (65_536 - 1024)) as u16 };
        let pair = socket(Family::V4, port).and_then(|v4| {
            match socket(Family::V6, v4.as_ref().map_or(port, |v4| v4.port)) {
                Ok(v6) => Ok((v4, v6)),
                Err(error) => {
                    // Another program has it there. The first is kept meanwhile, so that the system gives another.
                    taken.push(v4);
                    Err(error)
                }
            }
        });
        match pair {
            Err(error) if is_in_use(&error) && tries < 2 * PORT_TRIES => {}
            pair => return pair,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// None if the family is switched off.
fn socket(family: Family, port: u16) -> io::Result<Option<Socket>> {
    match Sender::open_port(family, port) {
        Ok(sender) => {
            let port = sender.port();
            Ok(Some(Socket { family, port, sender: latch::Mutex::new(Rank::Sender, sender) }))
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What a queue pair sends at once: trains that are put together into as few datagrams as they fit. What was not sent
/// yet is when this is dropped. It holds the socket from the first train on, so that no other packets come in between.
pub(crate) struct Outgoing<'a> {
    teller: &'a dyn Teller,
    udp: &'a Udp,
    from: Qpn,
    sender: Option<(Family, latch::Guard<'a, Sender>)>,
}

impl Outgoing<'_> {
    /// Sends a train, soon. Its payload may be lent: `lend` is asked when no other thread need be waited for any more.
    pub fn send<'m, C: Cargo>(
        &mut self,
        route: &Route,
        cargo: &mut C,
        lend: impl FnOnce() -> Option<Guard<'m>>,
        one_by_one: bool,
    ) -> Result<(), SendError<C::Error>> {
        let Some(sender) = self.sender(route) else {
            (0..cargo.count()).for_each(|index| self.no_route(Some(&cargo.packet(index).0)));
            return Ok(());
        };
        let lent = lend();
        let staged = sender.stage(route, cargo, lent.as_ref().map_or(&[], Guard::cells), one_by_one);
        if staged.is_err() {
            self.tell_unsent();
        }
        staged.map(drop)
    }

    /// Sends a packet, soon, that `write` writes down: so many bytes of headers, and of payload.
    #[inline]
    pub fn send_one<E>(
        &mut self,
        route: &Route,
        to: Qpn,
        lengths: (usize, usize),
        write: impl FnOnce(&mut [u8], &mut [u8]) -> Result<(), E>,
    ) -> Result<(), SendError<E>> {
        let Some(sender) = self.sender(route) else {
            self.no_route(None);
            return Ok(());
        };
        let staged = sender.stage_one(route, to, lengths, write);
        if staged.is_err() {
            self.tell_unsent();
        }
        staged.map(drop)
    }

    /// A packet goes no further because its family has no socket.
    #[cold]
    fn no_route(&self, headers: Option<&Headers>) {
        self.teller.tell(self.from, &Dropped { headers: headers.copied(), reason: DropReason::NoRoute });
    }

    /// Tells of packets that the system did not take.
    #[cold]
    fn tell_unsent(&mut self) {
        let Some((_, sender)) = &mut self.sender else { return };
        tell_unsent(self.teller, self.from, sender);
    }

    /// The socket for packets to go that way; none if there is none.
    fn sender(&mut self, route: &Route) -> Option<&mut Sender> {
        if self.sender.as_ref().is_none_or(|(family, _)| (*family == Family::V4) != route.destination.is_ipv4()) {
            self.flush();
            let socket = self.udp.socket(route, self.from)?;
            self.sender = Some((socket.family, socket.sender.lock()));
        }
        self.sender.as_mut().map(|(_, sender)| &mut **sender)
    }

    /// Sends what is left, and lets others send.
    pub fn flush(&mut self) {
        if let Some((_, mut sender)) = self.sender.take()
            && sender.flush::<Infallible>().is_err()
        {
            tell_unsent(self.teller, self.from, &mut sender);
        }
    }
}

#[cold]
fn tell_unsent(teller: &dyn Teller, from: Qpn, sender: &mut Sender) {
    sender.take_drops().iter().for_each(|dropped| teller.tell(from, dropped));
}

/// Is told what a queue pair sent and the system did not take.
pub(crate) trait Teller {
    fn tell(&self, from: Qpn, dropped: &Dropped);
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
