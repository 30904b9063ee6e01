//! Memory windows, and the work that came to verbs later: SEND with invalidate, FLUSH, ATOMIC WRITE.

use crate::peers::on_both_links;
use ubiverbs::{
    Access, BoundWindow, Class, CompletionQueue, Context, Error, Failed, Flush, ProtectionDomain, QueuePair, Reliable,
    RemoteSlice, Type1, Type2, Unreliable, Window, WindowType, connected_pair,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

fn pair(pd: &ProtectionDomain, cq: &CompletionQueue) -> [QueuePair<Reliable>; 2] {
    connected_pair(pd, cq).unwrap()
}

/// Whether the peer lets us write there. A refusal ends the connection.
fn is_open(from: &QueuePair<Reliable>, there: RemoteSlice) -> bool {
    match from.write_inline(&[1], there).unwrap().wait() {
        Ok(()) => true,
        Err(Failed { error: Error::Completion(error), .. }) => {
            assert_eq!(error.class(), Class::Remote, "{error}");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_window_opens_its_part_with_its_rights() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let memory = pd.share(4096, Access::MW_BIND)?;
    let [server, client] = pair(&pd, &cq);
    let bound = server.bind(pd.window::<Type2>()?, &memory.part(100..200)?, Access::REMOTE_WRITE)?.wait()?;
    let there = bound.remote_slice();
    assert_eq!((there.len(), there.address()), (100, memory.remote_slice().address() + 100));
    client.write_inline(b"inside", there)?.wait()?;
    let mut seen = [0; 6];
    memory.read_at(100, &mut seen)?;
    assert_eq!(&seen, b"inside");
    // Neither beside it, nor otherwise, nor without it.
    assert!(!is_open(&client, RemoteSlice::new(there.address() + 95, 6, there.key()).slice(5..6)?));
    let [server, client] = pair(&pd, &cq);
    let bound_again = server.bind(pd.window::<Type2>()?, &memory, Access::REMOTE_WRITE)?.wait()?;
    let read = client.read(pd.allocate(8)?, bound_again.remote_slice().slice(0..8)?)?.wait();
    assert!(matches!(&read.unwrap_err().error, Error::Completion(error) if error.class() == Class::Remote));
    let [_server, client] = pair(&pd, &cq);
    assert!(!is_open(&client, memory.remote_slice()));
    Ok(())
}

#[test]
fn type_1_is_every_queue_pairs_and_type_2_one_s() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let memory = pd.share(64, Access::MW_BIND)?;
    let ([server, _client], [_other, stranger]) = (pair(&pd, &cq), pair(&pd, &cq));
    let one = server.bind(pd.window::<Type1>()?, &memory, Access::REMOTE_WRITE)?.wait()?;
    assert!(is_open(&stranger, one.remote_slice()));
    let two = server.bind(pd.window::<Type2>()?, &memory, Access::REMOTE_WRITE)?.wait()?;
    assert!(!is_open(&stranger, two.remote_slice()));
    Ok(())
}

fn reaches<W: WindowType>(open: impl Fn(&QueuePair<Reliable>, BoundWindow<W>) -> Window<W>) -> Result<(), Error> {
    let (_context, pd, cq) = self::open();
    let memory = pd.share(64, Access::MW_BIND)?;
    let mut window = pd.window::<W>()?;
    let mut keys = Vec::new();
    for _ in 0..300 {
        let [server, client] = pair(&pd, &cq);
        let bound = server.bind(window, &memory, Access::REMOTE_WRITE)?.wait()?;
        let there = bound.remote_slice();
        assert_ne!(keys.last(), Some(&there.key()));
        keys.push(there.key());
        assert!(is_open(&client, there));
        window = open(&server, bound);
        assert!(!is_open(&client, there));
    }
    Ok(())
}

#[test]
fn windows_are_taken_away_and_bound_again() -> Result<(), Error> {
    reaches::<Type1>(|server, bound| server.unbind(bound).unwrap().wait().unwrap())?;
    reaches::<Type2>(|server, bound| server.invalidate(bound).unwrap().wait().unwrap())
}

#[test]
fn dropping_a_window_closes_it_and_lets_the_region_go() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let shared = pd.share_own(vec![0u64; 8], Access::MW_BIND)?;
    let [server, client] = pair(&pd, &cq);
    let bound = server.bind(pd.window::<Type1>()?, &shared, Access::REMOTE_WRITE)?.wait()?;
    let there = bound.remote_slice();
    assert!(is_open(&client, there));
    let Failed { error: Error::Shared { .. }, buffer: shared } = shared.into_inner().unwrap_err() else { panic!() };
    // The NIC lets nothing go that a window leads to.
    assert!(matches!(shared.revoke(), Err(Error::Register { .. })));
    drop(bound);
    assert!(!is_open(&client, there));
    assert_eq!(shared.into_inner()?.len(), 8);
    // Nobody waited for the binding.
    let [server, _client] = pair(&pd, &cq);
    let shared = pd.share_own(vec![0u64; 8], Access::MW_BIND)?;
    drop(server.bind(pd.window::<Type2>()?, &shared, Access::REMOTE_READ)?);
    server.write_inline(&[], RemoteSlice::new(0, 0, ubiverbs::Key::new(0)))?.wait()?;
    assert_eq!(shared.into_inner()?.len(), 8);
    Ok(())
}

#[test]
fn what_makes_no_sense_is_refused_and_the_window_comes_back() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let other = context.alloc_pd()?;
    let memory = pd.share(64, Access::MW_BIND)?;
    let [server, client] = pair(&pd, &cq);
    let refused = |window, region: &ubiverbs::SharedRegion, rights| -> (Error, Window<Type2>) {
        let Failed { error, buffer } = server.bind::<Type2>(window, region, rights).unwrap_err();
        (error, buffer)
    };
    let window = pd.window()?;
    let (error, window) = refused(window, &memory, Access::empty());
    assert!(matches!(error, Error::NoRights));
    let (error, window) = refused(window, &memory, Access::REMOTE_READ | Access::MW_BIND);
    assert!(matches!(error, Error::Rights { .. }));
    let (error, window) = refused(window, &memory, Access::REMOTE_READ | Access::ON_DEMAND);
    assert!(matches!(error, Error::Rights { .. }));
    let (error, window) = refused(window, &other.share(64, Access::MW_BIND)?, Access::REMOTE_READ);
    assert!(matches!(error, Error::OtherProtectionDomain { what: "region" }));
    let revoked = pd.share(64, Access::MW_BIND)?;
    revoked.revoke()?;
    let (error, window) = refused(window, &revoked, Access::REMOTE_READ);
    assert!(matches!(error, Error::Revoked));
    let (error, _) = refused(other.window()?, &memory, Access::REMOTE_READ);
    assert!(matches!(error, Error::OtherProtectionDomain { what: "window" }));
    // One that nobody may bind windows to: the NIC says so, which ends the queue pair.
    let plain = pd.share(64, Access::REMOTE_READ)?;
    let Failed { error, buffer: window } = server.bind(window, &plain, Access::REMOTE_READ)?.wait().unwrap_err();
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Local), "{error}");
    // It can be bound still.
    let bound = client.bind(window, &memory, Access::REMOTE_READ)?.wait()?;
    // Another's key is not the peer's word.
    let bound = bound.invalidated(memory.remote_slice().key()).unwrap_err();
    assert!(bound.invalidated(ubiverbs::Key::new(0)).is_err());
    Ok(())
}

