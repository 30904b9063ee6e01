//! Messages of the connection manager in another's name, or in an envelope that none may come in.

use std::time::{Duration, Instant};

use wire::{Opcode, Pkey, Qkey, Qpn};

use super::{Attack, Verdict, judge};
use crate::actor::{Actor, Outcome};
use crate::craft::{self, Envelope};
use crate::hand::Hand;
use crate::network::{Network, User};
use crate::random::Random;
use crate::stage::{Pair, VictimPlacement};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "stale-request-host",
        what: "a user of the host sends requests that name the queue pair of a connection on shared memory",
        run: |network, random| stale(network, random, VictimPlacement::Shared, false),
    },
    Attack {
        name: "stale-request-network",
        what: "a stranger sends requests that name the client's queue pair, from the client's address",
        run: |network, random| stale(network, random, VictimPlacement::Hosts, true),
    },
    Attack {
        name: "forged-disconnect-host",
        what: "a user of the host sends DREQs and REJs with the right queue pair and 4,000 guessed communication ids",
        run: |network, random| disconnect(network, random, VictimPlacement::Shared, false),
    },
    Attack {
        name: "forged-disconnect-network",
        what: "a stranger does the same from the client's address",
        run: |network, random| disconnect(network, random, VictimPlacement::Hosts, true),
    },
    Attack {
        name: "management-envelope",
        what: "requests come in another opcode, with another Q_Key, from another queue pair, or for another partition",
        run: |network, _| envelopes(network),
    },
    Attack {
        name: "reflected-answers",
        what: "one request that nobody goes on with: what is sent to the address that it named",
        run: |network, _| reflected(network),
    },
    Attack {
        name: "request-flood",
        what: "60,000 requests of a stranger: the listener's memory, and whether it is there afterwards",
        run: |network, _| flood(network),
    },
];

fn stale(network: &Network, random: &mut Random, place: VictimPlacement, spoofed: bool) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, place)?;
    let mut hand = if spoofed {
        Hand::stranger(&network.strange, network.away.address, &network.home)?
    } else {
        Hand::attacker(&network.home)?
    };
    let secrets = pair.secrets()?;
    let [.., connection] = secrets.server;
    // The server knows the client's queue pair by the client's address, and the client on this host the server's.
    for qpn in [connection.peer, connection.qpn] {
        for _ in 0..8 {
            let req = craft::req(hand.way, 9, random.number() as u32 | 1, qpn);
            hand.throw(&hand.way.management(&Envelope::right(random.number()), req), 2)?;
        }
    }
    std::thread::sleep(Duration::from_millis(500));
    Ok(judge(pair.unhurt()?, "16 requests that named a queue pair in use ended nothing"))
}

fn disconnect(network: &Network, random: &mut Random, place: VictimPlacement, spoofed: bool) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, place)?;
    let mut hand = if spoofed {
        Hand::stranger(&network.strange, network.away.address, &network.home)?
    } else {
        Hand::attacker(&network.home)?
    };
    let secrets = pair.secrets()?;
    let [.., connection] = secrets.server;
    for _ in 0..2000 {
        // The slot of an id can be seen in the queue pair's number; the rest is guessed.
        let guess = |random: &mut Random, qpn: u32| qpn >> 12 << 20 | random.below(1 << 20) as u32;
        let (ours, theirs) = (guess(random, connection.peer), guess(random, connection.qpn));
        let transaction = random.number();
        let dreq = craft::dreq(ours, theirs, connection.qpn);
        hand.throw(&hand.way.management(&Envelope::right(transaction), dreq), 1)?;
        hand.throw(&hand.way.management(&Envelope::right(transaction), craft::rej(ours, theirs)), 1)?;
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(judge(pair.unhurt()?, "4,000 guesses of 2^40 ended nothing"))
}

/// A listener that accepts, and its port.
fn listener(network: &Network) -> Outcome<(Actor, u16)> {
    let home = &network.home;
    let mut actor = home.start(User::Victim, "listener", &[home.address.to_string(), "accepting".into()])?;
    let port = actor.hear("listening")?.parse()?;
    Ok((actor, port))
}

/// A stranger that also hears what is sent to its address.
fn hearing_stranger(network: &Network) -> Outcome<Hand> {
    let mut hand = Hand::stranger(&network.strange, network.strange.address, &network.home)?;
    hand.must(format_args!("hold {}:4791", network.strange.address))?;
    Ok(hand)
}

