//! What a program can get wrong without the compiler's noticing: an error it can understand, its buffer back, and no
//! harm to others.

use std::time::{Duration, Instant};
use ubiverbs::{
    Access, Class, CompletionQueue, Context, Datagram, Endpoint, Error, Key, Kind, Modify, Mtu, PostError,
    ProtectionDomain, QueuePair, Reliable, RemoteSlice, State, Status, Unreliable, connected_pair,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

fn status<T: std::fmt::Debug>(result: Result<T, ubiverbs::Failed<impl std::fmt::Debug>>) -> (Status, Class) {
    match result.unwrap_err().error {
        Error::Completion(error) => {
            assert!(error.cause.is_some(), "{error} has no reason");
            assert!(!error.hint().is_empty() && error.to_string().contains(error.status.name()));
            (error.status, error.class())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn buffers_of_another_protection_domain_are_refused_and_come_back() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let other = context.alloc_pd()?;
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let there = pd.share(8, Access::REMOTE_READ | Access::REMOTE_WRITE)?.remote_slice();
    let foreign = |failed: &Error| matches!(failed, Error::OtherProtectionDomain { what: "buffer" });

    let failed = a.send(other.allocate(8)?).unwrap_err();
    assert!(foreign(&failed.error) && failed.buffer.len() == 8);
    let failed = b.recv(failed.buffer).unwrap_err();
    assert!(foreign(&failed.error));
    let failed = a.read(failed.buffer, there).unwrap_err();
    assert!(foreign(&failed.error));
    let failed = a.write(vec![pd.allocate(4)?, failed.buffer], there).unwrap_err();
    assert!(foreign(&failed.error) || matches!(failed.error, Error::TooSmall { .. }));
    assert_eq!(failed.buffer.len(), 2);

    let receives = other.shared_receive_queue(4)?;
    assert!(pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare().is_err());
    // A peer's key of another domain than its queue pair's is refused by its NIC, and both ends learn why.
    let elsewhere = other.share(8, Access::REMOTE_WRITE)?;
    let result = a.write(pd.allocate(8)?, elsewhere.remote_slice())?.wait();
    assert_eq!(status(result), (Status::RemoteAccess, Class::Remote));
    assert_eq!((a.state(), b.state()), (State::Error, State::Error));
    Ok(())
}

#[test]
fn objects_of_another_device_are_refused() -> Result<(), Error> {
    let (_, pd, _) = open();
    let (_, _, other_cq) = open();
    let refused = pd.queue_pair::<Reliable>(&other_cq).prepare().unwrap_err();
    assert!(matches!(refused, Error::OtherDevice { what: "completion queue" }), "{refused}");
    Ok(())
}

#[test]
fn lengths_are_checked_before_anything_is_posted() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(16, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let failed = a.write(pd.allocate(17)?, there).unwrap_err();
    assert!(matches!(failed.error, Error::TooSmall { needed: 17, available: 16 }));
    let failed = a.read(pd.allocate(15)?, there).unwrap_err();
    assert!(matches!(failed.error, Error::TooSmall { needed: 16, available: 15 }));
    assert!(matches!(a.fetch_add(there.slice(4..16)?, 1), Err(Error::Misaligned { .. })));
    assert!(matches!(a.fetch_add(there.slice(0..7)?, 1), Err(Error::TooSmall { .. })));
    assert!(matches!(a.send_inline(&[0; 257]), Err(Error::Post(PostError::InlineTooLong { given: 257, max: 256 }))));
    let many: Vec<_> = (0..5).map(|_| pd.allocate(1)).collect::<Result<_, _>>()?;
    let failed = a.send(many).unwrap_err();
    assert!(matches!(failed.error, Error::Post(PostError::TooManySges { given: 5, max: 4 })));
    assert_eq!(failed.buffer.len(), 5);
    assert!(there.slice(8..17).is_err() && there.slice(std::ops::Range { start: 9, end: 8 }).is_err());
    assert!(region.read_at(10, &mut [0; 7]).is_err() && region.write_at(usize::MAX, &[1]).is_err());
    assert!(region.load(4).is_err() && region.part(8..17).is_err());
    assert!(pd.allocate(0).is_err() && pd.allocate(usize::MAX).is_err() && pd.register(Vec::new()).is_err());
    assert!(matches!(pd.share(8, Access::ZERO_BASED), Err(Error::Rights { .. })));
    // Nothing of that has hurt the connection.
    assert_eq!(a.fetch_add(there, 1)?.wait()?, 0);
    Ok(())
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let receiving = b.recv(pd.allocate(3)?)?;
    let also = b.recv(pd.allocate(4)?)?;
    let sending = a.send_inline(b"four")?;
    assert_eq!(status(receiving.wait()), (Status::LocalLength, Class::Local));
    assert_eq!(status(sending.wait()), (Status::RemoteInvalidRequest, Class::Remote));
    let failed = also.wait().unwrap_err();
    assert!(matches!(&failed.error, Error::Completion(error) if error.class() == Class::Flushed));
    assert_eq!(failed.buffer.len(), 4, "a failure gives the buffer back");
    // Work for a queue pair in error is flushed, not lost.
    assert_eq!(status(a.send(pd.allocate(1)?)?.wait()), (Status::WorkRequestFlushed, Class::Flushed));
    Ok(())
}

#[test]
fn a_peer_without_receives_or_without_life_is_told_apart() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let giving_up_after = |time| pd.queue_pair::<Reliable>(&cq).not_ready_retries(1).retries(1).timeout(time).prepare();
    // Not before it is told that the other is not ready.
    let (a, b) = (giving_up_after(Duration::from_secs(10))?, pd.queue_pair::<Reliable>(&cq).prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    assert_eq!(status(a.send(pd.allocate(1)?)?.wait()), (Status::RnrRetryExceeded, Class::NotReady));
    drop(b);
    let a = giving_up_after(Duration::from_micros(500))?.connect(&at_b)?;
    assert_eq!(status(a.send(pd.allocate(1)?)?.wait()), (Status::RetryExceeded, Class::Unreachable));
    Ok(())
}

#[test]
fn states_are_respected() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let mut prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    assert_eq!(prepared.attributes().state, State::Init);
    let receiving = prepared.recv(pd.allocate(9)?)?;
    // By hand, back to RESET: what was posted comes back, and nothing can be posted.
    prepared.modify(&Modify { state: Some(State::Reset), ..Modify::default() })?;
    let failed = receiving.wait().unwrap_err();
    assert!(matches!(failed.error, Error::Destroyed));
    let failed = prepared.recv(failed.buffer).unwrap_err();
    assert!(matches!(failed.error, Error::Post(PostError::WrongState { state: State::Reset, .. })));
    let error = prepared.modify(&Modify { state: Some(State::ReadyToSend), ..Modify::default() }).unwrap_err();
    assert!(matches!(error, Error::Modify(_)), "{error}");
    let error = prepared.finish().unwrap_err();
    assert!(matches!(error, Error::State { actual: State::Reset, .. }), "{error}");

    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let reset = Modify { state: Some(State::Reset), ..Modify::default() };
    assert!(matches!(a.modify(&reset), Err(Error::State { .. })), "RESET takes the last handle");
    let second = a.clone();
    let failed = a.reset().unwrap_err();
    assert!(matches!(failed.error, Error::Shared { .. }));
    drop(second);
    // Error, reset, and the same two can be connected anew.
    b.modify(&Modify { state: Some(State::Error), ..Modify::default() })?;
    let waiting = b.recv(pd.allocate(1)?)?;
    assert_eq!(status(waiting.wait()), (Status::WorkRequestFlushed, Class::Flushed));
    let (a, b) = (failed.buffer.reset()?, b.reset()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let receiving = b.recv(pd.allocate(5)?)?;
    a.send_inline(b"again")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"again");
    // Where it begins is another each time, or late packets of before would be taken for those of now. By chance it is
    // the same once in 2^48.
    let (first, again) = (a.reset()?.endpoint(), b.reset()?.endpoint());
    assert!(first.psn() != at_a.psn() || again.psn() != at_b.psn());
    Ok(())
}

#[test]
fn queue_pairs_can_be_moved_by_hand() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let mut here = pd.queue_pair::<Unreliable>(&cq).prepare()?;
    let there = pd.queue_pair::<Unreliable>(&cq).prepare()?;
    let (at_here, at_there) = (here.endpoint(), there.endpoint());
    let there = there.connect(&at_here)?;
    let pattern = there.attributes();
    let av = ubiverbs::AddressVector { dgid: at_there.gid(), traffic_class: 32, ..pattern.av };
    here.modify(&Modify {
        state: Some(State::ReadyToReceive),
        av: Some(av),
        path_mtu: Some(Mtu::B256),
        dest_qpn: Some(at_there.qpn()),
        rq_psn: Some(at_there.psn()),
        ..Modify::default()
    })?;
    here.modify(&Modify { state: Some(State::ReadyToSend), sq_psn: Some(at_here.psn()), ..Modify::default() })?;
    let here: QueuePair<Unreliable> = here.finish()?;
    assert_eq!((here.attributes().av.traffic_class, here.attributes().path_mtu), (32, Mtu::B256));
    let receiving = there.recv(pd.allocate(5)?)?;
    here.send_inline(b"hello")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"hello");
    Ok(())
}

