//! Mistakes that a rule of `--check` and one of `--why` find: told once, with both numbers.

use crate::script::{ALL_ACCESS, CQ, Script, Send};
use checks::{Number, Settings};
use trace::{Access, Failure, Queue};
use wire::access::{Range, Refusal, RefusalCause};
use wire::{Deth, Headers, Key, Opcode, Psn, Qkey, Qpn};

const BUFFER: u64 = 0x7f00_0000_1000;
const KEY: u32 = 0x100;

fn connected(settings: Settings) -> Script {
    let mut script = Script::with(settings);
    script.mr(KEY, BUFFER, 4096, ALL_ACCESS).qp(17).connect(17, 18);
    script
}

/// A piece of 64 bytes with this key was refused.
fn refused(key: u32, cause: RefusalCause) -> Failure {
    let range = Range { key: Key::new(key), address: BUFFER, length: 64 };
    Failure::Refused(Refusal { range, access: Access::LOCAL_WRITE, cause })
}

/// A receive with this key is posted, and fails.
fn fails(script: &mut Script, wr_id: u64, key: u32) {
    script.receive(17, wr_id, &[(BUFFER, 64, key)]);
    let failure = refused(key, RefusalCause::UnknownKey);
    script.fails(17, Queue::Receive, wr_id, "IBV_WC_LOC_PROT_ERR", failure);
}

#[test]
fn one_mistake_is_told_once_with_both_numbers() {
    let mut script = connected(Settings::all());
    fails(&mut script, 5, 0);
    script.shows(229, &["[UV-0229, UV-0101]"]);
    assert!(script.of(229)[0].json(None).contains("\"also\":[\"UV-0101\"],"));
    // Again, which is counted.
    fails(&mut script, 6, 0);
    assert_eq!((script.of(229).len(), script.of(101).len()), (1, 0));
}

#[test]
fn another_mistake_of_the_same_kind_is_told() {
    let mut script = connected(Settings::all());
    fails(&mut script, 5, 0);
    // No rule of `--check` knows a key that never was; the name of the work is used again.
    fails(&mut script, 5, 0x777);
    script.shows(101, &["lkey 0x777"]);
    assert_eq!(script.of(101)[0].also, None);
}

#[test]
fn work_that_never_completed_says_nothing_of_work_after_a_reset() {
    let mut script = connected(Settings::all());
    script.receive(17, 5, &[(BUFFER, 64, 0)]);
    script.state(17, "RESET", trace::StateCause::Modify).connect(17, 18);
    fails(&mut script, 5, 0x777);
    script.shows(101, &["lkey 0x777"]);
}

#[test]
fn alone_each_rule_has_its_own_number() {
    let mut script = connected(Settings::why());
    fails(&mut script, 5, 0);
    script.shows(101, &["[UV-0101]"]);
    let mut script = connected(Settings::check());
    fails(&mut script, 5, 0);
    script.shows(229, &["[UV-0229]"]).keeps(101);
    let mut settings = Settings::all();
    settings.off.insert(Number(229));
    let mut script = connected(settings);
    fails(&mut script, 5, 0);
    script.shows(101, &["[UV-0101]"]).keeps(229);
}

#[test]
fn a_dropped_datagram_is_told_once_though_both_ends_are_in_one_process() {
    let dropped = |settings| {
        let mut script = Script::with(settings);
        script.qp_with(20, crate::script::NewPair { kind: "UD", ..Default::default() }).ready_for_datagrams(20, 0x1111);
        for psn in 0..2 {
            let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::new(20), Psn::new(psn));
            headers.deth = Some(Deth { qkey: Qkey::new(0x2222), src_qpn: Qpn::new(21) });
            let reason = trace::DropReason::QkeyMismatch;
            script.happens(Some(20), trace::Kind::PacketDropped { headers: Some(headers), reason });
        }
        script
    };
    let both = dropped(Settings::all());
    both.shows(920, &["[UV-0920, UV-0503]"]).keeps(503);
    assert_eq!(both.of(920).len(), 1);
    dropped(Settings::check())
        .shows(503, &["QP 0x14 dropped a datagram of QP 0x15: it shows Q_Key 0x2222", "has 0x1111"]);
}

#[test]
fn a_read_that_may_not_be_is_told_when_it_is_posted() {
    let mut script = connected(Settings::all());
    script.modify(17, |call| {
        let trace::Call::ModifyQp { max_rd_atomic, .. } = call else { return };
        *max_rd_atomic = Some(0);
    });
    let read =
        Send { opcode: "RDMA_READ", remote: Some((0x1000, 7)), pieces: vec![(BUFFER, 64, KEY)], ..Send::default() };
    script.send(17, read);
    let failure = Failure::Unsuitable { what: "no READs" };
    script.fails(17, Queue::Send, 1, "IBV_WC_LOC_QP_OP_ERR", failure).polls_status(CQ, 1, "IBV_WC_LOC_QP_OP_ERR");
    script.shows(305, &["[UV-0305, UV-0145]"]).keeps(145);
}
