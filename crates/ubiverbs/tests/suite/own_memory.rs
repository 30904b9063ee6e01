//! Memory of the program's own: registered where it is, sent, received and read into, shared with peers, and got back
//! as what it was.

use crate::peers::on_both_links;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::{
    Access, Arena, Buffer, Class, CompletionQueue, Context, Error, Failed, Mapped, Own, Part, ProtectionDomain,
    QueuePair, ReceivedInto, RegisteredMut, Reliable, RemoteSlice, block_on, connected_pair,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue, [QueuePair<Reliable>; 2]) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    let pair = connected_pair::<Reliable>(&pd, &cq).unwrap();
    (context, pd, cq, pair)
}

#[test]
fn vectors_and_boxes_go_and_come_back_where_they_were() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let mut numbers = Vec::with_capacity(500);
    numbers.extend((0..300).map(f64::from));
    let place = numbers.as_ptr();
    let receiving = b.recv_into(pd.register_own(vec![0f64; 300].into_boxed_slice())?)?;
    let sent: Vec<f64> = a.send(pd.register_own(numbers)?)?.wait()?.into_inner()?;
    assert_eq!((sent.as_ptr(), sent.capacity(), sent[299]), (place, 500, 299.0));
    let received: Box<[f64]> = receiving.wait()?.into_buffer().into_inner()?;
    assert_eq!(*received, *sent);
    Ok(())
}

#[test]
fn nothing_is_not_registered_and_comes_back() {
    let (_context, pd, _cq, _) = open();
    let Failed { error, buffer } = pd.register_own(Vec::<u32>::with_capacity(9)).unwrap_err();
    assert!(matches!(error, Error::Register { length: 0, .. }) && buffer.capacity() == 9);
    assert!(pd.share_own(Vec::<u8>::new(), Access::REMOTE_READ).is_err());
    assert!(pd.register_read_only(&b""[..]).is_err() && pd.publish(Vec::new()).is_err());
    let Failed { buffer, .. } = pd.share_own(vec![1u16, 2], Access::ZERO_BASED).unwrap_err();
    assert_eq!(buffer, [1, 2]);
    assert!(matches!(pd.share_own(buffer, Access::empty()).unwrap_err().error, Error::NoRights));
    assert!(matches!(Mapped::pages(0), Err(Error::System { .. })));
    assert!(matches!(pd.arena(0), Err(Error::Register { .. })));
}

#[test]
fn memory_keeps_its_type_when_it_was_bytes_in_between() -> Result<(), Error> {
    let (_context, pd, cq, [a, b]) = open();
    let mut bytes = pd.register_own(vec![0x0101_0101u32; 8])?.into_bytes();
    let rest = bytes.split_off(16);
    let bytes = Own::<Vec<u32>>::from_bytes(bytes).unwrap_err();
    let mut whole = bytes;
    whole.unsplit(rest).unwrap();
    let whole = Own::<Box<[u32]>>::from_bytes(whole).unwrap_err();
    let whole = Own::<Vec<u32>>::from_bytes(whole).unwrap();
    // Another piece of it is in flight: it is not given back.
    let mut bytes = whole.into_bytes();
    let sending = b.recv(bytes.split_off(16))?;
    assert!(Own::<Vec<u32>>::from_bytes(bytes).is_err());
    drop(sending);
    // As a completion hands it back in polling style.
    a.send(pd.register_own(vec![7u32; 2])?)?.polled(7);
    loop {
        let Some(done) = cq.poll()?.find(|done| done.wr_id() == 7) else { continue };
        let Some(Buffer::Mut(buffer)) = done.into_buffer() else { panic!("it was a buffer with one owner") };
        assert_eq!(Own::<Vec<u32>>::from_bytes(buffer).unwrap().into_inner()?, [7, 7]);
        return Ok(());
    }
}

