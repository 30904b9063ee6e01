//! Two processes that answer each other's messages over UDP, until one of them does not. An acknowledgement may wait for
//! the answer; it must not wait for one that never comes.

use stage::answers::{ANSWERED, RECEIVES, SEND, post_receive, receive};
use stage::{End, Other, turn};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::Status;
use wire::Qpn;

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// What the other process does when a message comes that it does not answer.
const ENDINGS: [&str; 3] = ["exit", "destroy", "spin"];

#[test]
fn the_last_message_is_acknowledged_though_nobody_answers_it() {
    let _turn = turn();
    for ending in ENDINGS {
        let end = End::over_udp();
        let mut other = Other::start(Command::new(PEER).args(["answers", ending]));
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        let [qpn] = other.hear("here ")[..] else { panic!("a number") };
        end.connect(Qpn::new(qpn as u32));
        (0..RECEIVES).for_each(|_| post_receive(&end));
        let mut under_way = 0;
        for _ in 0..ANSWERED {
            assert!(end.post(SEND, 8));
            under_way += 1;
            under_way -= receive(&end);
        }
        let begun = Instant::now();
        assert!(end.post(SEND, 8));
        under_way += 1;
        while under_way > 0 {
            end.nic.poll(&end.cq, 16, |completion, _| {
                assert_eq!(completion.status, Status::Success, "{ending}");
                under_way -= 1;
            });
            assert!(begun.elapsed() < Duration::from_secs(20), "{ending}: not acknowledged");
        }
        end.nic.destroy_qp(&end.qp);
        assert!(other.child.wait().unwrap().success());
    }
}
