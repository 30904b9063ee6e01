//! The short way of a message is the long one, but shorter: the same script, once with and once without it, completes
//! the same work with the same bytes and leaves the same numbers behind.

use crate::direct::{End, Pair};
use ubiverbs_transport::{
    Completion, Data, Inbound, MayPlace, Operation, Placement, Queue, ReceiveRequest, Remote, SendFlags, SendRequest,
    Sge, Time,
};
use wire::{Key, Mtu};

const MEMORY: usize = 16 * 1024;

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// What a step of the script does.
struct Step {
    from_a: bool,
    operation: Operation,
    from: u64,
    length: u32,
    inline: bool,
    flags: SendFlags,
    /// Everything under way arrives after it.
    settle: bool,
}

fn script(seed: u64) -> Vec<Step> {
    let mut dice = Dice(seed);
    (0..400)
        .map(|_| {
            let remote = Remote { address: dice.throw(4096), key: Key::new(1) };
            let immediate = (dice.throw(3) == 0).then(|| dice.throw(1000) as u32);
            let (operation, longest) = match dice.throw(12) {
                0..5 => (Operation::Send { immediate }, 1500),
                5..9 => (Operation::Write { remote, immediate }, 1500),
                9 => (Operation::Read { remote }, 3000),
                10 => (Operation::SendInvalidate { key: Key::new(9) }, 100),
                _ => (Operation::FetchAdd { remote: Remote { address: 8 * dice.throw(100), ..remote }, add: 1 }, 9),
            };
            let length = match operation {
                Operation::FetchAdd { .. } => 8,
                _ => dice.throw(longest) as u32,
            };
            let may_inline = !matches!(operation, Operation::Read { .. } | Operation::FetchAdd { .. });
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, dice.throw(2) == 0);
            flags.set(SendFlags::SOLICITED, dice.throw(4) == 0);
            flags.set(SendFlags::FENCE, dice.throw(8) == 0);
            Step {
                from_a: dice.throw(2) == 0,
                operation,
                from: 8192 + dice.throw(4000),
                length,
                inline: may_inline && length <= 256 && dice.throw(2) == 0,
                flags,
                settle: dice.throw(3) == 0,
            }
        })
        .collect()
}

/// The completions of both ends so far, sends and receives apart: how those of the two lie between each other depends
/// on when acknowledgements come.
#[derive(Default, PartialEq, Debug)]
struct Told([Vec<Completion>; 4]);

impl Told {
    fn take(&mut self, index: usize, end: &mut End, now: Time) {
        while let Some(completion) = end.qp.poll_completion(now, &mut end.memory) {
            let receive = completion.queue != Queue::Send;
            self.0[2 * index + usize::from(receive)].push(completion);
        }
    }
}

/// Posts work and carries it the short way, with the acknowledgement that is owed. False if it must go the long way,
/// and then nothing has happened.
fn send_at_once(from: &mut End, to: &mut End, now: Time, request: &SendRequest<'_>) -> bool {
    let along = from.qp.take_acknowledgement(&from.memory);
    let Some(train) = from.qp.send_at_once(now, request, &mut from.memory) else {
        from.qp.owe_acknowledgement(along);
        return false;
    };
    let mut payload = vec![0; train.payload.len() as usize];
    train.payload.copy(0, &mut payload, &mut from.memory).unwrap();
    if let Some((psn, msn)) = along {
        to.qp.handle_acknowledgement(now, from.gid, psn, msn, &mut to.memory);
    }
    let (grh, congestion_marked) = (&[0; 40], false);
    let inbound =
        Inbound { headers: &train.headers, count: 1, payload: &payload, from: from.gid, grh, congestion_marked };
    to.qp.handle(now, &inbound, &mut to.memory);
    true
}

/// Moves the bytes of a WRITE or READ as a driver does that reaches the peer's memory. False if packets must.
fn place(from: &mut End, to: &mut End, now: Time, request: &SendRequest<'_>) -> bool {
    let MayPlace::Now(placement) = from.qp.may_place(request, 2048) else { return false };
    if !carry_out(from, to, request, &placement) {
        return false;
    }
    from.qp.placed(now, request, &placement, &mut from.memory);
    true
}

