//! Steering: a classic BPF program on the sockets that share UDP port 4791, which sends a packet straight to the
//! process whose slot or port is in its destination. It saves the detour over [`forward`](crate::forward), and it keeps
//! packets out of the buffers of processes they are not for: such a process may be stopped, or end the next moment, and
//! then they would wait or be lost.
//!
//! A program returns the *index* of a socket in its group. Indices follow the order of joining, and when a socket
//! leaves the last one takes its place; no system call tells them. So the program itself is asked: it sends a *probe*,
//! a datagram that no RoCE peer would send, to the socket with the index that the probe names, and the process there
//! answers with its slots and ports. All this happens beside the traffic, without waiting.
//!
//! | when | what happens |
//! |---|---|
//! | the first socket is bound | with a program that gives it everything ([`program::Table::all_to`]) |
//! | a process joins, or takes or returns a slot or port | it probes every index, and attaches a new table |
//! | some do not answer within [`EARLY_PROBE_TIMEOUT`] | a table of those that did, if more than one did or one is missing |
//! | some do not answer within [`PROBE_TIMEOUT`], or a [`PROBE_TIME_PER_PROCESS`] of each | the same, however many did |
//! | a late answer, many packets for others | another round |
//! | a process leaves | a table in which nothing leads to it or to the last index, a hint to another process, and its socket leaves |
//! | a process is killed | the index of the last socket leads nowhere until packets for others are noticed |
//!
//! What is in the socket of a process that is killed is lost, and the kernel counts it nowhere. So a process that has just
//! started gets as little of others as can be: slots that are in no answer are taken for those of the
//! process that has not answered, if there is one such process, and all else goes to the first that has: it has mostly been
//! there longest.

pub mod probe;
pub mod program;
#[cfg(test)]
mod tests;

use crate::descriptor::Descriptor;
use crate::family::{Family, Scope};
use crate::holders::holders_at;
use crate::slot::Slot;
use crate::slots::random;
use probe::{Probe, ProbeAnswer};
use program::Table;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long answers are awaited,
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(30);

/// but of many processes at least this long for each: more of them than processors have to wait for their turn.
pub const PROBE_TIME_PER_PROCESS: Duration = Duration::from_millis(4);

/// How long all of them are awaited before those who asked are reachable by what they own, as others may be stopped.
pub const EARLY_PROBE_TIMEOUT: Duration = Duration::from_millis(3);

/// This many packets for others say that the table is wrong.
const MAX_MISDIRECTED_PACKETS: u32 = 4;

/// The least and the most time between two probings. It doubles while probing brings nothing new: some owners cannot be
/// steered to. It doubles, too, while some do not answer in time: on a crowded machine others do each time, and asking
/// them all over again would keep it crowded.
const PROBE_INTERVAL_RANGE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// More sockets than this are not probed.
const MAX_PROBED_SOCKETS: usize = 512;

/// What steering has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Steered {
    /// Rounds of probes.
    pub rounds: u64,
    /// Tables attached.
    pub tables: u64,
    /// Slots in the last table.
    pub slots: u32,
}

/// Keeps the table of one group of sockets, together with every other process that has a socket in it.
#[derive(Debug)]
pub struct Steering {
    family: Family,
    scope: Scope,
    port: u16,
    /// Asks, and is answered. Opened for the first round.
    socket: Option<Descriptor>,
    round: Option<Round>,
    /// Something has come to it.
    answered: bool,
    /// Packets for others since the last round.
    misdirected: u32,
    pause: Duration,
    /// No new round before this.
    earliest: Option<Instant>,
    /// A round is wanted.
    wanted: bool,
    last: Option<Known>,
    /// Slots that the last round has found, and that were not taken yet.
    found: Vec<Slot>,
    steered: Steered,
}

/// What the last round found.
#[derive(Debug)]
struct Known {
    /// Our own index.
    own: u16,
    /// Sockets in the group.
    count: u16,
    /// Those that answered.
    alive: Vec<u16>,
    table: Table,
}

/// One round of probes.
#[derive(Debug)]
struct Round {
    nonce: u64,
    /// Sockets in the group when the round began.
    count: u16,
    /// When those that have answered by then get a table, unless they have one.
    early: Option<Instant>,
    deadline: Instant,
    /// Whether we have attached a program that knows probes, rather than trusting the one that was there.
    attached: bool,
    /// The answer for each index.
    answers: BTreeMap<u16, ProbeAnswer>,
}

impl Steering {
    /// Of the sockets of this kind.
    pub fn new(family: Family, scope: Scope, port: u16) -> Steering {
        Steering {
            family,
            scope,
            port,
            socket: None,
            round: None,
            answered: false,
            misdirected: 0,
            pause: PROBE_INTERVAL_RANGE.0,
            earliest: None,
            wanted: true,
            last: None,
            found: Vec::new(),
            steered: Steered::default(),
        }
    }

