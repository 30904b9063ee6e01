//! What moves messages between the members of a group: connections, credits, forwarding, and who waits for whom.
//! Futures and wakers only: no thread, no clock.
//!
//! Every message that arrives is taken at once and its receive posted again, so no member waits for one that waits for
//! another. Credits count receives: a member sends a neighbour no more than that has room for.

mod failing;
mod linking;
mod sending;

pub(crate) use linking::{Introduction, Purpose};

use crate::bell::Bell;
use crate::call::{Call, Header, Kind};
use crate::error::Error;
use crate::secret::Secret;
use crate::settings::Settings;
use crate::topology::{Routes, Topology};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use ubiverbs::cm::{Connection, Listener, Pending, Request};
use ubiverbs::{
    Buffer, CloseReason, Completion, CompletionKind, CompletionQueue, ProtectionDomain, Qpn, RegisteredMut, Reliable,
    SharedReceiveQueue,
};

/// How often a group that waits looks at what takes long.
pub(crate) const TICK_INTERVAL: Duration = Duration::from_millis(50);

/// Calls that are remembered, to say who called what.
const MAX_REMEMBERED_CALLS: usize = 16;

/// The connections of one member.
pub(crate) struct Net {
    pub rank: u32,
    pub size: u32,
    pub topology: Topology,
    pub settings: Settings,
    routes: Routes,
    session: Secret,
    addresses: Vec<SocketAddr>,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    listener: Listener<Reliable>,
    /// The next who asks.
    asking: Option<Pending<Request<Reliable>>>,
    peers: Vec<Peer>,
    /// Those that the topology connects us with.
    near: Vec<u32>,
    by_number: HashMap<Qpn, u32>,
    free: Vec<RegisteredMut>,
    bell: Arc<Bell>,
    /// [`Bell`] as a waker.
    rings: Waker,
    tick: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Ticks since the last message of the call.
    quiet: u32,
    failure: Option<Error>,
    /// The neighbours have heard of the failure, as far as they do.
    parted: bool,
    sequence: u32,
    /// The call that is under way.
    current: Option<Call>,
    history: VecDeque<Call>,
    awaits: Option<u32>,
    /// Who says that it waits for whom, in this call.
    waits: BTreeMap<u32, u32>,
    /// When we said so, in ticks.
    said: Option<u32>,
}

/// Another member.
struct Peer {
    state: State,
    outbox: VecDeque<Outgoing>,
    /// How many messages it has room for.
    credits: u32,
    /// Receives posted that it was not told of.
    owed: u16,
    posted: u32,
    completed: u32,
    parts: VecDeque<Message>,
    letters: VecDeque<Message>,
    /// What came before we knew that the connection stands.
    early: Vec<Completion>,
    /// Ticks since it left.
    left: Option<u32>,
}

enum State {
    Apart,
    /// We ask.
    Asking(Attempt),
    /// It asked.
    Accepting(Attempt),
    Up {
        connection: Connection,
        closed: Pending<CloseReason>,
    },
    /// It left, or died.
    Gone,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Connection, ubiverbs::Error>> + Send>>;

/// A message that waits for credits or for room in the send queue.
enum Outgoing {
    Short(Box<[u8]>),
    Slot { buffer: RegisteredMut, length: usize },
}

/// A message that arrived, in its buffer.
pub(crate) struct Message {
    pub header: Header,
    pub buffer: RegisteredMut,
    length: usize,
}

impl Message {
    pub fn payload(&self) -> &[u8] {
        &self.buffer[Header::LENGTH..self.length]
    }

    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[Header::LENGTH..self.length]
    }
}

/// What a group is made of once its members have met.
pub(crate) struct Parts {
    pub rank: u32,
    pub size: u32,
    pub topology: Topology,
    pub settings: Settings,
    pub session: Secret,
    pub addresses: Vec<SocketAddr>,
    pub pd: ProtectionDomain,
    pub listener: Listener<Reliable>,
}

impl Net {
    pub fn new(parts: Parts) -> Result<Net, Error> {
        let Parts { rank, size, topology, settings, session, addresses, pd, listener } = parts;
        let cq = pd.context().completion_queue(256).create()?;
        let shares = settings.shares(topology.most(size));
        let routes = if settings.on_demand { Routes::Direct } else { Routes::along(&topology, rank, size) };
        let bell = Arc::new(Bell::default());
        let peer = |_| Peer {
            state: State::Apart,
            outbox: VecDeque::new(),
            credits: settings.receives,
            owed: 0,
            posted: 0,
            completed: 0,
            parts: VecDeque::new(),
            letters: VecDeque::new(),
            early: Vec::new(),
            left: None,
        };
        let shared = match shares {
            Some(receives) => Some(pd.shared_receive_queue(receives)?),
            None => None,
        };
        let mut net = Net {
            rank,
            size,
            routes,
            session,
            addresses,
            pd,
            cq,
            shared,
            listener,
            asking: None,
            peers: (0..size).map(peer).collect(),
            near: Vec::new(),
            by_number: HashMap::new(),
            free: Vec::new(),
            rings: Waker::from(Arc::clone(&bell)),
            bell,
            tick: None,
            quiet: 0,
            failure: None,
            parted: false,
            sequence: 0,
            current: None,
            history: VecDeque::new(),
            awaits: None,
            waits: BTreeMap::new(),
            said: None,
            topology,
            settings,
        };
        if let Some(queue) = net.shared.clone() {
            for _ in 0..queue.capacity() {
                queue.recv(net.slot()?)?.polled(0);
            }
        }
        Ok(net)
    }

