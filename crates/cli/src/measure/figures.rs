//! The small table at the end of the demo.

use super::{Carrier, Extras, FirstSide, Kind, Measured, Point, Size, WaitMode};
use crate::exit::Failure;
use crate::meeting::Meeting;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

const SMALL_BYTES: usize = 64;
const LARGE_BYTES: usize = 1 << 20;
const MEASURE_TIME: Duration = Duration::from_millis(400);
const MEASURE_ROUNDS: u32 = 3;

/// Latency and bandwidth, of RDMA and of TCP.
pub struct Figures {
    /// Round trips of SEND and TCP, streams of WRITE and TCP.
    rows: [[Measured; 2]; 2],
}

/// Measures it, in about two seconds.
pub fn small_table(meeting: &mut Meeting) -> Result<Figures, Failure> {
    let points = [
        Point::new(Kind::RoundTrip, Carrier::Send, WaitMode::Spin, SMALL_BYTES),
        Point::new(Kind::RoundTrip, Carrier::Tcp, WaitMode::Spin, SMALL_BYTES),
        Point::new(Kind::Stream, Carrier::Write, WaitMode::Spin, LARGE_BYTES),
        Point::new(Kind::Stream, Carrier::Tcp, WaitMode::Sleep, LARGE_BYTES),
    ];
    let measured = FirstSide::new(meeting, LARGE_BYTES, Extras::default())?.measure(
        &points,
        MEASURE_TIME,
        MEASURE_ROUNDS,
        &mut |_| {},
    )?;
    match <[Measured; 4]>::try_from(measured) {
        Ok([send, tcp, write, stream]) => Ok(Figures { rows: [[send, tcp], [write, stream]] }),
        Err(_) => Err(Failure::Nonsense("nothing to be measured".into())),
    }
}

impl Figures {
    pub fn document(&self) -> Value {
        let [[send, tcp], [write, stream]] = &self.rows;
        json!({
            "round_trip": {
                "size": SMALL_BYTES,
                "rdma_send_ns": send.summary.p50,
                "tcp_ns": tcp.summary.p50,
                "ratio": send.ratio(tcp),
            },
            "bandwidth": {
                "size": LARGE_BYTES,
                "rdma_write_bytes_per_second": write.bytes_per_second(),
                "tcp_bytes_per_second": stream.bytes_per_second(),
                "ratio": write.ratio(stream),
            },
        })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [[send, tcp], [write, stream]] = &self.rows;
        let micros = |measured: &Measured| format!("{:.1} us", measured.summary.p50 as f64 / 1e3);
        let giga = |measured: &Measured| format!("{:.2} GB/s", measured.bytes_per_second() / 1e9);
        writeln!(f, "  {:<44} {:>12} {:>12} {:>8}", "", "RDMA", "TCP", "ratio")?;
        let mut row = |what: String, ours: String, theirs: String, ratio: f64| {
            writeln!(f, "  {what:<44} {ours:>12} {theirs:>12} {ratio:>7.2}x")
        };
        let (small, large) = (Size(SMALL_BYTES), Size(LARGE_BYTES));
        row(format!("round trip, {small} SEND (median; less is better)"), micros(send), micros(tcp), send.ratio(tcp))?;
        row(format!("bandwidth, {large} WRITE (more is better)"), giga(write), giga(stream), write.ratio(stream))?;
        writeln!(f, "  Both sides spin, except for TCP's bandwidth, which is better where they block.")?;
        writeln!(f, "  Absolute figures depend on how busy the machine is; ratios do less.")?;
        match super::machine::crowded() {
            Some(why) => writeln!(f, "  Note: {why}"),
            None => Ok(()),
        }
    }
}
