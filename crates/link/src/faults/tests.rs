use super::*;
use std::net::Ipv4Addr;

const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const TO: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn faults(plan: &str) -> Faults<u64> {
    Faults::new(plan.parse().unwrap())
}

/// Sends `count` numbered packets a microsecond apart and answers which passed, in order, damaged ones marked.
fn send(faults: &mut Faults<u64>, count: u64) -> Vec<(u64, bool)> {
    let start = Instant::now();
    let mut passed = Vec::new();
    for number in 1..=count {
        let original = number.to_be_bytes();
        faults.arrive(start + Duration::from_micros(number), (FROM, TO), number, &original, |packet| {
            let damage = u64::from_be_bytes(packet.bytes.try_into().unwrap()) ^ packet.meta;
            assert_eq!(damage.count_ones(), u32::from(packet.corrupted), "one bit, and only if it says so");
            passed.push((*packet.meta, packet.corrupted));
        });
    }
    faults.release(start + Duration::from_secs(3600), |packet| passed.push((*packet.meta, packet.corrupted)));
    assert_eq!(faults.due(), None);
    passed
}

fn numbers(passed: &[(u64, bool)]) -> Vec<u64> {
    passed.iter().map(|(number, _)| *number).collect()
}

#[test]
fn without_rules_everything_passes_in_order() {
    let mut none = Faults::new(Plan::default());
    assert_eq!(numbers(&send(&mut none, 100)), (1..=100).collect::<Vec<_>>());
    let mut other = faults("drop=100%,to=10.0.0.3");
    assert_eq!(numbers(&send(&mut other, 100)), (1..=100).collect::<Vec<_>>());
    assert_eq!(other.injected(), Injected { packets: 100, ..Injected::default() });
}

#[test]
fn numbered_packets_are_struck_and_no_others() {
    let mut plan = faults("drop@2,drop@5..6,dup@3,corrupt@4");
    let passed = send(&mut plan, 8);
    assert_eq!(passed, [(1, false), (3, false), (4, true), (7, false), (8, false), (3, false)]);
    let expected = Injected { packets: 8, dropped: 3, duplicated: 1, corrupted: 1, ..Injected::default() };
    assert_eq!(plan.injected(), expected);
}

#[test]
fn an_overtaken_packet_comes_later() {
    let passed = send(&mut faults("reorder@2,hold=2500ns"), 6);
    assert_eq!(numbers(&passed), [1, 3, 4, 2, 5, 6]);
}

#[test]
fn delay_keeps_the_order() {
    let mut plan = faults("delay=1us..50us,seed=3");
    let start = Instant::now();
    let mut passed = Vec::new();
    for number in 0..500u64 {
        plan.arrive(start + Duration::from_micros(number), (FROM, TO), number, &[], |packet| passed.push(*packet.meta));
    }
    assert!(passed.len() < 500, "some are still under way");
    let due = plan.due().unwrap();
    assert!(due > start + Duration::from_micros(499) && due < start + Duration::from_micros(550));
    plan.release(start + Duration::from_micros(550), |packet| passed.push(*packet.meta));
    assert_eq!(passed, (0..500).collect::<Vec<_>>());
    assert_eq!(plan.injected().delayed, 500);
}

#[test]
fn chances_come_true_at_their_rates_and_again_with_the_same_seed() {
    let text = "drop=10%,dup=5%,reorder=2%,corrupt=0.03,seed=11";
    let (mut one, mut two, mut other) = (faults(text), faults(text), faults(&text.replace("11", "12")));
    let passed = send(&mut one, 20_000);
    let Injected { dropped, duplicated, reordered, corrupted, .. } = one.injected();
    assert!((1_850..2_150).contains(&dropped), "{dropped}");
    assert!((800..1_000).contains(&duplicated), "{duplicated}");
    assert!((310..410).contains(&reordered), "{reordered}");
    assert!((480..600).contains(&corrupted), "{corrupted}");
    assert_eq!(passed.len() as u64, 20_000 - dropped + duplicated);
    assert_eq!(send(&mut two, 20_000), passed);
    assert_ne!(send(&mut other, 20_000), passed);
}

