//! Connecting by address and port: both levels of the API, blocking and async, over the real sockets of `lo`; what is
//! given up, refused, killed.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{self, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::cm::{
    self, ConnectError, ConnectParameters, Connection, Event, EventChannel, EventKind, Id, IdOption, Listener,
    PortSpace,
};
use ubiverbs::{
    Access, CloseReason, Context, Datagram, Error, GRH_LENGTH, Kind, ProtectionDomain, QueuePair, Reliable,
    RemoteSlice, State, Transport, Unreliable, block_on,
};

/// Longer than anything takes that works.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Tests run at the same time, and a port that one has let go of may be another's next: a test in which no process may
/// listen at a port holds this meanwhile.
static PORTS: Mutex<()> = Mutex::new(());

fn ports() -> MutexGuard<'static, ()> {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen_as<T: Transport>(address: &str) -> Listener<T> {
    let _held = ports();
    Listener::bind_as(address).unwrap()
}

fn listen() -> Listener {
    listen_as("127.0.0.1:0")
}

fn pair(listener: &Listener) -> (Connection, Connection) {
    let client = cm::connect(listener.local_addr());
    let server = listener.accept().wait().unwrap();
    (client.wait().unwrap(), server)
}

fn refusal<R: std::fmt::Debug>(result: Result<R, Error>) -> ConnectError {
    match result.unwrap_err() {
        Error::Connect(error) => error,
        other => panic!("{other:?}"),
    }
}

/// A message from one to the other.
fn tell(from: &Connection, to: &Connection, message: &[u8]) -> Result<(), Error> {
    let receiving = to.recv(to.pd().allocate(64)?)?;
    from.send_inline(message)?.wait()?;
    assert_eq!(receiving.wait()?.payload(), message);
    Ok(())
}

