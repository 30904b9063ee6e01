//! Slowing victims down: notifications of congestion that is none, and more packets than they can read.

use std::net::Ipv4Addr;
use std::path::Path;

use wire::{Headers, Qpn};

use super::{Attack, Verdict, judge};
use crate::actor::Outcome;
use crate::craft::{self, FORGED};
use crate::hand::Hand;
use crate::network::Network;
use crate::stage::{PLACES, Pair, VictimPlacement};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "congestion-notifications-own-address",
        what: "a stranger sends CNPs with the right queue pair numbers from its own address",
        run: |network, _| notifications(network, network.strange.address),
    },
    Attack {
        name: "congestion-notifications-peer-address",
        what: "the same from the address of the sender's peer",
        run: |network, _| notifications(network, network.home.address),
    },
    Attack {
        name: "multicast-key",
        what: "a user of the host sends datagrams to all groups of the host with another Q_Key",
        run: |network, _| multicast(network),
    },
    Attack {
        name: "bandwidth",
        what: "a stranger sends as much as it can for 3 s: victims need not get on meanwhile, but afterwards",
        run: |network, _| bandwidth(network),
    },
];

/// WRITEs of 64 KiB that the client sends while it is told of congestion.
const WRITES: u32 = 400;

/// What a sender may always send, whatever it is told, in bit/s.
const LEAST: u64 = 10_000_000;

/// The client on the other host sends; CNPs for it come from `from`. Its own record says what it believed.
fn notifications(network: &Network, from: Ipv4Addr) -> Outcome<Verdict> {
    let log = std::env::temp_dir().join(format!("ubiverbs-attack-{}.jsonl", std::process::id()));
    let verdict = recorded(network, from, &log);
    let _ = std::fs::remove_file(log);
    verdict
}

fn recorded(network: &Network, from: Ipv4Addr, log: &Path) -> Outcome<Verdict> {
    let variables = [("UBIVERBS_LOG", log.to_str().ok_or("a path that is no text")?)];
    let mut pair = Pair::start_with(network, VictimPlacement::Hosts, &variables)?;
    let secrets = pair.secrets()?;
    pair.go_on()?;
    let mut hand = Hand::stranger(&network.strange, from, &network.away)?;
    let packet = hand.way.packet(&Headers::cnp(Qpn::new(secrets.client[0].qpn)), &Headers::CNP_PAYLOAD);
    hand.begin(format_args!("throw {} 4000 100", craft::hex(&packet)));
    let took = pair.client.ask("stream", WRITES, "streamed")?.parse::<f64>()? / 1e6;
    hand.ended()??;
    if let Some(hurt) = pair.after_rounds(8)? {
        return Ok(Verdict::Broken(hurt));
    }
    pair.client.kill();
    let text = std::fs::read_to_string(log)?;
    let rates = text.lines().filter(|line| line.contains("rate_changed"));
    let after: Vec<u64> = rates.filter_map(|line| number(line, "to")).collect();
    let Some(least) = after.iter().min() else {
        return Ok(Verdict::Held(format!("of 4,000 CNPs none was believed; {WRITES} WRITEs took {took:.1} s")));
    };
    let told =
        format!("{} of 4,000 CNPs were believed, the rate went down to {} Mbit/s", after.len(), least / 1_000_000);
    Ok(if from == network.home.address && *least >= LEAST {
        // Nothing in a CNP could show that it is the peer's.
        Verdict::Undefended(told)
    } else {
        Verdict::Broken(told)
    })
}

/// The number of this field in a line of the record.
fn number(line: &str, field: &str) -> Option<u64> {
    let (_, rest) = line.split_once(&format!("\"{field}\":"))?;
    rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn multicast(network: &Network) -> Outcome<Verdict> {
    let mut pair = Pair::start(network, VictimPlacement::Users)?;
    let secrets = pair.secrets()?;
    let mut hand = Hand::attacker(&network.home)?;
    for group in [Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(239, 1, 2, 3)] {
        let way = craft::Way { to: group, ..hand.way };
        for to in [0xff_ffff, secrets.datagrams, 1] {
            let packet = way.packet(&craft::datagram(to, secrets.qkey ^ 1, 0x12_3456), &FORGED);
            let _ = hand.does(format_args!("send {group}:4791 {}", craft::hex(&packet)))?;
        }
    }
    Ok(judge(pair.unhurt()?, "nothing of it was delivered"))
}

fn bandwidth(network: &Network) -> Outcome<Verdict> {
    let mut pairs = Vec::new();
    for place in PLACES {
        pairs.push(Pair::start(network, place)?);
    }
    let qpn = pairs.last_mut().ok_or("no pair")?.secrets()?.server[0].qpn;
    if let Some(pair) = pairs.last_mut() {
        pair.unhurt()?;
    }
    let mut hand = Hand::stranger(&network.strange, network.strange.address, &network.home)?;
    let sent = hand.must(format_args!("flood {qpn} 3000"))?;
    for pair in &mut pairs {
        if let Some(hurt) = pair.after_rounds(12)? {
            return Ok(Verdict::Broken(format!("after {sent} packets: {hurt}")));
        }
    }
    Ok(Verdict::Held(format!("after {sent} packets of a stranger all victims go on")))
}
