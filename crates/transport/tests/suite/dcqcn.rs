//! The rate of congestion against the figures of its paper: senders that share a port of a switch, packet by packet,
//! with the paper's link (40 Gbit/s), marking (RED between 5 and 200 KB, 1 % at most) and constants; and the
//! algorithm's own arithmetic.
#![allow(missing_docs)]

use transport::Time;
use transport::rate::{Dcqcn, DcqcnConfig};
use ubiverbs_transport as transport;

const LINE: u64 = 40_000_000_000;

/// The paper's constants on the paper's link.
const PAPER: DcqcnConfig = DcqcnConfig {
    line_rate: LINE,
    minimum_rate: 10_000_000,
    gain_shift: 8,
    alpha_period: 55_000,
    increase_period: 55_000,
    increase_bytes: 10_000_000,
    fast_recovery: 5,
    additive_step: 40_000_000,
    hyper_step: 400_000_000,
};

/// A packet of 1 KB, and how long the link takes for it.
const PACKET: u64 = 1000;
const PACKET_NANOS: u64 = PACKET * 8 / 40;

/// Marking of the switch, in bytes that wait; the probability rises between both up to `MOST_MARKS`, and is 1 beyond.
const MARK_FROM: u64 = 5_000;
const MARK_ALL: u64 = 200_000;
const MOST_MARKS: f64 = 0.01;

/// From the switch to the receiver, and from there to the sender as a notification.
const FEEDBACK_NANOS: u64 = 4_000;
const CNP_INTERVAL: u64 = 50_000;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

struct Sender {
    dcqcn: Dcqcn,
    next: u64,
    stops: u64,
    last_cnp: Option<u64>,
    /// Notifications under way.
    told_at: Vec<u64>,
    sent: u64,
}

/// Senders that share one port.
struct Port {
    senders: Vec<Sender>,
    now: u64,
    waiting: f64,
    most_waiting: f64,
    dice: u64,
}

impl Port {
    fn new(starts: &[(u64, u64)]) -> Port {
        let sender = |&(starts, stops)| Sender {
            dcqcn: Dcqcn::new(PAPER, at(starts)),
            next: starts,
            stops,
            last_cnp: None,
            told_at: Vec::new(),
            sent: 0,
        };
        Port { senders: starts.iter().map(sender).collect(), now: 0, waiting: 0.0, most_waiting: 0.0, dice: 7 }
    }

    fn unit(&mut self) -> f64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Lets it run until then. Answers what each sender has sent meanwhile, in Gbit/s.
    fn run_until(&mut self, end: u64) -> Vec<f64> {
        let from = self.now;
        self.senders.iter_mut().for_each(|sender| sender.sent = 0);
        loop {
            let next = self.senders.iter().enumerate().filter(|(_, sender)| sender.next < sender.stops);
            let Some((index, _)) = next.min_by_key(|(_, sender)| sender.next) else { break };
            if self.senders[index].next >= end {
                break;
            }
            self.one_packet(index);
        }
        self.waiting = (self.waiting - ((end - self.now) as f64) * 5.0).max(0.0);
        self.now = end;
        let nanos = (end - from) as f64;
        self.senders.iter().map(|sender| sender.sent as f64 * 8.0 / nanos).collect()
    }

    fn one_packet(&mut self, index: usize) {
        let now = self.senders[index].next.max(self.now);
        self.waiting = (self.waiting - ((now - self.now) as f64) * 5.0).max(0.0);
        self.now = now;
        let over = (self.waiting - MARK_FROM as f64) / (MARK_ALL - MARK_FROM) as f64;
        let marked = over >= 1.0 || over > 0.0 && self.unit() < over * MOST_MARKS;
        self.waiting += PACKET as f64;
        self.most_waiting = self.most_waiting.max(self.waiting);
        let arrives = now + (self.waiting / 5.0) as u64 + FEEDBACK_NANOS;
        let sender = &mut self.senders[index];
        if marked && sender.last_cnp.is_none_or(|last| arrives >= last + CNP_INTERVAL) {
            sender.last_cnp = Some(arrives);
            sender.told_at.push(arrives + FEEDBACK_NANOS);
        }
        while sender.told_at.first().is_some_and(|told| *told <= now) {
            let told = sender.told_at.remove(0);
            sender.dcqcn.notified(at(told));
        }
        sender.sent += PACKET;
        sender.dcqcn.sent(PACKET);
        let gap = PACKET as f64 * 8.0 * 1e9 / sender.dcqcn.rate(at(now)) as f64;
        sender.next = now + (gap as u64).max(PACKET_NANOS);
    }
}

fn assert_close(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!((value - expected).abs() <= expected * tolerance, "{what}: {value:.3}, not {expected:.3}");
}

/// Jain's index: 1 is fair.
fn fairness(rates: &[f64]) -> f64 {
    let (sum, squares) = (rates.iter().sum::<f64>(), rates.iter().map(|rate| rate * rate).sum::<f64>());
    sum * sum / (squares * rates.len() as f64)
}

#[test]
fn the_first_notification_halves_the_rate_and_five_periods_bring_it_back() {
    let mut dcqcn = Dcqcn::new(PAPER, at(0));
    assert_eq!((dcqcn.rate(at(0)), dcqcn.alpha(at(0))), (LINE, 1.0));
    dcqcn.notified(at(0));
    assert_eq!(dcqcn.rate(at(0)), LINE / 2, "alpha is 1");
    // Fast recovery: half of what is missing, five times (equation 3).
    for round in 1..=5u32 {
        let expected = LINE as f64 * (1.0 - 0.5f64.powi(round as i32 + 1));
        assert_close("fast recovery", dcqcn.rate(at(55_000 * u64::from(round))) as f64, expected, 1e-6);
    }
    assert_eq!(dcqcn.rate(at(55_000 * 12)), LINE);
}