#[test]
fn unreliable_queue_pairs_bind_too_and_batches() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let memory = pd.share(64, Access::MW_BIND)?;
    let [server, client] = connected_pair::<Unreliable>(&pd, &cq)?;
    let told = client.recv(pd.allocate(8)?)?;
    let mut batch = server.batch();
    let binding = batch.bind(pd.window::<Type2>()?, &memory, Access::REMOTE_WRITE)?;
    batch.send_inline(b"bound")?.polled(0);
    batch.post()?;
    let bound = binding.wait()?;
    told.wait()?;
    client.write_inline(b"x", bound.remote_slice())?.wait()?;
    let mut batch = server.batch();
    let invalidating = batch.invalidate(bound)?;
    drop(batch);
    let Failed { error: Error::NotPosted, buffer: bound } = invalidating.wait().unwrap_err() else { panic!() };
    server.invalidate(bound)?.wait()?;
    Ok(())
}

#[test]
fn flushes_need_their_right_and_a_range_that_is_there() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let region = pd.share(4096, Access::REMOTE_WRITE | Access::FLUSH_GLOBAL)?;
    let [qp, _peer] = pair(&pd, &cq);
    let there = region.remote_slice();
    qp.flush(there, Flush::Visible)?.wait()?;
    qp.flush_region(there.slice(5..6)?, Flush::Visible)?.wait()?;
    let mut batch = qp.batch();
    batch.write_inline(b"written", there)?.polled(1);
    let flushed = batch.flush(there, Flush::Visible)?;
    let stored = batch.atomic_write(there.slice(8..16)?, 77)?;
    batch.post()?;
    flushed.wait()?;
    stored.wait()?;
    assert_eq!(region.load(8)?, 77);
    let error = qp.flush(there, Flush::Persistent)?.wait().unwrap_err().error;
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Remote), "{error}");
    let [qp, _peer] = pair(&pd, &cq);
    let beyond = RemoteSlice::new(there.address(), 4097, there.key());
    assert!(qp.flush(beyond, Flush::Visible)?.wait().is_err());
    let [qp, _peer] = pair(&pd, &cq);
    assert!(matches!(qp.flush(RemoteSlice::new(0, 1 << 40, there.key()), Flush::Visible), Err(Error::Post(_))));
    Ok(())
}