/// How much a hand has heard when that has not changed for so long.
fn heard_in_the_end(hand: &mut Hand, quiet: Duration) -> Outcome<u64> {
    let (mut heard, mut since) = (hand.heard()?, Instant::now());
    let limit = Instant::now() + Duration::from_secs(20);
    while since.elapsed() < quiet && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(20));
        let now = hand.heard()?;
        if now != heard {
            (heard, since) = (now, Instant::now());
        }
    }
    Ok(heard)
}

fn envelopes(network: &Network) -> Outcome<Verdict> {
    let (_listener, port) = listener(network)?;
    let right = Envelope::right(1);
    let wrong = [
        ("a Q_Key of 0", Envelope { qkey: Qkey::new(0), ..right }),
        ("a Q_Key of a program", Envelope { qkey: Qkey::new(0x0123_4567), ..right }),
        ("a source that is not QP1", Envelope { source: Qpn::new(0x12_3456), ..right }),
        ("another partition", Envelope { pkey: Pkey::new(0x8123), ..right }),
        ("a reliable SEND", Envelope { opcode: Opcode::RcSendOnly, ..right }),
        ("an unreliable SEND", Envelope { opcode: Opcode::UcSendOnly, ..right }),
    ];
    let mut believed = Vec::new();
    let mut id = 0x1000;
    for (what, envelope) in wrong.into_iter().chain([("", right)]) {
        // A stranger of its own for each, so that answers are not mixed up.
        let mut hand = hearing_stranger(network)?;
        for _ in 0..3 {
            id += 1;
            let envelope = Envelope { transaction: id.into(), ..envelope };
            let req = craft::req(hand.way, port, id, 0x50_0000 + id);
            hand.throw(&hand.way.management(&envelope, req), 1)?;
        }
        let quiet = Duration::from_millis(if what.is_empty() { 3000 } else { 500 });
        let deadline = Instant::now() + quiet;
        let mut answered = false;
        while !answered && Instant::now() < deadline {
            answered = hand.heard()? > 0;
            std::thread::sleep(Duration::from_millis(10));
        }
        match (what, answered) {
            ("", false) => return Err("not even a right request is answered".into()),
            ("", true) | (_, false) => {}
            (what, true) => believed.push(what),
        }
    }
    Ok(if believed.is_empty() {
        Verdict::Held("none of 6 envelopes was opened".into())
    } else {
        Verdict::Broken(format!("a request was answered that came with {}", believed.join(", with ")))
    })
}

/// Answers to one request of a stranger that are not too many: some are lost, and the peer must be able to connect.
const ANSWERS: u64 = 4;

fn reflected(network: &Network) -> Outcome<Verdict> {
    let (_listener, port) = listener(network)?;
    let mut hand = hearing_stranger(network)?;
    let req = craft::req(hand.way, port, 0x77, 0x50_0077);
    hand.throw(&hand.way.management(&Envelope::right(0x77), req), 1)?;
    let heard = heard_in_the_end(&mut hand, Duration::from_secs(3))?;
    Ok(match heard {
        0 => return Err("a right request is not answered".into()),
        heard if heard <= ANSWERS => Verdict::Held(format!("{heard} packets for one")),
        heard => Verdict::Broken(format!("{heard} packets for one")),
    })
}

/// More memory than this is not needed for what may be outstanding.
const MAX_GROWTH_KIB: u64 = 64 << 10;

fn flood(network: &Network) -> Outcome<Verdict> {
    let (mut listener, port) = listener(network)?;
    let mut hand = Hand::stranger(&network.strange, network.strange.address, &network.home)?;
    let (before, descriptors) = listener.size()?;
    let mut most = 0;
    for _ in 0..6 {
        hand.must(format_args!("requests {port} 10000"))?;
        most = most.max(listener.size()?.0);
    }
    if !listener.is_alive() {
        return Ok(Verdict::Broken("the listener's process ended".into()));
    }
    let grown = most.max(listener.size()?.0).saturating_sub(before);
    if grown > MAX_GROWTH_KIB {
        return Ok(Verdict::Broken(format!("the listener grew by {grown} KiB")));
    }
    drop(hand);
    let mut connector = network.away.start(User::Victim, "connector", &[])?;
    connector.hear("ready")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = connector.ask("connect", format_args!("{} {port} 1", network.home.address), "done")?;
        if answer.starts_with("1 0 ") {
            let after = listener.size()?.1;
            return Ok(Verdict::Held(format!("it grew by {grown} KiB; {descriptors} descriptors, now {after}")));
        }
        if Instant::now() > deadline {
            return Ok(Verdict::Broken(format!("no connect succeeds after the flood: {answer}")));
        }
    }
}
