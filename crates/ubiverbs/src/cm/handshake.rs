//! How a connection comes to be: two queue pairs are told of each other and made ready, in the order that loses
//! nothing.

use super::connection::Connection;
use super::hub::Party;
use super::pending::Pending;
use super::{ConnectError, ConnectParameters, ConnectionBody, EventKind, IdOption};
use crate::domain::ProtectionDomain;
use crate::queue_pair::PreparedQueuePair;
use crate::transports::{Connected, Transport};
use seam::Error;
use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;
use transport::{Modify, State};

/// A connection about to be made: by [`Route::connect`](super::Route::connect), or by
/// [`Request::accept`](super::Request::accept). What is not said is as most programs want it: a queue pair, a
/// completion queue and a protection domain of its own.
///
/// `wait` for it, or await it.
///
/// ```
/// use ubiverbs::{Access, Reliable, RemoteSlice, cm};
///
/// # let listener = cm::Listener::bind("127.0.0.1:0")?;
/// # let address = listener.local_addr();
/// # let server = std::thread::spawn(move || -> Result<(), ubiverbs::Error> {
/// #     let request = listener.next().wait()?;
/// #     let there = RemoteSlice::from_bytes(&request.private_data()[..RemoteSlice::ENCODED])?;
/// #     let connection = request.accept().private_data(b"welcome").wait()?;
/// #     connection.write_inline(b"hi", there)?.wait()?;
/// #     connection.disconnect().wait()
/// # });
/// // A region to share, and a queue pair in the same domain; the peer learns of the region with the request.
/// let route = cm::resolve(address).wait()?;
/// let context = route.context()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.completion_queue(16).create()?;
/// let region = pd.share(4096, Access::REMOTE_WRITE)?;
/// let qp = pd.queue_pair::<Reliable>(&cq).max_receives(8).prepare()?;
/// let connection =
///     route.connect().queue_pair(qp).private_data(&region.remote_slice().to_bytes()).wait()?;
/// assert!(connection.private_data().starts_with(b"welcome"));
/// # connection.closed().wait()?;
/// # server.join().unwrap()?;
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[must_use = "await it, or `wait` for it"]
pub struct Handshake<T: Transport> {
    party: Party,
    role: Role,
    pair: Pair<T>,
    private_data: Vec<u8>,
}

/// Who asked whom.
enum Role {
    Active,
    /// What the peer asked for.
    Passive(ConnectionBody),
}

enum Pair<T: Transport> {
    /// With a protection domain and a completion queue of its own.
    Usual,
    In(ProtectionDomain),
    Given(Box<PreparedQueuePair<T>>),
}

/// How many completions a queue holds that nobody chose; it grows with the work of its queue pair.
const DEFAULT_CQ_CAPACITY: u32 = 16;

impl<T: Connected> Handshake<T> {
    pub(super) fn active(party: Party) -> Handshake<T> {
        Handshake { party, role: Role::Active, pair: Pair::Usual, private_data: Vec::new() }
    }

    pub(super) fn passive(party: Party, asked: ConnectionBody) -> Handshake<T> {
        Handshake { party, role: Role::Passive(asked), pair: Pair::Usual, private_data: Vec::new() }
    }

    /// Connects this queue pair, with its settings but for MTU and sequence number, which are agreed on. Receives may
    /// have been posted to it.
    pub fn queue_pair(self, prepared: PreparedQueuePair<T>) -> Handshake<T> {
        Handshake { pair: Pair::Given(Box::new(prepared)), ..self }
    }

    /// Makes the queue pair in this protection domain.
    pub fn in_domain(self, pd: &ProtectionDomain) -> Handshake<T> {
        Handshake { pair: Pair::In(pd.clone()), ..self }
    }

    /// Something for the peer's program: up to 56 bytes when asking, up to 196 when accepting. It gets them filled up
    /// with zeros.
    pub fn private_data(self, bytes: &[u8]) -> Handshake<T> {
        Handshake { private_data: bytes.to_vec(), ..self }
    }

    /// Begins, without waiting.
    ///
    /// # Cancel safety
    /// Dropping it gives the attempt up, and the peer is notified: an acceptance is a refusal then, and a connection
    /// that stood already is ended. The queue pair goes with it, and its work ends with [`Error::Destroyed`].
    pub fn start(self) -> Pending<Connection<T>> {
        Pending::start(self.run())
    }

    /// Waits until the connection stands. The waiting thread drives.
    pub fn wait(self) -> Result<Connection<T>, Error> {
        self.start().wait()
    }

    /// Waits until the connection stands, but gives up after `limit`.
    ///
    /// # Errors
    /// [`ConnectError::TimedOut`] then.
    pub fn wait_for(self, limit: Duration) -> Result<Connection<T>, Error> {
        let to = self.party.peer_addr();
        self.start().wait_for(limit).unwrap_or_else(|| Err(ConnectError::TimedOut { to }.into()))
    }

