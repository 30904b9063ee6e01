use super::*;
use sim::Rng;

#[test]
fn plans_come_in_time_order() {
    let mut rng = Rng::new(5);
    let mut calendar = Calendar::new(1, 0);
    let mut planned: Vec<(u64, u64)> = Vec::new();
    let mut taken = Vec::new();
    for round in 0..20_000 {
        if rng.chance(0.55) {
            let reach = [3, 100, 9_000, 100_000][rng.below(4) as usize];
            let at = calendar.now() + rng.below(reach);
            calendar.plan(at, round);
            planned.push((at, round));
        } else if let Some(what) = calendar.next(u64::MAX) {
            taken.push((calendar.now(), what));
        }
    }
    while let Some(what) = calendar.next(u64::MAX) {
        taken.push((calendar.now(), what));
    }
    assert!(taken.is_sorted_by_key(|(at, _)| *at));
    assert!(calendar.is_empty());
    planned.sort_unstable();
    taken.sort_unstable();
    assert_eq!(taken, planned);
}

#[test]
fn regions_each_have_their_order_and_none_is_a_delay_ahead() {
    let (mut rng, regions, delay) = (Rng::new(7), 5, 600);
    let mut calendar = Calendar::new(regions, delay);
    let mut planned: Vec<(u64, u64)> = Vec::new();
    let mut plan = |calendar: &mut Calendar, region: u64, at: u64| {
        let what = (planned.len() as u64) << 3 | region;
        calendar.plan_in(region as usize, at, what);
        planned.push((at, what));
    };
    for region in 0..regions as u64 {
        plan(&mut calendar, region, 40 * region);
    }
    calendar.plan_for_all(30_000, 7);
    let (mut taken, mut until, mut end) = (Vec::new(), 0, 0);
    while taken.len() < 30_000 || !calendar.is_empty() {
        let Some(what) = calendar.next(until) else {
            until += 1 + rng.below(3_000);
            continue;
        };
        let (now, region) = (calendar.now(), what & 7);
        assert!(now <= until && now + delay > end, "{now} ns, where another region was at {end} ns");
        end = end.max(now);
        if region == 7 {
            assert!(taken.iter().all(|(at, _)| *at < now));
            continue;
        }
        taken.push((now, what));
        for _ in 0..if taken.len() < 30_000 { 1 + u64::from(rng.chance(0.05)) } else { 0 } {
            let other = rng.below(regions as u64);
            let least = if other == region { 0 } else { delay };
            let reach = [5, 700, 20_000][rng.below(3) as usize];
            plan(&mut calendar, other, now + least + rng.below(reach));
        }
    }
    for region in 0..regions as u64 {
        let own = taken.iter().filter(|(_, what)| what & 7 == region);
        assert!(own.clone().is_sorted_by_key(|(at, _)| *at) && own.count() > 1_000);
    }
    planned.sort_unstable();
    taken.sort_unstable();
    assert_eq!(taken, planned);
}

#[test]
fn nothing_is_taken_that_lies_after_the_end() {
    let mut calendar = Calendar::new(1, 0);
    for at in [10, 10, 20, 150_000] {
        calendar.plan(at, at);
    }
    let mut next = |until| calendar.next(until);
    assert_eq!([next(15), next(15), next(15)], [Some(10), Some(10), None]);
    assert_eq!([next(30_000), next(30_000)], [Some(20), None]);
    calendar.plan(25, 25);
    let mut next = |until| calendar.next(until);
    assert_eq!([next(160_000), next(160_000), next(160_000)], [Some(25), Some(150_000), None]);
}