    /// A buffer for a message.
    pub fn slot(&mut self) -> Result<RegisteredMut, Error> {
        /// How many are registered together.
        const REGISTRATIONS_PER_CALL: usize = 8;
        if self.free.is_empty() {
            let length = self.settings.slot + Header::LENGTH;
            self.free = self.pd.allocate(REGISTRATIONS_PER_CALL * length)?.chunks(length);
        }
        self.free.pop().ok_or_else(|| Error::Verbs("no buffer is left".into()))
    }

    pub fn give_back(&mut self, buffer: RegisteredMut) {
        self.free.push(buffer);
    }

    /// Begins a call.
    pub fn begin(&mut self, call: Call) -> Result<(), Error> {
        if let Some(abandoned) = self.current {
            let rank = self.rank;
            return Err(self.fail(Error::Abandoned { rank, call: abandoned }));
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.current = Some(call);
        self.quiet = 0;
        self.said = None;
        self.waits.clear();
        if self.history.len() == MAX_REMEMBERED_CALLS {
            self.history.pop_front();
        }
        self.history.push_back(call);
        // What came before we were here was not looked at.
        for rank in 0..self.size {
            if let Some(part) = self.peers[rank as usize].parts.front() {
                let (sequence, theirs) = (part.header.sequence, part.header.call);
                self.compare(rank, sequence, theirs)?;
            }
        }
        Ok(())
    }

    /// Ends a call, well or badly.
    pub fn end(&mut self) {
        self.current = None;
        self.awaits = None;
    }

    /// The next message of a member for this call.
    pub async fn part(&mut self, from: u32) -> Result<Message, Error> {
        loop {
            if let Some(part) = self.peers[from as usize].parts.pop_front() {
                self.heard();
                if part.header.sequence != self.sequence || Some(part.header.call) != self.current {
                    return Err(self.differ(from, part.header.call));
                }
                return Ok(part);
            }
            self.wait_for(from).await?;
        }
    }

    /// The next message of a member outside of calls of all.
    pub async fn letter(&mut self, from: u32) -> Result<Message, Error> {
        loop {
            if let Some(letter) = self.peers[from as usize].letters.pop_front() {
                self.heard();
                return Ok(letter);
            }
            self.wait_for(from).await?;
        }
    }

    /// The call goes on.
    fn heard(&mut self) {
        self.quiet = 0;
        self.said = None;
    }

    /// Whether a message of a member waits.
    pub fn has_part(&self, from: u32) -> bool {
        !self.peers[from as usize].parts.is_empty()
    }

    /// Waits until something has happened, while a message of this member is due.
    pub async fn wait(&mut self, from: u32) -> Result<(), Error> {
        self.wait_for(from).await
    }

    async fn wait_for(&mut self, from: u32) -> Result<(), Error> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.awaits = Some(from);
        self.progress().await
    }

