//! Messages as long as they may be. The bytes exist only as a rule, so that gigabytes are sent, compared and never stored. The longest take a while and
//! run when `UBIVERBS_LONG=1` says that there is time.

use scenery::{Pair, Setting};
use sim::{LinkKind, QpSpec, Region, RegionSpec, Work};
use transport::{Access, CompletionKind, State, Status};
use wire::{Mtu, Psn};

const MAX: u32 = 1 << 31;

/// The most a message carries, or a part of it where time is short.
fn longest(part: u32) -> u32 {
    match std::env::var("UBIVERBS_LONG") {
        Ok(value) if value == "1" => MAX,
        _ => MAX / part,
    }
}

/// Two sides with `length` bytes of the same pattern each.
fn stage(mtu: Mtu, length: u32) -> (Pair, Region, Region) {
    let mut setting = Setting::on(LinkKind::Whole).mtu(mtu);
    setting.options.psn = Some((Psn::new(0xff_fff0), Psn::new(5)));
    let mut pair = Pair::new(&setting, QpSpec::rc(), QpSpec::rc(), 4096);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let spec = RegionSpec::new(QpSpec::PD, access);
    let near = pair.sim.register_pattern(pair.alice, length.into(), 7, &spec);
    let far = pair.sim.register_pattern(pair.bob, length.into(), 7, &spec);
    (pair, near, far)
}

/// Runs one long message, and a short one after it that shows that both sides still agree about the numbers.
#[track_caller]
fn carries(mtu: Mtu, length: u32, work: impl Fn(&Region, &Region) -> Work, kind: CompletionKind) {
    let (mut pair, near, far) = stage(mtu, length);
    if kind == CompletionKind::Send {
        pair.sim.receive(pair.b, 4, &[far.sge(0, length)]).unwrap();
    }
    let end = pair.succeed(&work(&near, &far).id(3));
    assert_eq!((end.wr_id, end.kind, end.bytes), (3, kind, length));
    let target = if kind == CompletionKind::Read { near } else { far };
    assert_eq!(pair.sim.pattern_written(&target), (u64::from(length), 0), "every byte, once, and none of them wrong");
    if kind == CompletionKind::Send {
        let got = pair.received();
        assert_eq!((got.wr_id, got.status, got.bytes), (4, Status::Success, length));
    }
    let packets = length.div_ceil(mtu.bytes());
    let (a, b) = (pair.sim.attributes(pair.a), pair.sim.attributes(pair.b));
    assert_eq!((a.sq_psn, b.rq_psn), (Psn::new(0xff_fff0).add(packets), Psn::new(0xff_fff0).add(packets)));
    pair.succeed(&Work::write(pair.far.remote(0)).sge(pair.near.sge(0, 100)));
    assert_eq!(pair.far_bytes(0, 100), pair.near_bytes(0, 100));
    assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::ReadyToSend));
}

#[test]
fn a_write_may_be_two_gibibytes_long() {
    let length = longest(16);
    carries(Mtu::B4096, length, |near, far| Work::write(far.remote(0)).sge(near.sge(0, length)), CompletionKind::Write);
}

#[test]
fn a_read_may_be_two_gibibytes_long() {
    let length = longest(16);
    carries(Mtu::B4096, length, |near, far| Work::read(far.remote(0)).sge(near.sge(0, length)), CompletionKind::Read);
}

#[test]
fn a_send_may_be_two_gibibytes_long() {
    let length = longest(64);
    carries(Mtu::B4096, length, |near, _| Work::send().sge(near.sge(0, length)), CompletionKind::Send);
}

/// The smallest packets make half as many of them as there are sequence numbers: the end of the message is as far from its beginning as can be.
#[test]
fn half_of_all_sequence_numbers_fit_into_one_message() {
    let length = longest(64);
    carries(Mtu::B256, length, |near, far| Work::write(far.remote(0)).sge(near.sge(0, length)), CompletionKind::Write);
    carries(Mtu::B256, length, |near, far| Work::read(far.remote(0)).sge(near.sge(0, length)), CompletionKind::Read);
}
