//! # 2. WRITE and READ: the peer's memory, without the peer
//!
//! In the first example both programs acted: one sent, the other had posted a receive. *One-sided* operations need no
//! doing of the peer's program at all. It **shares** a region of its memory once, hands out a name for it (a **remote
//! slice**: address, length and key, 24 bytes), and from then on its NIC serves WRITEs and READs, while the program
//! computes, sleeps, or does something else.
//!
//! Because peers may write at any moment, a `SharedRegion` is never a `&[u8]`: bytes are copied in and out. And it can
//! be **revoked**: when that returns, no peer reaches the memory any more, whatever key it holds.
//!
//! ```text
//! cargo run --example write_and_read
//! ```
//!
//! Between two programs, give each the line the other prints:
//!
//! ```text
//! cargo run --example write_and_read -- server
//! cargo run --example write_and_read -- client
//! ```

use std::error::Error as StdError;
use std::io::{self, BufRead};
use ubiverbs::{
    Access, Class, Context, Endpoint, Error, PreparedQueuePair, ProtectionDomain, QueuePair, Reliable, RemoteSlice,
};

const SIZE: usize = 1 << 20;

fn prepare(context: &Context) -> Result<(ProtectionDomain, PreparedQueuePair<Reliable>), Error> {
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    Ok((pd, prepared))
}

/// What the client does to the server's memory.
fn client(pd: &ProtectionDomain, qp: &QueuePair<Reliable>, there: RemoteSlice) -> Result<(), Error> {
    // Fill a megabyte and write it. The NIC cuts it into packets of the path's MTU; here it is one call.
    let mut buffer = pd.allocate(SIZE)?;
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = index as u8;
    }
    let buffer = qp.write(buffer, there)?.wait()?;
    println!("client: wrote {} bytes to {there}", buffer.len());

    // Read a part of it back, from the middle. A slice of a remote slice is checked here, before anything is sent.
    let part = there.slice(1000..1256)?;
    let copy = qp.read(pd.allocate(256)?, part)?.wait()?;
    assert_eq!(&*copy, &buffer[1000..1256]);
    println!("client: read {} bytes back, and they are the same", copy.len());
    Ok(())
}

/// What happens when a peer reaches too far: an error that says so, on both sides, and nothing else.
fn too_far(pd: &ProtectionDomain, qp: &QueuePair<Reliable>, there: RemoteSlice) -> Result<(), Error> {
    // The bounds of a remote slice are checked before anything is posted; so to show what the server's NIC says, forge
    // a longer one.
    let forged = RemoteSlice::new(there.address(), there.len() + 1, there.key());
    let beyond = forged.slice(forged.len() - 8..forged.len())?;
    let failed = qp.write(pd.allocate(8)?, beyond)?.wait().expect_err("the server's NIC refuses");
    let Error::Completion(error) = &failed.error else { return Err(failed.into()) };
    assert_eq!(error.class(), Class::Remote);
    println!("client: one byte too far: {error}");
    Ok(())
}

fn main() -> Result<(), Box<dyn StdError>> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    match std::env::args().nth(1).as_deref() {
        Some("server") => {
            let (pd, prepared) = prepare(&context)?;
            let region = pd.share(SIZE, rights)?;
            println!("give this to the client: {} {}", prepared.endpoint(), region.remote_slice());
            let _qp = prepared.connect(&line()?.parse()?)?;
            // Nothing more to do: the NIC serves. Wait until the client's last byte has come.
            while region.load(SIZE - 8)? == 0 {
                std::thread::yield_now();
            }
            println!("server: the last byte is there");
            line()?;
        }
        Some("client") => {
            let (pd, prepared) = prepare(&context)?;
            println!("give this to the server: {}", prepared.endpoint());
            let given = line()?;
            let (peer, there) = given.trim().split_once(' ').ok_or("an endpoint and a remote slice")?;
            client(&pd, &prepared.connect(&peer.parse::<Endpoint>()?)?, there.parse()?)?;
        }
        _ => {
            let (server_pd, server) = prepare(&context)?;
            let (client_pd, client_qp) = prepare(&context)?;
            let (at_server, at_client) = (server.endpoint(), client_qp.endpoint());
            let (_server, client_qp) = (server.connect(&at_client)?, client_qp.connect(&at_server)?);
            let region = server_pd.share(SIZE, rights)?;

            client(&client_pd, &client_qp, region.remote_slice())?;
            let mut last = [0];
            region.read_at(SIZE - 1, &mut last)?;
            println!("server: the last byte is {}", last[0]);
            too_far(&client_pd, &client_qp, region.remote_slice())?;

            // Taken away: the memory is the server's alone again, also from clients that still know its name.
            region.revoke()?;
            println!("server: {region:?}");
        }
    }
    Ok(())
}

fn line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().to_owned())
}
