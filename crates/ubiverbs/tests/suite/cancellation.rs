//! Operations that are dropped before they are done: what is lost by that, method by method, and what is not. Messages
//! never are.
#![allow(missing_docs)]

use proptest::prelude::*;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as TaskContext, Waker};
use std::time::{Duration, Instant};
use ubiverbs::cm::{self, Connection, EventChannel, EventKind, Id, Listener, PortSpace};
use ubiverbs::{
    Access, CloseReason, CompletionQueue, Context, Datagram, Error, GRH_LENGTH, Kind, Operation, Outcome,
    ProtectionDomain, QueuePair, Received, Reliable, State, Status, Unreliable, connected_pair,
};

/// Longer than anything takes that works.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

/// Looks until it is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// Polls once, as `select!` does with a branch that loses, and drops it.
fn cancel<R: Outcome>(mut operation: Operation<R>) {
    let poll = Pin::new(&mut operation).poll(&mut TaskContext::from_waker(Waker::noop()));
    drop(poll);
}

/// Polls a future that is not ready once, and drops it.
#[track_caller]
fn cancel_pending<F: Future + Unpin>(mut future: F) {
    assert!(Pin::new(&mut future).poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
}

#[track_caller]
fn taken(receiving: Operation<Received>) -> Vec<u8> {
    let mut receiving = receiving;
    receiving.wait_for(TEST_TIMEOUT).expect("a message").unwrap().payload().to_vec()
}

#[test]
fn a_receive_that_timed_out_leaves_its_message_to_the_next() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    assert!(b.recv(pd.allocate(16)?)?.wait_for(Duration::from_millis(1)).is_none());
    a.send_inline(b"one")?.wait()?;
    // In the buffer of the first call; that of the second is in the queue.
    let message = b.recv(pd.allocate(100)?)?.wait()?;
    assert_eq!(message.payload(), b"one");
    assert_eq!(message.into_buffer().len(), 16);
    assert_eq!(b.outstanding().1, 1);
    a.send_inline(b"two")?.wait()?;
    let message = b.recv(pd.allocate(16)?)?.wait()?;
    assert_eq!(message.payload(), b"two");
    assert_eq!(message.into_buffer().len(), 100);
    Ok(())
}

#[test]
fn those_who_wait_get_messages_in_order_whichever_of_them_gives_up() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let mut receiving: VecDeque<_> = (0..4).map(|_| b.recv(pd.allocate(8).unwrap()).unwrap()).collect();
    // The first gives up before anything came, the third after its message did.
    cancel_pending(receiving.pop_front().expect("four"));
    for message in [b"0", b"1", b"2", b"3"] {
        a.send_inline(message)?.wait()?;
    }
    until("all have come", || cq.poll().is_ok_and(|polled| polled.count() == 0) && b.outstanding().1 == 0);
    drop(receiving.remove(1));
    let mut order = Vec::new();
    for receiving in receiving {
        order.push(taken(receiving));
    }
    for _ in 0..2 {
        order.push(taken(b.recv(pd.allocate(8)?)?));
    }
    assert_eq!(order.concat(), b"0123");
    Ok(())
}

#[test]
fn a_message_that_nobody_waited_for_goes_to_the_completion_queue_too() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    cancel_pending(b.recv(pd.allocate(8)?)?);
    b.recv(pd.allocate(8)?)?.polled(7);
    a.send_inline(b"one")?.wait()?;
    let completion = cq.wait_for(TEST_TIMEOUT)?.expect("a completion");
    assert_eq!((completion.wr_id(), completion.into_received()?.payload()), (7, &b"one"[..]));
    // One that is kept, and one that was done when it was left to the queue.
    a.send_inline(b"two")?.wait()?;
    until("it has come", || cq.poll().is_ok_and(|polled| polled.count() == 0) && b.outstanding().1 == 0);
    b.recv(pd.allocate(8)?)?.polled(8);
    let completion = cq.wait_for(TEST_TIMEOUT)?.expect("a completion");
    assert_eq!((completion.wr_id(), completion.into_received()?.payload()), (8, &b"two"[..]));
    Ok(())
}

