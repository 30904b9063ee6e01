//! # 12. Memory of the device: a counter that lies in the NIC
//!
//! Some NICs have a little memory of their own. A word in it is nearer to peers than any in the host: counting in it
//! needs no trip over the bus. What the program pays is distance: it has **no address** of that memory, only copies in
//! and out, of whole words of four bytes. So `DeviceMemory` is no slice and offers no atomics of the program's own;
//! a program that wants to count there, counts as a peer does.
//!
//! For peers it is a region like any other, a `DeviceRegion`, except that its addresses begin at **zero**: a
//! `RemoteSlice` of it is a length and a key. The same region can be sent from and read into, without a copy in the
//! host.
//!
//! There is only so much: a device says how much, and an allocation beyond it is an error and not a crash. Memory comes
//! back when its last handle and the last region over it are gone.
//!
//! Here the server keeps a counter and a text in the device and does nothing more. The client reads the text, counts,
//! and copies the text inside the device. The same in C is `examples/c/device_memory.c`.
//!
//! ```text
//! cargo run --example device_memory
//! cargo run --example device_memory -- server 0.0.0.0:7471
//! cargo run --example device_memory -- client 127.0.0.1:7471
//! ```

use std::error::Error as StdError;
use std::ops::Range;
use std::thread;
use ubiverbs::{Access, Error, RemoteSlice, ToAddresses, cm};

const SIZE: usize = 4096;
const ADDITIONS: u64 = 10;
const TEXT: &[u8; 28] = b"this text is in the device\0\0";

/// Where things are in the region. Atomic operations need multiples of eight, the program's own copies multiples of
/// four.
const COUNTER: Range<u64> = 0..8;
const TEXT_AT: usize = 64;

fn serve_one(listener: &cm::Listener) -> Result<(), Error> {
    let request = listener.next().wait()?;
    let context = request.context()?;
    println!("server: the device has {} bytes of its own", context.device_memory_size());
    let memory = context.device_memory(SIZE).aligned_to(64).allocate()?;
    memory.write_at(TEXT_AT, TEXT)?;

    // More than there is: an error that says how much is left.
    let too_much = usize::try_from(context.device_memory_size()).unwrap_or(usize::MAX);
    let refused = context.device_memory(too_much).allocate().expect_err("some of it is taken");
    println!("server: {refused}");

    let pd = context.alloc_pd()?;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let region = pd.share_device(&memory, 0..SIZE, rights)?;
    let descriptor = region.remote_slice().to_bytes();
    let connection = request.accept().in_domain(&pd).private_data(&descriptor).wait()?;
    connection.closed().wait()?;

    // No other user is left, so the memory is looked at once more and then given back with its handles.
    region.revoke()?;
    let (mut counter, mut copy) = ([0; 8], [0; TEXT.len()]);
    memory.read_at(0, &mut counter)?;
    memory.read_at(TEXT_AT + TEXT.len(), &mut copy)?;
    assert_eq!(&copy, TEXT);
    println!("server: the client counted to {}", u64::from_ne_bytes(counter));
    Ok(())
}

fn client(to: impl ToAddresses) -> Result<(), Error> {
    let connection = cm::connect(to).wait()?;
    let there = RemoteSlice::from_bytes(&connection.private_data()[..RemoteSlice::ENCODED])?;
    println!("client: the server offers {there}");

    let pd = connection.pd();
    let (begin, end) = (TEXT_AT as u64, (TEXT_AT + TEXT.len()) as u64);
    let text = there.slice(begin..end)?;
    let read = connection.read(pd.allocate(TEXT.len())?, text)?.wait()?;
    println!("client: read: {}", String::from_utf8_lossy(&read).trim_end_matches('\0'));

    // Each addition answers what was there before.
    let counter = there.slice(COUNTER)?;
    for before in 0..ADDITIONS {
        assert_eq!(connection.fetch_add(counter, 1)?.wait()?, before);
    }
    println!("client: added 1, {ADDITIONS} times");

    // The client's device has memory too: what is read into it and written from it was never in the client's program.
    let passing = pd.context().device_memory(TEXT.len()).allocate()?;
    let passing = pd.share_device(&passing, 0..TEXT.len(), Access::empty())?;
    let passing = connection.read(passing, text)?.wait()?;
    connection.write(passing, there.slice(end..there.len())?)?.wait()?;
    connection.disconnect().wait()
}

fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", at] => {
            let listener = cm::Listener::bind(at)?;
            println!("server: listening at {}", listener.local_addr());
            loop {
                serve_one(&listener)?;
            }
        }
        ["client", to] => client(to)?,
        _ => {
            let listener = cm::Listener::bind("127.0.0.1:0")?;
            let at = listener.local_addr();
            let server = thread::spawn(move || serve_one(&listener));
            client(at)?;
            server.join().expect("the server does not panic")?;
        }
    }
    Ok(())
}
