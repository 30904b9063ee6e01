//! Every kind of work, in both styles, over every transport.

use std::collections::HashSet;
use std::time::{Duration, Instant};
use ubiverbs::{
    Access, Buffer, CompletionKind, CompletionQueue, Context, Datagram, Error, GRH_LENGTH, Gid, ProtectionDomain,
    Reliable, Status, Unreliable, block_on, connected_pair,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

#[test]
fn messages_of_every_length_arrive_whole() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let lengths = [1, 2, 255, 4095, 4096, 4097, 65_536, 1_000_003];
    for length in lengths {
        let mut source = pd.allocate(length)?;
        source.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index * 7 + length) as u8);
        let receiving = b.recv(pd.allocate(length + 10)?)?;
        let source = a.send(source)?.wait()?;
        let message = receiving.wait()?;
        assert_eq!(message.payload(), &*source);
        assert_eq!(message.bytes(), length);
    }
    let receiving = b.recv(pd.allocate(1)?)?;
    a.send_inline(b"")?.wait()?;
    assert_eq!(receiving.wait()?.bytes(), 0);
    Ok(())
}

#[test]
fn immediates_arrive_beside_messages_and_writes() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(100, Access::REMOTE_WRITE)?;
    let (first, second) = (b.recv(pd.allocate(10)?)?, b.recv(pd.allocate(10)?)?);
    a.send_imm(pd.register(*b"data")?, 7)?.wait()?;
    a.write_imm(pd.register(*b"elsewhere")?, region.remote_slice().slice(5..14)?, 8)?.wait()?;
    let (first, second) = (first.wait()?, second.wait()?);
    assert_eq!((first.payload(), first.immediate()), (&b"data"[..], Some(7)));
    assert_eq!((second.payload(), second.immediate(), second.bytes()), (&b""[..], Some(8), 9));
    let mut there = [0; 9];
    region.read_at(5, &mut there)?;
    assert_eq!(&there, b"elsewhere");
    Ok(())
}

#[test]
fn quiet_work_is_told_of_only_when_it_fails() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(64, Access::REMOTE_WRITE)?;
    let there = region.remote_slice();
    let receiving = b.recv(pd.allocate(8)?)?;
    let mut batch = a.batch();
    batch.write_quietly(b"quiet", there.slice(0..5)?, 1)?;
    batch.send_quietly(b"message", 2)?;
    batch.write_inline(b"!", there.slice(5..6)?)?.polled(3);
    batch.post()?;
    assert_eq!(receiving.wait()?.payload(), b"message");
    // Everything before it is done, and nothing of it is told.
    let told = cq.wait()?;
    assert!(told.is_ok() && told.wr_id() == 3);
    assert_eq!((cq.poll()?.count(), a.outstanding().0), (0, 0));
    let mut bytes = [0; 6];
    region.read_at(0, &mut bytes)?;
    assert_eq!(&bytes, b"quiet!");
    // As many as there is room for, again and again, with one in between that is told of.
    for _ in 0..100 {
        for _ in 0..15 {
            a.write_quietly(b"more", there, 4)?;
        }
        a.write_inline(b"more", there)?.wait()?;
    }
    assert!(matches!(a.write_quietly(&[0; 65], there, 5), Err(Error::TooSmall { .. })));
    // One that fails is told under its number, and those behind it are flushed.
    region.revoke()?;
    a.write_quietly(b"refused", there, 6)?;
    a.send_quietly(b"too late", 7)?;
    let refused = cq.wait()?;
    assert_eq!((refused.wr_id(), refused.status(), refused.kind()), (6, Status::RemoteAccess, CompletionKind::Write));
    let flushed = cq.wait()?;
    assert_eq!((flushed.wr_id(), flushed.status()), (7, Status::WorkRequestFlushed));
    Ok(())
}

#[test]
fn quiet_datagrams_arrive() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let ready = || pd.queue_pair::<Datagram>(&cq).prepare()?.activate();
    let (a, b) = (ready()?, ready()?);
    let to = pd.address(&b.endpoint())?;
    let receiving = b.recv(pd.allocate(GRH_LENGTH + 5)?)?;
    a.send_quietly_to(b"hello", &to, 9)?;
    assert_eq!(receiving.wait()?.payload(), b"hello");
    assert_eq!(cq.poll()?.count(), 0);
    Ok(())
}

