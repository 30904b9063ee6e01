//! # 11. Multicast: a chat without a server
//!
//! A datagram can go to a **group**: an IP multicast address that any number of queue pairs join. Each of them gets a
//! copy, also the one that sent it. No member is in charge, and none knows how many listen.
//!
//! All members must use the same Q_Key; the connection manager's is `cm::QKEY`, so programs of librdmacm (such as
//! `mckey`) can be in the same group. Here a message that was sent twice is shown twice, and one that was lost is
//! not shown: they are datagrams.
//!
//! ```text
//! cargo run --example multicast_chat
//! ```
//!
//! Or in several terminals; on several hosts, name a device that reaches the others:
//!
//! ```text
//! cargo run --example multicast_chat -- ann
//! cargo run --example multicast_chat -- ben ubi_eth0
//! ```

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::Duration;
use ubiverbs::{Datagram, Error, GRH_LENGTH, Operation, ProtectionDomain, QueuePair, Received, cm};

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 20, 26, 7));
const LONGEST: usize = 512;

struct Member {
    name: String,
    pd: ProtectionDomain,
    qp: QueuePair<Datagram>,
    membership: cm::Membership,
}

impl Member {
    fn join(name: &str, device: &str) -> Result<Member, Error> {
        let context = ubiverbs::device(device)?.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.completion_queue(64).create()?;
        let qp = pd.queue_pair::<Datagram>(&cq).qkey(cm::QKEY).prepare()?.activate()?;
        let membership = cm::join(GROUP, &qp).wait()?;
        Ok(Member { name: name.to_owned(), pd, qp, membership })
    }

    /// Receives that wait for what others say. What finds none is lost.
    fn listen(&self) -> Result<VecDeque<Operation<Received>>, Error> {
        let buffers = self.pd.allocate(16 * (GRH_LENGTH + LONGEST))?.chunks(GRH_LENGTH + LONGEST);
        buffers.into_iter().map(|buffer| Ok(self.qp.recv(buffer)?)).collect()
    }

    fn say(&self, words: &str) -> Result<(), Error> {
        let line = format!("{}: {words}", self.name);
        self.qp.send_to(self.pd.register(line.into_bytes())?, self.membership.address())?.wait()?;
        Ok(())
    }
}

/// Shows what is said, until the program ends.
fn show(qp: &QueuePair<Datagram>, mut waiting: VecDeque<Operation<Received>>) -> Result<(), Error> {
    while let Some(next) = waiting.pop_front() {
        let message = next.wait()?;
        println!("{}", String::from_utf8_lossy(message.payload()));
        waiting.push_back(qp.recv(message.into_buffer())?);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn StdError>> {
    let mut arguments = std::env::args().skip(1);
    if let Some(name) = arguments.next() {
        let member = Member::join(&name, arguments.next().as_deref().unwrap_or("ubi_lo"))?;
        println!("{name} is in {GROUP}; say something");
        let (waiting, qp) = (member.listen()?, member.qp.clone());
        thread::spawn(move || show(&qp, waiting));
        for line in io::stdin().lines() {
            member.say(&line?)?;
        }
        return Ok(());
    }

    // Three members in one program. Each hears all three.
    let members = ["ann", "ben", "cleo"].map(|name| Member::join(name, "ubi_lo"));
    let members = members.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut waiting = members.iter().map(Member::listen).collect::<Result<Vec<_>, _>>()?;
    for member in &members {
        member.say("good morning")?;
    }
    for (member, waiting) in members.iter().zip(&mut waiting) {
        for said_by in &members {
            let mut next = waiting.pop_front().expect("sixteen were posted");
            let heard = next.wait_for(Duration::from_secs(5)).ok_or("a datagram was lost")??;
            let heard = String::from_utf8_lossy(heard.payload()).into_owned();
            println!("{} heard {heard:?}", member.name);
            assert_eq!(heard, format!("{}: good morning", said_by.name));
        }
    }
    println!("{} members heard {} messages each", members.len(), members.len());
    Ok(())
}
