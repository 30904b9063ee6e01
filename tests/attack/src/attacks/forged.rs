//! Packets in another's name, from a user of the host and from a stranger on the network.

use std::net::Ipv4Addr;
use std::time::Duration;

use wire::Headers;

use super::{Attack, Verdict, judge};
use crate::actor::Outcome;
use crate::craft::{self, FORGED};
use crate::hand::Hand;
use crate::network::Network;
use crate::stage::{Pair, Secrets, VictimPlacement};
use crate::victim::AREA;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "shared-send",
        what: "a user of the host sends a SEND over UDP to a reliable queue pair on shared memory, with the right PSN",
        run: |network, _| {
            locally(network, VictimPlacement::Shared, &|it| vec![send(true, it.server[0].qpn, it.server[0].expected)])
        },
    },
    Attack {
        name: "shared-send-unreliable",
        what: "the same to an unreliable queue pair, which takes any PSN",
        run: |network, _| {
            locally(network, VictimPlacement::Shared, &|it| vec![send(false, it.server[1].qpn, it.server[1].expected)])
        },
    },
    Attack {
        name: "shared-write",
        what: "the same with a WRITE whose key and address are right",
        run: |network, _| locally(network, VictimPlacement::Shared, &|it| vec![write(it)]),
    },
    Attack {
        name: "shared-nak",
        what: "while the victims work, a user of the host sends acknowledgements that would end the queue pair",
        run: |network, _| refusals(network),
    },
    Attack {
        name: "shared-connection",
        what: "the same with a SEND to a queue pair of the connection manager",
        run: |network, _| {
            locally(network, VictimPlacement::Shared, &|it| vec![send(true, it.server[2].qpn, it.server[2].expected)])
        },
    },
    Attack {
        name: "datagram-key",
        what: "a user of the host sends datagrams whose Q_Key is one bit off",
        run: |network, _| locally(network, VictimPlacement::Shared, &|it| datagrams(it, 32)),
    },
    Attack {
        name: "stranger-own-address",
        what: "a stranger sends SENDs, WRITEs and NAKs with all the right numbers from its own address",
        run: |network, _| from_network(network, network.strange.address, VictimPlacement::Hosts, &everything),
    },
    Attack {
        name: "stranger-home-address",
        what: "a stranger sends the same to shared memory, in the name of the host itself",
        run: |network, _| from_network(network, network.home.address, VictimPlacement::Shared, &everything),
    },
    Attack {
        name: "stranger-peer-address-wrong-psn",
        what: "a stranger spoofs the peer's address and knows the queue pair's number, but not the PSN",
        run: |network, _| from_network(network, network.away.address, VictimPlacement::Hosts, &wrong_psns),
    },
    Attack {
        name: "users-all-numbers",
        what: "a user of the host knows the number and PSN of a queue pair between two other users",
        run: |network, _| locally(network, VictimPlacement::Users, &everything),
    },
    Attack {
        name: "peer-host-all-numbers",
        what: "a user of the peer's host knows number and PSN: its packets have the peer's address anyway",
        run: |network, _| {
            let mut pair = Pair::start(network, VictimPlacement::Hosts)?;
            let hand = Hand::towards(&network.home, &network.away)?;
            let forge = |it: &Secrets| vec![send(true, it.client[0].qpn, it.client[0].expected)];
            Ok(undefended(throw(&mut pair, hand, &forge)?))
        },
    },
    Attack {
        name: "stranger-all-numbers",
        what: "a stranger spoofs the peer's address and knows number and PSN",
        run: |network, _| {
            let forge = |it: &Secrets| vec![send(true, it.server[0].qpn, it.server[0].expected)];
            Ok(undefended(from_network(network, network.away.address, VictimPlacement::Hosts, &forge)?))
        },
    },
];

/// Headers and payload.
type Forgery = (Headers, Vec<u8>);

/// What can only be told from a genuine packet by its numbers.
fn undefended(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Broken(what) => Verdict::Undefended(what),
        other => other,
    }
}

fn send(reliable: bool, to: u32, psn: u32) -> Forgery {
    (craft::send(reliable, to, psn), FORGED.to_vec())
}

fn write(it: &Secrets) -> Forgery {
    let at = it.memory.address() + AREA as u64;
    let headers = craft::write(true, it.server[0].qpn, it.server[0].expected, at, it.memory.key(), FORGED.len());
    (headers, FORGED.to_vec())
}

fn datagrams(it: &Secrets, bits: u32) -> Vec<Forgery> {
    let forged = |bit: u32| (craft::datagram(it.datagrams, it.qkey ^ 1u32 << bit, 0x12_3456), FORGED.to_vec());
    (0..bits).map(forged).collect()
}

fn everything(it: &Secrets) -> Vec<Forgery> {
    let [reliable, unreliable, connection] = it.server;
    let mut all = vec![
        send(true, reliable.qpn, reliable.expected),
        send(false, unreliable.qpn, unreliable.expected),
        send(true, connection.qpn, connection.expected),
        write(it),
    ];
    // The unreliable one again, wherever it is.
    all.extend((0..8).map(|step| send(false, unreliable.qpn, unreliable.expected.wrapping_add(step))));
    all
}

/// PSNs that are far from right: half the space before and behind.
fn wrong_psns(it: &Secrets) -> Vec<Forgery> {
    let [reliable, ..] = it.server;
    let off = |step: u32| (reliable.expected.wrapping_add(step)) & 0xff_ffff;
    (1..200u32).map(|step| send(true, reliable.qpn, off(step * 0xa_0001))).collect()
}

/// Refusals are believed only of requests that are under way, so the victims go on, and a range of PSNs is refused.
fn refusals(network: &Network) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, VictimPlacement::Shared)?;
    let mut hand = Hand::attacker(&network.home)?;
    let [client, ..] = pair.secrets()?.client;
    pair.go_on()?;
    let mut count = 0;
    for step in (0..2000u32).map(|step| step * 7 % 2000) {
        hand.throw(&hand.way.packet(&craft::nak(client.qpn, client.next.wrapping_add(step)), &[]), 2)?;
        count += 2;
    }
    Ok(judge(pair.after_rounds(12)?, format!("none of {count} forged refusals was believed")))
}

fn locally(network: &Network, place: VictimPlacement, forge: &dyn Fn(&Secrets) -> Vec<Forgery>) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, place)?;
    let hand = Hand::attacker(&network.home)?;
    throw(&mut pair, hand, forge)
}

fn from_network(
    network: &Network,
    from: Ipv4Addr,
    place: VictimPlacement,
    forge: &dyn Fn(&Secrets) -> Vec<Forgery>,
) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, place)?;
    let hand = Hand::stranger(&network.strange, from, &network.home)?;
    throw(&mut pair, hand, forge)
}

fn throw(pair: &mut Pair, mut hand: Hand, forge: &dyn Fn(&Secrets) -> Vec<Forgery>) -> Outcome<Verdict> {
    let secrets = pair.secrets()?;
    let forged = forge(&secrets);
    for (headers, payload) in &forged {
        // More than once: the first packets of a new sender are not believed in haste.
        hand.throw(&hand.way.packet(headers, payload), 4)?;
    }
    // What the kernel has taken arrives before what the victims send from now on, or a moment later.
    std::thread::sleep(Duration::from_millis(300));
    Ok(judge(pair.unhurt()?, format!("none of {} forged packets was believed", forged.len())))
}
