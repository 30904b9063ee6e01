//! Rules of memory: a script that breaks each, and one that keeps it.

mod script;

use script::{ALL_ACCESS, CQ, Script, Send};

const BUFFER: u64 = 0x7f00_0000_1000;
const KEY: u32 = 0x100;

#[test]
fn a_buffer_changed_while_its_send_is_under_way_is_told() {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, ALL_ACCESS).qp(17).connect(17, 18);
    script.send(17, Send { pieces: vec![(BUFFER, 64, KEY)], ..Send::default() });
    script.stores(BUFFER + 8, 1).sent(17, 1).polls(CQ, 1);
    script.shows(201, &["work request 1", "QP 0x11"]);
}

#[test]
fn a_buffer_changed_after_its_completion_is_not_told() {
    let mut script = Script::new();
    script.mr(KEY, BUFFER, 4096, ALL_ACCESS).qp(17).connect(17, 18);
    script.send(17, Send { pieces: vec![(BUFFER, 64, KEY)], ..Send::default() });
    script.sent(17, 1).polls(CQ, 1).stores(BUFFER + 8, 1);
    script.keeps(201);
}