#[test]
fn alpha_follows_the_share_of_periods_with_notifications() {
    let mut dcqcn = Dcqcn::new(PAPER, at(0));
    // (1 - g) a period without notifications (equation 2).
    for periods in [1, 10, 100, 1000] {
        let expected = (255.0f64 / 256.0).powi(periods);
        assert_close("decay", dcqcn.alpha(at(55_000 * periods as u64)), expected, 1e-4);
    }
    // From nearly nothing, with one every 50 us: 1 - (1 - g)^n (equation 1).
    let start = 55_000 * 100_000;
    assert!(dcqcn.alpha(at(start)) < 1e-5);
    for n in 1..=512u32 {
        dcqcn.notified(at(start + u64::from(n) * 50_000));
        let expected = 1.0 - (255.0f64 / 256.0).powi(n as i32);
        assert_close("growth", dcqcn.alpha(at(start + u64::from(n) * 50_000)), expected, 0.01);
    }
}

#[test]
fn after_fast_recovery_the_rate_grows_by_steps_then_by_growing_steps() {
    let mut dcqcn = Dcqcn::new(PAPER, at(0));
    (0..10).for_each(|n| dcqcn.notified(at(n * 50_000)));
    let from = 9 * 50_000;
    let before = dcqcn.rate(at(from));
    let target = before * 2 + before / 100;
    let mut last = dcqcn.rate(at(from + 5 * 55_000));
    assert!(last < target, "fast recovery leads to where it was: {last} of {target}");
    // Time alone: 40 Mbit/s a period (equation 4), once the rate follows its target.
    last = dcqcn.rate(at(from + 15 * 55_000));
    for period in 16..30 {
        let rate = dcqcn.rate(at(from + period * 55_000));
        assert_close("additive increase", (rate - last) as f64, 40e6, 0.05);
        last = rate;
    }
    // Bytes and time: ten times as much, and more each time.
    let mut steps = Vec::new();
    for period in 30..42 {
        dcqcn.sent(PAPER.increase_bytes);
        let rate = dcqcn.rate(at(from + period * 55_000));
        steps.push(rate - last);
        last = rate;
    }
    assert!(steps[11] > 3_000_000_000 && steps[11] > steps[8] && steps[8] > steps[6], "{steps:?}");
}

#[test]
fn no_flood_takes_more_than_all_but_the_minimum() {
    let mut dcqcn = Dcqcn::new(PAPER, at(0));
    (0..100_000).for_each(|n| dcqcn.notified(at(n * 50)));
    assert_eq!(dcqcn.rate(at(100_000 * 50)), PAPER.minimum_rate);
    // Five periods of fast recovery lead nowhere from there; then it is 40 Mbit/s each.
    let millisecond = dcqcn.rate(at(100_000 * 50 + 1_000_000));
    assert!((300_000_000..700_000_000).contains(&millisecond), "{millisecond} bit/s a millisecond later");
    assert_eq!(dcqcn.rate(at(100_000 * 50 + 100_000_000)), LINE, "a tenth of a second later");
}

#[test]
fn a_rest_of_years_costs_no_more_than_a_short_one() {
    let mut dcqcn = Dcqcn::new(PAPER, at(0));
    (0..100).for_each(|n| dcqcn.notified(at(n * 50_000)));
    assert_eq!(dcqcn.rate(at(u64::MAX)), LINE);
    assert!(dcqcn.is_over(at(u64::MAX)));
}

#[test]
fn two_senders_share_a_port_fairly_and_keep_it_busy() {
    // The second begins two milliseconds after the first; the paper's testbed (figure 10) and fluid model (figure 8)
    // have both at 20 Gbit/s within tens of milliseconds.
    let mut port = Port::new(&[(0, u64::MAX), (2_000_000, u64::MAX)]);
    assert_close("alone", port.run_until(2_000_000)[0], 40.0, 0.02);
    port.run_until(40_000_000);
    let rates = port.run_until(140_000_000);
    for rate in &rates {
        assert_close("fair share", *rate, 20.0, 0.15);
    }
    assert_close("sum", rates.iter().sum(), 40.0, 0.05);
    assert!(port.most_waiting < 1_000_000.0, "{} bytes waited at most", port.most_waiting);
}

#[test]
fn eight_senders_that_begin_together_get_an_eighth_each() {
    let mut port = Port::new(&[(0, u64::MAX); 8]);
    port.run_until(30_000_000);
    // The burst of the beginning is over.
    port.most_waiting = 0.0;
    let rates = port.run_until(130_000_000);
    assert!(fairness(&rates) > 0.97, "{rates:?}");
    assert_close("sum", rates.iter().sum(), 40.0, 0.05);
    // The paper's queue is below 100 KB most of the time, with marks for everything from 200 KB on.
    assert!(port.most_waiting < 350_000.0, "{} bytes waited at most", port.most_waiting);
}

#[test]
fn who_is_left_alone_gets_the_whole_port_back() {
    let stops = 40_000_000;
    let mut port = Port::new(&[(0, u64::MAX), (0, stops)]);
    port.run_until(stops);
    let rate = port.run_until(stops + 1_000_000)[0];
    assert!(rate < 36.0, "not at once: {rate}");
    port.run_until(stops + 40_000_000);
    assert_close("alone again", port.run_until(stops + 45_000_000)[0], 40.0, 0.05);
}