#[test]
fn shared_memory_comes_back_when_nobody_else_has_it() -> Result<(), Error> {
    let (_context, pd, _cq, [a, _b]) = open();
    let shared = pd.share_own(vec![0u64; 4], Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    let (handle, there) = (shared.region(), shared.remote_slice());
    let Failed { error, buffer: shared } = shared.into_inner().unwrap_err();
    assert!(matches!(error, Error::Shared { what: "region" }));
    // Peers have kept their access.
    a.write_inline(&5u64.to_ne_bytes(), there)?.wait()?;
    assert_eq!(handle.load(0)?, 5);
    drop(handle);
    assert_eq!(shared.into_inner()?, [5, 0, 0, 0]);
    let error = a.read(pd.allocate(8)?, there.slice(0..8)?)?.wait().unwrap_err().error;
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Remote), "{error}");
    Ok(())
}

#[test]
fn what_nobody_may_write_nobody_writes() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let bytes: Arc<[u8]> = Arc::from(vec![1u8; 64]);
    let published = pd.publish(Arc::clone(&bytes))?;
    let there = published.slice(8..16).remote_slice().unwrap();
    assert_eq!(there.len(), 8);
    assert_eq!(*a.read(pd.allocate(8)?, there)?.wait()?, [1; 8]);
    let published = published.try_into_mut().unwrap_err();
    // Sent, too, and several times at once.
    let receives = [b.recv(pd.allocate(64)?)?, b.recv(pd.allocate(64)?)?];
    let sends = [a.send(published.clone())?, a.send(published.slice(..3))?];
    for (receive, length) in receives.into_iter().zip([64, 3]) {
        assert_eq!(receive.wait()?.payload(), &bytes[..length]);
    }
    for send in sends {
        send.wait()?;
    }
    assert!(pd.allocate(8)?.freeze().remote_slice().is_none());
    assert!(pd.register_read_only(Arc::clone(&bytes))?.remote_slice().is_none());
    assert!(a.write_inline(&[2; 8], there)?.wait().is_err());
    drop(published);
    assert_eq!((Arc::strong_count(&bytes), bytes[8]), (1, 1));
    Ok(())
}

#[test]
fn parts_are_what_is_moved_and_wholes_are_what_comes_back() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let table = pd.publish((0..=255).collect::<Vec<u8>>())?;
    let there = table.remote_slice().unwrap();
    // Across the border of two pieces of different types.
    let two = (pd.register(vec![0; 10])?, pd.register_own(vec![0u16; 10])?);
    let (first, second) = a.read(Part::of(two, 8..14)?, there.slice(100..106)?)?.wait()?.into_inner();
    assert_eq!(
        (&first[8..], second[0].to_ne_bytes(), second[1].to_ne_bytes()),
        (&[100, 101][..], [102, 103], [104, 105])
    );
    assert_eq!((first[7], second[2]), (0, 0));
    // A part of a part, sent and received.
    let inner = Part::of(pd.register(b"0123456789".to_vec())?, 2..8)?;
    let receiving = b.recv_into(Part::of(pd.register(b"..........".to_vec())?, 1..9)?)?;
    let back = a.send(Part::of(inner, 1..4)?)?.wait()?.into_inner().into_inner();
    assert_eq!(&*back, b"0123456789");
    let message = receiving.wait()?;
    assert_eq!((message.bytes(), &**message.buffer().buffer()), (3, &b".345......"[..]));
    // Too much for the part, though not for the buffer.
    let failed = a.read(Part::of(pd.allocate(100)?, 0..8)?, there.slice(0..9)?).unwrap_err();
    assert!(matches!(failed.error, Error::TooSmall { needed: 9, available: 8 }));
    for range in [90..101, 101..101, 50..usize::MAX, std::ops::Range { start: 9, end: 3 }] {
        let failed = Part::of(pd.allocate(100)?, range).unwrap_err();
        assert!(matches!(failed.error, Error::OutOfBounds { .. }) && failed.buffer.len() == 100);
    }
    Ok(())
}

