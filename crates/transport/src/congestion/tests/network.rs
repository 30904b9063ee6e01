//! A small network around the window: what it does to a receiver, and what that does to it.

use super::{FULL_PACKET, LostBehind, STOCK_BUFFER, Window, WindowConfig, ask, at};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use wire::Qpn;

/// Sending processes, each with a window and queue pairs that always want to send, and one receiver with a buffer that
/// takes one packet out of it per tick on average: `batch` of them every `batch` ticks, acknowledged together. A tick
/// is a microsecond.
struct Network {
    /// Ticks there, and ticks back.
    delay: u64,
    batch: u64,
    processes: Vec<Process>,
    /// Under way, and when it arrives. Everything takes `delay`, so what was put in first comes out first.
    events: VecDeque<(u64, Event)>,
    buffer: VecDeque<Packet>,
    dropped: u64,
    served: u64,
    fullest: usize,
    tick: u64,
    luck: u64,
    /// Packets lost on the way by no fault of the buffer.
    lose_of_10_000: u64,
}

struct Process {
    window: Window,
    /// Packets each queue pair got through.
    through: Vec<u64>,
    /// Full packets each asks for at once.
    appetite: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Packet {
    process: usize,
    qp: usize,
    sent: u64,
}

enum Event {
    Arrives(Packet),
    Acknowledged(Vec<Packet>),
    Missed(Packet),
}

impl Network {
    fn new(delay: u64, batch: u64, processes: usize, appetites: &[u32]) -> Network {
        let process = || Process {
            window: Window::new(WindowConfig::default()),
            through: vec![0; appetites.len()],
            appetite: appetites.to_vec(),
        };
        let mut network = Network {
            delay,
            batch,
            processes: (0..processes).map(|_| process()).collect(),
            events: VecDeque::new(),
            buffer: VecDeque::new(),
            dropped: 0,
            served: 0,
            fullest: 0,
            tick: 0,
            luck: 1,
            lose_of_10_000: 0,
        };
        for process in 0..processes {
            for qp in 0..appetites.len() {
                network.post(process, qp);
            }
        }
        network
    }

    /// Sends as a requester does that never runs out of work: until it is refused.
    fn post(&mut self, process: usize, qp: usize) {
        let Process { window, appetite, .. } = &mut self.processes[process];
        loop {
            let granted = ask(window, Qpn::new(qp as u32), appetite[qp]);
            for _ in 0..granted {
                let packet = Packet { process, qp, sent: self.tick };
                self.events.push_back((self.tick + self.delay, Event::Arrives(packet)));
            }
            if granted < appetite[qp] {
                break;
            }
        }
        assert!(window.in_flight() <= window.limit());
    }

    /// Nobody is always first: who is, is drawn.
    fn wake_all(&mut self) {
        let count = self.processes.len();
        let first = self.draw() as usize;
        for turn in 0..count {
            let process = (first + turn) % count;
            while let Some(qpn) = self.processes[process].window.next_waiter() {
                self.post(process, qpn.value() as usize);
            }
        }
    }