#[test]
fn giving_up_for_ever_fills_no_queue_and_no_memory() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let prepare = || pd.queue_pair::<Reliable>(&cq).max_receives(4).prepare();
    let (a, b) = (prepare()?, prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    for _ in 0..1000 {
        cancel_pending(b.recv(pd.allocate(8)?)?);
        assert!(b.outstanding().1 <= 4);
    }
    // With one receive only, if it is taken up again.
    for number in 0..100u8 {
        if number < 4 {
            a.send_inline(&[number])?.wait()?;
        }
        if number >= 4 {
            drop(a.send_inline(&[number])?);
        }
        assert_eq!(taken(b.recv(pd.allocate(8)?)?), [number]);
    }
    // A receiver that never takes a message gets no more than the queue holds: the peer waits.
    for number in 0..60 {
        drop(a.send_inline(&[number])?);
        drop(b.recv(pd.allocate(8)?)?);
    }
    until("the peer waits", || cq.poll().is_ok_and(|polled| polled.count() == 0) && a.outstanding().0 > 40);
    for number in 0..60 {
        assert_eq!(taken(b.recv(pd.allocate(8)?)?), [number]);
    }
    Ok(())
}

#[test]
fn a_receive_can_be_taken_up_without_another_buffer() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    assert!(b.resume_recv().is_none(), "nothing was posted");
    let waited_for = b.recv(pd.allocate(8)?)?;
    assert!(b.resume_recv().is_none(), "a task waits for it");
    drop(waited_for);
    for _ in 0..1000 {
        cancel_pending(b.resume_recv().expect("the one receive"));
    }
    let first = b.resume_recv().expect("the one receive");
    assert!(b.resume_recv().is_none(), "one receive, and a task waits for it");
    a.send_inline(b"one")?.wait()?;
    assert_eq!(taken(first), b"one");
    assert_eq!(b.outstanding().1, 0);
    // One that is waited for so ends with the queue pair, and its buffer comes back.
    drop(b.recv(pd.allocate(9)?)?);
    let waiting = b.resume_recv().expect("a receive");
    drop(b);
    let failed = waiting.wait().unwrap_err();
    assert!(matches!(failed.error, Error::Destroyed), "{failed}");
    assert_eq!(failed.buffer.len(), 9);
    Ok(())
}

#[test]
fn whoever_waits_for_the_receive_of_another_hears_of_its_failure() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let prepare = || pd.queue_pair::<Reliable>(&cq).max_receives(2).prepare();
    let (a, b) = (prepare()?, prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (_a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    drop(b.recv(pd.allocate(8)?)?);
    drop(b.recv(pd.allocate(8)?)?);
    // The queue is full, of receives that nobody waits for.
    let waiting = [b.recv(pd.allocate(11)?)?, b.recv(pd.allocate(12)?)?];
    let refused = b.recv(pd.allocate(13)?).unwrap_err();
    assert!(matches!(refused.error, Error::Post(_)), "{refused}");
    b.modify(&ubiverbs::Modify { state: Some(State::Error), ..Default::default() })?;
    for (waiting, length) in waiting.into_iter().zip([11, 12]) {
        let failed = waiting.wait().unwrap_err();
        let Error::Completion(error) = &failed.error else { panic!("{failed}") };
        assert_eq!((error.status, failed.buffer.len()), (Status::WorkRequestFlushed, length));
    }
    Ok(())
}

#[test]
fn a_message_that_was_kept_is_there_after_the_end_of_the_connection() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    drop(b.recv(pd.allocate(16)?)?);
    a.send_inline(b"last words")?.wait()?;
    drop(a);
    b.modify(&ubiverbs::Modify { state: Some(State::Error), ..Default::default() })?;
    assert_eq!(taken(b.recv(pd.allocate(16)?)?), b"last words");
    let failed = b.recv(pd.allocate(16)?)?.wait().unwrap_err();
    assert!(matches!(failed.error, Error::Completion(_)), "{failed}");
    Ok(())
}