/// Moves the bytes, if they lie in one piece.
fn carry_out(from: &mut End, to: &mut End, request: &SendRequest<'_>, placement: &Placement) -> bool {
    let (there, length) = (placement.remote.address as usize, placement.length as usize);
    match (request.operation, request.data) {
        (Operation::Write { .. }, Data::Inline(bytes)) => to.memory.bytes[there..][..length].copy_from_slice(bytes),
        (Operation::Write { .. }, Data::Gather(&[sge])) => {
            to.memory.bytes[there..][..length].copy_from_slice(&from.memory.bytes[sge.address as usize..][..length])
        }
        (Operation::FetchAdd { add, .. }, Data::Gather(&[sge])) => {
            let word = &mut to.memory.bytes[there..][..8];
            let before: [u8; 8] = (&*word).try_into().unwrap();
            word.copy_from_slice(&u64::from_ne_bytes(before).wrapping_add(add).to_ne_bytes());
            from.memory.bytes[sge.address as usize..][..8].copy_from_slice(&before);
        }
        (_, Data::Gather(&[sge])) => {
            from.memory.bytes[sge.address as usize..][..length].copy_from_slice(&to.memory.bytes[there..][..length])
        }
        _ => return false,
    }
    true
}

/// The same, out of the queue: what waits for others is held back until they are done.
fn place_held(from: &mut End, to: &mut End, now: Time, request: &SendRequest<'_>) -> bool {
    if place(from, to, now, request) {
        return true;
    }
    let MayPlace::AfterOthers(_) = from.qp.may_place(request, 2048) else { return false };
    from.qp.hold_back(true);
    from.qp.post_send(now, request, &mut from.memory).unwrap();
    true
}

/// Carries out what is held back, as far as nothing is under way.
fn go_on(from: &mut End, to: &mut End) -> usize {
    let mut placed = 0;
    while from.qp.holds_back() {
        let held = from.qp.next_held(2048).map(|(request, may)| match (may, request.data) {
            (MayPlace::Now(placement), Data::Inline(bytes)) => (request.operation, Ok(bytes.to_vec()), Some(placement)),
            (MayPlace::Now(placement), Data::Gather(sges)) => (request.operation, Err(sges.to_vec()), Some(placement)),
            (MayPlace::AfterOthers(_), _) => (request.operation, Err(Vec::new()), None),
            (MayPlace::Never, _) => panic!("it was held back"),
        });
        let Some((operation, data, placement)) = held else {
            from.qp.hold_back(false);
            break;
        };
        let Some(placement) = placement else { break };
        let data = data.as_ref().map_or_else(|sges| Data::Gather(sges), |bytes| Data::Inline(bytes));
        let flags = SendFlags::empty();
        let request = SendRequest { wr_id: 0, operation, flags, data, target: None, xrc_srq: None };
        assert!(carry_out(from, to, &request, &placement));
        from.qp.placed_held(&placement);
        placed += 1;
    }
    placed
}

