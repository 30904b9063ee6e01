//! A process that is written to while it does something else.

use crate::End;
use std::io::BufRead;
use std::time::{Duration, Instant};
use transport::{ReceiveRequest, Sge};
use wire::Qpn;

/// A process that has polled for so long drives; its engine leaves that to it.
const DRIVES_AFTER: Duration = Duration::from_millis(50);

/// The other process: registers memory, says where, and then its only thread does what `occupation` says.
pub fn peer(occupation: &str) {
    let end = End::new();
    let stdin = std::io::stdin();
    let mut lines = stdin.lock().lines();
    let peer: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    end.connect(Qpn::new(peer));
    let sges = [Sge { address: end.address(), length: 8, key: end.key }];
    end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 7, sges: &sges }]).unwrap();
    println!("here {} {} {}", end.qp.qpn().value(), end.address(), end.key.value());
    if occupation == "leave" {
        // Polls for so long that its engine leaves the driving to it, says so, and ends without a word when it has what it
        // waits for: no call after the one that told it.
        let driving = Instant::now() + DRIVES_AFTER;
        while Instant::now() < driving {
            assert_eq!(end.nic.poll(&end.cq, 1, |_, _| {}), 0, "the test sends when it hears that this process drives");
        }
        println!("drives");
        let mut came = false;
        while !came {
            end.nic.poll(&end.cq, 1, |_, _| came = true);
        }
        std::process::exit(0);
    }
    if occupation == "late" {
        // Polls all the time, and is not ready for a second message for a while.
        let (mut came, mut ready) = (0, None);
        while came < 2 {
            end.nic.poll(&end.cq, 1, |_, _| came += 1);
            if came == 1 && ready.is_none() {
                ready = Some(Instant::now() + Duration::from_millis(50));
            }
            if ready.is_some_and(|ready| ready <= Instant::now()) {
                end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 8, sges: &sges }]).unwrap();
                ready = Some(Instant::now() + Duration::from_secs(3600));
            }
        }
        std::process::exit(0);
    }
    let last = end.memory.len() - 1;
    let mut sum = 0u64;
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        match occupation {
            // It waits for nothing: a program that sleeps is what the test is about.
            "sleep" => std::thread::sleep(Duration::from_millis(50)),
            "spin" => std::hint::spin_loop(),
            _ => {
                for n in 0..1_000_000u64 {
                    sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
                }
            }
        }
        // SAFETY: a read of our own live memory, which a peer may change at any time: so volatile.
        let flag = unsafe { std::ptr::read_volatile(&raw const end.memory[last]) };
        if flag == u64::MAX || Instant::now() > until {
            break;
        }
    }
    println!("seen {}", end.memory[0]);
}