    /// How far the kernel was told.
    pub fn steered(&self) -> Steered {
        self.steered
    }

    /// The slots of processes in the group, which all are our user's, once after each round.
    pub fn take_found(&mut self) -> Vec<Slot> {
        std::mem::take(&mut self.found)
    }

    /// The group or our slots have changed.
    pub fn want(&mut self) {
        self.wanted = true;
        self.pause = PROBE_INTERVAL_RANGE.0;
    }

    /// Another process says that the group has changed. Anybody on this host may say so, so it hurries nothing.
    pub fn suspect(&mut self) {
        self.wanted = true;
    }

    /// A packet came here that another process owns.
    #[inline]
    pub fn misdirected(&mut self) {
        self.misdirected = self.misdirected.saturating_add(1);
    }

    /// When [`progress`](Steering::progress) wants to be called, though nothing may have arrived.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.round {
            Some(round) => Some(round.early.unwrap_or(round.deadline)),
            None if self.wanted || self.misdirected >= MAX_MISDIRECTED_PACKETS => self.earliest,
            None => None,
        }
    }

    /// The socket that answers come to, once there is one.
    pub fn socket(&self) -> Option<RawFd> {
        self.socket.as_ref().map(Descriptor::raw)
    }

    /// That socket is readable.
    pub fn is_answered(&mut self) {
        self.answered = true;
    }

    /// Goes on, without waiting. `receiver` is our socket in the group, and `identity` what it answers probes with.
    pub fn progress(&mut self, receiver: RawFd, identity: u64, now: Instant) {
        let Some(socket) = self.socket() else {
            if self.is_due(now) {
                self.begin(now);
            }
            return;
        };
        let answered = std::mem::take(&mut self.answered);
        match &mut self.round {
            None => {
                // A late answer is of a process that was stopped. Left there, it would keep the socket readable.
                while answered && probe::receive(socket, &mut [0; ProbeAnswer::LONGEST]).is_some() {
                    self.wanted = true;
                }
                if self.is_due(now) {
                    self.begin(now);
                }
            }
            Some(round) => {
                round.collect(socket);
                if round.answers.len() >= usize::from(round.count) || now >= round.deadline {
                    self.conclude(receiver, identity, now);
                } else if round.early.is_some_and(|early| now >= early) {
                    round.early = None;
                    if let Some(own) = round.index_of(identity).filter(|_| round.answers.len() > 1 || round.count == 2)
                    {
                        // If it is refused, the end of the round says so.
                        let _ = program::attach(receiver, &program::build(&round.table(own)));
                    }
                }
            }
        }
    }

    /// Our socket leaves the group: nothing comes to it any more, and what it has can still be read.
    pub fn leave(&mut self, receiver: RawFd) {
        self.hand_over(receiver);
        // Where the system refuses, what comes from now on is passed on for as long as this process looks.
        let _ = program::leave_group(receiver);
    }

    /// Before our socket leaves the group: nothing may go to its index any more, and nothing to the last one, which will
    /// be another's. Our own slots have no owner from now on, and go where all else goes.
    fn hand_over(&mut self, receiver: RawFd) {
        let Some(Known { own, count, alive, table }) = self.last.take() else { return };
        let present =
            holders_at(self.family, self.scope.address(self.family), self.port).map_or(0, |users| users.len());
        if present != usize::from(count) || count < 2 {
            return;
        }
        let moves = [own, count - 1];
        let stays = |index: &u32| moves.iter().all(|moved| u32::from(*moved) != *index);
        // Of two, the other one: with one socket in the group the kernel looks at no index.
        let heir = alive.iter().find(|index| !moves.contains(index)).or(alive.iter().find(|index| **index != own));
        let Some(heir) = heir else { return };
        let Table { mut slots, mut ports, mut blocks, .. } = table;
        slots.retain(|(_, index)| stays(index));
        ports.retain(|(_, index)| stays(index));
        blocks.retain(|(_, index)| stays(index));
        let table = Table { slots, ports, blocks, ..Table::all_to(u32::from(*heir)) };
        if program::attach(receiver, &program::build(&table)).is_ok()
            && let Some(socket) = self.socket()
        {
            let to = SocketAddr::new(self.scope.reach(self.family), self.port);
            // If it is lost, that process will find out by the packets it gets.
            let _ = probe::send(socket, &Probe { nonce: Probe::CHANGED, index: *heir }.bytes(), to);
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        (self.wanted || self.misdirected >= MAX_MISDIRECTED_PACKETS)
            && self.earliest.is_none_or(|earliest| now >= earliest)
    }

    fn begin(&mut self, now: Instant) {
        self.wanted = false;
        self.misdirected = 0;
        let count = holders_at(self.family, self.scope.address(self.family), self.port).map_or(0, |users| users.len());
        // Alone there is nothing to steer.
        if !(2..=MAX_PROBED_SOCKETS).contains(&count) {
            return self.rest(now);
        }
        // Without loopback, or without descriptors, another time.
        match self.ask(count as u16, now) {
            Ok(round) => {
                self.steered.rounds += 1;
                self.round = Some(round);
            }
            Err(_) => self.rest(now),
        }
    }

    fn ask(&mut self, count: u16, now: Instant) -> io::Result<Round> {
        let socket = match self.socket() {
            Some(socket) => socket,
            None => {
                let socket = UdpSocket::bind(loopback(self.family))?;
                self.socket.insert(Descriptor::keep(socket.into())).raw()
            }
        };
        // Answers to earlier probes do not count.
        let nonce = random().max(Probe::CHANGED + 1);
        let to = SocketAddr::new(self.scope.reach(self.family), self.port);
        for index in 0..count {
            probe::send(socket, &Probe { nonce, index }.bytes(), to)?;
        }
        let (early, deadline) =
            (Some(now + EARLY_PROBE_TIMEOUT), now + PROBE_TIMEOUT.max(PROBE_TIME_PER_PROCESS * u32::from(count)));
        Ok(Round { nonce, count, early, deadline, attached: false, answers: BTreeMap::new() })
    }

    fn conclude(&mut self, receiver: RawFd, identity: u64, now: Instant) {
        let Some(round) = self.round.take() else { return };
        let sockets: BTreeSet<_> = round.answers.values().map(|answer| answer.socket).collect();
        // All probes have one source. Without a program they all go to one socket, whose process may even be stopped.
        // Then we attach one that knows probes, and ask again.
        if sockets.len() <= 1 && !round.attached {
            if program::attach(receiver, &program::build(&Table::all_to(program::NO_SOCKET_INDEX))).is_ok()
                && let Ok(again) = self.ask(round.count, now)
            {
                self.round = Some(Round { attached: true, ..again });
                return;
            }
        } else if let Some(own) = round.index_of(identity) {
            let table = round.table(own);
            if program::attach(receiver, &program::build(&table)).is_ok() {
                self.steered.tables += 1;
                self.steered.slots = table.slots.len() as u32;
            }
            self.found = table.slots.iter().map(|(slot, _)| *slot).collect();
            let same = self.last.as_ref().is_some_and(|last| last.table == table);
            let whole = round.answers.len() >= usize::from(round.count);
            self.pause =
                if whole && !same { PROBE_INTERVAL_RANGE.0 } else { (self.pause * 2).min(PROBE_INTERVAL_RANGE.1) };
            self.last = Some(Known { own, count: round.count, alive: round.answers.keys().copied().collect(), table });
        }
        self.rest(now);
    }

    /// No new round for a while, and not at the same time as every other process.
    fn rest(&mut self, now: Instant) {
        self.misdirected = 0;
        self.earliest = Some(now + self.pause.mul_f64(1.0 + (random() % 256) as f64 / 256.0));
    }
}