/// How requests get to the peer, where they can.
type ShortWay = fn(&mut End, &mut End, Time, &SendRequest<'_>) -> bool;

/// Runs the script; how many of its steps went a short way.
fn play(steps: &[Step], short: Option<ShortWay>) -> (Pair, Told, usize) {
    let mut pair = Pair::new(Mtu::B1024, MEMORY);
    let mut told = Told::default();
    let mut shorter = 0;
    for (index, step) in steps.iter().enumerate() {
        let wr_id = index as u64;
        for end in [&mut pair.a, &mut pair.b] {
            // One receive per step and end: never too few. Half of them lie in two pieces.
            let address = 4096 + 32 * (wr_id % 64);
            let whole = [Sge { address, length: 2000, key: Key::new(1) }];
            let pieces =
                [Sge { address, length: 700, key: Key::new(1) }, Sge { address, length: 1300, key: Key::new(1) }];
            let sges: &[Sge] = if index % 2 == 0 { &whole } else { &pieces };
            let _ = end.qp.post_receive(pair.now, &ReceiveRequest { wr_id, sges }, &mut end.memory);
        }
        let (from, to) = if step.from_a { (&mut pair.a, &mut pair.b) } else { (&mut pair.b, &mut pair.a) };
        let sges = [Sge { address: step.from, length: step.length, key: Key::new(1) }];
        let bytes = from.memory.bytes[step.from as usize..][..step.length as usize].to_vec();
        let data = if step.inline { Data::Inline(&bytes) } else { Data::Gather(&sges) };
        let request =
            SendRequest { wr_id, operation: step.operation, flags: step.flags, data, target: None, xrc_srq: None };
        if short.is_some_and(|short| short(from, to, pair.now, &request)) {
            shorter += 1;
        } else {
            from.qp.post_send(pair.now, &request, &mut from.memory).unwrap();
            pair.settle(&mut |index, end, now| told.take(index, end, now));
        }
        if step.settle || short.is_none() {
            pair.settle(&mut |index, end, now| told.take(index, end, now));
        }
    }
    pair.settle(&mut |index, end, now| told.take(index, end, now));
    (pair, told, shorter)
}

#[test]
fn the_short_way_and_the_long_way_are_the_same() {
    let mut shorter = 0;
    for seed in 0..50 {
        let steps = script(seed);
        let (long, told_long, _) = play(&steps, None);
        let (short, told_short, times) = play(&steps, Some(send_at_once));
        assert_eq!(told_short, told_long, "seed {seed}");
        for (short, long) in [(&short.a, &long.a), (&short.b, &long.b)] {
            assert_eq!(short.qp.attributes(), long.qp.attributes(), "seed {seed}");
            assert_eq!(short.qp.poll_timeout(), long.qp.poll_timeout(), "seed {seed}");
            assert!(short.memory.bytes == long.memory.bytes, "seed {seed}: other bytes");
        }
        shorter += times;
    }
    assert!(shorter > 5000, "only {shorter} went the short way");
}

#[test]
fn what_the_driver_carries_out_completes_in_its_turn() {
    let mut placed = 0;
    for seed in 0..50 {
        let steps = script(seed);
        let (long, told_long, _) = play(&steps, None);
        let either: ShortWay =
            |from, to, now, request| place(from, to, now, request) || send_at_once(from, to, now, request);
        for way in [place, either] {
            let (short, told_short, times) = play(&steps, Some(way));
            assert_eq!(told_short, told_long, "seed {seed}");
            for (short, long) in [(&short.a, &long.a), (&short.b, &long.b)] {
                assert!(short.memory.bytes == long.memory.bytes, "seed {seed}: other bytes");
                let [short, long] = [short, long].map(|end| end.qp.counters().traffic);
                assert!(short.sends == long.sends && short.receives == long.receives, "seed {seed}");
            }
            placed += times;
        }
    }
    assert!(placed > 5000, "only {placed} were carried out");
}

#[test]
fn what_is_held_back_is_carried_out_when_the_others_are_done() {
    let mut held_at_all = 0;
    for seed in 0..50 {
        let mut dice = Dice(seed);
        let mut pair = Pair::new(Mtu::B1024, MEMORY);
        let mut told = Told::default();
        let mut expected = Vec::new();
        for wr_id in 0..200_u64 {
            let length = 1 + dice.throw(1500) as u32;
            let sges = [Sge { address: 8192 + dice.throw(4000), length, key: Key::new(1) }];
            let remote = Remote { address: dice.throw(4096), key: Key::new(1) };
            let operation = match dice.throw(3) {
                0 => Operation::Read { remote },
                _ => Operation::Write { remote, immediate: None },
            };
            let (data, flags) = (Data::Gather(&sges), SendFlags::SIGNALED);
            let request = SendRequest { wr_id, operation, flags, data, target: None, xrc_srq: None };
            expected.push(wr_id);
            let (now, holds) = (pair.now, pair.a.qp.holds_back());
            let is_placed = !holds && dice.throw(2) > 0 && place_held(&mut pair.a, &mut pair.b, now, &request);
            if !is_placed {
                pair.a.qp.post_send(now, &request, &mut pair.a.memory).unwrap();
            }
            held_at_all += usize::from(pair.a.qp.holds_back());
            if dice.throw(3) == 0 {
                pair.settle(&mut |index, end, now| told.take(index, end, now));
                go_on(&mut pair.a, &mut pair.b);
                assert!(!pair.a.qp.holds_back(), "all that was under way has arrived");
                pair.settle(&mut |index, end, now| told.take(index, end, now));
            }
        }
        pair.settle(&mut |index, end, now| told.take(index, end, now));
        go_on(&mut pair.a, &mut pair.b);
        pair.settle(&mut |index, end, now| told.take(index, end, now));
        let completed: Vec<u64> = told.0[0].iter().map(|completion| completion.wr_id).collect();
        assert_eq!(completed, expected, "seed {seed}");
    }
    assert!(held_at_all > 500, "only {held_at_all} were held back");
}
