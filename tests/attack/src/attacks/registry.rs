//! The host's registry: names that are taken, taken over, reached without end or told nonsense; and packets that a
//! process claims to have got for another.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use host::arrival::Arrival;
use host::forward::message;
use host::greeting;
use wire::Packet;
use wire::cm::PortSpace;

use super::{Attack, Verdict, judge};
use crate::actor::Outcome;
use crate::craft::{self, FORGED, Way, hex};
use crate::hand::Hand;
use crate::network::{Network, User};
use crate::stage::{Pair, Secrets, VictimPlacement};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "forwarded-to-shared",
        what: "a user that holds [::1]:4791 forwards packets with an ICRC of 0 to a queue pair on shared memory",
        run: |network, _| forwarded(network, VictimPlacement::Shared, "[::1]:4791"),
    },
    Attack {
        name: "forwarded-to-hosts",
        what: "the same to a queue pair whose peer is on another host, in the peer's name",
        run: |network, _| forwarded(network, VictimPlacement::Hosts, "[::1]:4791"),
    },
    Attack {
        name: "forwarded-to-users",
        what: "the same to a queue pair between two other users",
        run: |network, _| forwarded(network, VictimPlacement::Users, "[::1]:4791"),
    },
    Attack {
        name: "held-loopback-address",
        what: "the same, and the user holds 127.0.0.9:4791: do victims still have UDP, and who forwards to them?",
        run: |network, _| forwarded(network, VictimPlacement::Users, "127.0.0.9:4791"),
    },
    Attack {
        name: "held-ports",
        what: "a user holds all UDP ports of ::1 before victims start: do processes of one user still reach each other?",
        run: |network, _| held_ports(network),
    },
    Attack {
        name: "idle-sockets",
        what: "a user opens UDP sockets by the thousand and does nothing with them: do messages over UDP take longer?",
        run: |network, _| idle_sockets(network),
    },
    Attack {
        name: "dead-slot",
        what: "a user binds the names of a process that has died, and waits for its packets",
        run: |network, _| dead_slot(network),
    },
    Attack {
        name: "squatted-slots",
        what: "a user binds all 4,094 names of slots before victims start",
        run: |network, _| squatted(network, &[("ubiverbs/slot/", ".", 1, 4094)]),
    },
    Attack {
        name: "squatted-ports",
        what: "a user binds all names of blocks of ports before victims start",
        run: |network, _| squatted(network, &[("ubiverbs/cm/tcp/block/", ".", 0, 1023)]),
    },
    Attack {
        name: "squatted-other-names",
        what: "a user binds all names of slots, and then 90 other names of the slot that a victim took all the same",
        run: |network, _| squatted_others(network),
    },
    Attack {
        name: "connects-to-names",
        what: "a user connects 3,000 times to each name of a victim and says nothing; then new victims start",
        run: |network, _| connects(network),
    },
    Attack {
        name: "garbage-to-names",
        what: "a user tells each name of a victim garbage with descriptors",
        run: |network, _| garbage(network),
    },
    Attack {
        name: "lingering-descriptors",
        what: "a user passes each name of a victim TCP sockets whose last close sleeps for a minute",
        run: |network, _| lingering(network),
    },
    Attack {
        name: "offered-ring",
        what: "a user offers victims a ring of shared memory, and records of connections that ended",
        run: |network, _| offers(network),
    },
    Attack {
        name: "slow-reader",
        what: "a user has a name of a slot and never reads, while packets for it come to the victims",
        run: |network, _| slow_reader(network),
    },
    Attack {
        name: "steering-probes",
        what: "a user answers probes that it was not asked, to every port of the host, and asks without end",
        run: |network, _| probes(network),
    },
];

/// The name of the slot that a queue pair's number lies in, as it is bound now.
fn slot_names(network: &Network, qpn: u32) -> Outcome<Vec<String>> {
    let slot = format!("ubiverbs/slot/{}", qpn >> 12);
    let mut names = network.home.names()?;
    names.retain(|name| name.strip_prefix(&slot).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit())));
    if names.is_empty() { Err("the victim's slot has no name".into()) } else { Ok(names) }
}