#[test]
fn one_sided_work_gathers_and_scatters() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(64, Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let words = pd.register(*b"one two three")?.freeze();
    let parts = vec![words.slice(8..13), words.slice(..3), words.slice(4..7)];
    let parts = a.write(parts, region.remote_slice())?.wait()?;
    assert_eq!(parts.len(), 3);
    let pieces = vec![pd.allocate(5)?, pd.allocate(3)?, pd.allocate(10)?];
    // Eleven bytes are read; the last piece is filled as far as they go.
    let pieces = a.read(pieces, region.remote_slice().slice(0..11)?)?.wait()?;
    assert_eq!((&*pieces[0], &*pieces[1], &pieces[2][..3]), (&b"three"[..], &b"one"[..], &b"two"[..]));
    assert!(pieces[2][3..].iter().all(|byte| *byte == 0));
    // From and into shared memory, too.
    let mine = pd.share(32, Access::LOCAL_WRITE)?;
    let mine = a.read(mine.part(8..16)?, region.remote_slice().slice(0..8)?)?.wait()?;
    let mut copy = [0; 8];
    mine.read_at(0, &mut copy)?;
    assert_eq!(&copy, b"threeone");
    a.write_inline(b"inline", region.remote_slice().slice(20..26)?)?.wait()?;
    let mut copy = [0; 6];
    region.read_at(20, &mut copy)?;
    assert_eq!(&copy, b"inline");
    Ok(())
}

#[test]
fn atomic_operations_answer_what_was_there() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(32, Access::REMOTE_ATOMIC)?;
    region.store(8, 10)?;
    let word = region.remote_slice().slice(8..16)?;
    assert_eq!(a.fetch_add(word, 5)?.wait()?, 10);
    assert_eq!(a.compare_swap(word, 15, 100)?.wait()?, 15);
    assert_eq!(a.compare_swap(word, 15, 200)?.wait()?, 100, "not equal: nothing happens");
    assert_eq!(region.load(8)?, 100);
    // Many under way, more than the NIC runs at a time; each gets its own answer.
    let answers: Vec<_> = (0..64).map(|_| a.fetch_add(word, 1)).collect::<Result<_, _>>()?;
    let mut seen = HashSet::new();
    for answer in answers {
        seen.insert(answer.wait()?);
    }
    assert_eq!(seen, (100..164).collect());
    a.fetch_add(word, 1)?.polled(77);
    let completion = cq.wait()?;
    assert_eq!((completion.wr_id(), completion.value()), (77, Some(164)));
    Ok(())
}

#[test]
fn unreliable_connections_send_and_write() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Unreliable>(&pd, &cq)?;
    let region = pd.share(100_000, Access::REMOTE_WRITE)?;
    let receiving = b.recv(pd.allocate(20_000)?)?;
    a.write(pd.register(vec![3; 100_000])?, region.remote_slice())?.wait()?;
    a.send(pd.register(vec![4; 20_000])?)?.wait()?;
    assert!(receiving.wait()?.payload().iter().all(|byte| *byte == 4));
    assert_eq!(region.load(99_992)?, u64::from_ne_bytes([3; 8]));
    Ok(())
}

#[test]
fn datagrams_tell_their_sender() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let a = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    for family in [true, false] {
        let Some(source) = context.port().gids.into_iter().flatten().find(|gid| gid.to_ip().is_ipv4() == family) else {
            continue;
        };
        let b = pd.queue_pair::<Datagram>(&cq).source(source.to_ip()).prepare()?.activate()?;
        let receiving = b.recv(pd.allocate(GRH_LENGTH + 100)?)?;
        a.send_inline_to(b"hello", &pd.address(&b.endpoint())?)?.wait()?;
        let message = receiving.wait()?;
        assert_eq!((message.payload(), message.source_qpn()), (&b"hello"[..], Some(a.qpn())));
        assert_eq!(message.source_gid(), Some(Gid::from_ip(source.to_ip())));
        let answering = a.recv(pd.allocate(GRH_LENGTH + 100)?)?;
        let back = message.reply_address(&b).expect("a datagram has a sender");
        b.send_to(pd.register(*b"and back")?, &back)?.wait()?;
        assert_eq!(answering.wait()?.payload(), b"and back");
    }
    Ok(())
}

