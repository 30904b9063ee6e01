//! Steering: a classic BPF program on the sockets that share UDP port 4791, which sends a packet straight to the process whose slot is in its
//! destination. It saves the detour over [`forward`](crate::forward); nothing depends on it, and a wrong table costs only that detour.
//!
//! A program answers with the *index* of a socket in its group. Indices follow the order of joining, and when a socket leaves the last one
//! takes its place; no system call tells them. So the program itself is asked: it sends a *probe*, a datagram that no RoCE peer would
//! send, to the socket with the index that the probe names, and the process there answers with its slots. A process that joins, that takes another
//! slot, or that sees many packets for others, probes every index and attaches a new table for the whole group. All this happens beside the
//! traffic, without waiting: a process that is stopped does not answer, and its packets go where the kernel's hash sends them, as without a
//! table.

pub(crate) mod probe;
pub(crate) mod program;

use crate::descriptor::Descriptor;
use crate::holders::holders_at;
use crate::slots::{Slot, random};
use crate::udp::{Family, Scope};
use probe::{Answer, Probe};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// How long answers are awaited.
const PATIENCE: Duration = Duration::from_millis(30);

/// This many packets for others say that the table is wrong.
const MISDIRECTED: u32 = 32;

/// The least and the most time between two probings. It doubles while probing brings nothing new: some owners cannot be steered to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// More sockets than this are not probed.
const MOST: usize = 512;

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
pub(crate) struct Steering {
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
    last: Vec<(Slot, u32)>,
    steered: Steered,
}

/// One round of probes.
#[derive(Debug)]
struct Round {
    nonce: u64,
    /// Sockets in the group when the round began.
    count: u16,
    deadline: Instant,
    /// Whether we have attached a program that knows probes, rather than trusting the one that was there.
    attached: bool,
    /// Who answered for which index.
    answers: BTreeMap<u16, Answer>,
}

impl Steering {
    pub fn new(family: Family, scope: Scope, port: u16) -> Steering {
        Steering {
            family,
            scope,
            port,
            socket: None,
            round: None,
            answered: false,
            misdirected: 0,
            pause: PAUSE.0,
            earliest: None,
            wanted: true,
            last: Vec::new(),
            steered: Steered::default(),
        }
    }

    pub fn steered(&self) -> Steered {
        self.steered
    }

    /// The group or our slots have changed.
    pub fn want(&mut self) {
        self.wanted = true;
        self.pause = PAUSE.0;
    }

    /// A packet came here that another process owns.
    #[inline]
    pub fn misdirected(&mut self) {
        self.misdirected = self.misdirected.saturating_add(1);
    }

    /// When [`progress`](Steering::progress) wants to be called, though nothing may have arrived.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.round {
            Some(round) => Some(round.deadline),
            None if self.wanted || self.misdirected >= MISDIRECTED => self.earliest,
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

    /// Goes on, without waiting. `receiver` is our socket in the group.
    pub fn progress(&mut self, receiver: RawFd, now: Instant) {
        let Some(socket) = self.socket() else {
            if self.is_due(now) {
                self.begin(now);
            }
            return;
        };
        let answered = std::mem::take(&mut self.answered);
        match &mut self.round {
            None => {
                // Late answers would keep the socket readable.
                while answered && probe::receive(socket, &mut [0; Answer::LONGEST]).is_some() {}
                if self.is_due(now) {
                    self.begin(now);
                }
            }
            Some(round) => {
                round.collect(socket);
                if round.answers.len() >= usize::from(round.count) || now >= round.deadline {
                    self.conclude(receiver, now);
                }
            }
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        (self.wanted || self.misdirected >= MISDIRECTED) && self.earliest.is_none_or(|earliest| now >= earliest)
    }

    fn begin(&mut self, now: Instant) {
        self.wanted = false;
        self.misdirected = 0;
        let count = holders_at(self.family, self.scope.address(self.family), self.port).map_or(0, |users| users.len());
        // Alone there is nothing to steer.
        if !(2..=MOST).contains(&count) {
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
        let nonce = random();
        let to = SocketAddr::new(self.scope.reach(self.family), self.port);
        for index in 0..count {
            probe::send(socket, &Probe { nonce, index }.bytes(), to)?;
        }
        Ok(Round { nonce, count, deadline: now + PATIENCE, attached: false, answers: BTreeMap::new() })
    }

    fn conclude(&mut self, receiver: RawFd, now: Instant) {
        let Some(round) = self.round.take() else { return };
        let sockets: BTreeSet<_> = round.answers.values().map(|answer| answer.socket).collect();
        // All probes have one source. Without a program they all go to one socket, whose process may even be stopped. Then we attach one
        // that knows probes, and ask again.
        if sockets.len() <= 1 && !round.attached {
            if program::attach(receiver, &program::build(&[])).is_ok()
                && let Ok(again) = self.ask(round.count, now)
            {
                self.round = Some(Round { attached: true, ..again });
                return;
            }
        } else {
            let table = round.table();
            if program::attach(receiver, &program::build(&table)).is_ok() {
                self.steered.tables += 1;
                self.steered.slots = table.len() as u32;
            }
            self.pause = if table == self.last { (self.pause * 2).min(PAUSE.1) } else { PAUSE.0 };
            self.last = table;
        }
        self.rest(now);
    }

    /// No new round for a while, and not at the same time as everybody else.
    fn rest(&mut self, now: Instant) {
        self.misdirected = 0;
        self.earliest = Some(now + self.pause.mul_f64(1.0 + (random() % 256) as f64 / 256.0));
    }
}

impl Round {
    fn collect(&mut self, socket: RawFd) {
        let mut buffer = [0; Answer::LONGEST];
        while let Some(bytes) = probe::receive(socket, &mut buffer) {
            if let Some(answer) = Answer::parse(bytes)
                && answer.nonce == self.nonce
                && answer.index < self.count
            {
                self.answers.insert(answer.index, answer);
            }
        }
    }

    /// Which slot is at which index. Of a socket that answered twice the lower index counts: beyond the last index the kernel takes any.
    fn table(&self) -> Vec<(Slot, u32)> {
        let mut seen = Vec::new();
        let mut table = BTreeMap::new();
        for (index, answer) in &self.answers {
            if !seen.contains(&answer.socket) {
                seen.push(answer.socket);
                table.extend(answer.slots.iter().map(|slot| (*slot, u32::from(*index))));
            }
        }
        table.into_iter().take(program::MOST_SLOTS).collect()
    }
}

fn loopback(family: Family) -> SocketAddr {
    match family {
        Family::V4 => (Ipv4Addr::LOCALHOST, 0).into(),
        Family::V6 => (Ipv6Addr::LOCALHOST, 0).into(),
    }
}