    pub(super) async fn run(self) -> Result<Connection<T>, Error> {
        let Handshake { party, role, pair, private_data } = self;
        let prepared = prepare(&party, pair)?;
        match role {
            Role::Active => ask(party, prepared, &private_data).await,
            Role::Passive(asked) => answer(party, prepared, &private_data, asked).await,
        }
    }
}

impl<T: Connected> IntoFuture for Handshake<T> {
    type Output = Result<Connection<T>, Error>;
    type IntoFuture = Pending<Connection<T>>;

    fn into_future(self) -> Pending<Connection<T>> {
        self.start()
    }
}

impl<T: Transport> fmt::Debug for Handshake<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handshake({:?})", self.party)
    }
}

fn prepare<T: Connected>(party: &Party, pair: Pair<T>) -> Result<PreparedQueuePair<T>, Error> {
    let pd = match pair {
        Pair::Given(prepared) => {
            let fits = party.is_on(prepared.core().context());
            return if fits { Ok(*prepared) } else { Err(Error::OtherDevice { what: "queue pair" }) };
        }
        Pair::In(pd) if !party.is_on(pd.core()) => return Err(Error::OtherDevice { what: "protection domain" }),
        Pair::In(pd) => pd,
        Pair::Usual => party.context()?.alloc_pd()?,
    };
    let cq = pd.context.completion_queue(DEFAULT_CQ_CAPACITY).create()?;
    pd.queue_pair::<T>(&cq).prepare()
}

/// What one side offers.
fn offer<'a, T: Connected>(prepared: &PreparedQueuePair<T>, private_data: &'a [u8]) -> ConnectParameters<'a> {
    let settings = prepared.connection();
    let reads = if T::KIND.is_reliable() { settings.max_reads } else { 0 };
    ConnectParameters {
        private_data,
        responder_resources: reads,
        initiator_depth: reads,
        retry_count: settings.retries,
        rnr_retry_count: settings.not_ready_retries,
        srq: prepared.core().has_shared_receives(),
        qpn: prepared.qpn(),
        ..ConnectParameters::default()
    }
}

/// What was agreed on, for the queue pair. How long a peer waits that found no receive is our own affair.
fn agreed<T: Connected>(party: &Party, prepared: &PreparedQueuePair<T>) -> Result<(Modify, Modify), Error> {
    let mut receive = party.id.modify_for(State::ReadyToReceive)?;
    receive.min_rnr_timer = receive.min_rnr_timer.map(|_| prepared.connection().not_ready_delay);
    Ok((receive, party.id.modify_for(State::ReadyToSend)?))
}

/// The peer may have given up meanwhile; then there is nothing to agree to any more.
fn given_up(party: &Party, error: Error) -> Error {
    match error {
        Error::Connect(ConnectError::State { .. }) => ConnectError::Gone { peer: party.peer_addr() }.into(),
        other => other,
    }
}

async fn ask<T: Connected>(
    party: Party,
    mut prepared: PreparedQueuePair<T>,
    private_data: &[u8],
) -> Result<Connection<T>, Error> {
    party.id.set(IdOption::AckTimeout(prepared.connection().timeout))?;
    party.id.connect(&offer(&prepared, private_data))?;
    let response = party.expect(EventKind::ConnectResponse).await?;
    let (receive, send) = agreed(&party, &prepared)?;
    prepared.follow(&receive, &send, party.local_addr().ip())?;
    party.id.establish().map_err(|error| given_up(&party, error))?;
    Ok(Connection::new(party, prepared, response.private_data().to_vec()))
}

async fn answer<T: Connected>(
    party: Party,
    mut prepared: PreparedQueuePair<T>,
    private_data: &[u8],
    asked: ConnectionBody,
) -> Result<Connection<T>, Error> {
    let offer = offer(&prepared, private_data);
    let offer = ConnectParameters {
        responder_resources: offer.responder_resources.min(asked.responder_resources),
        initiator_depth: offer.initiator_depth.min(asked.initiator_depth),
        ..offer
    };
    let (mut receive, mut send) = agreed(&party, &prepared)?;
    receive.max_dest_rd_atomic = receive.max_dest_rd_atomic.map(|_| offer.responder_resources);
    send.max_rd_atomic = send.max_rd_atomic.map(|_| offer.initiator_depth);
    // Before the peer hears of it: it may send at once.
    prepared.follow(&receive, &send, party.local_addr().ip())?;
    party.id.accept(&offer).map_err(|error| given_up(&party, error))?;
    party.expect(EventKind::Established).await?;
    Ok(Connection::new(party, prepared, asked.private_data))
}