/// A message that says: this packet came for you.
fn forward(way: Way, headers: &wire::Headers, right: bool) -> Outcome<Vec<u8>> {
    let mut bytes = way.packet(headers, &FORGED);
    if !right && let Some(icrc) = bytes.last_chunk_mut::<4>() {
        *icrc = [0; 4];
    }
    let Packet { headers, payload } = Packet::parse(&bytes)?;
    let (ip, _) = way.outside(bytes.len())?;
    let arrival = Arrival { headers, payload, ip, bytes: &bytes, port: way.port, ..Arrival::NONE };
    let mut told = Vec::new();
    if message::append(&mut told, &arrival) { Ok(told) } else { Err("a packet does not fit a message".into()) }
}

fn forged(it: &Secrets) -> Vec<wire::Headers> {
    let [reliable, unreliable, connection] = it.server;
    vec![
        craft::send(true, reliable.qpn, reliable.expected),
        craft::send(false, unreliable.qpn, unreliable.expected),
        craft::send(true, connection.qpn, connection.expected),
    ]
}

fn forwarded(network: &Network, place: VictimPlacement, held: &str) -> Outcome<Verdict> {
    let mut hand = Hand::attacker(&network.home)?;
    // Before the victims come, so that the address is free.
    hand.must(format_args!("hold {held}"))?;
    let mut pair = match Pair::start(network, place) {
        Ok(pair) => pair,
        // The victims cannot have all addresses of the port, so they have no UDP; the attacker's hold did that.
        Err(error) if place != VictimPlacement::Shared => {
            let address: IpAddr = held.rsplit_once(':').map_or(held, |it| it.0).trim_matches(['[', ']']).parse()?;
            return match address {
                IpAddr::V4(_) => Ok(Verdict::Undefended(format!("victims have no UDP while {held} is held: {error}"))),
                IpAddr::V6(_) => Err(error),
            };
        }
        Err(error) => return Err(error),
    };
    let secrets = pair.secrets()?;
    // Whose packets these would be.
    let from = if place == VictimPlacement::Hosts { network.away.address } else { network.home.address };
    let way = Way { from, port: 0xc0de, to: network.home.address };
    let mut told = 0;
    for headers in forged(&secrets) {
        for name in slot_names(network, headers.bth.dest_qpn.value())? {
            for right in [false, true] {
                let Ok(index) = hand.does(format_args!("connect {name}"))? else { continue };
                let message = hex(&forward(way, &headers, right)?);
                told += u32::from(hand.does(format_args!("tell {index} {message} 0"))?.is_ok());
            }
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    Ok(judge(pair.unhurt()?, format!("{told} forwarded packets were told, none believed")))
}

fn held_ports(network: &Network) -> Outcome<Verdict> {
    let mut hand = Hand::attacker(&network.home)?;
    let held: u32 = hand.must("hold-ports ::1")?.parse()?;
    Ok(match Pair::start(network, VictimPlacement::Shared) {
        Ok(mut pair) => judge(pair.after_rounds(8)?, format!("{held} ports are held, and shared memory works")),
        Err(error) => Verdict::Broken(format!("{held} ports are held, and victims have no NIC: {error}")),
    })
}

/// How long a victim has been there when another one is killed.
const ACQUAINTANCE: Duration = Duration::from_secs(1);

/// Rounds of victims that are timed, and how much longer they may take on a busy machine.
const TIMED_ROUNDS: u64 = 60;
const SLOWER_AT_MOST: u32 = 3;

/// How often they are timed: other work on the machine makes some times longer, and none shorter.
const TIMES_CALM: u32 = 2;
const TIMES_ATTACKED: u32 = 6;

/// How long victims take.
fn timed(pair: &mut Pair) -> Outcome<Duration> {
    let begin = Instant::now();
    match pair.after_rounds(TIMED_ROUNDS)? {
        Some(hurt) => Err(hurt.into()),
        None => Ok(begin.elapsed()),
    }
}

/// How long victims take before an attack: the least of a few times.
fn timed_calm(pair: &mut Pair) -> Outcome<Duration> {
    let mut best = Duration::MAX;
    for _ in 0..TIMES_CALM {
        best = best.min(timed(pair)?);
    }
    Ok(best)
}

/// Whether victims take longer now than before, each time that they are asked.
fn judge_times(calm: Duration, pair: &mut Pair, what: impl std::fmt::Display) -> Outcome<Verdict> {
    let mut best = Duration::MAX;
    for _ in 0..TIMES_ATTACKED {
        best = best.min(timed(pair)?);
        if best <= calm * SLOWER_AT_MOST {
            break;
        }
    }
    let words = format!("{what}; {TIMED_ROUNDS} rounds took {calm:.1?} before, and {best:.1?} then");
    Ok(if best > calm * SLOWER_AT_MOST { Verdict::Broken(words) } else { Verdict::Held(words) })
}

fn idle_sockets(network: &Network) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, VictimPlacement::Users)?;
    let calm = timed_calm(&mut pair)?;
    let mut hand = Hand::attacker(&network.home)?;
    let held: u32 = hand.must("hold-ports ::1")?.parse()?;
    judge_times(calm, &mut pair, format_args!("{held} sockets"))
}

