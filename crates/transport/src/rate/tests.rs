//! The rate of a queue pair, by itself: no packets, and a clock that the tests move.

use super::*;

const GBIT: u64 = 1_000_000_000;
const LINE: u64 = 100 * GBIT;

fn at(micros: u64) -> Time {
    Time::from_nanos(micros * 1000)
}

/// A rate with this limit of the program's.
fn limited(limit: RateLimit) -> Rate {
    let mut rate = Rate::new(Time::ZERO);
    rate.set_limit(limit);
    rate
}

/// Sends packets of `payload` bytes as early as may be for that long, and comes `late` nanoseconds after each moment
/// that was named. Returns the bytes that counted, and the most that went in one go.
fn send_for(rate: &mut Rate, from: Time, nanos: u64, payload: u32, late: u64) -> (u64, u64) {
    let (mut now, end, mut bytes, mut most) = (from, from.plus_nanos(nanos), 0, 0);
    while now < end {
        let mut burst = 0;
        now = loop {
            match rate.grant(now, Flow::Requests, payload) {
                Ok(packets) => {
                    let packets = packets.min(16);
                    rate.spent(now, Flow::Requests, packets, packets * payload);
                    burst += u64::from(packets) * (u64::from(payload) + PACKET_OVERHEAD);
                }
                Err(until) => break until.plus_nanos(late),
            }
        };
        bytes += burst;
        most = most.max(burst);
    }
    (bytes, most)
}

#[test]
fn a_limit_is_kept_at_every_rate_and_length() {
    for kbps in [1_000, 100_000, 1_000_000, 25_000_000, RateLimit::MAX_KBPS] {
        for payload in [0, 64, 1024, 4096] {
            let mut rate = limited(RateLimit::kbps(kbps));
            // What it may send at once after a rest.
            let (first, _) = send_for(&mut rate, at(1_000_000), 1, payload, 0);
            let packet = u64::from(payload) + PACKET_OVERHEAD;
            let allowed = u64::from(kbps) * (CATCH_UP_NANOS + QUANTUM_NANOS) / 8_000_000;
            assert!(first <= allowed.max(packet) + packet, "{first} bytes at once, {kbps} kbit/s, {payload}");
            let (bytes, _) = send_for(&mut rate, at(1_000_000), 100_000_000, payload, 0);
            let expected = u64::from(kbps) * 125 / 10;
            let off = bytes.abs_diff(expected);
            // Gaps are whole nanoseconds: at the line rate 58 bytes take five.
            assert!(
                off <= expected / 50 + 2 * packet,
                "{bytes} bytes in a tenth of a second, not {expected}; {payload}"
            );
        }
    }
}

#[test]
fn a_driver_that_comes_late_makes_up_for_it_up_to_the_burst() {
    // 60 us late each time, as threads that sleep are: nothing is lost.
    let mut rate = limited(RateLimit::kbps(10_000_000));
    let (bytes, most) = send_for(&mut rate, at(1), 100_000_000, 4096, 60_000);
    assert!(bytes.abs_diff(125_000_000) < 1_500_000, "{bytes}");
    assert!(most > 60_000, "several packets go in one go: {most}");
    // With a burst of the program's what does not fit is not made up for.
    let mut rate = limited(RateLimit { max_burst: 8192, ..RateLimit::kbps(10_000_000) });
    let (bytes, most) = send_for(&mut rate, at(1_000), 100_000_000, 1024, 60_000);
    assert!(most <= 8192 + 1082, "{most} bytes in one go");
    assert!(bytes < 20_000_000, "{bytes}");
    let mut rate = limited(RateLimit { max_burst: 8192, ..RateLimit::kbps(1_000_000) });
    let (bytes, most) = send_for(&mut rate, at(1_000), 100_000_000, 1024, 0);
    assert!(most <= 8192 + 1082 && bytes.abs_diff(12_500_000) < 125_000, "{bytes}, {most}");
    // A packet goes whole, whatever the burst is.
    let mut rate = limited(RateLimit { max_burst: 1, ..RateLimit::kbps(1_000_000) });
    assert_eq!(rate.grant(at(1), Flow::Requests, 4096), Ok(1));
}

