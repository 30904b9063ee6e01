//! Buffers of other crates, each with the feature of its name.
#![cfg(all(feature = "bytes", feature = "bytemuck", feature = "memmap2"))]

use bytes::{Bytes, BytesMut};
use memmap2::{Mmap, MmapMut};
use ubiverbs::{Access, CompletionQueue, Context, Datagram, Error, Own, ProtectionDomain, QueuePair, Reliable};

fn open() -> (Context, ProtectionDomain, CompletionQueue, [QueuePair<Reliable>; 2]) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    let pair = ubiverbs::connected_pair::<Reliable>(&pd, &cq).unwrap();
    (context, pd, cq, pair)
}

#[test]
fn bytes_go_out_and_come_in_without_a_copy() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let message = Bytes::from((0..200).collect::<Vec<u8>>());
    let receiving = b.recv(pd.allocate(256)?)?;
    let sent = a.send(pd.register_read_only(message.slice(50..))?)?.wait()?;
    assert_eq!(sent.as_ptr(), message[50..].as_ptr());
    let received = receiving.wait()?;
    let place = received.payload().as_ptr();
    let received: Bytes = received.into_bytes();
    assert_eq!((received.as_ptr(), &received[..]), (place, &message[50..]));
    // Handed on as it came.
    let receiving = b.recv(pd.allocate(256)?)?;
    a.send(pd.register_read_only(received)?)?.wait()?;
    assert_eq!(receiving.wait()?.payload(), &message[50..]);
    let frozen = Bytes::from(pd.register(b"still registered".to_vec())?.freeze().slice(..5));
    assert_eq!(frozen, "still");
    Ok(())
}

#[test]
fn datagrams_become_bytes_without_their_header() -> Result<(), Error> {
    let (_context, pd, cq, _) = open();
    let [a, b] = [(); 2].map(|()| pd.queue_pair::<Datagram>(&cq).prepare().unwrap().activate().unwrap());
    let receiving = b.recv(pd.allocate(ubiverbs::GRH_LENGTH + 64)?)?;
    a.send_inline_to(b"a datagram", &pd.address(&b.endpoint())?)?.wait()?;
    assert_eq!(receiving.wait()?.into_bytes(), "a datagram");
    Ok(())
}

#[test]
fn mutable_bytes_are_received_into_and_come_back() -> Result<(), Error> {
    let (_context, pd, _cq, [a, b]) = open();
    let mut both = BytesMut::zeroed(64);
    let second = both.split_off(32);
    // Each has its part, though the allocation is one.
    let receiving = [b.recv_into(pd.register_own(both)?)?, b.recv_into(pd.register_own(second)?)?];
    a.send_inline(b"first")?.wait()?;
    a.send_inline(b"second")?.wait()?;
    let [first, second] = receiving.map(|receive| receive.wait().unwrap());
    assert_eq!((first.payload(), second.payload()), (&b"first"[..], &b"second"[..]));
    let mut whole: BytesMut = first.into_buffer().into_inner()?;
    whole.unsplit(second.into_buffer().into_inner()?);
    assert_eq!((whole.len(), &whole[32..38]), (64, &b"second"[..]));
    Ok(())
}

#[test]
fn plain_data_of_ones_own_type_is_data() -> Result<(), Error> {
    #[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C)]
    struct Particle {
        at: [f64; 3],
        charge: i32,
        kind: u32,
    }
    let (_context, pd, _cq, [a, b]) = open();
    let particle = Particle { at: [1.0, 2.0, 3.0], charge: -1, kind: 7 };
    let receiving = b.recv_into(pd.register_own(vec![bytemuck::Zeroable::zeroed(); 10].into_boxed_slice())?)?;
    a.send(pd.register_own(vec![particle; 10])?)?.wait()?;
    let received: Own<Box<[Particle]>> = receiving.wait()?.into_buffer();
    assert!(received.iter().all(|received| *received == particle));
    let shared = pd.share_own(vec![particle], Access::REMOTE_WRITE)?;
    a.write_inline(&9u32.to_ne_bytes(), shared.remote_slice().slice(28..32)?)?.wait()?;
    assert_eq!(shared.into_inner()?, [Particle { kind: 9, ..particle }]);
    Ok(())
}

#[test]
fn maps_are_memory() -> Result<(), Box<dyn std::error::Error>> {
    let (_context, pd, _cq, [a, b]) = open();
    let mut map = MmapMut::map_anon(8192)?;
    map[8191] = 1;
    let place = map.as_ptr();
    let receiving = b.recv_into(pd.register_own(map)?)?;
    let path = std::env::temp_dir().join(format!("ubiverbs-features-{}", std::process::id()));
    std::fs::write(&path, b"from a file")?;
    let file = std::fs::File::open(&path)?;
    std::fs::remove_file(&path)?;
    // SAFETY: nobody else has the file.
    let published = pd.publish(unsafe { Mmap::map(&file) }?)?;
    a.send(published.clone())?.wait()?;
    let received = receiving.wait()?;
    assert_eq!(received.payload(), b"from a file");
    let map: MmapMut = received.into_buffer().into_inner()?;
    assert_eq!((map.as_ptr(), map[8191]), (place, 1));
    let read = a.read(pd.allocate(4)?, published.remote_slice().expect("published").slice(0..4)?)?.wait()?;
    assert_eq!(&*read, b"from");
    Ok(())
}
