//! # 7. A shared receive queue: many clients, few buffers
//!
//! Every queue pair needs receives before its peer sends. A server with a thousand clients and sixteen receives each
//! would keep sixteen thousand buffers ready, almost all of them idle. With a **shared receive queue** the queue pairs
//! take their receives from one pool: as many buffers as messages are under way at a time.
//!
//! A message's completion says which queue pair took the receive, so the server knows whom to answer. If the pool runs
//! dry, reliable clients are told to wait a moment and try again: nothing is lost, it only takes longer.
//!
//! ```text
//! cargo run --example shared_receive_queue_many_clients
//! ```

use std::collections::HashMap;
use std::thread;
use ubiverbs::{Error, Qpn, QueuePair, Reliable};

const CLIENTS: usize = 100;
const MESSAGES: usize = 10;
const BUFFERS: usize = 16;
const SIZE: usize = 64;

fn client(qp: &QueuePair<Reliable>, pd: &ubiverbs::ProtectionDomain, number: usize) -> Result<(), Error> {
    let mut buffer = pd.allocate(SIZE)?;
    for message in 0..MESSAGES {
        let answer = qp.recv(buffer)?;
        qp.send_inline(&(number * 1000 + message).to_ne_bytes())?.wait()?;
        let answer = answer.wait()?;
        assert_eq!(answer.payload(), (number * 1000 + message + 1).to_ne_bytes());
        buffer = answer.into_buffer();
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(1024).create()?;

    // The pool: one allocation, cut into sixteen receives.
    let receives = pd.shared_receive_queue(BUFFERS as u32)?;
    for buffer in pd.allocate(BUFFERS * SIZE)?.chunks(SIZE) {
        receives.recv(buffer)?.polled(0);
    }

    // A hundred clients, in ten threads. Each of the server's queue pairs takes from the pool and has no receives of
    // its own.
    let mut server: HashMap<Qpn, QueuePair<Reliable>> = HashMap::new();
    let mut threads = Vec::new();
    for group in 0..10 {
        let client_pd = context.alloc_pd()?;
        let client_cq = context.completion_queue(64).create()?;
        let mut group_of_clients = Vec::new();
        for number in 0..CLIENTS / 10 {
            let here = client_pd.queue_pair::<Reliable>(&client_cq).max_sends(4).max_receives(4).prepare()?;
            let there = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).max_sends(4).prepare()?;
            let (at_here, at_there) = (here.endpoint(), there.endpoint());
            group_of_clients.push((group * 10 + number, here.connect(&at_there)?));
            let there = there.connect(&at_here)?;
            server.insert(there.qpn(), there);
        }
        threads.push(thread::spawn(move || {
            group_of_clients.iter().try_for_each(|(number, qp)| client(qp, &client_pd, *number))
        }));
    }

    // The server: one loop for all clients.
    let mut answered = 0;
    while answered < CLIENTS * MESSAGES {
        for completion in cq.poll()? {
            let message = completion.into_received()?;
            let number = usize::from_ne_bytes(message.payload().try_into().expect("a number"));
            let Some(qp) = server.get(&message.qpn()) else { continue };
            // Put the buffer back into the pool first, then answer. The answer is dropped: no task waits for it.
            receives.recv(message.into_buffer())?.polled(0);
            drop(qp.send_inline(&(number + 1).to_ne_bytes())?);
            answered += 1;
        }
    }
    for thread in threads {
        thread.join().expect("no client panics")?;
    }
    println!("answered {answered} messages of {CLIENTS} clients with {BUFFERS} buffers");
    Ok(())
}