#[test]
fn polling_hands_buffers_back_in_order() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let receive_cq = _context.completion_queue(8).create()?;
    let a = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let b = pd.queue_pair::<Reliable>(&cq).receive_cq(&receive_cq).prepare()?;
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    for number in 0..20 {
        b.recv(pd.allocate(8)?)?.polled(100 + number);
    }
    for number in 0..20u64 {
        a.send(pd.register(number.to_ne_bytes())?)?.polled(number);
    }
    let (mut sent, mut received) = (0, 0);
    while (sent, received) != (20, 20) {
        for completion in cq.poll()? {
            assert_eq!((completion.wr_id(), completion.kind()), (sent, CompletionKind::Send));
            let Some(Buffer::Mut(buffer)) = completion.into_buffer() else { panic!("sends were posted with buffers") };
            assert_eq!(*buffer, sent.to_ne_bytes());
            sent += 1;
        }
        // Taking one of several leaves the others.
        if let Some(completion) = receive_cq.poll()?.next() {
            assert_eq!(completion.wr_id(), 100 + received);
            assert_eq!(completion.into_received()?.payload(), received.to_ne_bytes());
            received += 1;
        }
    }
    assert_eq!(cq.poll()?.count() + receive_cq.poll()?.count(), 0);
    Ok(())
}

#[test]
fn both_styles_share_a_queue() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    block_on(async {
        for round in 0..100u64 {
            let awaited = b.recv(pd.allocate(8)?)?;
            b.recv(pd.allocate(8)?)?.polled(round);
            a.send_inline(&round.to_ne_bytes())?.await?;
            a.send_inline(&round.to_ne_bytes())?.polled(1000 + round);
            assert_eq!(awaited.await?.payload(), round.to_ne_bytes());
            let (first, second) = (cq.next().await?, cq.next().await?);
            let numbers = HashSet::from([first.wr_id(), second.wr_id()]);
            assert_eq!(numbers, HashSet::from([round, 1000 + round]));
        }
        Ok(())
    })
}

#[test]
fn work_left_to_the_queue_after_it_was_done_is_still_told() -> Result<(), Error> {
    let (context, pd, _) = open();
    let channel = context.completion_channel()?;
    let cq = context.completion_queue(8).channel(&channel).create()?;
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let receiving = b.recv(pd.allocate(8)?)?;
    let sending = a.send_inline(b"x")?;
    // Awaiting something makes the queue sort completions as they come, so the handle has its answer.
    b.recv(pd.allocate(8)?)?.polled(0);
    a.send_inline(b"y")?.wait()?;
    assert!(sending.is_done() && receiving.is_done());
    while cq.poll()?.count() > 0 {}
    cq.arm();
    sending.polled(1);
    receiving.polled(2);
    assert_eq!(channel.wait()?, cq, "a thread that sleeps on the channel is woken");
    assert_eq!(cq.poll()?.map(|completion| completion.wr_id()).collect::<Vec<_>>(), [1, 2]);
    Ok(())
}