#[test]
fn a_shared_receive_queue_keeps_messages_for_any_of_its_queue_pairs() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let shared = pd.shared_receive_queue(8)?;
    let pair = || -> Result<[QueuePair<Reliable>; 2], Error> {
        let server = pd.queue_pair::<Reliable>(&cq).shared_receives(&shared).prepare()?;
        let client = pd.queue_pair::<Reliable>(&cq).prepare()?;
        let (at_server, at_client) = (server.endpoint(), client.endpoint());
        Ok([server.connect(&at_client)?, client.connect(&at_server)?])
    };
    let [[one, to_one], [other, to_other]] = [pair()?, pair()?];
    cancel_pending(shared.recv(pd.allocate(8)?)?);
    cancel_pending(shared.recv(pd.allocate(8)?)?);
    to_one.send_inline(b"one")?.wait()?;
    to_other.send_inline(b"other")?.wait()?;
    let first = shared.recv(pd.allocate(8)?)?.wait()?;
    assert_eq!((first.payload(), first.qpn()), (&b"one"[..], one.qpn()));
    // One that is kept outlives the queue pair that it came to.
    drop((other, to_other));
    assert_eq!(taken(shared.recv(pd.allocate(8)?)?), b"other");
    to_one.send_inline(b"next")?.wait()?;
    assert_eq!(taken(shared.resume_recv().expect("buffers of the calls before are in the queue")), b"next");
    Ok(())
}

#[test]
fn a_datagram_is_kept_with_the_address_it_came_from() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let new = || pd.queue_pair::<Datagram>(&cq).prepare()?.activate();
    let (a, b) = (new()?, new()?);
    cancel_pending(b.recv(pd.allocate(GRH_LENGTH + 16)?)?);
    a.send_inline_to(b"question", &pd.address(&b.endpoint())?)?.wait()?;
    until("it has come", || cq.poll().is_ok_and(|polled| polled.count() == 0) && b.outstanding().1 == 0);
    let message = b.recv(pd.allocate(GRH_LENGTH + 16)?)?.wait()?;
    assert_eq!((message.payload(), message.source_qpn()), (&b"question"[..], Some(a.qpn())));
    let receiving = a.recv(pd.allocate(GRH_LENGTH + 16)?)?;
    b.send_inline_to(b"answer", &message.reply_address(&b).expect("it came from somewhere"))?.wait()?;
    assert_eq!(taken(receiving), b"answer");
    Ok(())
}

#[test]
fn unreliable_connections_and_writes_with_a_number_keep_them_too() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Unreliable>(&pd, &cq)?;
    let region = pd.share(64, Access::REMOTE_WRITE)?;
    cancel_pending(b.recv(pd.allocate(8)?)?);
    cancel_pending(b.recv(pd.allocate(8)?)?);
    a.send_imm(pd.register(b"one".to_vec())?, 1)?.wait()?;
    a.write_imm(pd.register(b"written".to_vec())?, region.remote_slice(), 2)?.wait()?;
    until("both have come", || cq.poll().is_ok_and(|polled| polled.count() == 0) && b.outstanding().1 == 0);
    let message = b.recv(pd.allocate(8)?)?.wait()?;
    assert_eq!((message.payload(), message.immediate()), (&b"one"[..], Some(1)));
    let message = b.recv(pd.allocate(8)?)?.wait()?;
    assert_eq!((message.payload(), message.immediate(), message.bytes()), (&b""[..], Some(2), 7));
    Ok(())
}

#[test]
fn what_is_discarded_is_gone() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    // Before its message, and after.
    b.recv(pd.allocate(8)?)?.discard();
    let mut second = b.recv(pd.allocate(8)?)?;
    a.send_inline(b"one")?.wait()?;
    a.send_inline(b"two")?.wait()?;
    until("it is done", || cq.poll().is_ok() && second.is_done());
    assert!(second.wait_for(Duration::ZERO).is_some_and(|message| message.is_ok()));
    let third = b.recv(pd.allocate(8)?)?;
    a.send_inline(b"three")?.wait()?;
    until("it is done", || cq.poll().is_ok() && third.is_done());
    third.discard();
    let fourth = b.recv(pd.allocate(8)?)?;
    a.send_inline(b"four")?.wait()?;
    assert_eq!(taken(fourth), b"four");
    a.send_inline(b"sent all the same")?.discard();
    let fifth = b.recv(pd.allocate(32)?)?;
    assert_eq!(taken(fifth), b"sent all the same");
    Ok(())
}

