//! # 8. Connecting: by address and port, event by event
//!
//! So far two queue pairs were connected by copying each one's endpoint to the other. The **connection manager** does
//! that by messages of its own: a server *listens* at an address and port, a client *resolves* them, and the two
//! exchange what queue pairs must know of each other.
//!
//! This is the level that every RDMA tutorial shows: an **event channel**, an **id** for each endpoint, and one step
//! after the other.
//!
//! ```text
//! client                                    server
//! resolve_address -> AddressResolved        bind, listen
//! resolve_route   -> RouteResolved
//! connect              -- request -->       ConnectRequest: queue pair to RTR and RTS, accept
//! ConnectResponse:    <-- reply ---
//!   queue pair to RTR and RTS, establish
//!                      -- ready -->         Established
//! disconnect           -- goodbye -->       Disconnected: disconnect
//! ```
//!
//! The next example does all that in two calls.
//!
//! ```text
//! cargo run --example connect
//! cargo run --example connect -- server 0.0.0.0:7471
//! cargo run --example connect -- client 127.0.0.1:7471
//! ```

use std::collections::HashMap;
use std::error::Error as StdError;
use std::net::SocketAddr;
use std::thread;
use ubiverbs::cm::{ConnectParameters, EventChannel, EventKind, Id, PortSpace};
use ubiverbs::{Error, Kind, Operation, PreparedQueuePair, ProtectionDomain, QueuePair, Received, Reliable, State};

/// What the client says with its request, before there is a connection.
const GREETING: &[u8] = b"let me in";

/// A queue pair on the device that an id was bound to when its peer became known.
fn prepare(id: &Id) -> Result<(ProtectionDomain, PreparedQueuePair<Reliable>), Error> {
    let context = id.device().expect("bound by now").open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let qp = pd.queue_pair::<Reliable>(&cq).prepare()?;
    Ok((pd, qp))
}

/// Both sides do this once they know of each other: the id says how.
fn make_ready(id: &Id, qp: &mut PreparedQueuePair<Reliable>) -> Result<(), Error> {
    qp.modify(&id.modify_for(State::ReadyToReceive)?)?;
    qp.modify(&id.modify_for(State::ReadyToSend)?)
}

fn offer(qp: &PreparedQueuePair<Reliable>) -> ConnectParameters<'static> {
    ConnectParameters { qpn: qp.qpn(), retry_count: 7, rnr_retry_count: 7, ..ConnectParameters::default() }
}

/// A server: one loop for all its clients. Serves so many, then ends.
fn serve(channel: &EventChannel, listener: &Id, clients: usize) -> Result<(), Error> {
    println!("server: listening at {}", listener.local_addr().expect("it is bound"));
    let mut open: HashMap<u64, (Id, QueuePair<Reliable>, Operation<Received>)> = HashMap::new();
    let (mut number, mut served) = (0, 0);
    while served < clients {
        let event = channel.wait()?;
        println!("server: {:?}", event.kind);
        match event.kind {
            // A request comes with an id of its own. Letting it go would reject it.
            EventKind::ConnectRequest if !event.private_data().starts_with(GREETING) => {}
            EventKind::ConnectRequest => {
                let (pd, mut qp) = prepare(&event.id)?;
                // The client may send as soon as it is accepted: receives come first.
                let receiving = qp.recv(pd.allocate(64)?)?;
                make_ready(&event.id, &mut qp)?;
                event.id.accept(&offer(&qp))?;
                // A number of ours, by which later events find what belongs to it.
                number += 1;
                event.id.set_user(number);
                open.insert(number, (event.id, qp.finish()?, receiving));
            }
            EventKind::Disconnected => {
                let Some((id, _qp, receiving)) = open.remove(&event.id.user()) else { continue };
                let message = receiving.wait()?;
                println!("server: {:?} had said {:?}", id.peer_addr(), String::from_utf8_lossy(message.payload()));
                id.disconnect()?;
                served += 1;
            }
            _ => {}
        }
    }
    Ok(())
}

/// A client: the same kind of loop, with one connection.
fn call(to: SocketAddr) -> Result<(), Error> {
    let channel = EventChannel::new()?;
    let id = Id::new(&channel, PortSpace::Tcp, Kind::ReliableConnected)?;
    let mut preparing = None;
    id.resolve_address(None, to)?;
    loop {
        let event = channel.wait()?;
        println!("client: {:?}", event.kind);
        match event.kind {
            EventKind::AddressResolved => id.resolve_route()?,
            EventKind::RouteResolved => {
                let (_, qp) = prepare(&id)?;
                id.connect(&ConnectParameters { private_data: GREETING, ..offer(&qp) })?;
                preparing = Some(qp);
            }
            EventKind::ConnectResponse => {
                let mut qp = preparing.take().expect("we have asked");
                make_ready(&id, &mut qp)?;
                id.establish()?;
                let qp = qp.finish()?;
                qp.send_inline(b"hello from the client")?.wait()?;
                id.disconnect()?;
            }
            EventKind::Disconnected => return Ok(()),
            // Refused, unreachable, ...: the error says what, and what to do about it.
            _ => return event.failure().map_or(Ok(()), |failure| Err(failure.into())),
        }
    }
}

fn listen(at: SocketAddr) -> Result<(EventChannel, Id), Error> {
    let channel = EventChannel::new()?;
    let listener = Id::new(&channel, PortSpace::Tcp, Kind::ReliableConnected)?;
    listener.bind(at)?;
    listener.listen(16)?;
    Ok((channel, listener))
}

fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", at] => {
            let (channel, listener) = listen(at.parse()?)?;
            serve(&channel, &listener, usize::MAX)?;
        }
        ["client", to] => call(to.parse()?)?,
        _ => {
            let (channel, listener) = listen("127.0.0.1:0".parse()?)?;
            let at = listener.local_addr().expect("it is bound");
            let server = thread::spawn(move || serve(&channel, &listener, 2));
            call(at)?;
            call(at)?;
            server.join().expect("the server does not panic")?;
        }
    }
    Ok(())
}
