//! A process that answers messages over UDP until it does not.

use crate::End;
use std::io::BufRead;
use std::time::{Duration, Instant};
use transport::{Operation, Queue, ReceiveRequest, Sge, Status};
use wire::Qpn;

/// Messages that are answered: many more than it takes for an acknowledgement to wait.
pub const ANSWERED: u32 = 300;

/// Receives that are posted before anything is sent.
pub const RECEIVES: u32 = 8;

/// A message.
pub const SEND: Operation = Operation::Send { immediate: None };

/// Makes room for a message.
pub fn post_receive(end: &End) {
    let sges = [Sge { address: end.address(), length: 8, key: end.key }];
    end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 7, sges: &sges }]).unwrap();
}

/// Polls until a message has come, and makes room for another. Answers how many sends have completed meanwhile.
pub fn receive(end: &End) -> u32 {
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

/// The other process: answers so many messages, and not the next one; `ending` is what it does instead.
pub fn peer(ending: &str) {
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
    match ending {
        "exit" => std::process::exit(0),
        "destroy" => drop(end.nic.destroy_qp(&end.qp)),
        _ => {}
    }
    // No call of ours from now on.
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}
