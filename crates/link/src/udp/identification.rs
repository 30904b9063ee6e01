//! Which IPv4 identification a packet had. The ICRC covers it, and a UDP socket does not show it.
//!
//! **A packet is believed only if its ICRC fits an identification that was predicted before the packet was looked at.**
//! A CRC is linear, so for one packet in 2^16 that was damaged there is *some* identification that fits; `solve`
//! finds it, and it proves nothing. What is predicted:
//!
//! | the sender | predicted | so many |
//! |---|---|---|
//! | of our kind, first packet of a datagram | 0 | 1 |
//! | of our kind, packet *n* of a datagram | *n*, or 0 if the datagrams were merged on the way; which of the two, the first one after the 0 tells | 1 (2 for that one) |
//! | one that counts: kernel Soft-RoCE, hardware | the next few after the last that was proven, and 0 | 9 to 4097 |
//!
//! "Don't fragment" is always predicted: RoCEv2 packets are never fragmented. The two single bits whose damage looks
//! like another identification also flip that flag, so damage of a single bit is always found.
//!
//! **How a counter is learned.** A packet that fits an identification which was not predicted is *unproven*: it is held
//! back. [`PROVING_RUN`] unproven packets of one sender in a row, each a little further than the one before, prove the counter,
//! and then those that were held back are given out in their order. Damage does not do that: it takes that many damaged
//! packets in a row, each with one chance in 2^20 or less to look like the next. So that a peer which sends one packet
//! and waits is understood, too, the [`Receiver`](super::Receiver) asks for its senders to be
//! [questioned](Identifications::questions): answers are further packets.
//!
//! A counter is followed per port of a sender and per sender: Soft-RoCE has one for all of its packets to us, others
//! have one per flow.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use wire::{Icrc, Identification, Ipv4Header, Outer, solve_identification_from};

/// So many unproven packets in a row that agree prove a counter.
const PROVING_RUN: u8 = 3;

/// How far a counter may move from one packet of a run to the next: the sender's other packets go to other processes
/// and hosts.
const LONGEST_STEP: u16 = 4096;

/// How far a proven counter is expected to move at least, between two packets of ours.
const SHORTEST_WINDOW: u16 = 8;

/// Senders of our kind use identifications below this: a datagram has at most that many packets.
const OUR_KIND: u16 = 64;

/// How long until a sender is questioned again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// More senders than this are not remembered one by one: the table starts afresh.
const MAX_SENDERS: usize = 65_536;

/// Senders that wait to be questioned.
const MAX_QUESTIONS: usize = 64;

/// What counts for itself: a port of a sender, or all of the sender, which is port 0.
type Source = (Ipv4Addr, u16);

/// What became of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Its ICRC fits an identification that was predicted.
    Intact,
    /// It fits another.
    Unproven,
    /// It fits another, and with it those that were held back agree, from this identification on: the sender's counter
    /// is proven.
    Proves { first: u16 },
    /// It fits none.
    Damaged,
}

/// The identifications of senders.
#[derive(Debug, Default)]
pub(super) struct Identifications {
    counters: HashMap<Source, Counter>,
    runs: HashMap<Source, Run>,
    /// The sender of the last packet, so that a stream of packets costs no look into the table.
    hot: Option<Hot>,
    datagram: Datagram,
    questions: Vec<(Ipv4Addr, Ipv4Addr)>,
    asked: HashMap<Ipv4Addr, Asked>,
}

/// The counter of a sender that counts.
#[derive(Clone, Copy, Debug)]
struct Counter {
    /// The last identification that was proven.
    last: u16,
    /// How far it is expected to move, beside what passes with time.
    window: u16,
    at: Instant,
}

/// Unproven packets in a row.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: u16,
    last: u16,
    count: u8,
    longest_step: u16,
}

#[derive(Clone, Copy, Debug)]
struct Hot {
    source: Source,
    /// What is in the table, or newer; none if the sender is not known to count.
    counter: Option<Counter>,
}

/// What is known of the packets of the datagram that is being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Datagram {
    /// Only that its first packet has 0.
    #[default]
    Unknown,
    /// They all have 0.
    Alike,
    /// Packet `n` has this and `n`.
    Counted(u16),
}

/// When a sender was last questioned, and for how long it is left alone.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Instant,
    pause: Duration,
}