fn dead_slot(network: &Network) -> Outcome<Verdict> {
    let home = &network.home;
    let before = home.names()?;
    let address = home.address.to_string();
    let mut dead = home.start(User::Victim, "listener", &[address.clone(), "idle".into()])?;
    dead.hear("listening")?;
    let names: Vec<String> = home.names()?.into_iter().filter(|name| !before.contains(name)).collect();
    let slot = names.iter().find_map(|name| {
        name.strip_prefix("ubiverbs/slot/")?.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
    });
    let slot = slot.ok_or("a process without a slot")?;
    let mut other = home.start(User::Victim, "listener", &[address, "idle".into()])?;
    other.hear("listening")?;
    // A process knows whose slots are whose when it has asked the others: for some milliseconds it does not.
    std::thread::sleep(ACQUAINTANCE);
    dead.kill();
    let mut hand = Hand::attacker(home)?;
    let mut bound = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while bound == 0 && Instant::now() < deadline {
        for name in &names {
            bound += u32::from(hand.does(format_args!("bind {name}"))?.is_ok());
        }
    }
    // A peer of the dead process on another host goes on sending.
    let mut peer = Hand::stranger(&network.strange, network.away.address, home)?;
    let packet = peer.way.packet(&craft::send(true, slot << 12 | 0x123, 5), &FORGED);
    let deadline = Instant::now() + Duration::from_secs(4);
    while Instant::now() < deadline {
        peer.throw(&packet, 8)?;
        std::thread::sleep(Duration::from_millis(20));
        let heard = hand.heard()?;
        if heard > 0 {
            return Ok(Verdict::Broken(format!("the attacker read {heard} messages with the dead user's packets")));
        }
    }
    Ok(Verdict::Held(format!("{bound} names were bound, and nothing came to them")))
}

fn squatted(network: &Network, names: &[(&str, &str, u32, u32)]) -> Outcome<Verdict> {
    let mut hands = Vec::new();
    let mut bound = 0;
    for (prefix, suffix, first, last) in names {
        // A process has few descriptors.
        for from in (*first..=*last).step_by(800) {
            let mut hand = Hand::attacker(&network.home)?;
            let to = (from + 799).min(*last);
            bound += hand.must(format_args!("squat {prefix} {suffix} {from} {to}"))?.parse::<u32>()?;
            hands.push(hand);
        }
    }
    let what = format!("{bound} names are the attacker's");
    for place in [VictimPlacement::Shared, VictimPlacement::Users] {
        match Pair::start(network, place) {
            Ok(mut pair) => {
                if let Some(hurt) = pair.after_rounds(8)? {
                    return Ok(Verdict::Broken(format!("{what}: {hurt}")));
                }
            }
            Err(error) => return Ok(Verdict::Broken(format!("{what}, and victims have no NIC: {error}"))),
        }
    }
    Ok(Verdict::Held(format!("{what}, and victims work")))
}

