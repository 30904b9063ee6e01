//! # 4. Datagrams: one queue pair, any peer
//!
//! A connected queue pair has one peer; a thousand peers need a thousand of them. A **datagram** queue pair talks to
//! anybody: each message goes to an **address handle**. In return a message must fit one packet, may be lost, and can
//! only be sent, not written or read: on this type those methods do not exist.
//!
//! The receiver finds 40 bytes in front of the message: the network header, from which it learns who sent it. So it can
//! answer without having known the sender.
//!
//! ```text
//! cargo run --example ud_datagrams
//! ```
//!
//! Between two programs, paste the server's endpoint to the client; the server needs none, and answers until it is
//! stopped:
//!
//! ```text
//! cargo run --example ud_datagrams -- server
//! cargo run --example ud_datagrams -- client ENDPOINT
//! ```

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::thread;
use std::time::Duration;
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

/// Answers datagrams, in upper case, until the program ends.
fn serve(pd: &ProtectionDomain, qp: &QueuePair<Datagram>) -> Result<(), Error> {
    // A datagram that finds no receive is lost, so keep a few ready. One allocation, cut into pieces.
    let buffers = pd.allocate(16 * (GRH_LENGTH + LONGEST))?.chunks(GRH_LENGTH + LONGEST);
    let mut waiting: VecDeque<_> = buffers.into_iter().map(|buffer| qp.recv(buffer)).collect::<Result<_, _>>()?;
    while let Some(next) = waiting.pop_front() {
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
    let mut receiving = qp.recv(pd.allocate(GRH_LENGTH + LONGEST)?)?;
    // A datagram may be lost, and so may its answer: ask until one comes. The receive stays posted meanwhile.
    let answer = loop {
        qp.send_inline_to(format!("good morning from {name}").as_bytes(), &to)?.wait()?;
        if let Some(answer) = receiving.wait_for(Duration::from_millis(500)) {
            break answer?;
        }
    };
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
            serve(&pd, &qp)?;
        }
        Some("client") => {
            let (pd, qp) = datagram_queue()?;
            let server = arguments.next().ok_or("which endpoint?")?.parse()?;
            ask(&pd, &qp, &server, "client")?;
        }
        _ => {
            let (pd, qp) = datagram_queue()?;
            let server = qp.endpoint();
            thread::spawn(move || serve(&pd, &qp).expect("the server serves"));
            // Three clients, of which the server knows nothing before they speak.
            for name in ["ann", "ben", "cleo"] {
                let (pd, qp) = datagram_queue()?;
                ask(&pd, &qp, &server, name)?;
            }
        }
    }
    Ok(())
}