    fn run(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.tick += 1;
            while self.events.front().is_some_and(|(when, _)| *when <= self.tick) {
                if let Some((_, event)) = self.events.pop_front() {
                    self.happen(event);
                }
                self.wake_all();
            }
            if self.tick.is_multiple_of(self.batch) && !self.buffer.is_empty() {
                let taken = self.buffer.len().min(self.batch as usize);
                let packets: Vec<Packet> = self.buffer.drain(..taken).collect();
                self.served += packets.len() as u64;
                self.events.push_back((self.tick + self.delay, Event::Acknowledged(packets)));
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let now = at(self.tick);
        match event {
            Event::Arrives(packet)
                if self.is_unlucky() || (self.buffer.len() as u64 + 1) * FULL_PACKET > STOCK_BUFFER =>
            {
                self.dropped += 1;
                self.events.push_back((self.tick + self.delay, Event::Missed(packet)));
            }
            Event::Missed(packet) => {
                let window = &mut self.processes[packet.process].window;
                window.release(FULL_PACKET);
                window.lost(now, 4096, LostBehind::Unknown);
            }
            Event::Arrives(packet) => {
                self.buffer.push_back(packet);
                self.fullest = self.fullest.max(self.buffer.len());
            }
            Event::Acknowledged(packets) => {
                for Packet { process, qp, sent } in packets {
                    let Process { window, through, .. } = &mut self.processes[process];
                    through[qp] += 1;
                    window.acknowledged(now, FULL_PACKET, Some((self.tick - sent) * 1000));
                }
            }
        }
    }

    fn draw(&mut self) -> u64 {
        self.luck = self.luck.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.luck >> 33
    }

    fn is_unlucky(&mut self) -> bool {
        self.lose_of_10_000 > 0 && self.draw() % 10_000 < self.lose_of_10_000
    }

    /// What the least and the most successful queue pair of a process got through.
    fn spread(&self, process: usize) -> (u64, u64) {
        let through = &self.processes[process].through;
        (*through.iter().min().unwrap(), *through.iter().max().unwrap())
    }
}

#[test]
fn queue_pairs_of_one_process_share_a_receiver_fairly_and_lose_nothing() {
    for (delay, batch) in [(1, 1), (10, 1), (1, 16), (2, 7)] {
        for count in [1, 2, 3, 4, 7, 25, 26, 100] {
            // The first queue pair wants everything at once, the others one to seven packets.
            let appetites: Vec<u32> = (0..count).map(|qp| if qp == 0 { 1000 } else { qp % 7 + 1 }).collect();
            let mut network = Network::new(delay, batch, 1, &appetites);
            network.run(100_000);
            let (least, most) = network.spread(0);
            let found = alloc::format!(
                "{count} queue pairs, delay {delay}, batch {batch}: {least} to {most} packets of {} through, {} lost, {} in the buffer at most",
                network.served,
                network.dropped,
                network.fullest
            );
            assert_eq!(network.dropped, 0, "{found}");
            assert!(network.served >= 99_000, "{found}");
            // Two turns, and what the first burst took before anybody waited.
            assert!(most - least <= 8 + 10, "{found}");
            if delay == 1 {
                assert!(network.fullest >= 23, "the buffer was put to use: {found}");
            }
        }
    }
}

#[test]
fn processes_that_share_a_receiver_converge_to_little_loss_and_similar_shares() {
    // Lost packets per thousand, at most: more senders probe more often.
    for (processes, lost) in [(2, 1), (4, 5), (8, 20)] {
        for (delay, batch) in [(1, 1), (10, 1), (2, 7)] {
            let mut network = Network::new(delay, batch, processes, &[1000, 1000]);
            network.run(200_000);
            let (served, dropped) = (network.served, network.dropped);
            for process in &mut network.processes {
                process.through.fill(0);
            }
            network.run(800_000);
            let (served, dropped) = (network.served - served, network.dropped - dropped);
            let shares: Vec<u64> = network.processes.iter().map(|process| process.through.iter().sum()).collect();
            let found = alloc::format!("delay {delay}, batch {batch}: {served} served, {dropped} dropped, {shares:?}");
            assert!(served >= 790_000, "{found}");
            assert!(dropped * 1000 < served * lost, "{found}");
            assert!(shares.iter().max().unwrap() < &(3 * shares.iter().min().unwrap()), "{found}");
        }
    }
}

#[test]
fn bad_luck_costs_little_until_it_is_frequent() {
    // Of 10,000 packets so many are lost; of what the receiver could take, at least so many per cent come through.
    for (lose, through) in [(0, 99), (1, 99), (10, 97), (100, 65), (300, 20)] {
        let mut network = Network::new(10, 1, 1, &[1000]);
        network.lose_of_10_000 = lose;
        network.run(500_000);
        assert!(network.served * 100 >= 500_000 * through, "losing {lose} of 10,000: {} through", network.served);
    }
}