#[test]
fn sends_and_writes_go_on_without_their_operation() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(64, Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let receiving: Vec<_> = (0..5).map(|_| b.recv(pd.allocate(16).unwrap()).unwrap()).collect();
    cancel(a.send(pd.register(b"send".to_vec())?)?);
    cancel(a.send_imm(pd.register(b"send_imm".to_vec())?, 7)?);
    cancel(a.send_inline(b"send_inline")?);
    cancel(a.write(pd.register([1; 8].to_vec())?, there.slice(0..8)?)?);
    cancel(a.write_imm(pd.register([2; 8].to_vec())?, there.slice(8..16)?, 8)?);
    cancel(a.write_inline(&[3; 8], there.slice(16..24)?)?);
    let mut batch = a.batch();
    let operation = batch.send_inline(b"batch")?;
    batch.post()?;
    cancel(operation);
    let messages: Vec<_> = receiving.into_iter().map(|receiving| receiving.wait()).collect::<Result<_, _>>()?;
    let payloads: Vec<_> = messages.iter().map(Received::payload).collect();
    assert_eq!(payloads, [&b"send"[..], b"send_imm", b"send_inline", b"", b"batch"]);
    assert_eq!((messages[1].immediate(), messages[3].immediate()), (Some(7), Some(8)));
    let words = || -> Result<_, Error> { Ok([region.load(0)?, region.load(8)?, region.load(16)?]) };
    assert_eq!(words()?, [1, 2, 3].map(|byte| u64::from_ne_bytes([byte; 8])));
    until("their buffers are back", || cq.poll().is_ok_and(|polled| polled.count() == 0) && a.outstanding().0 == 0);
    Ok(())
}

#[test]
fn a_read_can_be_repeated_and_an_atomic_operation_has_happened() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(64, Access::REMOTE_READ | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    region.store(0, 5)?;
    cancel(a.read(pd.allocate(8)?, there.slice(0..8)?)?);
    assert_eq!(*a.read(pd.allocate(8)?, there.slice(0..8)?)?.wait()?, 5u64.to_ne_bytes());
    // Carried out, and its answer is lost. The next one sees it.
    cancel(a.fetch_add(there, 10)?);
    assert_eq!(a.fetch_add(there, 1)?.wait()?, 15);
    cancel(a.compare_swap(there, 16, 100)?);
    assert_eq!(a.compare_swap(there, 100, 101)?.wait()?, 100);
    assert_eq!(region.load(0)?, 101);
    // Who keeps the operation keeps the answer.
    let mut adding = a.fetch_add(there, 1)?;
    let answer = adding.wait_for(Duration::ZERO).or_else(|| adding.wait_for(TEST_TIMEOUT));
    assert_eq!(answer.expect("an answer")?, 101);
    Ok(())
}

