//! How queue pairs find their peers: by endpoints that are sent over the control channel, or by the connection manager.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ubiverbs::cm::{self, ConnectError, Connection, Listener, Pending};
use ubiverbs::{
    Connected, Context, Datagram, Endpoint, Error, Gid, Mtu, Operation, PreparedQueuePair, ProtectionDomain, Received,
    RegisteredMut, Reliable, SharedReceiveQueue, Transport, Unreliable,
};

use crate::bytes::Dice;
use crate::control::Control;
use crate::harvest::Harvest;
use crate::options::{Options, Role};
use crate::plan::{Kind, MAX_BURST_MESSAGES, PairPlan};
use crate::post::Qp;
use crate::watch::{Result, Trouble};

/// So long may the connection manager take, faults and stops included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(45);

/// The device that has this address.
pub fn device(options: &Options) -> Result<Context> {
    let failed = |e: Error| Trouble::setup("the device", e);
    for device in ubiverbs::devices().map_err(failed)? {
        let context = device.open().map_err(failed)?;
        if context.port().gids.contains(&Some(Gid::from_ip(options.own()))) {
            return Ok(context);
        }
    }
    Err(Trouble::Setup(format!("no device has {}", options.own())))
}

/// A queue pair without a peer.
pub enum Prepared {
    Reliable(PreparedQueuePair<Reliable>),
    Unreliable(PreparedQueuePair<Unreliable>),
    Datagram(PreparedQueuePair<Datagram>),
}

/// What the connection manager keeps of a connection.
pub enum Kept {
    Nothing,
    Reliable(Connection<Reliable>),
    Unreliable(Connection<Unreliable>),
}

impl Prepared {
    pub fn new(
        options: &Options,
        plan: &PairPlan,
        pd: &ProtectionDomain,
        harvest: &Harvest,
        shared: Option<&SharedReceiveQueue>,
    ) -> Result<Prepared> {
        Ok(match plan.kind {
            Kind::Reliable => Prepared::Reliable(build(options, plan, pd, harvest, shared)?),
            Kind::Unreliable => Prepared::Unreliable(build(options, plan, pd, harvest, None)?),
            Kind::Datagram => Prepared::Datagram(build(options, plan, pd, harvest, None)?),
        })
    }

    pub fn endpoint(&self) -> Endpoint {
        match self {
            Prepared::Reliable(prepared) => prepared.endpoint(),
            Prepared::Unreliable(prepared) => prepared.endpoint(),
            Prepared::Datagram(prepared) => prepared.endpoint(),
        }
    }

    pub fn recv(&self, buffer: RegisteredMut) -> Result<Operation<Received>> {
        match self {
            Prepared::Reliable(prepared) => prepared.recv(buffer),
            Prepared::Unreliable(prepared) => prepared.recv(buffer),
            Prepared::Datagram(prepared) => prepared.recv(buffer),
        }
        .map_err(|failed| Trouble::setup("a receive", failed.error))
    }

    /// Connects to an endpoint that the peer has said.
    pub fn connect(self, pd: &ProtectionDomain, peer: &Endpoint) -> std::result::Result<Qp, Error> {
        Ok(match self {
            Prepared::Reliable(prepared) => Qp::Reliable(prepared.connect(peer)?),
            Prepared::Unreliable(prepared) => Qp::Unreliable(prepared.connect(peer)?),
            Prepared::Datagram(prepared) => Qp::Datagram(prepared.activate()?, pd.address(peer)?),
        })
    }

    /// Lets the connection manager connect it.
    pub fn introduce(
        self,
        options: &Options,
        plan: &PairPlan,
        pd: &ProtectionDomain,
        round: u64,
        control: &mut Control,
    ) -> Result<(Qp, Kept)> {
        let mut dice = Dice::new(&[options.seed, round, u64::from(plan.id), 5]);
        Ok(match self {
            Prepared::Reliable(prepared) => {
                let connection = handshake(options, &mut dice, prepared, control)?;
                (Qp::Reliable(connection.queue_pair().clone()), Kept::Reliable(connection))
            }
            Prepared::Unreliable(prepared) => {
                let connection = handshake(options, &mut dice, prepared, control)?;
                (Qp::Unreliable(connection.queue_pair().clone()), Kept::Unreliable(connection))
            }
            Prepared::Datagram(prepared) => (service(options, &mut dice, prepared, pd, control)?, Kept::Nothing),
        })
    }
}

fn build<T: Transport>(
    options: &Options,
    plan: &PairPlan,
    pd: &ProtectionDomain,
    harvest: &Harvest,
    shared: Option<&SharedReceiveQueue>,
) -> Result<PreparedQueuePair<T>> {
    // Eight times this is how long a peer may be silent.
    let patience = Duration::from_millis(if options.peer_may_stop { 1000 } else { 500 });
    let mtu = Mtu::from_bytes(options.mtu).ok_or_else(|| Trouble::Setup(format!("no MTU {}", options.mtu)))?;
    let mut builder = pd.queue_pair::<T>(&harvest.cq).source(options.own()).mtu(mtu).timeout(patience);
    builder = builder
        .receive_cq(&harvest.receive_cq)
        .max_sends(MAX_BURST_MESSAGES as u32 + 8)
        .max_receives(plan.receives.max(1) as u32);
    if let Some(shared) = shared {
        builder = builder.shared_receives(shared);
    }
    builder.prepare().map_err(|e| Trouble::setup("a queue pair", e))
}