#[test]
fn a_fault_that_is_off_does_not_move_the_others() {
    let (mut one, mut two) = (faults("drop=10%,seed=5"), faults("drop=10%,dup@1000000,corrupt=0%,seed=5"));
    assert_eq!(send(&mut one, 5_000), send(&mut two, 5_000));
}

#[test]
fn the_first_rule_that_fits_decides() {
    let mut plan = faults("partition,from=10.0.0.1; drop=100%");
    assert!(send(&mut plan, 10).is_empty());
    assert_eq!(plan.injected().partitioned, 10);
    let now = Instant::now();
    let lost = Fate { lost: Some(trace::DropReason::RandomLoss), ..Fate::default() };
    assert_eq!(plan.decide(now, TO, FROM, 0), lost);
    assert_eq!((plan.injected().partitioned, plan.injected().dropped), (10, 1));
    plan.change(Plan::default());
    assert_eq!(plan.decide(now, FROM, TO, 0).first, Some(now), "the partition is healed");
}

#[test]
fn an_empty_packet_cannot_be_damaged_but_says_so() {
    let mut plan = faults("corrupt=1");
    let mut passed = 0;
    plan.arrive(Instant::now(), (FROM, TO), 0, &[], |packet| {
        assert!(packet.corrupted && packet.bytes.is_empty());
        passed += 1;
    });
    assert_eq!(passed, 1);
}

#[test]
fn the_example_of_the_documentation_reads() {
    let text = "drop=1%,dup=0.1%,reorder=1%,delay=1ms..3ms,corrupt=0.01%,seed=7,to=10.0.0.2";
    let plan: Plan = text.parse().unwrap();
    let close = |chance: &Chance, value: f64| (chance.probability - value).abs() < 1e-12 && chance.numbers.is_empty();
    let [rule] = &plan.rules[..] else { panic!() };
    assert!(close(&rule.drop, 0.01) && close(&rule.dup, 0.001) && close(&rule.reorder, 0.01));
    assert!(close(&rule.corrupt, 0.0001));
    assert_eq!((rule.delay.0.as_micros(), rule.delay.1.as_micros()), (1000, 3000));
    assert_eq!((plan.seed, rule.to, rule.from, rule.partition), (7, Some(TO), None, false));
}