#[test]
fn the_next_completion_stays_in_the_queue() -> Result<(), Error> {
    let (context, pd, _) = open();
    let channel = context.completion_channel()?;
    let cq = context.completion_queue(16).channel(&channel).create()?;
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    cancel_pending(cq.next());
    cq.arm();
    assert!(channel.wait_for(Duration::from_millis(1))?.is_none());
    b.recv(pd.allocate(8)?)?.polled(1);
    // Two wait, and one of them is dropped when there is something: it has taken nothing.
    let (mut one, other) = (Box::pin(cq.next()), Box::pin(cq.next()));
    assert!(one.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    a.send_inline(b"hello")?.wait()?;
    drop((one, other));
    assert_eq!(channel.wait_for(TEST_TIMEOUT)?, Some(cq.clone()), "the event of a queue that was armed is there");
    assert_eq!(cq.wait()?.into_received()?.payload(), b"hello");
    Ok(())
}

#[test]
fn threads_that_take_and_give_up_at_once_lose_nothing() -> Result<(), Error> {
    const MESSAGES: u32 = 500;
    let (_context, pd, cq) = open();
    let prepare = || pd.queue_pair::<Reliable>(&cq).max_receives(8).prepare();
    let (a, b) = (prepare()?, prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let got = AtomicU32::new(0);
    let seen = Mutex::new(vec![false; MESSAGES as usize]);
    std::thread::scope(|threads| {
        for thread in 0..3 {
            let (b, pd, got, seen) = (&b, &pd, &got, &seen);
            threads.spawn(move || {
                let deadline = Instant::now() + TEST_TIMEOUT;
                while got.load(Ordering::SeqCst) < MESSAGES {
                    assert!(Instant::now() < deadline, "{} of {MESSAGES}", got.load(Ordering::SeqCst));
                    let again = if thread == 0 { b.resume_recv() } else { None };
                    let Ok(mut receiving) = again.map_or_else(|| b.recv(pd.allocate(4).unwrap()), Ok) else { continue };
                    // Mostly in vain.
                    let Some(message) = receiving.wait_for(Duration::from_micros(thread * 3)) else { continue };
                    let number = u32::from_ne_bytes(message.unwrap().payload().try_into().unwrap());
                    assert!(!std::mem::replace(&mut seen.lock().unwrap()[number as usize], true), "twice");
                    got.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for number in 0..MESSAGES {
            a.send_inline(&number.to_ne_bytes()).unwrap().wait().unwrap();
        }
    });
    assert!(seen.into_inner().unwrap().into_iter().all(|seen| seen));
    Ok(())
}

/// Two ends of a connection.
fn connection() -> Result<(Listener, Connection, Connection), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let client = cm::connect(listener.local_addr());
    let server = listener.accept().wait()?;
    Ok((listener, client.wait()?, server))
}

#[test]
fn an_attempt_to_connect_is_given_up_and_can_be_made_again() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr();
    drop(cm::resolve(address));
    let route = cm::resolve(address).wait()?;
    drop(route);
    cancel_pending(cm::connect(address));
    cancel_pending(cm::resolve(address).wait()?.connect().start());
    // One that is only borrowed goes on.
    let mut connecting = cm::connect(address);
    assert!(connecting.wait_for(Duration::from_millis(1)).is_none());
    let server = listener.accept().wait()?;
    let client = connecting.wait_for(TEST_TIMEOUT).expect("a connection")?;
    assert_eq!(client.local_addr(), server.peer_addr(), "those that were given up are passed over");
    // One that stood when it was dropped is ended.
    let connecting = cm::connect(address);
    let server = listener.accept().wait()?;
    drop(connecting);
    assert!(matches!(server.closed().wait()?, CloseReason::PeerDisconnected { .. }));
    Ok(())
}

#[test]
fn a_listener_keeps_those_who_asked() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    cancel_pending(listener.next());
    cancel_pending(listener.accept());
    let client = cm::connect(listener.local_addr());
    // A peer has asked by now, or will have: nothing is lost either way.
    drop(listener.next());
    drop(listener.accept());
    let server = listener.next().wait()?.accept().wait()?;
    assert_eq!(client.wait()?.local_addr(), server.peer_addr());
    // An acceptance that is dropped is a refusal, or ends the connection.
    let client = cm::connect(listener.local_addr());
    drop(listener.next().wait()?.accept().start());
    match client.wait() {
        Err(Error::Connect(_)) => {}
        Ok(client) => assert!(matches!(client.closed().wait()?, CloseReason::PeerDisconnected { .. })),
        Err(other) => panic!("{other}"),
    }
    Ok(())
}

#[test]
fn the_end_of_a_connection_is_told_as_often_as_it_is_asked_for() -> Result<(), Error> {
    let (_listener, client, server) = connection()?;
    cancel_pending(server.closed());
    assert!(server.closed().wait_for(Duration::from_millis(1)).is_none());
    // To end it is not to be taken back, though a task waits for that.
    drop(client.disconnect_with(b"enough"));
    for _ in 0..3 {
        let reason = server.closed().wait()?;
        assert!(
            matches!(&reason, CloseReason::PeerDisconnected { private_data } if private_data.starts_with(b"enough"))
        );
        assert_eq!(client.closed().wait()?, CloseReason::LocalClose);
    }
    Ok(())
}

#[test]
fn a_group_that_is_not_waited_for_is_not_joined() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let qp = pd.queue_pair::<Datagram>(&cq).qkey(cm::QKEY).prepare()?.activate()?;
    let group = "239.7.1.77".parse().expect("an address");
    drop(cm::join(group, &qp));
    let receiving = qp.recv(pd.allocate(GRH_LENGTH + 16)?)?;
    let membership = cm::join(group, &qp).wait()?;
    qp.send_inline_to(b"hello", membership.address())?.wait()?;
    assert_eq!(taken(receiving), b"hello", "joined once, heard once");
    assert!(qp.recv(pd.allocate(GRH_LENGTH + 16)?)?.wait_for(Duration::from_millis(5)).is_none());
    Ok(())
}

#[test]
fn a_service_can_be_asked_for_again() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let listener = Listener::<Datagram>::bind_as("127.0.0.1:0")?;
    let route = || cm::resolve_as::<Datagram>(listener.local_addr()).wait();
    drop(route()?.find_service(b"given up"));
    let asking = route()?.find_service(b"wanted");
    let qp = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    loop {
        let request = listener.next().wait()?;
        if request.private_data().starts_with(b"wanted") {
            break request.answer(&qp, b"here")?;
        }
    }
    assert_eq!(asking.wait()?.address().qpn(), qp.qpn());
    Ok(())
}

#[test]
fn an_event_stays_in_its_channel() -> Result<(), Error> {
    let channel = EventChannel::new()?;
    let id = Id::new(&channel, PortSpace::Tcp, Kind::ReliableConnected)?;
    cancel_pending(Box::pin(channel.next()));
    assert!(channel.wait_for(Duration::from_millis(1)).is_none());
    let mut waiting = Box::pin(channel.next());
    assert!(waiting.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending());
    id.resolve_address(None, ([127, 0, 0, 1], 7471).into())?;
    drop(waiting);
    let event = channel.wait_for(TEST_TIMEOUT).expect("an event");
    assert_eq!((event.kind, &event.id), (EventKind::AddressResolved, &id));
    Ok(())
}

/// What happens to the receives of a queue pair.
#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Resume,
    /// The handle at this place is dropped,
    Drop(usize),
    /// after it was polled.
    Cancel(usize),
    Send,
    /// The oldest handle is asked.
    Take,
    Look,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Post),
        1 => Just(Step::Resume),
        2 => (0..8usize).prop_map(Step::Drop),
        2 => (0..8usize).prop_map(Step::Cancel),
        4 => Just(Step::Send),
        2 => Just(Step::Take),
        2 => Just(Step::Look),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_dropped_messages_come_once_and_in_order(steps in steps()) {
        let (_context, pd, cq) = open();
        let prepare = || pd.queue_pair::<Reliable>(&cq).max_receives(6).prepare();
        let (a, b) = (prepare().unwrap(), prepare().unwrap());
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let (a, b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
        let mut handles: VecDeque<Operation<Received>> = VecDeque::new();
        let (mut sent, mut got) = (0u32, 0u32);
        // Sorts what has completed; nothing is left to the queue.
        let look = || assert_eq!(cq.poll().unwrap().count(), 0);
        let take = |handle: Operation<Received>, got: &mut u32| {
            let message = taken(handle);
            assert_eq!(message, got.to_ne_bytes(), "{steps:?}");
            *got += 1;
        };
        for step in &steps {
            match *step {
                Step::Post => match b.recv(pd.allocate(4).unwrap()) {
                    Ok(handle) => handles.push_back(handle),
                    Err(full) => assert!(matches!(full.error, Error::Post(_)), "{full}"),
                },
                Step::Resume => handles.extend(b.resume_recv()),
                Step::Drop(place) => drop(handles.remove(place)),
                Step::Cancel(place) => {
                    // What is done is not to be polled away.
                    look();
                    handles.remove(place).into_iter().filter(|handle| !handle.is_done()).for_each(cancel_pending);
                }
                Step::Send if b.outstanding().1 > 0 => {
                    a.send_inline(&sent.to_ne_bytes()).unwrap().wait().unwrap();
                    sent += 1;
                    look();
                }
                Step::Send => {}
                Step::Take => {
                    look();
                    if handles.front().is_some_and(Operation::is_done) {
                        take(handles.pop_front().unwrap(), &mut got);
                    }
                }
                Step::Look => look(),
            }
        }
        while got < sent {
            let handle = handles.pop_front().unwrap_or_else(|| b.recv(pd.allocate(4).unwrap()).unwrap());
            take(handle, &mut got);
        }
        // And then nothing more.
        look();
        assert!(handles.iter().all(|handle| !handle.is_done()), "{steps:?}");
    }
}
