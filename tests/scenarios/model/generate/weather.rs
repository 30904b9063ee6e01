//! Hosts, links, and what the network does to packets. Most of what can go wrong goes wrong by script ([`Adversary`]), where it can be kept from
//! exhausting a retry budget; the links' own faults stay so rare that they cannot.

use super::Chance;
use crate::model::program::*;
use sim::{LinkConfig, LinkKind, ReceiveBuffer, Rng};
use transport::congestion::STOCK_BUFFER;

/// How rough it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weather {
    Calm,
    /// Only what links do by themselves.
    Breezy,
    Stormy,
}

/// A program without channels.
pub fn network(rng: &mut Rng) -> Program {
    let weather = rng.weighted(&[(3, Weather::Calm), (3, Weather::Breezy), (5, Weather::Stormy)]);
    let count = rng.weighted(&[(1, 1), (6, 2), (3, 3), (1, 4)]);
    let slow = weather != Weather::Calm && rng.chance(0.4);
    let hosts: Vec<_> = (0..count).map(|_| host(slow, rng)).collect();
    let kind = rng.weighted(&[(3, Some(LinkKind::Datagram)), (1, Some(LinkKind::Whole)), (1, None)]);
    let mut links = Vec::new();
    for from in 0..count {
        for to in from..count {
            let kind = kind.unwrap_or_else(|| rng.one(&[LinkKind::Datagram, LinkKind::Whole]));
            let config = link(kind, weather, rng);
            links.push((from, to, config));
            if from != to {
                // The way back may be another, but of the same kind.
                let back = if rng.chance(0.5) { config } else { link(kind, weather, rng) };
                links.push((to, from, back));
            }
        }
    }
    let adversary = if weather == Weather::Stormy { adversary(rng) } else { Adversary::default() };
    let mut program = Program {
        seed: rng.next_u64(),
        hosts,
        links,
        adversary,
        channels: Vec::new(),
        shared: Vec::new(),
        disturbances: Vec::new(),
        fault: None,
        encore: false,
    };
    if weather != Weather::Calm {
        disturb(&mut program, weather, rng);
    }
    program
}

fn host(slow: bool, rng: &mut Rng) -> HostPlan {
    let window = rng.one(&[STOCK_BUFFER, STOCK_BUFFER, 8 * 4608, 3 * 4608]);
    let receive_buffer = match rng.below(4) {
        0 => ReceiveBuffer::Unlimited,
        1 => ReceiveBuffer::Packets(rng.between(6, 40) as usize),
        _ => ReceiveBuffer::Bytes(window.max(4 * 8448)),
    };
    HostPlan { receive_buffer, service: if slow { rng.scale(2_000) } else { 0 }, window }
}

fn link(kind: LinkKind, weather: Weather, rng: &mut Rng) -> LinkConfig {
    let calm = LinkConfig { delay: 300 + rng.scale(20_000), ..LinkConfig::of(kind) };
    if weather == Weather::Calm {
        return calm;
    }
    let mut config = LinkConfig { jitter: rng.scale(20_000), ..calm };
    if rng.chance(0.3) {
        config.bandwidth = Some(rng.between(5, 100) * 1_000_000_000);
        config.queue = rng.one(&[u64::MAX, 300_000, 40_000]);
        config.mark_above = rng.one(&[None, Some(10_000)]);
    }
    if kind == LinkKind::Whole {
        config.ring = rng.one(&[1 << 20, 20_000, 2_000]);
    }
    let mut rate = |highest: f64| if rng.chance(0.5) { highest * rng.below(1000) as f64 / 1000.0 } else { 0.0 };
    config.loss = rate(0.03);
    config.corruption = rate(0.01);
    config.duplication = rate(0.1);
    config.reordering = rate(0.1);
    config.marking = rate(0.1);
    config.held_back = rng.scale(60_000);
    config
}

fn adversary(rng: &mut Rng) -> Adversary {
    let mut rate = |highest: f64| match rng.below(5) {
        0 | 1 => 0.0,
        2 => highest * 0.1,
        3 => highest * 0.4,
        _ => highest,
    };
    let mut adversary = Adversary {
        loss: rate(0.35),
        duplication: rate(0.4),
        delay: rate(0.4),
        corruption: rate(0.1),
        marking: rate(0.2),
        delay_by: 0,
    };
    adversary.delay_by = 1 + rng.scale(8_000_000);
    adversary
}

/// How many retries a channel gets: few where only the adversary loses packets, for it counts them too.
pub fn retries(program: &Program, rng: &mut Rng) -> u8 {
    let tame = program.hosts.iter().all(|host| host.service == 0)
        && program
            .disturbances
            .iter()
            .all(|(_, what)| matches!(what, Disturbance::Partition(..) | Disturbance::Heal(..)))
        && program.links.iter().all(|(_, _, link)| link.loss + link.corruption == 0.0 && link.queue == u64::MAX);
    match tame {
        true => rng.between(1, 7) as u8,
        false => 7,
    }
}

fn disturb(program: &mut Program, weather: Weather, rng: &mut Rng) {
    let hosts = program.hosts.len() as u64;
    let mut disturbances = Vec::new();
    for _ in 0..rng.weighted(&[(4, 0), (3, 1), (1, 3)]) {
        let at = rng.scale(1_000_000);
        let (a, b) = (rng.below(hosts) as usize, rng.below(hosts) as usize);
        let until = at + 1 + rng.scale(6_000_000);
        match rng.below(4) {
            0 if weather == Weather::Stormy => {
                disturbances.push((at, Disturbance::Partition(a, b)));
                disturbances.push((until, Disturbance::Heal(a, b)));
            }
            1 => {
                disturbances.push((at, Disturbance::Pause(a)));
                disturbances.push((until, Disturbance::Resume(a)));
            }
            2 => disturbances.push((at, Disturbance::Service(a, rng.scale(2_000)))),
            _ => {
                let kind = program.links.iter().find(|(from, to, _)| (*from, *to) == (a, b)).map(|link| link.2.kind);
                let config = link(kind.unwrap_or_default(), weather, rng);
                disturbances.push((at, Disturbance::Link(a, b, config)));
            }
        }
    }
    disturbances.sort_by_key(|(at, _)| *at);
    program.disturbances = disturbances;
}
