//! Two processes that answer each other's messages over UDP, until one of them does not. An acknowledgement may wait for the answer; it must not wait for
//! one that never comes. The second process is this program started again.

mod stage;

use stage::{End, Other, turn};
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};
use transport::{Operation, Queue, ReceiveRequest, Sge, Status};
use wire::Qpn;

/// Messages that are answered: many more than it takes for an acknowledgement to wait.
const ANSWERED: u32 = 300;

const SEND: Operation = Operation::Send { immediate: None };

/// What the second process does when a message comes that it does not answer.
const ENDINGS: [&str; 3] = ["exit", "destroy", "spin"];

/// Receives that are posted before anything is sent.
const RECEIVES: u32 = 8;

fn post_receive(end: &End) {
    let sges = [Sge { address: end.address(), length: 8, key: end.key }];
    end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 7, sges: &sges }]).unwrap();
}

/// Polls until a message has come, and makes room for another. Answers how many sends have completed meanwhile.
fn receive(end: &End) -> u32 {
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut came, mut sent) = (false, 0);
    while !came {
        end.nic.poll(&end.cq, 16, |completion, _| {
            assert_eq!(completion.status, Status::Success);
            match completion.queue {
                Queue::Send => sent += 1,
                _ => came = true,
            }
        });
        assert!(Instant::now() < deadline, "no message in twenty seconds");
    }
    post_receive(end);
    sent
}

/// The second process. Not a test of its own: without its environment variable it has nothing to do.
#[test]
fn the_other_process() {
    let Ok(ending) = std::env::var("UBIVERBS_TEST_OCCUPATION") else { return };
    let end = End::over_udp();
    let peer: u32 = std::io::stdin().lock().lines().next().unwrap().unwrap().parse().unwrap();
    end.connect(Qpn::new(peer));
    (0..RECEIVES).for_each(|_| post_receive(&end));
    println!("here {}", end.qp.qpn().value());
    for _ in 0..ANSWERED {
        receive(&end);
        assert!(end.post(SEND, 8));
    }
    receive(&end);
    let until = Instant::now() + Duration::from_secs(2);
    match ending.as_str() {
        "exit" => std::process::exit(0),
        "destroy" => drop(end.nic.destroy_qp(&end.qp)),
        _ => {}
    }
    // No call of ours from now on.
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

#[test]
fn the_last_message_is_acknowledged_though_nobody_answers_it() {
    let _turn = turn();
    for ending in ENDINGS {
        let end = End::over_udp();
        let mut other = Other::start(ending);
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