#[test]
fn two_programs_find_each_other_by_address_and_port() -> Result<(), Error> {
    let listener = listen();
    let address = listener.local_addr();
    assert_ne!(address.port(), 0);
    let server = thread::spawn(move || -> Result<(), Error> {
        let request = listener.next().wait()?;
        assert_eq!(request.local_addr(), address);
        assert_eq!((request.private_data().len(), &request.private_data()[..6]), (56, &b"hello\0"[..]));
        let peer = request.peer_addr();
        let connection = request.accept().private_data(b"welcome").wait()?;
        assert_eq!((connection.local_addr(), connection.peer_addr()), (address, peer));
        assert!(connection.private_data().starts_with(b"hello\0"));
        let message = connection.recv(connection.pd().allocate(64)?)?.wait()?;
        let there = RemoteSlice::from_bytes(message.payload())?;
        connection.write_inline(b"written", there)?.wait()?;
        let seen = connection.read(connection.pd().allocate(7)?, there.slice(0..7)?)?.wait()?;
        assert_eq!(&*seen, b"written");
        assert_eq!(connection.fetch_add(there.slice(8..16)?, 1)?.wait()?, 0);
        connection.send_inline(b"done")?.wait()?;
        connection.closed().wait()?;
        assert!(!connection.is_connected());
        Ok(())
    });

    let route = cm::resolve(address).wait()?;
    assert_eq!(route.peer_addr(), address);
    let from = route.local_addr();
    let connection = route.connect().private_data(b"hello").wait()?;
    assert_eq!((connection.local_addr(), connection.peer_addr()), (from, address));
    assert_eq!((connection.private_data().len(), &connection.private_data()[..8]), (196, &b"welcome\0"[..]));
    assert!(connection.is_connected());
    let pd = connection.pd();
    let region = pd.share(16, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let done = connection.recv(pd.allocate(8)?)?;
    connection.send_inline(&region.remote_slice().to_bytes())?.wait()?;
    assert_eq!(done.wait()?.payload(), b"done");
    assert_eq!(region.load(8)?, 1);
    connection.disconnect().wait()?;
    connection.disconnect().wait()?;
    server.join().unwrap()
}

#[test]
fn one_thread_serves_many_with_futures() -> Result<(), Error> {
    const CLIENTS: usize = 20;
    let listener = listen();
    let address = listener.local_addr();
    let client = |number: usize| async move {
        let connection = cm::connect(address).await?;
        let answer = connection.recv(connection.pd().allocate(64)?)?;
        connection.send_inline(&number.to_le_bytes())?.await?;
        assert_eq!(answer.await?.payload(), (number * 2).to_le_bytes());
        connection.disconnect().await
    };
    let server = async {
        for _ in 0..CLIENTS {
            let connection = listener.accept().await?;
            let message = connection.recv(connection.pd().allocate(64)?)?.await?;
            let number = usize::from_le_bytes(message.payload().try_into().expect("a number"));
            connection.send_inline(&(number * 2).to_le_bytes())?.await?;
            connection.closed().await?;
        }
        Ok(())
    };
    let mut tasks: Vec<Pin<Box<dyn Future<Output = Result<(), Error>> + '_>>> = vec![Box::pin(server)];
    for number in 0..CLIENTS {
        tasks.push(Box::pin(client(number)));
    }
    block_on(all(tasks))
}

/// All of some futures, in one task.
async fn all(mut tasks: Vec<Pin<Box<dyn Future<Output = Result<(), Error>> + '_>>>) -> Result<(), Error> {
    poll_fn(|context| {
        let mut failed = None;
        tasks.retain_mut(|task| match task.as_mut().poll(context) {
            Poll::Ready(result) => {
                failed = failed.take().or(result.err());
                false
            }
            Poll::Pending => true,
        });
        match failed {
            Some(error) => Poll::Ready(Err(error)),
            None if tasks.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}

#[test]
fn what_cannot_be_is_said_with_a_hint() -> Result<(), Error> {
    let taken = listen();
    let address = taken.local_addr();
    let error = refusal(Listener::bind(address));
    assert!(matches!(error, ConnectError::InUse { .. }), "{error}");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(matches!(refusal(Listener::bind("203.0.113.7:0")), ConnectError::NotLocal { .. }));
    assert!(matches!(refusal(Listener::bind(&[][..])), ConnectError::Name { .. }));

    let held = ports();
    drop(taken);
    let error = refusal(cm::connect(address).wait());
    drop(held);
    assert!(matches!(error, ConnectError::NobodyListens { at } if at == address), "{error}");
    assert!(error.to_string().contains("hint: is the server running"), "{error}");

    let listener = listen();
    let route = cm::resolve(listener.local_addr()).wait()?;
    let error = refusal(route.connect().private_data(&[1; 57]).wait());
    assert!(matches!(error, ConnectError::PrivateData { length: 57, room: 56 }), "{error}");
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let qp =
        context.alloc_pd()?.queue_pair::<Datagram>(&context.completion_queue(4).create()?).prepare()?.activate()?;
    let error = refusal(cm::join("239.7.1.1".parse().unwrap(), &qp).wait());
    assert!(error.to_string().contains("cm::QKEY"), "{error}");
    Ok(())
}

#[test]
fn a_host_that_does_not_answer_is_given_up() {
    let began = Instant::now();
    // An address for documentation: either there is no route to it, or nobody at its end.
    let result = match cm::resolve("203.0.113.7:7471").wait() {
        Ok(route) => route.connect().wait_for(Duration::from_millis(300)),
        Err(error) => Err(error),
    };
    let error = refusal(result);
    assert!(matches!(error, ConnectError::TimedOut { .. } | ConnectError::NoRoute { .. }), "{error}");
    assert!(began.elapsed() < TEST_TIMEOUT);
}

#[test]
fn a_listener_rejects_with_words_and_by_letting_go() -> Result<(), Error> {
    let listener = listen();
    let ask = || -> Result<_, Error> { Ok(cm::resolve(listener.local_addr()).wait()?.connect().start()) };
    let client = ask()?;
    listener.next().wait()?.reject(b"full")?;
    let ConnectError::Rejected { by, reason, private_data } = refusal(client.wait()) else { panic!() };
    assert_eq!((by, reason), (listener.local_addr(), cm::RejectReason::Consumer));
    assert!(private_data.starts_with(b"full\0"));

    let client = ask()?;
    drop(listener.next().wait()?);
    assert!(matches!(refusal(client.wait()), ConnectError::Rejected { .. }));

    // Too many words: refused, and with that rejected.
    let client = ask()?;
    assert!(matches!(refusal(listener.next().wait()?.reject(&[0; 149])), ConnectError::PrivateData { room: 148, .. }));
    assert!(matches!(refusal(client.wait()), ConnectError::Rejected { .. }));

    // A listener that goes refuses the connections that wait for it.
    let client = ask()?;
    let _held = ports();
    drop(listener);
    assert!(matches!(refusal(client.wait()), ConnectError::Rejected { .. } | ConnectError::NobodyListens { .. }));
    Ok(())
}

#[test]
fn an_attempt_that_is_dropped_leaves_nothing_behind() -> Result<(), Error> {
    let listener = listen();
    for round in 0..50 {
        let mut attempt = cm::connect(listener.local_addr());
        if round % 2 == 0 {
            assert!(attempt.wait_for(Duration::from_micros(200)).is_none(), "nobody accepts");
        }
    }
    // Those who asked and went are passed over; who stays is accepted.
    let client = cm::connect(listener.local_addr());
    let server = listener.accept().wait()?;
    let client = client.wait()?;
    assert_eq!(server.peer_addr(), client.local_addr());
    tell(&client, &server, b"still here")?;

    // The other way round: a listener begins to accept, and the client is gone.
    let attempt = cm::connect(listener.local_addr());
    let request = listener.next().wait()?;
    drop(attempt);
    let error = refusal(request.accept().wait());
    assert!(matches!(error, ConnectError::Gone { .. }), "{error}");
    Ok(())
}

/// A waker that says whether it was called.
#[derive(Default)]
struct Woken(AtomicBool);

impl Woken {
    fn wait(&self) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !self.0.load(Ordering::Acquire) {
            assert!(Instant::now() < deadline, "no future was woken");
            thread::yield_now();
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn accepting_that_is_dropped_loses_nobody() -> Result<(), Error> {
    let listener = listen();
    for _ in 0..3 {
        assert!(listener.next().wait_for(Duration::from_millis(1)).is_none());
        assert!(listener.accept().wait_for(Duration::from_millis(1)).is_none());
    }
    // Two wait and are dropped after the client has asked, without having been polled again.
    let (mut next, mut accept) = (Box::pin(listener.next()), Box::pin(listener.accept()));
    let asked = Arc::new(Woken::default());
    let waker = asked.clone().into();
    let mut context = task::Context::from_waker(&waker);
    assert!(next.as_mut().poll(&mut context).is_pending() && accept.as_mut().poll(&mut context).is_pending());
    let client = cm::connect(listener.local_addr());
    asked.wait();
    drop((next, accept));
    let server = listener.accept().wait()?;
    tell(&client.wait()?, &server, b"not lost")?;

    // In the middle: accepted, and the client takes its time before it confirms.
    let (channel, slow, mut qp) = slow_client(listener.local_addr())?;
    let response = loop {
        assert!(listener.accept().wait_for(Duration::from_millis(50)).is_none());
        if let Some(event) = channel.try_next() {
            break event;
        }
    };
    assert_eq!(response.kind, EventKind::ConnectResponse);
    qp.modify(&slow.modify_for(State::ReadyToReceive)?)?;
    qp.modify(&slow.modify_for(State::ReadyToSend)?)?;
    slow.establish()?;
    let server = listener.accept().wait()?;
    assert_eq!(Some(server.peer_addr()), slow.local_addr());
    let receiving = server.recv(server.pd().allocate(64)?)?;
    qp.finish()?.send_inline(b"late")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"late");
    Ok(())
}

fn next_event(channel: &EventChannel) -> Event {
    channel.wait_for(TEST_TIMEOUT).expect("an event")
}

/// A client of the full level that has asked, and looks at the answer when it is told to.
fn slow_client(to: SocketAddr) -> Result<(EventChannel, Id, ubiverbs::PreparedQueuePair<Reliable>), Error> {
    let channel = EventChannel::new()?;
    let id = Id::new(&channel, PortSpace::Tcp, Kind::ReliableConnected)?;
    id.resolve_address(None, to)?;
    assert_eq!(next_event(&channel).kind, EventKind::AddressResolved);
    id.resolve_route()?;
    assert_eq!(next_event(&channel).kind, EventKind::RouteResolved);
    let context = id.device().expect("it is resolved").open()?;
    let pd = context.alloc_pd()?;
    let qp = pd.queue_pair::<Reliable>(&context.completion_queue(16).create()?).prepare()?;
    let offer = ConnectParameters { retry_count: 7, rnr_retry_count: 7, qpn: qp.qpn(), ..ConnectParameters::default() };
    id.connect(&offer)?;
    Ok((channel, id, qp))
}

#[test]
fn whoever_goes_first_the_other_gets_its_buffers_back() -> Result<(), Error> {
    let listener = listen();
    for way in 0..4 {
        let (client, server) = pair(&listener);
        let waiting = server.recv(server.pd().allocate(64)?)?;
        let (mut by_client, mut by_both) = (true, false);
        match way {
            0 => drop(client),
            1 => client.disconnect().wait()?,
            2 => {
                by_client = false;
                server.disconnect().wait()?;
            }
            _ => {
                by_both = true;
                let (one, other) = (client.disconnect(), server.disconnect());
                one.wait()?;
                other.wait()?;
            }
        }
        let reason = server.closed().wait()?;
        let peer = CloseReason::PeerDisconnected { private_data: Vec::new() };
        assert!(by_both || reason == if by_client { peer } else { CloseReason::LocalClose }, "{reason}");
        let failed = waiting.wait().unwrap_err();
        assert_eq!(failed.buffer.len(), 64);
        let Error::Completion(error) = &failed.error else { panic!("{failed}") };
        assert_eq!(error.reason(), Some(&reason), "{failed}");
        assert!(server.send_inline(b"too late").and_then(|sending| Ok(sending.wait()?)).is_err());
    }
    Ok(())
}

#[test]
fn clones_are_the_same_connection() -> Result<(), Error> {
    let (client, server) = pair(&listen());
    let other = client.clone();
    drop(client);
    assert!(server.closed().wait_for(Duration::from_millis(50)).is_none());
    tell(&other, &server, b"one is left")?;
    drop(other);
    assert!(matches!(server.closed().wait()?, CloseReason::PeerDisconnected { .. }));
    Ok(())
}

#[test]
fn a_thousand_connections_of_one_process_are_opened_used_and_closed() -> Result<(), Error> {
    const COUNT: usize = 1000;
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let listener = listen();
    let address = listener.local_addr();
    let before = descriptors();
    let server = thread::spawn(move || -> Result<usize, Error> {
        let connections = (0..COUNT).map(|_| listener.accept().wait()).collect::<Result<Vec<_>, _>>()?;
        let receive = |connection: &Connection| Ok(connection.recv(connection.pd().allocate(8)?)?);
        let receives = connections.iter().map(receive).collect::<Result<Vec<_>, Error>>()?;
        for (connection, receiving) in connections.iter().zip(receives) {
            connection.send_inline(receiving.wait()?.payload())?.wait()?;
        }
        for connection in &connections {
            connection.closed().wait()?;
        }
        Ok(connections.len())
    });
    let pending: Vec<_> = (0..COUNT).map(|_| cm::connect(address)).collect();
    let connections = pending.into_iter().map(|pending| pending.wait()).collect::<Result<Vec<_>, _>>()?;
    // Other tests run beside this one, but none opens hundreds.
    assert!(descriptors() < before + 200, "no descriptor for each connection");
    let echoes: Vec<_> = (connections.iter().enumerate())
        .map(|(number, connection)| {
            let echo = connection.recv(connection.pd().allocate(8)?)?;
            connection.send_inline(&number.to_le_bytes())?.wait()?;
            Ok(echo)
        })
        .collect::<Result<_, Error>>()?;
    for (number, echo) in echoes.into_iter().enumerate() {
        assert_eq!(echo.wait()?.payload(), number.to_le_bytes());
    }
    let ends: Vec<_> = connections.iter().map(Connection::disconnect).collect();
    for end in ends {
        end.wait()?;
    }
    assert_eq!(server.join().unwrap()?, COUNT);
    Ok(())
}

#[test]
fn listeners_of_both_families_hear_both() -> Result<(), Error> {
    let listener: Listener = listen_as("[::]:0");
    for to in ["127.0.0.1", "::1"] {
        let to = SocketAddr::new(to.parse().unwrap(), listener.local_addr().port());
        let client = cm::connect(to);
        let server = listener.accept().wait()?;
        assert_eq!(server.local_addr().ip(), to.ip());
        tell(&client.wait()?, &server, b"heard")?;
    }
    let _held = ports();
    let only = Listener::<Reliable>::bind_with("[::]:0".parse().unwrap(), 4, &[IdOption::OnlyItsFamily(true)])?;
    let to = SocketAddr::new([127, 0, 0, 1].into(), only.local_addr().port());
    assert!(matches!(refusal(cm::connect(to).wait()), ConnectError::NobodyListens { .. }));
    Ok(())
}

#[test]
fn unreliable_connections_are_made_too_and_transports_do_not_mix() -> Result<(), Error> {
    let listener = listen_as::<Unreliable>("127.0.0.1:0");
    let client = cm::resolve_as::<Unreliable>(listener.local_addr()).wait()?.connect().start();
    let server = listener.accept().wait()?;
    let client = client.wait()?;
    let receiving = server.recv(server.pd().allocate(8)?)?;
    client.send_inline(b"maybe")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"maybe");
    let error = refusal(cm::connect(listener.local_addr()).wait());
    assert!(matches!(error, ConnectError::NobodyListens { .. } | ConnectError::Rejected { .. }), "{error}");
    Ok(())
}

#[test]
fn a_program_brings_its_own_queue_pairs() -> Result<(), Error> {
    let listener = listen();
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;
    let receives = pd.shared_receive_queue(8)?;
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let first = prepared.recv(pd.allocate(16)?)?;
    let client = cm::resolve(listener.local_addr()).wait()?.connect().queue_pair(prepared).start();
    let request = listener.next().wait()?;
    let with_shared = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare()?;
    let server = request.accept().queue_pair(with_shared).wait()?;
    let client = client.wait()?;
    assert_eq!((client.pd(), client.completion_queue()), (pd.clone(), &cq));
    let attributes = client.attributes();
    assert_eq!((attributes.state, attributes.max_rd_atomic), (State::ReadyToSend, 16));
    // It found a receive that was posted before there was a connection.
    server.send_inline(b"early")?.wait()?;
    assert_eq!(first.wait()?.payload(), b"early");
    let shared = receives.recv(pd.allocate(16)?)?;
    client.send_inline(b"shared")?.wait()?;
    assert_eq!(shared.wait()?.payload(), b"shared");

    // In a domain of the program's.
    let client = cm::resolve(listener.local_addr()).wait()?.connect().in_domain(&pd).start();
    let server = listener.accept().wait()?;
    assert_eq!(client.wait()?.pd(), pd);
    drop(server);
    // What belongs to another device is refused, where there is one.
    if let Some(device) = ubiverbs::devices()?.into_iter().find(|device| device.name() != "ubi_lo") {
        let elsewhere = device.open()?.alloc_pd()?;
        let error = cm::resolve(listener.local_addr()).wait()?.connect().in_domain(&elsewhere).wait().unwrap_err();
        assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    }
    Ok(())
}

fn datagrams(context: &Context) -> Result<(ProtectionDomain, QueuePair<Datagram>), Error> {
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let qp = pd.queue_pair::<Datagram>(&cq).qkey(cm::QKEY).prepare()?.activate()?;
    Ok((pd, qp))
}

#[test]
fn a_service_of_datagrams_is_found_or_not() -> Result<(), Error> {
    let listener = listen_as::<Datagram>("127.0.0.1:0");
    let find = || cm::resolve_as::<Datagram>(listener.local_addr()).wait().map(|route| route.find_service(b"where?"));
    let asking = find()?;
    let request = listener.next().wait()?;
    assert!(request.private_data().starts_with(b"where?\0"));
    let (pd, server) = datagrams(&request.context()?)?;
    request.answer(&server, b"here")?;
    let service = asking.wait()?;
    assert!(service.private_data().starts_with(b"here\0"));
    assert_eq!((service.address().qpn(), service.peer_addr()), (server.qpn(), listener.local_addr()));
    let (client_pd, client) = datagrams(&ubiverbs::device("ubi_lo")?.open()?)?;
    let receiving = server.recv(pd.allocate(GRH_LENGTH + 64)?)?;
    client.send_inline_to(b"ping", service.address())?.wait()?;
    let message = receiving.wait()?;
    assert_eq!(message.payload(), b"ping");
    let answer = client.recv(client_pd.allocate(GRH_LENGTH + 64)?)?;
    server.send_inline_to(b"pong", &message.reply_address(&server).expect("it has a sender"))?.wait()?;
    assert_eq!(answer.wait()?.payload(), b"pong");

    let asking = find()?;
    listener.next().wait()?.reject(b"closed")?;
    assert!(matches!(refusal(asking.wait()), ConnectError::Rejected { .. }));
    let asking = find()?;
    drop(listener.next().wait()?);
    refusal(asking.wait());
    let route = cm::resolve_as::<Datagram>(listener.local_addr()).wait()?;
    drop(listener);
    assert!(matches!(refusal(route.find_service(&[]).wait()), ConnectError::NobodyListens { .. }));
    Ok(())
}

#[test]
fn members_of_a_group_hear_what_is_sent_to_it() -> Result<(), Error> {
    // A group that others who run this at the same time are not in.
    let [.., high, low] = std::process::id().to_be_bytes();
    let group: IpAddr = [239, 7, high, low].into();
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let members = [datagrams(&context)?, datagrams(&context)?];
    let joined = members.iter().map(|(_, qp)| cm::join(group, qp).wait()).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(joined[0].group(), group);
    let hearing = |(pd, qp): &(ProtectionDomain, QueuePair<Datagram>)| -> Result<_, Error> {
        Ok(qp.recv(pd.allocate(GRH_LENGTH + 64)?)?)
    };
    let waiting = members.iter().map(hearing).collect::<Result<Vec<_>, _>>()?;
    members[0].1.send_inline_to(b"to all", joined[0].address())?.wait()?;
    for receiving in waiting {
        assert_eq!(receiving.wait()?.payload(), b"to all");
    }
    // Who has left hears nothing more, who stays does.
    let mut joined = joined.into_iter();
    let (stays, leaves) = (joined.next().unwrap(), joined.next().unwrap());
    leaves.leave();
    let (heard, mut silent) = (hearing(&members[0])?, hearing(&members[1])?);
    members[1].1.send_inline_to(b"bye", stays.address())?.wait()?;
    assert_eq!(heard.wait()?.payload(), b"bye");
    assert!(silent.wait_for(Duration::from_millis(100)).is_none());
    drop(stays);
    Ok(())
}

#[test]
fn the_full_level_tells_everything_in_order() -> Result<(), Error> {
    let listener = listen();
    let (channel, id, mut qp) = slow_client(listener.local_addr())?;
    id.set_user(7);
    let server = listener.accept();
    let server = thread::spawn(move || server.wait());
    // The descriptor says when.
    let readable = |channel: &EventChannel| {
        let fd = channel.as_fd();
        let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        rustix::event::poll(&mut polled, Some(&limit)).unwrap() == 1
    };
    assert!(readable(&channel));
    // Its events can be moved, those that wait too.
    let other = EventChannel::new()?;
    id.migrate(&other)?;
    assert!(channel.try_next().is_none() && readable(&other));
    let response = other.try_next().expect("it is readable");
    assert_eq!((response.kind, response.status, response.id.user()), (EventKind::ConnectResponse, 0, 7));
    assert!(response.id == id && response.failure().is_none());
    qp.modify(&id.modify_for(State::ReadyToReceive)?)?;
    qp.modify(&id.modify_for(State::ReadyToSend)?)?;
    id.establish()?;
    let server = server.join().unwrap()?;
    let qp = qp.finish()?;
    qp.send_inline(b"by hand")?.polled(1);
    assert_eq!(server.recv(server.pd().allocate(16)?)?.wait()?.payload(), b"by hand");

    drop(server);
    let event = block_on(other.next());
    assert_eq!(event.kind, EventKind::Disconnected);
    assert!(matches!(event.failure(), Some(ConnectError::Gone { .. })));
    id.disconnect()?;
    assert_eq!(next_event(&other).kind, EventKind::TimewaitExit);
    assert!(other.wait_for(Duration::ZERO).is_none());
    rustix::io::ioctl_fionbio(&other, true).unwrap();
    assert!(other.wait().unwrap_err().is_would_block());
    Ok(())
}

#[test]
fn two_threads_accept_from_one_listener() -> Result<(), Error> {
    let listener = listen();
    let acceptors: Vec<_> = (0..2)
        .map(|_| {
            let listener = listener.clone();
            thread::spawn(move || (0..10).map(|_| listener.accept().wait()).collect::<Result<Vec<_>, Error>>())
        })
        .collect();
    let clients: Vec<_> = (0..20).map(|_| cm::connect(listener.local_addr())).collect();
    let clients = clients.into_iter().map(|client| client.wait()).collect::<Result<Vec<_>, _>>()?;
    let mut peers = Vec::new();
    for acceptor in acceptors {
        peers.extend(acceptor.join().unwrap()?.iter().map(Connection::peer_addr));
    }
    let mut ours: Vec<_> = clients.iter().map(Connection::local_addr).collect();
    peers.sort();
    ours.sort();
    assert_eq!(peers, ours);
    Ok(())
}

#[test]
fn a_future_may_be_forgotten_or_moved() -> Result<(), Error> {
    let listener = listen();
    std::mem::forget(cm::connect(listener.local_addr()));
    let forgotten = listener.accept().wait()?;
    assert!(forgotten.is_connected());
    let client = cm::connect(listener.local_addr());
    let server = listener.accept().wait()?;
    let client = thread::spawn(move || block_on(async { pin!(client).await })).join().unwrap()?;
    tell(&client, &server, b"moved")
}