#[test]
fn a_receive_fills_its_pieces_in_order() -> Result<(), Error> {
    let (_context, pd, cq, [a, b]) = open();
    let pieces = |count: usize| (0..count).map(|_| pd.allocate(4)).collect::<Result<Vec<_>, _>>();
    let receiving = b.recv_into(pieces(4)?)?;
    a.send_inline(b"0123456789")?.wait()?;
    let message = receiving.wait()?;
    assert_eq!(message.payload_pieces().collect::<Vec<_>>(), [&b"0123"[..], b"4567", b"89"]);
    assert_eq!((message.bytes(), message.immediate(), message.qpn()), (10, None, b.qpn()));
    // More pieces than the queue pair was made for.
    let failed = b.recv_into(pieces(5)?).unwrap_err();
    assert!(matches!(failed.error, Error::Post(_)) && failed.buffer.len() == 5);
    // Polled, with an immediate.
    b.recv_into(pieces(2)?)?.polled(3);
    a.send_imm(pd.register(b"poll".to_vec())?, 9)?.wait()?;
    let done = loop {
        if let Some(done) = cq.poll()?.find(|done| done.wr_id() == 3) {
            break done;
        }
    };
    let message: ReceivedInto<Vec<RegisteredMut>> = done.into_received_as()?;
    assert_eq!((message.immediate(), message.payload_pieces().next()), (Some(9), Some(&b"poll"[..])));
    // Too long for all of them together.
    let receiving = b.recv_into(pieces(2)?)?;
    assert!(a.send_inline(b"nine bytes")?.wait().is_err());
    assert_eq!(receiving.wait().unwrap_err().buffer.len(), 2);
    Ok(())
}

#[test]
fn dropped_receives_keep_their_message_for_the_next_of_their_type() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    // Before it came, and after.
    drop(b.recv_into(pd.register_own(vec![0u8; 8])?)?);
    drop(b.recv_into((pd.allocate(1)?, pd.allocate(7)?))?);
    a.send_inline(b"first")?.wait()?;
    a.send_inline(b"second")?.wait()?;
    let receiving = b.recv(pd.allocate(8)?)?;
    let pieces = b.recv_into((pd.allocate(4)?, pd.allocate(4)?))?.wait()?;
    assert_eq!((pieces.bytes(), &*pieces.buffer().0, &pieces.buffer().1[..5]), (6, &b"s"[..], &b"econd"[..]));
    let numbers = b.recv_into(pd.register_own(vec![9u8; 8])?)?.wait()?;
    assert_eq!(numbers.payload(), b"first");
    a.send_inline(b"third")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"third");
    Ok(())
}

#[test]
fn a_shared_receive_queue_takes_pieces_too() -> Result<(), Error> {
    let (_context, pd, cq, _) = open();
    let receives = pd.shared_receive_queue(4)?;
    let server = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare()?;
    let client = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let (at_server, at_client) = (server.endpoint(), client.endpoint());
    let (_server, client) = (server.connect(&at_client)?, client.connect(&at_server)?);
    let receiving = receives.recv_into((pd.allocate(2)?, pd.register_own(vec![0u32; 1])?))?;
    client.send_inline(&[1, 2, 3, 0, 0, 0])?.wait()?;
    let (header, body) = receiving.wait()?.into_buffer();
    assert_eq!((&*header, u32::from_le(body[0])), (&[1, 2][..], 3));
    Ok(())
}