impl Round {
    fn collect(&mut self, socket: RawFd) {
        let mut buffer = [0; ProbeAnswer::LONGEST];
        while let Some(bytes) = probe::receive(socket, &mut buffer) {
            if let Some(answer) = ProbeAnswer::parse(bytes)
                && answer.nonce == self.nonce
                && answer.index < self.count
            {
                self.answers.insert(answer.index, answer);
            }
        }
    }

    /// Where a socket is. Of one that answered twice the lower index counts: beyond the last index the kernel takes
    /// any.
    fn index_of(&self, identity: u64) -> Option<u16> {
        self.answers.iter().find(|(_, answer)| answer.socket == identity).map(|(index, _)| *index)
    }

    /// Which slot and port is at which index. Other slots are those of the only socket that has not answered, or go where
    /// all else goes: to the first that has.
    fn table(&self, own: u16) -> Table {
        let mut seen = Vec::new();
        let (mut slots, mut ports, mut blocks) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for (index, answer) in &self.answers {
            if !seen.contains(&answer.socket) {
                seen.push(answer.socket);
                slots.extend(answer.slots.iter().map(|slot| (*slot, u32::from(*index))));
                ports.extend(answer.ports.iter().map(|port| (*port, u32::from(*index))));
                blocks.extend(answer.blocks.iter().map(|block| (*block, u32::from(*index))));
            }
        }
        let otherwise = self.answers.keys().next().copied().unwrap_or(own).into();
        let mut silent = (0..self.count).filter(|index| !self.answers.contains_key(index));
        let other_slots = match (silent.next(), silent.next()) {
            (Some(only), None) => only.into(),
            _ => otherwise,
        };
        Table {
            slots: slots.into_iter().collect(),
            ports: ports.into_iter().collect(),
            blocks: blocks.into_iter().collect(),
            other_slots,
            otherwise,
        }
    }
}

fn loopback(family: Family) -> SocketAddr {
    match family {
        Family::V4 => (Ipv4Addr::LOCALHOST, 0).into(),
        Family::V6 => (Ipv6Addr::LOCALHOST, 0).into(),
    }
}