#[test]
fn ends_that_do_not_fit_are_not_connected() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let reliable = || pd.queue_pair::<Reliable>(&cq).prepare();
    let unreliable = pd.queue_pair::<Unreliable>(&cq).prepare()?.endpoint();
    let error = reliable()?.connect(&unreliable).unwrap_err();
    assert!(matches!(
        error,
        Error::OtherTransport { ours: Kind::ReliableConnected, theirs: Kind::UnreliableConnected }
    ));
    let peer = reliable()?.endpoint();
    let v6 = Endpoint::new(
        peer.kind(),
        peer.mtu(),
        "::1".parse::<std::net::IpAddr>().unwrap().into(),
        peer.qpn(),
        peer.psn(),
        peer.qkey(),
    );
    assert!(matches!(reliable()?.connect(&v6), Err(Error::AddressFamily { .. })));
    let nobody = "192.0.2.1".parse().unwrap();
    let error = pd.queue_pair::<Datagram>(&cq).source(nobody).prepare().unwrap_err();
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
    assert!(context.port().mtu <= Mtu::B4096);
    let error = ubiverbs::device("mlx5_0").unwrap_err();
    assert!(error.to_string().contains("ubi_lo"), "{error}");
    let error = pd.queue_pair::<Reliable>(&cq).max_sends(1 << 20).prepare().unwrap_err();
    assert!(error.to_string().contains("max_send_wr 1048576"), "{error}");
    Ok(())
}