#[test]
fn an_arena_has_its_memory_again_when_nobody_has_it() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let arena = pd.arena(4096)?;
    let first = arena.allocate(1)?;
    assert_eq!((first.len(), arena.available(), arena.capacity()), (1, 4032, 4096));
    let Error::TooSmall { needed: 4033, available: 4032 } = arena.allocate(4033).unwrap_err() else { panic!() };
    drop(first);
    // By the NIC, where nobody waits.
    let receiving = b.recv(arena.allocate(1000)?)?;
    drop(a.send(arena.allocate(1000)?)?);
    assert_eq!(receiving.wait()?.payload().len(), 1000);
    let deadline = Instant::now() + Duration::from_secs(60);
    while arena.available() < 4096 {
        assert!(Instant::now() < deadline, "{arena:?}");
        thread::yield_now();
    }
    // By the last piece, in whatever form it is.
    let mut buffer = arena.allocate(4096)?;
    buffer.fill(9);
    let rest = buffer.split_off(10);
    let frozen = rest.freeze().slice(..1);
    drop(buffer);
    let arena = arena.into_buffer().unwrap_err();
    assert_eq!((arena.available(), frozen[0]), (0, 9));
    drop(frozen);
    assert_eq!(arena.into_buffer().unwrap().len(), 4096);
    Ok(())
}

#[test]
fn who_waits_for_an_arena_is_woken() -> Result<(), Error> {
    let (_context, pd, _cq, _) = open();
    let arena = pd.arena(256)?;
    assert!(matches!(arena.next(257).wait(), Err(Error::TooSmall { .. })));
    let all = arena.allocate(256)?;
    let waiting: Vec<_> = (0..4).map(|_| arena.next(64)).map(|next| thread::spawn(|| block_on(next))).collect();
    drop(all);
    let buffers = waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect::<Result<Vec<_>, _>>()?;
    assert_eq!((buffers.len(), arena.available()), (4, 0));
    Ok(())
}

#[test]
fn pages_of_ones_own_are_memory_like_any_other() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let mut pages = Mapped::huge_where_possible(3 << 20)?;
    pages[(3 << 20) - 1] = 7;
    let arena = Arena::over(pd.register_own(pages)?.into_bytes());
    let receiving = b.recv(arena.allocate(64)?)?;
    a.send_inline(b"into the pages")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"into the pages");
    let whole = arena.into_buffer().unwrap();
    assert!(whole.starts_with(b"into the pages"));
    let pages = Own::<Mapped>::from_bytes(whole).unwrap().into_inner()?;
    assert_eq!((pages.len(), pages[(3 << 20) - 1]), (3 << 20, 7));
    // Set apart by an administrator, or not.
    match Mapped::huge(4 << 20) {
        Ok(pages) => drop(pd.register_own(pages)?),
        Err(error) => assert!(matches!(error, Error::System { .. }), "{error}"),
    }
    Ok(())
}

