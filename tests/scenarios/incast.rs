//! Many to one: hosts that all write to the same one through a port of a switch that marks packets when its queue
//! grows, with the constants of DCQCN's paper on its link of 40 Gbit/s. Everything is real but the wire: queue pairs,
//! frames, marks, notifications.
#![allow(missing_docs)]

use scenery::ALL_ACCESS;
use sim::{ConnectOptions, HostConfig, HostId, LinkConfig, QpId, QpSpec, ReceiveBuffer, Red, Region, Sim, Work};
use trace::DropReason;
use transport::congestion::WindowConfig;
use wire::Mtu;

const GBIT: u64 = 1_000_000_000;
const LINE: u64 = 40 * GBIT;

/// A message. Each sender has several under way, so that it never pauses.
const MESSAGE: usize = 1 << 20;
const AT_ONCE: usize = 4;

/// The paper's marking: between 5 and 200 KB, up to one packet in a hundred.
const MARKING: Red = Red { from: 5_000, all: 200_000, most: 0.01 };

/// Senders, and the host they all write to.
struct Incast {
    sim: Sim,
    target: HostId,
    senders: Vec<(QpId, Region, Region)>,
    /// Messages that each has got through.
    done: Vec<u64>,
}

impl Incast {
    fn new(count: usize) -> Incast {
        let mut sim = Sim::new(11);
        let wire = LinkConfig { bandwidth: Some(LINE), delay: 1_000, ..LinkConfig::PERFECT };
        sim.set_default_link(wire);
        // The window is to be in nobody's way: ten times what is under way on a path without a queue.
        let window = WindowConfig { limit: 1 << 20, initial: 1 << 20, ..WindowConfig::default() };
        let host =
            |name: &str| HostConfig { window, receive_buffer: ReceiveBuffer::Unlimited, ..HostConfig::named(name) };
        let target = sim.add_host(host("target"));
        sim.set_port(target, LinkConfig { delay: 1_000, red: Some(MARKING), queue: 12 << 20, ..wire });
        let mut incast = Incast { sim, target, senders: Vec::new(), done: vec![0; count] };
        for index in 0..count {
            let from = incast.sim.add_host(host(&format!("sender{index}")));
            incast.connect(from);
        }
        incast
    }

    fn connect(&mut self, from: HostId) {
        let sim = &mut self.sim;
        let mut spec = QpSpec::rc();
        spec.limits.line_rate = LINE;
        let (a, b) = (sim.create_qp(from, spec), sim.create_qp(self.target, spec));
        sim.connect(a, b, &ConnectOptions { mtu: Mtu::B4096, timeout: 14, ..ConnectOptions::default() });
        let near = sim.register(from, QpSpec::PD, MESSAGE, ALL_ACCESS);
        let far = sim.register(self.target, QpSpec::PD, MESSAGE, ALL_ACCESS);
        self.senders.push((a, near, far));
    }

    fn write(&mut self, index: usize) {
        let (qp, near, far) = self.senders[index];
        self.sim.post(qp, &Work::write(far.remote(0)).sge(near.whole())).unwrap();
    }

    fn start(&mut self, index: usize) {
        (0..AT_ONCE).for_each(|_| self.write(index));
    }

    /// Lets time pass. Answers what each sender got through meanwhile, in Gbit/s.
    fn run_for(&mut self, nanos: u64) -> Vec<f64> {
        let before = self.done.clone();
        let end = self.sim.now().plus_nanos(nanos);
        let started: Vec<usize> = (0..self.senders.len()).collect();
        while self.sim.now() < end {
            let step = 100_000.min(end.since(self.sim.now()));
            self.sim.run_for(step);
            for &index in &started {
                let done = self.sim.completions(self.senders[index].0);
                for completion in done {
                    assert_eq!(completion.status, transport::Status::Success);
                    self.done[index] += 1;
                    self.write(index);
                }
            }
        }
        let gbits = |bytes: u64| bytes as f64 * 8.0 / nanos as f64;
        self.done.iter().zip(before).map(|(now, before)| gbits((now - before) * MESSAGE as u64)).collect()
    }
}

/// Jain's index: 1 is fair.
fn fairness(rates: &[f64]) -> f64 {
    let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
    sum * sum / (squares * rates.len() as f64)
}

#[test]
fn two_senders_share_the_port_and_the_one_that_stays_gets_it_back() {
    let mut incast = Incast::new(2);
    incast.start(0);
    let alone = incast.run_for(5_000_000);
    assert!(alone[0] > 37.0 && incast.sim.counters().marked == 0, "{alone:?}");

    // What each thinks of congestion takes 256 periods of 55 us to become realistic: fourteen milliseconds.
    incast.start(1);
    incast.run_for(40_000_000);
    incast.sim.most_waiting(incast.target);
    let rates = incast.run_for(40_000_000);
    let waiting = incast.sim.most_waiting(incast.target);
    assert!(rates.iter().all(|rate| (15.0..25.0).contains(rate)), "{rates:?}");
    assert!(rates.iter().sum::<f64>() > 36.0, "{rates:?}");
    assert!(waiting < 500_000, "{waiting} bytes waited at most");
    assert_eq!(incast.sim.counters().dropped_for(DropReason::Overflow), 0);

    // The second stops.
    incast.senders.pop();
    incast.run_for(20_000_000);
    let rates = incast.run_for(10_000_000);
    assert!(rates[0] > 35.0, "{rates:?}");
}

#[test]
fn eight_senders_get_an_eighth_each_and_nothing_is_lost() {
    let mut incast = Incast::new(8);
    (0..8).for_each(|index| incast.start(index));
    incast.run_for(10_000_000);
    incast.sim.most_waiting(incast.target);
    let rates = incast.run_for(50_000_000);
    let waiting = incast.sim.most_waiting(incast.target);
    assert!(fairness(&rates) > 0.95, "{rates:?}");
    assert!(rates.iter().sum::<f64>() > 36.0, "{rates:?}");
    assert!(waiting < 600_000, "{waiting} bytes waited at most");
    assert_eq!(incast.sim.counters().dropped_for(DropReason::Overflow), 0);
    assert!(incast.sim.counters().marked > 100);
}