#[test]
fn pacing_is_the_send_queues_and_congestion_slows_everything() {
    let mut rate = limited(RateLimit::kbps(1_000_000));
    rate.spent(at(0), Flow::Requests, 100, 409_600);
    assert!(rate.grant(at(10), Flow::Requests, 4096).is_err());
    assert_eq!(rate.grant(at(10), Flow::Answers, 4096), Ok(u32::MAX));
    for n in 0..20 {
        rate.notified(at(10 + n * 50), LINE);
    }
    assert!(rate.grant(at(1000), Flow::Answers, 4096).is_err(), "it is the same account");
}

#[test]
fn the_lower_of_both_rates_holds() {
    let mut rate = limited(RateLimit::kbps(1_000_000));
    rate.notified(at(0), LINE);
    assert_eq!(rate.congested_rate(at(0)), Some(50 * GBIT));
    let (bytes, _) = send_for(&mut rate, at(1), 10_000_000, 4096, 0);
    assert!(bytes.abs_diff(1_250_000) < 80_000, "{bytes} bytes: the program's");
    let mut rate = limited(RateLimit::kbps(RateLimit::MAX_KBPS));
    for n in 0..40 {
        rate.notified(at(n * 50), LINE);
    }
    assert_eq!(rate.congested_rate(at(39 * 50)), Some(DcqcnConfig::default().minimum_rate));
    let (bytes, _) = send_for(&mut rate, at(39 * 50), 50_000, 1024, 0);
    assert!(bytes <= 2 * 1082, "{bytes} bytes: congestion's");
}

#[test]
fn a_rate_that_limits_nothing_any_more_is_over() {
    let mut rate = Rate::new(at(0));
    assert!(rate.is_over(at(0)));
    rate.notified(at(0), LINE);
    assert!(!rate.is_over(at(0)));
    // It has recovered by then, and is remembered a little longer.
    assert_eq!(rate.congested_rate(at(20_000)), None);
    assert!(!rate.is_over(at(20_000)) && rate.is_over(at(50_000)));
    assert!(!limited(RateLimit::kbps(1)).is_over(at(1_000_000)));
}

#[test]
fn a_limit_that_is_raised_forgets_what_is_owed_to_the_old_one() {
    let mut rate = limited(RateLimit::kbps(1));
    rate.spent(at(0), Flow::Requests, 1, 4096);
    assert_eq!(rate.grant(at(0), Flow::Requests, 4096), Err(Time::from_nanos((4096 + 58) * 8_000_000)));
    assert!(rate.waits_until().is_some());
    rate.set_limit(RateLimit::default());
    assert_eq!((rate.waits_until(), rate.grant(at(1), Flow::Requests, 4096)), (None, Ok(u32::MAX)));
}

#[test]
fn what_waits_is_forgotten_when_its_time_has_come() {
    let mut rate = limited(RateLimit::kbps(1_000));
    rate.spent(at(0), Flow::Requests, 1, 4096);
    let until = rate.grant(at(1), Flow::Requests, 4096).unwrap_err();
    rate.time_has_come(at(1));
    assert_eq!(rate.waits_until(), Some(until));
    rate.time_has_come(until);
    assert_eq!(rate.waits_until(), None);
}

#[test]
fn static_rates_are_those_of_the_specification_below_the_line_rate() {
    assert_eq!([2, 5, 3, 7].map(static_rate_kbps), [2_500_000, 5_000_000, 10_000_000, 40_000_000].map(Some));
    assert_eq!([0, 1, 10, 16, 17, 24, 200].map(static_rate_kbps), [None; 7]);
}