fn squatted_others(network: &Network) -> Outcome<Verdict> {
    let mut hands = Vec::new();
    for from in (1..=4094).step_by(800) {
        let mut hand = Hand::attacker(&network.home)?;
        hand.must(format_args!("squat ubiverbs/slot/ . {from} {}", (from + 799).min(4094)))?;
        hands.push(hand);
    }
    let mut hand = Hand::attacker(&network.home)?;
    let started = Pair::start_after(network, VictimPlacement::Shared, &[], |slot| {
        // Names that are looked at first.
        hand.must(format_args!("squat ubiverbs/slot/{slot}/000000 . 10 99")).map(drop)
    });
    Ok(match started {
        Ok(mut pair) => judge(pair.after_rounds(8)?, "the victim's other name was found among 90 of the attacker's"),
        Err(error) => Verdict::Broken(error.to_string()),
    })
}

/// Everything that the victims' host has bound, and a hand that attacks it.
fn surrounded(network: &Network, place: VictimPlacement) -> Outcome<(Pair, Hand, Vec<String>)> {
    let pair = Pair::start(network, place)?;
    let names = network.home.names()?;
    Ok((pair, Hand::attacker(&network.home)?, names))
}

fn connects(network: &Network) -> Outcome<Verdict> {
    let (mut pair, mut hand, names) = surrounded(network, VictimPlacement::Shared)?;
    let calm = timed_calm(&mut pair)?;
    let mut made = 0;
    for name in &names {
        made += hand.must(format_args!("connects {name} 3000"))?.parse::<u32>()?;
    }
    let verdict = judge_times(calm, &mut pair, format_args!("{made} connections"))?;
    if matches!(verdict, Verdict::Broken(_)) {
        return Ok(verdict);
    }
    let (memory, descriptors) = pair.server.size()?;
    if descriptors > 1000 {
        return Ok(Verdict::Broken(format!("the victim has {descriptors} descriptors open")));
    }
    // While it keeps them, others must be able to reach the victim.
    match Pair::start(network, VictimPlacement::Shared) {
        Ok(mut second) => {
            let held = format!("{made} connections; the victim has {memory} KiB and {descriptors} descriptors");
            Ok(judge(second.after_rounds(8)?, held))
        }
        Err(error) => Ok(Verdict::Broken(format!("no new victims with {made} connections: {error}"))),
    }
}