#[test]
fn eight_bytes_are_written_where_eight_bytes_are() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let region = pd.share(64, Access::REMOTE_WRITE)?;
    let [qp, _peer] = pair(&pd, &cq);
    let there = region.remote_slice();
    assert!(matches!(qp.atomic_write(there.slice(4..20)?, 1), Err(Error::Misaligned { .. })));
    assert!(matches!(qp.atomic_write(there.slice(8..12)?, 1), Err(Error::TooSmall { .. })));
    qp.atomic_write(there.slice(56..64)?, 0x0102_0304_0506_0708)?.wait()?;
    assert_eq!(region.load(56)?, 0x0102_0304_0506_0708);
    let readable = pd.share(64, Access::REMOTE_READ)?;
    let error = qp.atomic_write(readable.remote_slice(), 1)?.wait().unwrap_err().error;
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Remote), "{error}");
    Ok(())
}

#[test]
fn windows_between_processes() {
    on_both_links(
        "windows::windows_between_processes",
        |server| {
            let pd = server.pd();
            let memory = pd.share(1 << 16, Access::MW_BIND)?;
            let mut window = pd.window::<Type2>()?;
            for round in 0..5u64 {
                let part = memory.part(4096 * round as usize..4096 * (round as usize + 1))?;
                let rights = Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
                let bound = server.bind(window, &part, rights)?.wait()?;
                let last = server.recv(pd.allocate(16)?)?;
                server.send_inline(&bound.remote_slice().to_bytes())?.wait()?;
                let last = last.wait()?;
                assert_eq!(last.payload(), b"written");
                let key = last.invalidated().expect("the client gave the key back");
                window = bound.invalidated(key).expect("that of this window");
                assert_eq!((part.load(0)?, part.load(4088)?), (0x5555_5555_5555_5555, round));
            }
            server.closed().wait()?;
            Ok(())
        },
        |client| {
            let pd = client.pd();
            let mut there = None;
            for round in 0..5u64 {
                let told = client.recv(pd.allocate(RemoteSlice::ENCODED)?)?.wait()?;
                let slice = RemoteSlice::from_bytes(told.payload())?;
                drop(client.write(pd.register(vec![0x55; 4000])?, slice)?);
                drop(client.flush(slice, Flush::Visible)?);
                drop(client.atomic_write(slice.slice(4088..4096)?, round)?);
                client.send_invalidate(pd.register(b"written".to_vec())?, slice.key())?.wait()?;
                there = Some(slice);
            }
            assert!(client.write_inline(b"late", there.unwrap())?.wait().is_err(), "the key opens nothing any more");
            Ok(())
        },
    );
}