#[test]
fn arming_a_queue_that_holds_completions_wakes_whether_or_not_they_were_sorted() -> Result<(), Error> {
    let (context, pd, _) = open();
    let channel = context.completion_channel()?;
    let cq = context.completion_queue(8).channel(&channel).create()?;
    let other = context.completion_queue(8).create()?;
    let (a, b) = (pd.queue_pair::<Reliable>(&other).prepare()?, pd.queue_pair::<Reliable>(&cq).prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let soon = Duration::from_secs(60);
    for number in 0..2 {
        b.recv(pd.allocate(8)?)?.polled(number);
        a.send_inline(b"x")?.wait()?;
        cq.arm();
        assert_eq!(channel.wait_for(soon)?, Some(cq.clone()));
        assert_eq!(cq.wait_for(soon)?.map(|completion| completion.wr_id()), Some(number));
        // Waiting for the next completion has the queue sort completions as they come, from then on.
    }
    cq.arm();
    assert_eq!(channel.wait_for(Duration::ZERO)?, None);
    Ok(())
}

#[test]
fn a_batch_is_posted_in_order_and_refused_from_where_it_fails() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let a = pd.queue_pair::<Reliable>(&cq).max_sends(40).max_inline(16).prepare()?;
    let b = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let receiving: Vec<_> = (0..40).map(|_| Ok(b.recv(pd.allocate(8)?)?)).collect::<Result<_, Error>>()?;
    let mut batch = a.batch();
    let sending: Vec<_> =
        (0..40u64).map(|number| batch.send_inline(&number.to_ne_bytes())).collect::<Result<_, _>>()?;
    assert_eq!((batch.len(), a.outstanding().0), (40, 40));
    batch.post()?;
    for (number, (sending, receiving)) in sending.into_iter().zip(receiving).enumerate() {
        sending.wait()?;
        assert_eq!(receiving.wait()?.payload(), (number as u64).to_ne_bytes());
    }
    // The second of three is too long for the queue pair.
    b.recv(pd.allocate(8)?)?.polled(0);
    let mut batch = a.batch();
    let first = batch.send_inline(b"fine")?;
    let second = batch.send_inline(&[0; 17])?;
    let third = batch.send(pd.allocate(5)?)?;
    assert!(matches!(batch.post(), Err(Error::Post(_))));
    first.wait()?;
    assert!(matches!(second.wait().unwrap_err().error, Error::Post(_)));
    let failed = third.wait().unwrap_err();
    assert!(matches!(failed.error, Error::NotPosted));
    assert_eq!(failed.buffer.len(), 5, "what was never posted comes back");
    // A batch that is dropped has never been.
    let mut batch = a.batch();
    let never = batch.fence().send(pd.allocate(6)?)?;
    drop(batch);
    assert_eq!(never.wait().unwrap_err().buffer.len(), 6);
    assert_eq!(a.outstanding().0, 0);
    Ok(())
}

#[test]
fn solicited_messages_wake_those_who_asked_for_them() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let channel = context.completion_channel()?;
    let sleeping = context.completion_queue(8).channel(&channel).create()?;
    let a = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let b = pd.queue_pair::<Reliable>(&sleeping).prepare()?;
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    b.recv(pd.allocate(8)?)?.polled(1);
    b.recv(pd.allocate(8)?)?.polled(2);
    sleeping.arm_solicited();
    a.send_inline(b"softly")?.wait()?;
    assert!(channel.try_next().is_none());
    let mut batch = a.batch();
    let loud = batch.solicited().send_inline(b"loudly")?;
    batch.post()?;
    loud.wait()?;
    assert_eq!(channel.wait()?, sleeping);
    assert_eq!(sleeping.poll()?.count(), 2);
    Ok(())
}

#[test]
fn shared_receives_go_to_whoever_a_message_comes_to() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let receives = pd.shared_receive_queue(16)?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let server = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare()?;
        let client = pd.queue_pair::<Reliable>(&cq).prepare()?;
        let (at_server, at_client) = (server.endpoint(), client.endpoint());
        clients.push((server.connect(&at_client)?, client.connect(&at_server)?));
    }
    let waiting: Vec<_> = (0..8).map(|_| Ok(receives.recv(pd.allocate(8)?)?)).collect::<Result<_, Error>>()?;
    receives.set_limit(5)?;
    for round in 0..2 {
        for (server, client) in clients.iter().rev() {
            client.send_inline(&[round])?.wait()?;
            assert!(server.recv(pd.allocate(8)?).is_err(), "its receives are shared");
        }
    }
    let order: Vec<_> = clients.iter().rev().chain(clients.iter().rev()).map(|(server, _)| server.qpn()).collect();
    let mut came = Vec::new();
    for receiving in waiting {
        came.push(receiving.wait()?.qpn());
    }
    assert_eq!(came, order);
    assert_eq!(receives.outstanding(), 0);
    let limit = ubiverbs::AsyncEvent::SharedReceiveQueueLimit(receives.number());
    let deadline = Instant::now() + Duration::from_secs(60);
    while context.poll_event() != Some(limit) {
        assert!(Instant::now() < deadline, "no event");
    }
    Ok(())
}