    /// Waits until something has happened, and does what follows from it.
    pub async fn progress(&mut self) -> Result<(), Error> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let cq = self.cq.clone();
        let mut done = None;
        // Looking drives the NIC; only who is about to sleep leaves a waker.
        for completion in cq.poll()? {
            done = Some(done.unwrap_or(Ok(())).and(self.completed(completion)));
        }
        if done.is_none()
            && !context.waker().will_wake(Waker::noop())
            && let Poll::Ready(completion) = pin!(cq.next()).poll(context)
        {
            done = Some(self.completed(completion?));
        }
        if let Some(done) = done {
            crate::pending::has_arrived();
            return Poll::Ready(done);
        }
        if self.tick.is_none() || self.bell.was_rung(context.waker()) {
            return Poll::Ready(self.background());
        }
        Poll::Pending
    }

    fn completed(&mut self, completion: Completion) -> Result<(), Error> {
        let Some(&rank) = self.by_number.get(&completion.qpn()) else { return Ok(()) };
        let is_receive = matches!(completion.kind(), CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate);
        if is_receive {
            let peer = &mut self.peers[rank as usize];
            if completion.is_ok() && matches!(peer.state, State::Asking(_) | State::Accepting(_)) {
                peer.early.push(completion);
                return Ok(());
            }
            return match completion.into_received() {
                Ok(received) => {
                    let length = received.bytes();
                    self.arrived(rank, received.into_buffer(), length)
                }
                // The connection has ended, and says so itself.
                Err(failed) => {
                    self.reclaim(failed.buffer);
                    Ok(())
                }
            };
        }
        if completion.is_ok() {
            self.peers[rank as usize].completed = completion.wr_id() as u32;
        }
        self.reclaim(completion.into_buffer());
        self.flush(rank)
    }

    fn reclaim(&mut self, buffer: Option<Buffer>) {
        let buffer = match buffer {
            Some(Buffer::Mut(buffer)) => Some(buffer),
            Some(Buffer::Part(part)) => part.buffer.into_mut(),
            _ => None,
        };
        self.free.extend(buffer);
    }

    /// A message of a neighbour's, its own or one that it passes on.
    fn arrived(&mut self, via: u32, buffer: RegisteredMut, length: usize) -> Result<(), Error> {
        let fresh = self.slot()?;
        match (&self.shared, &self.peers[via as usize].state) {
            (Some(queue), _) => queue.recv(fresh)?.polled(0),
            (None, State::Up { connection, .. }) => match connection.recv(fresh) {
                Ok(receiving) => receiving.polled(0),
                Err(failed) => self.free.push(failed.buffer),
            },
            _ => self.free.push(fresh),
        }
        let header = match Header::decode(&buffer[..length], self.size) {
            Ok(header) => header,
            Err(what) => return Err(self.fail(Error::nonsense(via, what))),
        };
        let most = self.settings.receives;
        let peer = &mut self.peers[via as usize];
        peer.credits = (peer.credits + u32::from(header.credits)).min(most);
        if matches!(header.kind, Kind::Part | Kind::Letter) {
            peer.owed = peer.owed.saturating_add(1);
            if u32::from(peer.owed) > most / 2 {
                self.send_credits(via)?;
            }
        }
        let message = Message { header, buffer, length };
        let kept = self.sort(via, message);
        self.flush(via)?;
        kept
    }

    fn sort(&mut self, via: u32, message: Message) -> Result<(), Error> {
        let Header { kind, origin, destination, sequence, call, .. } = message.header;
        match kind {
            Kind::Part | Kind::Letter if destination != self.rank => {
                let hop = self.routes.hop(destination);
                if hop == via || hop == self.rank || origin == self.rank {
                    return Err(self.fail(Error::nonsense(via, "a message that goes around")));
                }
                let Message { buffer, length, .. } = message;
                self.peers[hop as usize].outbox.push_back(Outgoing::Slot { buffer, length });
                self.reach(hop)?;
                return self.flush(hop);
            }
            Kind::Part | Kind::Letter if origin == self.rank => {
                return Err(self.fail(Error::nonsense(via, "a message of ours")));
            }
            Kind::Part => {
                self.peers[origin as usize].parts.push_back(message);
                if self.current.is_some() {
                    return self.compare(origin, sequence, call);
                }
            }
            Kind::Letter => self.peers[origin as usize].letters.push_back(message),
            Kind::Credits => self.give_back(message.buffer),
            Kind::Waits => {
                let whom = message.header.step;
                self.give_back(message.buffer);
                self.heard_wait(via, origin, whom, sequence)?;
            }
            Kind::Failure => {
                let heard = crate::verdict::decode(message.payload(), self.size);
                self.give_back(message.buffer);
                let heard = heard.unwrap_or_else(|| Error::nonsense(via, "a failure without meaning"));
                return Err(self.fail(heard));
            }
        }
        Ok(())
    }

    /// Whether a member does what we do, as far as its message tells.
    fn compare(&mut self, origin: u32, sequence: u32, theirs: Call) -> Result<(), Error> {
        let behind = self.sequence.wrapping_sub(sequence);
        let ours = match behind {
            0 => self.current,
            // It is ahead, or far away.
            _ => self.history.len().checked_sub(behind as usize + 1).and_then(|at| self.history.get(at).copied()),
        };
        match ours {
            Some(ours) if ours != theirs => {
                let rank = self.rank;
                Err(self.fail(Error::Calls { rank: origin, theirs, other: rank, ours }))
            }
            _ => Ok(()),
        }
    }

    /// A member does something else than we.
    fn differ(&mut self, from: u32, theirs: Call) -> Error {
        let rank = self.rank;
        match self.current {
            Some(ours) if ours != theirs => self.fail(Error::Calls { rank: from, theirs, other: rank, ours }),
            _ => self.fail(Error::nonsense(from, "a part of another call")),
        }
    }

    /// What takes long: attempts to connect, requests, ends of connections, ticks.
    fn background(&mut self) -> Result<(), Error> {
        let rings = self.rings.clone();
        let mut context = Context::from_waker(&rings);
        // All are looked at, whatever one of them says: each rings once.
        let mut done = self.poll_requests(&mut context);
        for rank in 0..self.size {
            done = done.and(self.poll_peer(rank, &mut context));
        }
        let tick = self.tick.get_or_insert_with(|| {
            Box::pin(async {
                ubiverbs::sleep(TICK_INTERVAL).await;
            })
        });
        if tick.as_mut().poll(&mut context).is_ready() {
            self.tick = None;
            self.quiet += 1;
            return done.and_then(|()| self.ticked());
        }
        done
    }

    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// How many queue pairs it has now.
    pub fn queue_pairs(&self) -> u32 {
        self.peers.iter().filter(|peer| matches!(peer.state, State::Up { .. })).count() as u32
    }
}