#[test]
fn files_are_reached_where_they_are() -> Result<(), Box<dyn std::error::Error>> {
    let (_context, pd, cq, [a, b]) = open();
    let path = std::env::temp_dir().join(format!("ubiverbs-own-memory-{}", std::process::id()));
    std::fs::write(&path, vec![b'.'; 10_000])?;
    let file = std::fs::File::options().read(true).write(true).open(&path)?;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = pd.share_file(&file, 5000..6000, rights)?;
    let there = region.remote_slice();
    a.write_inline(b"written", there)?.wait()?;
    let receiving = b.recv_into(region.part(100..200)?)?;
    a.send_inline(b"received")?.wait()?;
    receiving.wait()?;
    let now = std::fs::read(&path)?;
    assert_eq!((&now[4999..5008], &now[5100..5109]), (&b".written."[..], &b"received."[..]));
    // What others write into the file peers read.
    std::os::unix::fs::FileExt::write_all_at(&file, b"from elsewhere", 5500)?;
    assert_eq!(*a.read(pd.allocate(14)?, there.slice(500..514)?)?.wait()?, *b"from elsewhere");
    // Opened for reading only, it is never written.
    let reading = std::fs::File::open(&path)?;
    assert!(matches!(pd.share_file(&reading, 0..100, Access::REMOTE_WRITE), Err(Error::System { .. })));
    let region = pd.share_file(&reading, 0..100, Access::REMOTE_READ)?;
    assert_eq!(*a.read(pd.allocate(2)?, region.remote_slice().slice(0..2)?)?.wait()?, *b"..");
    assert!(matches!(region.write_at(0, b"!"), Err(Error::ReadOnly)));
    assert!(matches!(region.store(0, 1), Err(Error::ReadOnly)));
    assert!(matches!(region.fetch_add(0, 1), Err(Error::ReadOnly)));
    assert!(matches!(region.compare_swap(0, 1, 1), Err(Error::ReadOnly)));
    let error = a.read(region, there.slice(0..8)?)?.wait().unwrap_err().error;
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Local), "{error}");
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    // For work of this program alone.
    let region = pd.share_file(&reading, 5000..5007, Access::empty())?;
    assert!(a.read(pd.allocate(7)?, region.remote_slice())?.wait().is_err());
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let receiving = b.recv(pd.allocate(7)?)?;
    a.send(region)?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"written");
    // Ranges that are not there.
    for range in [9_999..10_001, 10_000..10_001, 5..5, std::ops::Range { start: 7, end: 3 }, 1..u64::MAX] {
        assert!(pd.share_file(&file, range, Access::REMOTE_READ).is_err());
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

#[test]
fn a_file_that_was_made_shorter_is_refused_on_demand() -> Result<(), Box<dyn std::error::Error>> {
    let (_context, pd, _cq, [a, _b]) = open();
    let path = std::env::temp_dir().join(format!("ubiverbs-shorter-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(64 << 10)?;
    let region = pd.share_file(&file, 0..64 << 10, Access::REMOTE_READ | Access::ON_DEMAND)?;
    let end = region.remote_slice().slice(60 << 10..64 << 10)?;
    a.read(pd.allocate(4096)?, end)?.wait()?;
    file.set_len(4096)?;
    let error = a.read(pd.allocate(4096)?, end)?.wait().unwrap_err().error;
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Remote), "{error}");
    Ok(())
}

/// What a server tells its client: where its memory is.
fn told(connection: &ubiverbs::cm::Connection) -> Result<RemoteSlice, Error> {
    let message = connection.recv(connection.pd().allocate(RemoteSlice::ENCODED)?)?.wait()?;
    RemoteSlice::from_bytes(message.payload())
}

#[test]
fn own_memory_between_processes() {
    on_both_links(
        "own_memory::own_memory_between_processes",
        |server| {
            let pd = server.pd();
            let shared = pd.share_own(vec![0u64; 1000], Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
            let receiving = server.recv_into((pd.allocate(8)?, pd.register_own(vec![0f32; 5000])?))?;
            let last = server.recv(pd.allocate(4)?)?;
            server.send_inline(&shared.remote_slice().to_bytes())?.wait()?;
            let (header, numbers) = receiving.wait()?.into_buffer();
            assert_eq!(&*header, b"floats: ");
            assert!(numbers.iter().zip(0u16..).all(|(number, index)| *number == f32::from(index)));
            last.wait()?;
            let mut expected: Vec<u64> = (0..1000).collect();
            expected[0] += 5;
            assert_eq!(shared.into_inner()?, expected);
            server.send_inline(b"done")?.wait()?;
            server.closed().wait()?;
            Ok(())
        },
        |client| {
            let pd = client.pd();
            let there = told(&client)?;
            let done = client.recv(pd.allocate(4)?)?;
            let numbers: Vec<f32> = (0u16..5000).map(f32::from).collect();
            let (_, numbers) = client.send((pd.register(b"floats: ".to_vec())?, pd.register_own(numbers)?))?.wait()?;
            assert_eq!(numbers.into_inner()?.len(), 5000);
            client.write(pd.register_own((0u64..1000).collect::<Vec<_>>())?, there)?.wait()?;
            assert_eq!(client.fetch_add(there, 5)?.wait()?, 0);
            client.send_inline(b"last")?.wait()?;
            done.wait()?;
            assert!(client.fetch_add(there, 1)?.wait().is_err(), "it was taken back");
            Ok(())
        },
    );
}
