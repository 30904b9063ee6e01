//! # 1. Hello: a SEND meets a receive
//!
//! RDMA programs do not read and write streams. They *post work* to a **queue pair** and learn from a **completion
//! queue** when it is done. Between the two, the NIC moves the bytes straight from one program's memory into the
//! other's.
//!
//! Every program takes the same steps:
//!
//! 1. Open a **device**. Ours are made of network interfaces: `ubi_lo` is the loopback interface.
//! 2. Make a **protection domain**: memory and queues that belong together.
//! 3. Make a **completion queue**.
//! 4. *Prepare* a queue pair, and tell the peer where it is: its **endpoint**. Learn the peer's, and connect.
//! 5. Post work. A message needs a *receive* at the other side: a buffer for it to land in.
//!
//! Run it, and Alice and Bob are two threads of one program:
//!
//! ```text
//! cargo run --example hello
//! ```
//!
//! Or run it twice, in two terminals (or on two hosts: give a device that both reach), and paste each one's endpoint
//! into the other:
//!
//! ```text
//! cargo run --example hello -- bob
//! cargo run --example hello -- alice
//! ```

use std::io::{self, BufRead};
use std::sync::mpsc;
use std::thread;
use ubiverbs::{Endpoint, Error, PreparedQueuePair, ProtectionDomain, Reliable};

/// Steps 1 to 4, up to the point where the peer must be known.
fn prepare(device: &str) -> Result<(ProtectionDomain, PreparedQueuePair<Reliable>), Error> {
    let context = ubiverbs::device(device)?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    // `Reliable` is the transport: what is sent arrives, once and in order. It is part of the type.
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    Ok((pd, prepared))
}

/// Alice speaks first. `exchange` gives the peer our endpoint and returns the peer's.
fn alice(device: &str, exchange: impl FnOnce(Endpoint) -> Endpoint) -> Result<(), Error> {
    let (pd, prepared) = prepare(device)?;
    // Post the receive for the answer *before* connecting: from then on a message could come at any time.
    let answer = prepared.recv(pd.allocate(100)?)?;
    let peer = exchange(prepared.endpoint());
    let qp = prepared.connect(&peer)?;

    // A buffer to send from must be registered. Posting it moves it to the NIC...
    let mut buffer = pd.allocate(10)?;
    buffer.copy_from_slice(b"hello, bob");
    let sending = qp.send(buffer)?;
    // ...and when the work is done it comes back. Bob's NIC has acknowledged the message by then.
    let buffer = sending.wait()?;
    println!("alice: sent {:?}", String::from_utf8_lossy(&buffer));

    println!("alice: received {:?}", String::from_utf8_lossy(answer.wait()?.payload()));
    Ok(())
}

/// Bob answers.
fn bob(device: &str, exchange: impl FnOnce(Endpoint) -> Endpoint) -> Result<(), Error> {
    let (pd, prepared) = prepare(device)?;
    let greeting = prepared.recv(pd.allocate(100)?)?;
    let peer = exchange(prepared.endpoint());
    let qp = prepared.connect(&peer)?;

    println!("bob: received {:?}", String::from_utf8_lossy(greeting.wait()?.payload()));
    // A short message can travel inside the work request: nothing to register, nothing to wait for before it is used
    // again.
    qp.send_inline(b"hello, alice")?.wait()?;
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let role = arguments.next();
    let device = arguments.next().unwrap_or_else(|| "ubi_lo".into());
    match role.as_deref() {
        Some("alice") => alice(&device, over_the_terminal),
        Some("bob") => bob(&device, over_the_terminal),
        _ => {
            // Any channel will do for the endpoints: here one inside the program, elsewhere a socket, a file, a person.
            let (to_bob, from_alice) = mpsc::channel();
            let (to_alice, from_bob) = mpsc::channel();
            let bobs_device = device.clone();
            let bob = thread::spawn(move || {
                bob(&bobs_device, |mine| {
                    to_alice.send(mine).expect("alice listens");
                    from_alice.recv().expect("alice tells")
                })
            });
            alice(&device, |mine| {
                to_bob.send(mine).expect("bob listens");
                from_bob.recv().expect("bob tells")
            })?;
            bob.join().expect("bob does not panic")
        }
    }
}

fn over_the_terminal(mine: Endpoint) -> Endpoint {
    println!("my endpoint:     {mine}\npaste the other:");
    let lines = io::stdin().lock().lines();
    let parsed = lines.map_while(Result::ok).find_map(|line| line.parse().map_err(|e| println!("{e}")).ok());
    parsed.expect("an endpoint before the end of the input")
}