/// Waits for the connection manager, but not for ever, and not for a peer that is gone.
pub fn soon<R>(what: &str, control: &mut Control, pending: Pending<R>) -> Result<R> {
    outcome(what, control, pending)?.map_err(|e| Trouble::Broken(format!("{what}: {e}")))
}

fn outcome<R>(what: &str, control: &mut Control, mut pending: Pending<R>) -> Result<std::result::Result<R, Error>> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    while Instant::now() < deadline {
        if let Some(result) = pending.wait_for(Duration::from_millis(100)) {
            return Ok(result);
        }
        control.has_line()?;
    }
    Err(Trouble::Broken(format!("{what}: nothing for {CONNECT_TIMEOUT:?}")))
}

/// What was said must begin what was heard; zeros follow.
fn same(what: &str, expected: &[u8], seen: &[u8]) -> Result<()> {
    match seen.starts_with(expected) && seen[expected.len()..].iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err(Trouble::wrong(format!("private data of {what}: expected {expected:02x?}, seen {seen:02x?}"))),
    }
}

/// Some bytes for the other program.
fn words(dice: &mut Dice, most: usize) -> Vec<u8> {
    let length = 1 + dice.below(most);
    crate::bytes::stream(dice.roll(), length)
}

fn listen<T: Transport>(options: &Options, control: &mut Control) -> Result<Listener<T>> {
    let listener = Listener::<T>::bind_as(SocketAddr::new(options.own(), 0));
    let listener = listener.map_err(|e| Trouble::setup("a listener", e))?;
    control.say("listening", &listener.local_addr().port().to_string())?;
    Ok(listener)
}

fn route<T: Transport>(options: &Options, control: &mut Control, port: u16) -> Result<cm::Route<T>> {
    let from = SocketAddr::new(options.own(), 0);
    soon("resolving", control, cm::resolve_from(from, SocketAddr::new(options.address, port)))
}

fn port(control: &mut Control) -> Result<u16> {
    control.hear("listening")?.parse().map_err(|e| Trouble::wrong(format!("no port: {e}")))
}

fn handshake<T: Connected>(
    options: &Options,
    dice: &mut Dice,
    prepared: PreparedQueuePair<T>,
    control: &mut Control,
) -> Result<Connection<T>> {
    let (mut request, answer, refusal) = (words(dice, 56), words(dice, 196), words(dice, 148));
    // A request of one byte must not look like the one that is refused.
    request[0] = !refusal[0];
    let refused = dice.once_in(5);
    let connection = match options.role {
        Role::Server => {
            let listener = listen::<T>(options, control)?;
            let mut asked = soon("a request", control, listener.next())?;
            // A request that was refused may have been on its way twice, and is then asked twice.
            while refused && same("", &refusal[..1], asked.private_data()).is_ok() {
                asked.reject(&refusal).map_err(|e| Trouble::Broken(format!("refusing: {e}")))?;
                asked = soon("a request", control, listener.next())?;
            }
            same("a request", &request, asked.private_data())?;
            let accepting = asked.accept().queue_pair(prepared).private_data(&answer).start();
            soon("accepting", control, accepting)?
        }
        Role::Client => {
            let port = port(control)?;
            if refused {
                let asking = route::<T>(options, control, port)?.connect().private_data(&refusal[..1]).start();
                match outcome("a refusal", control, asking)? {
                    Err(Error::Connect(ConnectError::Rejected { private_data, .. })) => {
                        same("a refusal", &refusal, &private_data)?;
                    }
                    other => return Err(Trouble::Broken(format!("expected a refusal, seen {other:?}"))),
                }
            }
            let asking =
                route::<T>(options, control, port)?.connect().queue_pair(prepared).private_data(&request).start();
            let connection = soon("connecting", control, asking)?;
            same("an answer", &answer, connection.private_data())?;
            connection
        }
    };
    Ok(connection)
}

/// Finds the peer's datagram queue pair by a service; it learns of ours by what is said with the question.
fn service(
    options: &Options,
    dice: &mut Dice,
    prepared: PreparedQueuePair<Datagram>,
    pd: &ProtectionDomain,
    control: &mut Control,
) -> Result<Qp> {
    let failed = |e: Error| Trouble::Broken(format!("a service: {e}"));
    let answer = words(dice, 130);
    let qp = prepared.activate().map_err(failed)?;
    match options.role {
        Role::Server => {
            let listener = listen::<Datagram>(options, control)?;
            let asked = soon("a question for the service", control, listener.next())?;
            let endpoint = asked.private_data().get(..Endpoint::ENCODED).unwrap_or_default();
            let peer = Endpoint::from_bytes(endpoint).map_err(failed)?;
            asked.answer(&qp, &answer).map_err(failed)?;
            // The listener stays until the client has what it asked for: an answer may have to be said twice.
            control.hear("found")?;
            Ok(Qp::Datagram(qp, pd.address(&peer).map_err(failed)?))
        }
        Role::Client => {
            let port = port(control)?;
            let asking = route::<Datagram>(options, control, port)?.find_service(&qp.endpoint().to_bytes());
            let service = soon("finding a service", control, asking)?;
            same("a service", &answer, service.private_data())?;
            control.say("found", "")?;
            Ok(Qp::Datagram(qp, *service.address()))
        }
    }
}