#[test]
fn a_revoked_region_is_closed_to_everybody_but_its_owner() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(8, Access::REMOTE_WRITE)?;
    let there = region.remote_slice();
    a.write_inline(b"before", there)?.wait()?;
    region.revoke()?;
    region.revoke()?;
    assert!(matches!(a.send(region.clone()).unwrap_err().error, Error::Revoked));
    assert_eq!(status(a.write_inline(b"after", there)?.wait()), (Status::RemoteAccess, Class::Remote));
    let mut mine = [0; 6];
    region.read_at(0, &mut mine)?;
    assert_eq!(&mine, b"before");
    drop((a, b));
    // Rights are what was given, no more.
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let readable = pd.share(8, Access::REMOTE_READ)?;
    assert_eq!(status(a.fetch_add(readable.remote_slice(), 1)?.wait()), (Status::RemoteAccess, Class::Remote));
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let invented = RemoteSlice::new(readable.remote_slice().address(), 8, Key::new(0x1234_5678));
    assert_eq!(status(a.read(pd.allocate(8)?, invented)?.wait()), (Status::RemoteAccess, Class::Remote));
    Ok(())
}

#[test]
fn full_queues_refuse_and_an_overflowed_one_says_so() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let small = context.completion_queue(4).create()?;
    let a = pd.queue_pair::<Reliable>(&small).max_sends(4).max_receives(1).prepare()?;
    let b = pd.queue_pair::<Reliable>(&cq).max_receives(2).prepare()?;
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let kept = [b.recv(pd.allocate(1)?)?, b.recv(pd.allocate(1)?)?];
    let failed = b.recv(pd.allocate(3)?).unwrap_err();
    assert!(matches!(failed.error, Error::Post(PostError::QueueFull { queue: "receive", capacity: 2 })));
    assert_eq!(failed.buffer.len(), 3);
    drop(kept);
    // Left to the queue and never polled: more completions than it holds.
    let there = pd.share(1, Access::REMOTE_WRITE)?.remote_slice();
    let deadline = Instant::now() + Duration::from_secs(60);
    assert_eq!(small.capacity(), 8, "grown to what its queue pair may have outstanding");
    let mut posted = 0;
    while posted < 9 {
        match a.write_inline(b"x", there) {
            Ok(operation) => {
                operation.polled(posted);
                posted += 1;
            }
            Err(Error::Post(PostError::QueueFull { .. })) => assert!(Instant::now() < deadline),
            Err(other) => return Err(other),
        }
    }
    let mut told = 0;
    let error = loop {
        match small.poll() {
            Ok(completions) => told += completions.count(),
            Err(error) => break error,
        }
        assert!(Instant::now() < deadline);
    };
    assert!(matches!(error, Error::Overflowed) && told == 8, "{error} after {told}");
    // Who finds it overflowed may be told before the event is there.
    while !matches!(context.poll_event(), Some(ubiverbs::AsyncEvent::CompletionQueueError(_))) {
        assert!(Instant::now() < deadline, "no event");
    }
    Ok(())
}
