//! # 9. Private data: "here is my memory" in the first message
//!
//! One-sided operations need a descriptor of the peer's memory: address, length and key. Most programs send it in a
//! message of its own. A connection manager can save that: a request carries up to 56 bytes of the client's program,
//! its answer up to 196 of the server's, and a `RemoteSlice` takes 24.
//!
//! This is the easy level: `Listener::next`, `accept`, `resolve`, `connect`. What the events of the last example told
//! happens inside.
//!
//! Here the server shares a region and names it when it accepts. The client writes into it, reads it back and compares,
//! and the server, whose program did nothing meanwhile, looks at it when the client has gone.
//!
//! ```text
//! cargo run --example buffers
//! cargo run --example buffers -- server 0.0.0.0:7471
//! cargo run --example buffers -- client 127.0.0.1:7471
//! ```

use std::error::Error as StdError;
use std::thread;
use ubiverbs::{Access, Error, RemoteSlice, ToAddresses, cm};

const SIZE: usize = 64 * 1024;

fn pattern(index: usize) -> u8 {
    (index % 251) as u8
}

fn serve_one(listener: &cm::Listener) -> Result<(), Error> {
    let request = listener.next().wait()?;
    println!("server: {} asks", request.peer_addr());
    // The region must be in the protection domain of the queue pair, so both are made before accepting.
    let pd = request.context()?.alloc_pd()?;
    let region = pd.share(SIZE, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    let descriptor = region.remote_slice().to_bytes();
    let connection = request.accept().in_domain(&pd).private_data(&descriptor).wait()?;

    // Nothing to do: the NIC serves. Until the client has gone.
    connection.closed().wait()?;
    let mut bytes = vec![0; SIZE];
    region.read_at(0, &mut bytes)?;
    assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == pattern(index)));
    println!("server: all {SIZE} bytes are there");
    Ok(())
}

fn client(to: impl ToAddresses) -> Result<(), Error> {
    // For a connection without extras, `cm::connect(to)` is the same.
    let connection = cm::resolve(to).wait()?.connect().wait()?;
    // Private data has the length of its field, filled up with zeros; ours is at the beginning.
    let there = RemoteSlice::from_bytes(&connection.private_data()[..RemoteSlice::ENCODED])?;
    println!("client: connected to {}, which shares {there}", connection.peer_addr());

    let pd = connection.pd();
    let mut buffer = pd.allocate(SIZE)?;
    buffer.iter_mut().enumerate().for_each(|(index, byte)| *byte = pattern(index));
    let written = connection.write(buffer, there)?.wait()?;
    let read = connection.read(pd.allocate(SIZE)?, there)?.wait()?;
    assert_eq!(*written, *read);
    println!("client: wrote {SIZE} bytes, read them back, and they are the same");
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
