//! Attacks at random, all at once, while victims work everywhere: what one attack alone does not break, two may.

use std::time::{Duration, Instant};

use crate::actor::{Actor, Outcome};
use crate::attacks::Verdict;
use crate::craft::{self, Envelope, FORGED, hex};
use crate::hand::Hand;
use crate::network::{Network, User};
use crate::random::Random;
use crate::stage::{PLACES, Pair, Secrets};

/// How long a mixture takes.
const MIXTURE_DURATION: Duration = Duration::from_secs(15);

/// Plays a mixture, until `end` at the latest.
pub fn play(network: &Network, random: &mut Random, end: Instant) -> Outcome<Verdict> {
    let end = end.min(Instant::now() + MIXTURE_DURATION);
    let mut pairs = Vec::new();
    let mut secrets = Vec::new();
    for place in PLACES {
        let mut pair = Pair::start(network, place)?;
        secrets.push(pair.secrets()?);
        if let Some(hurt) = pair.unhurt()? {
            return Err(hurt.into());
        }
        pairs.push(pair);
    }
    let mut attacker = Attacker {
        hands: vec![
            Hand::attacker(&network.home)?,
            Hand::stranger(&network.strange, network.strange.address, &network.home)?,
            Hand::stranger(&network.strange, network.away.address, &network.home)?,
        ],
        secrets,
        own: None,
        done: Vec::new(),
    };
    loop {
        attacker.act(network, random)?;
        for pair in &mut pairs {
            if let Some(hurt) = pair.after_rounds(1)? {
                let last: Vec<&str> = attacker.done.iter().rev().take(4).rev().copied().collect();
                let count = attacker.done.len();
                return Ok(Verdict::Broken(format!("{hurt}; after {count} acts, the last: {}", last.join(", "))));
            }
        }
        if Instant::now() >= end {
            return Ok(Verdict::Held(format!("{} acts", attacker.done.len())));
        }
    }
}

struct Attacker {
    hands: Vec<Hand>,
    secrets: Vec<Secrets>,
    /// A NIC of the attacker's own, which it stops and kills as it likes.
    own: Option<Actor>,
    done: Vec<&'static str>,
}

impl Attacker {
    fn act(&mut self, network: &Network, random: &mut Random) -> Outcome {
        let secrets = self.secrets[random.below(3) as usize];
        let numbers = secrets.server[random.below(3) as usize];
        let which = random.below(3) as usize;
        let hand = &mut self.hands[which];
        let psn = random.below(1 << 24) as u32;
        let act = match random.below(12) {
            // Guesses: an unreliable queue pair takes any PSN of its peer's, so those are left to shared memory.
            0 => {
                let packet = hand.way.packet(&craft::send(true, numbers.qpn, psn), &FORGED);
                hand.throw(&packet, 4)?;
                "a SEND with a guessed PSN"
            }
            1 => {
                let (at, key) = (secrets.memory.address(), wire::Key::new(random.number() as u32));
                let packet = hand.way.packet(&craft::write(true, numbers.qpn, psn, at, key, FORGED.len()), &FORGED);
                hand.throw(&packet, 4)?;
                "a WRITE with a guessed key"
            }
            2 => {
                let packet = hand.way.packet(&craft::datagram(secrets.datagrams, random.number() as u32, 7), &FORGED);
                hand.throw(&packet, 4)?;
                "a datagram with a guessed Q_Key"
            }
            3 => {
                let req = craft::req(hand.way, 9, random.number() as u32 | 1, numbers.peer);
                let packet = hand.way.management(&Envelope::right(random.number()), req);
                hand.throw(&packet, 4)?;
                "a request that names a queue pair in use"
            }
            4 => {
                let dreq = craft::dreq(random.number() as u32, random.number() as u32, numbers.qpn);
                let packet = hand.way.management(&Envelope::right(random.number()), dreq);
                hand.throw(&packet, 4)?;
                "a DREQ with guessed names"
            }
            5 => {
                hand.must(format_args!("requests {} {}", 1 + random.below(60_000), random.below(2000)))?;
                "a flood of requests"
            }
            6 => {
                hand.must(format_args!("flood {} {}", numbers.qpn, 1 + random.below(150)))?;
                "a flood of packets"
            }
            7 => {
                let garbage: Vec<u8> = (0..random.below(1400)).map(|_| random.number() as u8).collect();
                hand.must(format_args!("throw {}00 20 0", hex(&garbage)))?;
                "garbage over UDP"
            }
            kind @ 8..=9 => {
                let names = network.home.names()?;
                let name = &names[random.below(names.len() as u64) as usize];
                let hand = &mut self.hands[0];
                let count = random.below(200);
                let what = if kind == 8 { "garbage" } else { "connects" };
                hand.must(format_args!("{what} {name} {count}"))?;
                if random.below(2) == 0 {
                    hand.must("let-go")?;
                }
                if kind == 8 { "garbage to a name" } else { "connections to a name" }
            }
            10 => {
                let first = 1 + random.below(3900);
                self.hands[0].must(format_args!("squat ubiverbs/slot/ . {first} {}", first + 150))?;
                "150 names of slots"
            }
            _ => self.own_nic(network, random)?,
        };
        self.done.push(act);
        Ok(())
    }

    /// Starts a NIC of its own, stops it, lets it go on, or kills it.
    fn own_nic(&mut self, network: &Network, random: &mut Random) -> Outcome<&'static str> {
        use rustix::process::Signal;
        let home = &network.home;
        Ok(match (self.own.as_ref(), random.below(3)) {
            (None, _) => {
                let mut own = home.start(User::Attacker, "listener", &[home.address.to_string(), "idle".into()])?;
                own.hear("listening")?;
                self.own = Some(own);
                "a NIC of its own"
            }
            (Some(own), 0) => {
                own.signal(Signal::STOP);
                "its own NIC is stopped"
            }
            (Some(own), 1) => {
                own.signal(Signal::CONT);
                "its own NIC goes on"
            }
            (Some(_), _) => {
                self.own = None;
                "its own NIC is killed"
            }
        })
    }
}
