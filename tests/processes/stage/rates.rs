//! Rates: the other process is the target of WRITEs, and may have faults in its environment that mark packets as a
//! congested switch does.

use crate::{End, numbers};
use std::io::BufRead;
use wire::Qpn;

/// A target. It says where it is, and for every line it hears from then on what it has noticed of congestion: packets
/// that were marked, notifications sent, and those believed.
pub fn peer(link: &str) {
    let mut lines = std::io::stdin().lock().lines();
    let mut line = || lines.next().and_then(Result::ok);
    let end = if link == "udp" { End::over_udp() } else { End::new() };
    println!("here {} {} {}", end.qp.qpn().value(), end.address(), end.key.value());
    let Some(qpn) = line().and_then(|line| numbers(&line).first().copied()) else { return };
    end.connect(Qpn::new(qpn as u32));
    println!("connected {qpn}");
    while line().is_some() {
        let counts = end.qp.counters().incidents;
        println!("counts {} {} {}", counts.marked_packets, counts.cnps_sent, counts.cnps_handled);
    }
    end.nic.destroy_qp(&end.qp);
}
