//! Memory of the device: so much and no more, copied in fours, reached by peers from zero, kept by what refers to it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use ubiverbs::{
    Access, Class, CompletionQueue, Context, DeviceMemory, DeviceRegion, Error, ProtectionDomain, QueuePair, Reliable,
    RemoteSlice, connected_pair,
};

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

/// The device's memory is the process's, and one test counts it to the last byte.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bytes(memory: &DeviceMemory, offset: usize, length: usize) -> Vec<u8> {
    let mut out = vec![0xee; length];
    memory.read_at(offset, &mut out).unwrap();
    out
}

fn refused_by_peer(result: Result<impl Sized, impl Into<Error>>) -> bool {
    match result.map_err(Into::into) {
        Err(Error::Completion(error)) => error.class() == Class::Remote,
        _ => false,
    }
}

#[test]
fn handles_can_go_anywhere() {
    fn anywhere<T: Clone + Send + Sync + 'static>() {}
    anywhere::<DeviceMemory>();
    anywhere::<DeviceRegion>();
}

#[test]
fn what_is_copied_in_comes_out_in_fours() -> Result<(), Error> {
    let _alone = alone();
    let (context, ..) = open();
    let memory = context.device_memory(100).allocate()?;
    assert_eq!(memory.len(), 100);
    assert_eq!(bytes(&memory, 0, 100), [0; 100], "it begins as zeros");
    memory.write_at(8, b"twelve bytes")?;
    assert_eq!(bytes(&memory, 4, 20), b"\0\0\0\0twelve bytes\0\0\0\0");
    memory.clone().write_at(96, b"last")?;
    assert_eq!(bytes(&memory, 96, 4), b"last", "a clone is the same memory");
    for (offset, length) in [(2, 4), (4, 3), (1, 1)] {
        let refused = memory.write_at(offset, &[1; 4][..length]).unwrap_err();
        assert!(matches!(refused, Error::DeviceMemory { .. }), "{refused}");
        assert!(memory.read_at(offset, &mut [0; 4][..length]).is_err());
    }
    for (offset, length) in [(100, 4), (0, 104), (usize::MAX - 3, 8)] {
        let refused = memory.write_at(offset, &vec![1; length]).unwrap_err();
        assert!(matches!(refused, Error::OutOfBounds { size: 100, .. }), "{refused}");
        assert!(matches!(memory.read_at(offset, &mut vec![0; length]), Err(Error::OutOfBounds { .. })));
    }
    Ok(())
}

#[test]
fn there_is_only_so_much_and_it_comes_back() -> Result<(), Error> {
    let _alone = alone();
    let (context, pd, _cq) = open();
    let size = usize::try_from(context.device_memory_size()).unwrap();
    assert!(size >= 1 << 20, "{size}");
    let none_left = |length: usize| matches!(context.device_memory(length).allocate(), Err(Error::Create { .. }));

    let most = context.device_memory(size - 64).allocate()?;
    assert!(none_left(65));
    let rest = context.device_memory(64).allocate()?;
    let error = context.device_memory(4).allocate().unwrap_err().to_string();
    assert!(error.contains("4 bytes of device memory asked for, 0 left"), "{error}");

    // A region keeps the memory it covers, also when every other handle is gone.
    let region = pd.share_device(&rest, 0..64, Access::REMOTE_READ)?;
    drop((most, rest));
    assert!(none_left(size));
    drop(region);
    assert_eq!(context.device_memory(size).allocate()?.len(), size);
    assert!(none_left(0));
    assert!(none_left(size + 1));
    Ok(())
}

#[test]
fn alignments_are_powers_of_two_up_to_two_megabytes() -> Result<(), Error> {
    let _alone = alone();
    let (context, ..) = open();
    for alignment in [1, 2, 8, 64, 4096, 2 << 20] {
        context.device_memory(64).aligned_to(alignment).allocate()?;
    }
    for alignment in [0, 3, 65, 4 << 20, usize::MAX] {
        let refused = context.device_memory(64).aligned_to(alignment).allocate().unwrap_err();
        assert!(matches!(refused, Error::Create { what: "device memory", .. }), "{refused}");
    }
    Ok(())
}

#[test]
fn peers_write_read_and_count_in_it_from_zero() -> Result<(), Error> {
    let _alone = alone();
    let (context, pd, cq) = open();
    let [peer, _here] = connected_pair::<Reliable>(&pd, &cq)?;
    let memory = context.device_memory(4096).allocate()?;
    let region = pd.share_device(&memory, 1024..4096, ALL)?;
    let there = region.remote_slice();
    assert_eq!((there.address(), there.len(), region.offset()), (0, 3072, 1024));

    peer.write(pd.register(vec![5; 3072])?, there)?.wait()?;
    assert_eq!(bytes(&memory, 1020, 8), [0, 0, 0, 0, 5, 5, 5, 5]);
    memory.write_at(1024, &7u64.to_ne_bytes())?;
    assert_eq!(peer.fetch_add(there, 3)?.wait()?, 7);
    assert_eq!(peer.compare_swap(there, 10, 11)?.wait()?, 10);
    let read = peer.read(pd.allocate(9)?, there.slice(0..9)?)?.wait()?;
    assert_eq!(*read, [&11u64.to_ne_bytes()[..], &[5]].concat());

    // Counted by peers and copied by the program at once: never torn.
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            (0..1000).try_for_each(|_| -> Result<(), Error> {
                peer.fetch_add(there, 1)?.wait()?;
                Ok(())
            })
        });
        let mut before = 0;
        while !counting.is_finished() {
            let now = u64::from_ne_bytes(bytes(&memory, 1024, 8).try_into().unwrap());
            assert!((before..=1011).contains(&now), "{before} then {now}");
            before = now;
        }
        counting.join().unwrap()
    })?;
    assert_eq!(bytes(&memory, 1024, 8), 1011u64.to_ne_bytes());
    Ok(())
}