#[test]
fn mistakes_are_named() {
    for (text, message) in [
        ("", "a fault is missing between two separators"),
        ("drop=1%,,dup=1%", "a fault is missing between two separators"),
        ("lose=1%", "\"lose=1%\" is no fault: it is drop, dup,"),
        ("lose@1", "\"lose\" is no fault: it is drop, dup,"),
        ("drop", "drop=\"\": a chance is a percentage"),
        ("drop=101%", "drop=\"101%\": a chance is a percentage"),
        ("drop=-1%", "drop=\"-1%\": a chance is a percentage"),
        ("drop=nan", "drop=\"nan\": a chance is a percentage"),
        ("dup=1e-3", "dup=\"1e-3\": a chance is a percentage"),
        ("drop@0", "drop@\"0\": packets are counted from 1"),
        ("drop@5..3", "drop@\"5..3\": packets are counted from 1"),
        ("delay=5", "delay=\"5\": a time is a number and ns"),
        ("delay=3ms..1ms", "delay=\"3ms..1ms\": a time is a number and ns"),
        ("hold=2h", "hold=\"2h\": a time is a number and ns"),
        ("hold=99999s", "hold=\"99999s\": a time is a number and ns"),
        ("hold=µs", "hold=\"µs\": a time is a number and ns"),
        ("to=example", "to=\"example\" is no IP address"),
        ("seed=x", "seed=\"x\" is no number"),
        ("partition=1", "\"partition=1\" is no fault"),
    ] {
        let error = text.parse::<Plan>().unwrap_err().to_string();
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

#[test]
fn marked_packets_say_so_and_are_otherwise_as_they_were() {
    let mut plan = faults("mark@2,mark@4,dup@4");
    let (start, mut passed) = (Instant::now(), Vec::new());
    for number in 1..=5u64 {
        plan.arrive(start, (FROM, TO), number, b"bytes", |packet| {
            assert!(!packet.corrupted && packet.bytes == b"bytes");
            passed.push((*packet.meta, packet.marked));
        });
    }
    plan.release(start + Duration::from_secs(1), |packet| passed.push((*packet.meta, packet.marked)));
    assert_eq!(passed, [(1, false), (2, true), (3, false), (4, true), (5, false), (4, true)]);
    assert_eq!(plan.injected(), Injected { packets: 5, duplicated: 1, marked: 2, ..Injected::default() });
}

fn added(rules: impl IntoIterator<Item = Rule>) -> Faults<u64> {
    Faults::new(Plan { added: rules.into_iter().collect(), ..Plan::default() })
}

#[test]
fn all_added_rules_act_together_and_before_the_first_that_decides() {
    let ms = Duration::from_millis;
    let late = |time| Rule { delay: (ms(time), ms(time)), ..Rule::default() };
    let plan = Plan { rules: vec![late(1), late(100)], added: vec![late(2), late(4)], seed: 1 };
    let (mut plan, now) = (Faults::<u64>::new(plan), Instant::now());
    assert_eq!(plan.decide(now, FROM, TO, 0).first, Some(now + ms(7)));
    let elsewhere = Rule { to: Some(FROM), partition: true, ..Rule::default() };
    plan.change(Plan { added: vec![elsewhere, late(3)], ..Plan::default() });
    plan.hasten(now);
    assert_eq!(plan.decide(now, FROM, TO, 0).first, Some(now + ms(3)));
    assert_eq!(plan.decide(now, TO, FROM, 0).lost, Some(trace::DropReason::Partitioned));
}

#[test]
fn a_rate_lets_so_many_bits_pass_and_loses_what_would_wait_too_long() {
    // 1 000 bytes with headers of 66, at 8 528 bit/ms: a millisecond each.
    let mut plan = added([Rule { rate: Some(8_528_000), ..Rule::default() }]);
    let (now, ms) = (Instant::now(), Duration::from_millis);
    for number in 1..=101 {
        assert_eq!(plan.decide(now, FROM, TO, 1000).first, Some(now + ms(number)), "{number}");
    }
    assert_eq!(plan.decide(now, FROM, TO, 1000).lost, Some(trace::DropReason::Overflow));
    assert_eq!(plan.decide(now + ms(500), FROM, TO, 1000).first, Some(now + ms(501)));
}

#[test]
fn a_nic_with_a_share_of_the_time_takes_packets_in_its_turns() {
    let mut plan = added([Rule { share: Some(0.25), ..Rule::default() }]);
    let (now, micros) = (Instant::now(), Duration::from_micros);
    for (came, taken) in [(0, 0), (2_500, 2_500), (2_501, 10_000), (9_999, 10_000), (12_000, 12_000), (13_000, 20_000)]
    {
        assert_eq!(plan.decide(now + micros(came), FROM, TO, 0).first, Some(now + micros(taken)), "{came}");
    }
}

#[test]
fn a_plan_that_is_taken_away_leaves_nothing_late() {
    let hour = Duration::from_secs(3600);
    let mut plan = added([Rule { delay: (hour, hour), ..Rule::default() }]);
    let now = Instant::now();
    plan.arrive(now, (FROM, TO), 7, b"late", |_| panic!("an hour too soon"));
    plan.change(Plan::default());
    assert!(!plan.is_spent());
    plan.hasten(now);
    let mut passed = Vec::new();
    plan.release(now, |packet| passed.push(*packet.meta));
    assert_eq!((passed, plan.is_spent()), (vec![7], true));
    plan.arrive(now, (FROM, TO), 8, b"in time", |packet| assert_eq!(*packet.meta, 8));
    assert!(plan.is_spent());
}