fn garbage(network: &Network) -> Outcome<Verdict> {
    let (mut pair, mut hand, names) = surrounded(network, VictimPlacement::Shared)?;
    let (_, before) = pair.server.size()?;
    let mut told = 0;
    for name in &names {
        told += hand.must(format_args!("garbage {name} 300"))?.parse::<u32>()?;
    }
    hand.must("let-go")?;
    if let Some(hurt) = pair.after_rounds(12)? {
        return Ok(Verdict::Broken(hurt));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (_, after) = pair.server.size()?;
        if after <= before + 8 {
            return Ok(Verdict::Held(format!("{told} messages; {before} descriptors before, {after} after")));
        }
        if Instant::now() > deadline {
            return Ok(Verdict::Broken(format!("{before} descriptors before, {after} after")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn lingering(network: &Network) -> Outcome<Verdict> {
    let (mut pair, mut hand, names) = surrounded(network, VictimPlacement::Shared)?;
    let mut passed = 0;
    for _ in 0..4 {
        for name in &names {
            passed += u32::from(hand.does(format_args!("linger {name} 60"))?.is_ok());
        }
    }
    let begun = Instant::now();
    if let Some(hurt) = pair.after_rounds(12)? {
        return Ok(Verdict::Broken(hurt));
    }
    let took = begun.elapsed();
    if took > Duration::from_secs(15) {
        return Ok(Verdict::Broken(format!("{passed} sockets were passed, and the victims stood still for {took:?}")));
    }
    // New connections of the victims' user are accepted all the same.
    Ok(match Pair::start(network, VictimPlacement::Shared) {
        Ok(mut second) => judge(second.after_rounds(8)?, format!("{passed} sockets were passed, and nobody waited")),
        Err(error) => Verdict::Broken(format!("no new victims: {error}")),
    })
}

fn offers(network: &Network) -> Outcome<Verdict> {
    let (mut pair, mut hand, names) = surrounded(network, VictimPlacement::Shared)?;
    // A user of the port, as far as the kernel's table tells.
    let _ = hand.does("hold 127.0.0.9:4791")?;
    let _ = hand.does("hold [::1]:4791")?;
    let mut told = 0;
    for name in &names {
        for kind in [
            greeting::RING_OFFER,
            greeting::RING_WELCOME,
            greeting::RING_REFUSAL,
            greeting::ROOM_NOTICE,
            greeting::CONNECTION_RECORDS,
        ] {
            for descriptors in 0..=3 {
                let Ok(index) = hand.does(format_args!("connect {name}"))? else { continue };
                let message = hex(&greeting::of(kind));
                told += u32::from(hand.does(format_args!("tell {index} {message} {descriptors}"))?.is_ok());
            }
        }
    }
    hand.must("let-go")?;
    Ok(judge(pair.after_rounds(12)?, format!("{told} offers and records")))
}

fn slow_reader(network: &Network) -> Outcome<Verdict> {
    let (mut pair, mut hand, names) = surrounded(network, VictimPlacement::Hosts)?;
    let taken: Vec<u32> = names
        .iter()
        .filter_map(|name| {
            name.strip_prefix("ubiverbs/slot/")?.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        })
        .collect();
    let slot = (1..4094u32).find(|slot| !taken.contains(slot)).ok_or("no slot is free")?;
    hand.must(format_args!("bind ubiverbs/slot/{slot}"))?;
    let (before, _) = pair.server.size()?;
    let mut peer = Hand::stranger(&network.strange, network.strange.address, &network.home)?;
    // More than a connection holds, but not as many as the way carries: that is `bandwidth`.
    let packet = peer.way.packet(&craft::send(true, slot << 12 | 7, 1), &[0x55; 1024]);
    peer.must(format_args!("throw {} 15000 200", hex(&packet)))?;
    let (after, _) = pair.server.size()?;
    if after > before + (64 << 10) {
        return Ok(Verdict::Broken(format!("the victim grew from {before} to {after} KiB")));
    }
    Ok(judge(pair.after_rounds(12)?, format!("the victim has {before} KiB before and {after} KiB after")))
}

fn probes(network: &Network) -> Outcome<Verdict> {
    use host::steering::probe::{Probe, ProbeAnswer};
    let mut pair = Pair::start(network, VictimPlacement::Users)?;
    let mut hand = Hand::attacker(&network.home)?;
    let everything: Vec<_> = (1..200).filter_map(host::slots::Slot::new).collect();
    // Where probing sockets are: unconnected sockets on loopback.
    let table = network.home.run("cat /proc/net/udp")?;
    let port = |line: &str| u16::from_str_radix(line.split_whitespace().nth(1)?.rsplit_once(':')?.1, 16).ok();
    let ports: Vec<u16> = table.lines().skip(1).filter_map(port).collect();
    for round in 0..20u64 {
        for port in &ports {
            let answer = ProbeAnswer {
                nonce: round,
                index: round as u16 % 4,
                socket: round,
                slots: everything.clone(),
                ports: ports.iter().map(|port| (PortSpace::Tcp, *port)).collect(),
                blocks: (512..560).map(|block| (PortSpace::Tcp, block)).collect(),
            };
            let _ = hand.does(format_args!("send 127.0.0.1:{port} {}", hex(&answer.bytes())))?;
        }
        let probe = Probe { nonce: round, index: round as u16 };
        hand.throw(&probe.bytes(), 50)?;
    }
    Ok(judge(pair.after_rounds(12)?, format!("1,000 questions, and answers to {} ports", ports.len())))
}