#[test]
fn a_region_grants_what_it_says_and_no_more() -> Result<(), Error> {
    let _alone = alone();
    let (context, pd, cq) = open();
    let memory = context.device_memory(256).allocate()?;
    let attempt = |rights, work: fn(&QueuePair<Reliable>, &ProtectionDomain, RemoteSlice) -> Result<(), Error>| {
        let [peer, here] = connected_pair::<Reliable>(&pd, &cq)?;
        let region = pd.share_device(&memory, 64..128, rights)?;
        let result = work(&peer, &pd, region.remote_slice());
        drop(here);
        result
    };
    let write = |qp: &QueuePair<Reliable>, pd: &ProtectionDomain, to: RemoteSlice| {
        qp.write(pd.allocate(8)?, to)?.wait()?;
        Ok(())
    };
    let beyond = |qp: &QueuePair<Reliable>, pd: &ProtectionDomain, to: RemoteSlice| {
        qp.write(pd.allocate(8)?, RemoteSlice::new(60, 8, to.key()))?.wait()?;
        Ok(())
    };
    attempt(Access::REMOTE_WRITE, write)?;
    assert!(refused_by_peer(attempt(Access::REMOTE_READ, write)));
    assert!(refused_by_peer(attempt(Access::REMOTE_WRITE, beyond)));

    let refused = |range, rights| pd.share_device(&memory, range, rights).unwrap_err();
    assert!(matches!(refused(0..257, ALL), Error::OutOfBounds { size: 256, .. }));
    assert!(matches!(refused(8..8, ALL), Error::Register { .. }));
    assert!(matches!(refused(0..256, Access::ON_DEMAND), Error::Rights { .. }));
    let elsewhere = ubiverbs::device("ubi_lo")?.open()?.alloc_pd()?;
    let other = elsewhere.share_device(&memory, 0..8, ALL).unwrap_err();
    assert!(matches!(other, Error::OtherDevice { what: "device memory" }), "{other}");
    Ok(())
}

#[test]
fn the_program_sends_writes_and_reads_with_it() -> Result<(), Error> {
    let _alone = alone();
    let (context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let memory = context.device_memory(64).allocate()?;
    memory.write_at(0, b"abcdefghijklmnop")?;
    let region = pd.share_device(&memory, 0..64, Access::empty())?;

    let receiving = b.recv(pd.allocate(16)?)?;
    let (first, last) = (region.part(4..8)?, region.part(0..4)?);
    a.send(vec![first, last])?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"efghabcd");

    let shared = pd.share(16, ALL)?;
    a.write(region.part(0..16)?, shared.remote_slice())?.wait()?;
    let mut copy = [0; 16];
    shared.read_at(0, &mut copy)?;
    assert_eq!(&copy, b"abcdefghijklmnop");
    let read = a.read(region.part(32..48)?, shared.remote_slice())?.wait()?;
    assert_eq!((read.len(), read.offset()), (16, 32));
    assert_eq!(bytes(read.memory(), 32, 16), b"abcdefghijklmnop");

    // In polling style it comes back as what it was.
    a.write(region.part(0..4)?, shared.remote_slice())?.polled(9);
    let buffer = loop {
        if let Some(completion) = cq.poll()?.next() {
            assert!(completion.is_ok());
            break completion.into_buffer();
        }
    };
    assert_eq!(buffer.and_then(ubiverbs::Buffer::into_device).expect("a region").len(), 4);
    assert!(region.part(60..65).is_err());
    let other = context.alloc_pd()?.share_device(&memory, 0..8, Access::empty())?;
    assert!(matches!(a.send(other).unwrap_err().error, Error::OtherProtectionDomain { .. }));
    Ok(())
}

#[test]
fn a_revoked_region_is_closed_and_the_memory_stays() -> Result<(), Error> {
    let _alone = alone();
    let (context, pd, cq) = open();
    let [peer, _here] = connected_pair::<Reliable>(&pd, &cq)?;
    let memory = context.device_memory(64).allocate()?;
    let region = pd.share_device(&memory, 0..64, ALL)?;
    peer.fetch_add(region.remote_slice(), 1)?.wait()?;
    assert!(!region.is_revoked());
    region.revoke()?;
    region.revoke()?;
    assert_eq!(format!("{region:?}"), "DeviceRegion(64 bytes at 0 of the device's, revoked)");
    assert!(matches!(peer.send(region.clone()).unwrap_err().error, Error::Revoked));
    assert!(refused_by_peer(peer.fetch_add(region.remote_slice(), 1)?.wait()));
    assert_eq!(bytes(&memory, 0, 8), 1u64.to_ne_bytes());
    Ok(())
}