impl Counter {
    /// Whether this identification is one of the next.
    fn predicts(&self, identification: u16, now: Instant) -> bool {
        // The kernel lets its counter jump by up to one for each tick of its clock in which nothing was sent, up to a
        // thousand a second.
        let idle = now.saturating_duration_since(self.at).as_millis();
        let window = u128::from(self.window).saturating_add(idle).min(LONGEST_STEP.into());
        (1..=window).contains(&identification.wrapping_sub(self.last).into())
    }

    /// The counter after a packet with this identification.
    fn after(&self, identification: u16, now: Instant) -> Counter {
        let step = identification.wrapping_sub(self.last);
        // What was seen lately is allowed twice over, and forgotten slowly.
        let window = self.window.saturating_sub((self.window / 16).max(1)).max(step.saturating_mul(2));
        Counter { last: identification, window: window.clamp(SHORTEST_WINDOW, LONGEST_STEP), at: now }
    }
}

impl Identifications {
    /// A new datagram begins: what was known of the packets of the last says nothing of this one's.
    #[inline]
    pub fn begin_datagram(&mut self) {
        self.datagram = Datagram::Unknown;
    }

    /// Judges `bytes`, from the BTH to the end of the ICRC; they are written to and are then as they were. `index` is
    /// the packet's place in its datagram; `outer` is of headers as `ip`, which has "don't fragment". What its
    /// identification was, if any fits, is written to `ip`.
    #[inline]
    pub fn judge(
        &mut self,
        outer: &Outer,
        ip: &mut Ipv4Header,
        port: u16,
        bytes: &mut [u8],
        index: u16,
        datagram: bool,
    ) -> Verdict {
        let hot = self.heat((ip.source, port));
        if let Some(counter) = &mut hot.counter {
            ip.identification = counter.last.wrapping_add(1);
            if matches(outer, ip.identification, bytes) {
                *counter = counter.after(ip.identification, Instant::now());
                self.end_runs(ip.source, port);
                return Verdict::Intact;
            }
        }
        let known = if datagram { self.datagram } else { Datagram::Unknown };
        let (first, second) = match known {
            Datagram::Unknown => (index, 0),
            Datagram::Alike => (0, 0),
            Datagram::Counted(first) => (first.wrapping_add(index), first.wrapping_add(index)),
        };
        let Some((covered, icrc)) = bytes.split_last_chunk_mut::<{ Icrc::LEN }>() else { return Verdict::Damaged };
        let computed = outer.icrc_in_place(first, covered);
        ip.identification = first;
        if computed != *icrc {
            ip.identification = second;
            if first == second || outer.icrc_in_place(second, covered) != *icrc {
                let assumed = Identification { identification: first, dont_fragment: true };
                let solved = solve_identification_from(assumed, computed, *icrc, covered.len());
                return match solved {
                    Some(Identification { identification, dont_fragment: true }) => {
                        ip.identification = identification;
                        self.surprise(ip, port, index, datagram)
                    }
                    _ => {
                        self.end_runs(ip.source, port);
                        Verdict::Damaged
                    }
                };
            }
        }
        self.end_runs(ip.source, port);
        if datagram && known == Datagram::Unknown && index > 0 {
            self.datagram = if ip.identification == 0 { Datagram::Alike } else { Datagram::Counted(0) };
        }
        Verdict::Intact
    }

    /// A packet fits an identification that none of its likes was to have.
    #[cold]
    fn surprise(&mut self, ip: &Ipv4Header, port: u16, index: u16, datagram: bool) -> Verdict {
        let (identification, now) = (ip.identification, Instant::now());
        let (flow, sender) = ((ip.source, port), (ip.source, 0));
        self.cool();
        let predicts = |counter: &&Counter| counter.predicts(identification, now);
        if let Some(counter) = [flow, sender].iter().filter_map(|source| self.counters.get(source)).find(predicts) {
            let counter = counter.after(identification, now);
            self.prove(flow, counter);
            self.end_runs(ip.source, port);
            return Verdict::Intact;
        }
        let mut proven = None;
        for source in [flow, sender] {
            let before = self.runs.get(&source);
            let step = before.map_or(0, |run| identification.wrapping_sub(run.last));
            let run = match before {
                Some(run) if (1..=LONGEST_STEP).contains(&step) => Run {
                    last: identification,
                    count: run.count.saturating_add(1),
                    longest_step: run.longest_step.max(step),
                    ..*run
                },
                _ => Run { first: identification, last: identification, count: 1, longest_step: 0 },
            };
            if run.count >= PROVING_RUN {
                proven = Some(run);
            }
            self.runs.insert(source, run);
        }
        match proven {
            None => {
                if identification >= OUR_KIND {
                    self.ask(ip, now);
                }
                self.make_room();
                Verdict::Unproven
            }
            Some(Run { first, longest_step: step, .. }) => {
                match identification < OUR_KIND {
                    // One of our kind, whose datagram was cut or merged on the way.
                    true if datagram => self.datagram = Datagram::Counted(identification.wrapping_sub(index)),
                    true => {}
                    false => {
                        let window = step.saturating_mul(2).clamp(SHORTEST_WINDOW, LONGEST_STEP);
                        self.prove(flow, Counter { last: identification, window, at: now });
                    }
                }
                self.end_runs(ip.source, port);
                Verdict::Proves { first }
            }
        }
    }

