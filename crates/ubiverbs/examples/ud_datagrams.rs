//! # 4. Datagrams: one queue pair, any peer
//!
//! A connected queue pair has one peer; a thousand peers need a thousand of them. A **datagram** queue pair talks to anybody: each message
//! goes to an **address handle**. In return a message must fit one packet, may be lost, and can only be sent, not written or read: on
//! this type those methods do not exist.
//!
//! The receiver finds 40 bytes in front of the message: the network header, from which it learns who sent it. So it can answer without
//! having known the sender.
//!
//! ```text
//! cargo run --example ud_datagrams
//! ```
//!
//! Between two programs, paste the server's endpoint to the client; the server needs none:
//!
//! ```text
//! cargo run --example ud_datagrams -- server
//! cargo run --example ud_datagrams -- client ENDPOINT
//! ```

use std::error::Error as StdError;
use std::thread;
use ubiverbs::{Datagram, Endpoint, Error, GRH_LENGTH, ProtectionDomain, QueuePair};

const LONGEST: usize = 1024;

fn datagram_queue() -> Result<(ProtectionDomain, QueuePair<Datagram>), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;
    // No peer: `activate` instead of `connect`.
    let qp = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    Ok((pd, qp))
}

/// Answers `count` datagrams, in upper case.
fn serve(pd: &ProtectionDomain, qp: &QueuePair<Datagram>, count: usize) -> Result<(), Error> {
    // A datagram that finds no receive is lost, so keep a few ready. One allocation, cut into pieces.
    let buffers = pd.allocate(16 * (GRH_LENGTH + LONGEST))?.chunks(GRH_LENGTH + LONGEST);
    let mut waiting: std::collections::VecDeque<_> =
        buffers.into_iter().map(|buffer| qp.recv(buffer)).collect::<Result<_, _>>()?;
    for _ in 0..count {
        let Some(next) = waiting.pop_front() else { break };
        let message = next.wait()?;
        let answer = message.payload().to_ascii_uppercase();
        let sender = message.reply_address(qp).expect("a datagram has a sender");
        println!("server: {} bytes from queue pair {} at {}", message.bytes(), sender.qpn(), sender.gid());
        qp.send_to(pd.register(answer)?, &sender)?.wait()?;
        // The buffer goes back to the end of the line.
        waiting.push_back(qp.recv(message.into_buffer())?);
    }
    Ok(())
}

fn ask(pd: &ProtectionDomain, qp: &QueuePair<Datagram>, server: &Endpoint, name: &str) -> Result<(), Error> {
    let to = pd.address(server)?;
    let answer = qp.recv(pd.allocate(GRH_LENGTH + LONGEST)?)?;
    qp.send_inline_to(format!("good morning from {name}").as_bytes(), &to)?.wait()?;
    let answer = answer.wait()?;
    println!("{name}: {}", String::from_utf8_lossy(answer.payload()));
    assert_eq!(answer.payload(), format!("GOOD MORNING FROM {}", name.to_uppercase()).as_bytes());
    Ok(())
}

fn main() -> Result<(), Box<dyn StdError>> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("server") => {
            let (pd, qp) = datagram_queue()?;
            println!("{}", qp.endpoint());
            serve(&pd, &qp, 1)?;
        }
        Some("client") => {
            let (pd, qp) = datagram_queue()?;
            let server = arguments.next().ok_or("which endpoint?")?.parse()?;
            ask(&pd, &qp, &server, "client")?;
        }
        _ => {
            let (pd, qp) = datagram_queue()?;
            let server = qp.endpoint();
            let clients = ["ann", "ben", "cleo"];
            let serving = thread::spawn(move || serve(&pd, &qp, clients.len()));
            // Three clients, of which the server knows nothing before they speak.
            for name in clients {
                let (pd, qp) = datagram_queue()?;
                ask(&pd, &qp, &server, name)?;
            }
            serving.join().expect("the server does not panic")?;
        }
    }
    Ok(())
}