    /// Another process has proven that this sender's counter was there a moment ago. Returns what that proves, if it
    /// was not known here.
    pub fn teach(&mut self, ip: &Ipv4Header, port: u16) -> Verdict {
        if ip.identification < OUR_KIND || !ip.dont_fragment {
            return Verdict::Intact;
        }
        self.cool();
        let now = Instant::now();
        let known = self.counters.get(&(ip.source, 0)).copied();
        let counter = known.filter(|counter| counter.predicts(ip.identification, now));
        let proven = match counter {
            Some(counter) => counter.after(ip.identification, now),
            None => Counter { last: ip.identification, window: SHORTEST_WINDOW, at: now },
        };
        self.prove((ip.source, port), proven);
        match counter {
            Some(_) => Verdict::Intact,
            None => Verdict::Proves { first: ip.identification.wrapping_sub(LONGEST_STEP) },
        }
    }

    /// What is unproven of this sender is not in a row with what comes next.
    #[inline]
    fn end_runs(&mut self, address: Ipv4Addr, port: u16) {
        if !self.runs.is_empty() {
            self.runs.remove(&(address, port));
            self.runs.remove(&(address, 0));
        }
    }

    /// Senders whose counters are not known though they have sent something that may be theirs, and where they sent it.
    /// Any packet they send helps.
    pub fn questions(&mut self) -> Vec<(Ipv4Addr, Ipv4Addr)> {
        std::mem::take(&mut self.questions)
    }

    /// Whether there are any.
    #[inline]
    pub fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    fn ask(&mut self, ip: &Ipv4Header, now: Instant) {
        let asked = self.asked.entry(ip.source).or_insert(Asked { at: now, pause: Duration::ZERO });
        if now.saturating_duration_since(asked.at) >= asked.pause && self.questions.len() < MAX_QUESTIONS {
            *asked = Asked { at: now, pause: (asked.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE) };
            self.questions.push((ip.source, ip.destination));
        }
    }

    fn prove(&mut self, flow: Source, counter: Counter) {
        self.make_room();
        let (address, _) = flow;
        self.counters.insert(flow, counter);
        self.counters.insert((address, 0), counter);
        self.asked.remove(&address);
        self.hot = Some(Hot { source: flow, counter: Some(counter) });
    }

    /// What is known of the sender of this packet.
    #[inline]
    fn heat(&mut self, source: Source) -> &mut Hot {
        if self.hot.is_none_or(|hot| hot.source != source) {
            self.cool();
            self.hot = Some(Hot { source, counter: self.counters.get(&source).copied() });
        }
        self.hot.get_or_insert(Hot { source, counter: None })
    }

    /// Writes down how far the sender of the last packet has counted.
    fn cool(&mut self) {
        if let Some(Hot { source: source @ (address, _), counter: Some(counter) }) = self.hot.take() {
            self.counters.insert(source, counter);
            self.counters.insert((address, 0), counter);
        }
    }

    fn make_room(&mut self) {
        if self.counters.len() >= MAX_SENDERS || self.runs.len() >= MAX_SENDERS || self.asked.len() >= MAX_SENDERS {
            (self.counters, self.runs, self.asked) = Default::default();
            self.hot = None;
        }
    }
}

/// Whether a packet behind these headers ends with the right ICRC.
#[inline]
pub(super) fn matches(outer: &Outer, identification: u16, bytes: &mut [u8]) -> bool {
    bytes.split_last_chunk_mut().is_some_and(|(covered, icrc)| outer.icrc_in_place(identification, covered) == *icrc)
}

#[cfg(test)]
mod tests;
