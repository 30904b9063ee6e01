//! Programs of others: perftest and rstream, which run on our NIC, and what measures the alternatives: qperf, sockperf and rstream over TCP, UCX
//! through shared memory. They take turns in rounds, together with our own measurement of TCP, which all are compared with.

use std::collections::BTreeMap;
use std::env;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Ratio, Ratios};

/// How long one measurement may take.
const MEASUREMENT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a server may take until it listens.
const STARTING: Duration = Duration::from_secs(10);

/// Where the first server listens; each has a port of its own.
const PORT: u16 = 18_700;

/// What a program's figure is: half a round trip in nanoseconds, bytes per second, or messages per second.
type Reader = fn(&str) -> Option<f64>;

/// A program that measures with a server and a client.
struct Program {
    /// What its figure is called.
    name: &'static str,
    command: &'static str,
    /// What both sides are told.
    both: &'static [&'static str],
    /// What the client is told besides where its server is.
    client: &'static [&'static str],
    style: Style,
    read: Reader,
}

/// How it is told what to do.
#[derive(Clone, Copy, PartialEq)]
enum Style {
    /// On our NIC.
    Perftest,
    Ucx,
    Qperf,
    Sockperf,
    /// Over rsockets, on our NIC.
    Rstream,
    /// `rstream` over TCP.
    RstreamTcp,
}

const fn perftest(name: &'static str, command: &'static str, both: &'static [&'static str], read: Reader) -> Program {
    Program { name, command, both, client: &[], style: Style::Perftest, read }
}

const fn ucx(name: &'static str, client: &'static [&'static str], read: Reader) -> Program {
    Program { name, command: "ucx_perftest", both: &[], client, style: Style::Ucx, read }
}

const fn rstream(name: &'static str, style: Style, both: &'static [&'static str], read: Reader) -> Program {
    Program { name, command: "rstream", both, client: &[], style, read }
}

/// One message of 64 bytes each way, so often.
const RSTREAM_LATENCY: &[&str] = &["-S", "64", "-C", "1", "-I", "20000"];
/// A hundred messages of 1 MiB each way, so often.
const RSTREAM_BANDWIDTH: &[&str] = &["-S", "1048576", "-C", "100", "-I", "10"];

const PROGRAMS: &[Program] = &[
    perftest("ib_send_lat", "ib_send_lat", &["-s", "64", "-n", "20000"], perftest_latency),
    perftest("ib_write_lat", "ib_write_lat", &["-s", "64", "-n", "5000"], perftest_latency),
    perftest("ib_read_lat", "ib_read_lat", &["-s", "64", "-n", "5000"], perftest_latency),
    perftest("ib_send_rate", "ib_send_bw", &["-s", "64", "-n", "500000"], perftest_rate),
    perftest("ib_write_rate", "ib_write_bw", &["-s", "8", "-n", "500000"], perftest_rate),
    perftest("ib_write_list_rate", "ib_write_bw", &["-s", "8", "-n", "500000", "-l", "32"], perftest_rate),
    perftest("ib_write_bw", "ib_write_bw", &["-s", "1048576", "-n", "2000"], perftest_bandwidth),
    perftest("ib_read_bw", "ib_read_bw", &["-s", "1048576", "-n", "2000"], perftest_bandwidth),
    perftest("ib_send_bw", "ib_send_bw", &["-s", "65536", "-n", "10000"], perftest_bandwidth),
    ucx("ucx_latency", &["-t", "tag_lat", "-s", "64", "-n", "100000", "-w", "1000", "-f"], ucx_latency),
    ucx("ucx_bandwidth", &["-t", "tag_bw", "-s", "1048576", "-n", "2000", "-w", "50", "-f"], ucx_bandwidth),
    ucx("ucx_put_latency", &["-t", "ucp_put_lat", "-s", "64", "-n", "100000", "-w", "1000", "-f"], ucx_latency),
    ucx("ucx_get_latency", &["-t", "ucp_get", "-s", "64", "-n", "100000", "-w", "1000", "-f", "-O", "1"], ucx_latency),
    ucx("ucx_put_rate", &["-t", "ucp_put_bw", "-s", "8", "-n", "1000000", "-w", "1000", "-f"], ucx_rate),
    ucx("ucx_put_bandwidth", &["-t", "ucp_put_bw", "-s", "1048576", "-n", "2000", "-w", "50", "-f"], ucx_bandwidth),
    Program {
        name: "qperf_latency",
        command: "qperf",
        both: &[],
        client: &["-t", "1", "-m", "64", "tcp_lat"],
        style: Style::Qperf,
        read: qperf,
    },
    Program {
        name: "qperf_bandwidth",
        command: "qperf",
        both: &[],
        client: &["-t", "1", "-m", "1M", "tcp_bw"],
        style: Style::Qperf,
        read: qperf,
    },
    Program {
        name: "sockperf_latency",
        command: "sockperf",
        both: &["--tcp"],
        client: &["-m", "64", "-t", "1"],
        style: Style::Sockperf,
        read: sockperf,
    },
    rstream("rstream_latency", Style::Rstream, RSTREAM_LATENCY, rstream_latency),
    rstream("rstream_tcp_latency", Style::RstreamTcp, RSTREAM_LATENCY, rstream_latency),
    rstream("rstream_bandwidth", Style::Rstream, RSTREAM_BANDWIDTH, rstream_bandwidth),
    rstream("rstream_tcp_bandwidth", Style::RstreamTcp, RSTREAM_BANDWIDTH, rstream_bandwidth),
];

/// The ratios to make: a name, what is divided by what. Figures of `ubiverbs bench` begin with `tcp_`.
const RATIOS: &[(&str, &str, &str)] = &[
    ("perftest_send_latency", "ib_send_lat", "tcp_spinning"),
    ("perftest_write_latency", "ib_write_lat", "tcp_spinning"),
    ("perftest_write_bandwidth", "ib_write_bw", "tcp_1M"),
    ("perftest_read_bandwidth", "ib_read_bw", "tcp_1M"),
    ("perftest_send_bandwidth", "ib_send_bw", "tcp_64K"),
    ("perftest_send_latency_sockperf", "ib_send_lat", "sockperf_latency"),
    ("perftest_send_latency_qperf", "ib_send_lat", "qperf_latency"),
    ("perftest_write_bandwidth_qperf", "ib_write_bw", "qperf_bandwidth"),
    ("perftest_send_latency_ucx", "ib_send_lat", "ucx_latency"),
    ("perftest_write_bandwidth_ucx", "ib_write_bw", "ucx_bandwidth"),
    ("perftest_write_latency_ucx", "ib_write_lat", "ucx_put_latency"),
    ("perftest_read_latency_ucx", "ib_read_lat", "ucx_get_latency"),
    ("perftest_write_rate_ucx", "ib_write_rate", "ucx_put_rate"),
    ("perftest_write_list_rate_ucx", "ib_write_list_rate", "ucx_put_rate"),
    ("perftest_send_rate_ucx", "ib_send_rate", "ucx_put_rate"),
    ("perftest_write_bandwidth_ucx_put", "ib_write_bw", "ucx_put_bandwidth"),
    ("perftest_read_latency", "ib_read_lat", "tcp_spinning"),
    ("ucx_latency", "ucx_latency", "tcp_spinning"),
    ("ucx_bandwidth", "ucx_bandwidth", "tcp_1M"),
    ("rsocket_latency", "rstream_latency", "rstream_tcp_latency"),
    ("rsocket_bandwidth", "rstream_bandwidth", "rstream_tcp_bandwidth"),
];

/// Runs them in so many rounds. Answers ratios, and what is missing.
pub fn run(ubiverbs: &Path, rounds: u32) -> Result<(Ratios, Vec<String>), String> {
    let (there, missing): (Vec<&Program>, Vec<&Program>) =
        PROGRAMS.iter().partition(|program| is_installed(program.command));
    let mut missing: Vec<String> =
        missing.iter().map(|program| format!("{} is not installed", program.command)).collect();
    missing.dedup();
    let mut figures: BTreeMap<String, Vec<Option<f64>>> = BTreeMap::new();
    let mut port = PORT;
    for round in 1..=rounds {
        for (name, figure) in tcp(ubiverbs)? {
            figures.entry(name.into()).or_default().push(Some(figure));
        }
        for program in &there {
            println!("round {round} of {rounds}: {}", program.name);
            port += 1;
            let measured = program.measure(ubiverbs, port);
            let measured = measured.map_err(|why| missing.push(format!("{}, round {round}: {why}", program.name))).ok();
            figures.entry(program.name.into()).or_default().push(measured);
        }
    }
    Ok((ratios(&figures), missing))
}

fn ratios(figures: &BTreeMap<String, Vec<Option<f64>>>) -> Ratios {
    let mut all = Ratios::new();
    for &(name, ours, theirs) in RATIOS {
        let (Some(over), Some(under)) = (figures.get(ours), figures.get(theirs)) else { continue };
        let pairs = over.iter().zip(under).filter_map(|(over, under)| over.zip(*under));
        let mut ratios: Vec<f64> = pairs.filter(|(_, under)| *under > 0.0).map(|(over, under)| over / under).collect();
        ratios.sort_by(f64::total_cmp);
        if let (Some(ratio), Some(least), Some(most)) = (ratios.get(ratios.len() / 2), ratios.first(), ratios.last()) {
            let spread = Some([*least, *most]);
            all.insert(name.into(), Ratio { what: format!("{ours} / {theirs}"), ratio: *ratio, spread });
        }
    }
    all
}

/// What the others are compared with.
fn tcp(ubiverbs: &Path) -> Result<Vec<(&'static str, f64)>, String> {
    let mut command = Command::new(ubiverbs);
    command.args(["bench", "--only", "tcp", "--sizes", "64,64K,1M", "--time", "0.3", "--rounds", "3", "--json", "-"]);
    let text = crate::process::output(&mut command)?;
    let document: Value = serde_json::from_str(&text).map_err(|e| format!("ubiverbs bench: {e}"))?;
    let rows = document["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let find = |measured: &str, waiting: &str, size: u64| {
        let wanted = |row: &&Value| row["measured"] == measured && row["waiting"] == waiting && row["size"] == size;
        rows.iter().find(wanted)
    };
    let trip = |waiting| Some(find("round_trip", waiting, 64)?["round_trip_ns"]["p50"].as_f64()? / 2.0);
    let stream = |size| find("stream", "sleep", size)?["bytes_per_second"].as_f64();
    let figures = [
        ("tcp_spinning", trip("spin")),
        ("tcp_blocking", trip("sleep")),
        ("tcp_64K", stream(64 << 10)),
        ("tcp_1M", stream(1 << 20)),
    ];
    Ok(figures.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect())
}

fn is_installed(command: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(command).is_file())
}

impl Program {
    fn measure(&self, ubiverbs: &Path, port: u16) -> Result<f64, String> {
        let mut server = Running::start(&mut self.command(ubiverbs, port, false))?;
        let deadline = Instant::now() + STARTING;
        loop {
            // Programs say nothing that one could wait for when they listen.
            thread::sleep(Duration::from_millis(300));
            let said = Running::start(&mut self.command(ubiverbs, port, true))?.finish();
            match said {
                Ok(text) => return (self.read)(&text).ok_or_else(|| "no figure in what it said".into()),
                Err(why) if Instant::now() > deadline || server.has_ended() => return Err(why),
                Err(_) => {}
            }
        }
    }

    fn command(&self, ubiverbs: &Path, port: u16, client: bool) -> Command {
        let mut command = match self.style {
            Style::Perftest => {
                let mut command = Command::new(ubiverbs);
                command.args(["run", "--", self.command, "-d", "ubi_lo", "-F"]);
                command
            }
            Style::Rstream => {
                let mut command = Command::new(ubiverbs);
                command.args(["run", "--", self.command]);
                command
            }
            _ => Command::new(self.command),
        };
        let place = port.to_string();
        match self.style {
            Style::Perftest | Style::Ucx | Style::Rstream => command.args(["-p", &place]),
            Style::RstreamTcp => command.args(["-T", "s", "-p", &place]),
            Style::Qperf => command.args(["-lp", &place]),
            Style::Sockperf if client => command.args(["ping-pong", "-i", "127.0.0.1", "-p", &place]),
            Style::Sockperf => command.args(["server", "-i", "127.0.0.1", "-p", &place]),
        };
        if self.style == Style::Ucx {
            command.env("UCX_TLS", "posix,cma,self");
        }
        command.args(self.both);
        if client {
            match self.style {
                Style::Sockperf => {}
                Style::Rstream | Style::RstreamTcp => {
                    command.args(["-s", "127.0.0.1"]);
                }
                _ => {
                    command.arg("127.0.0.1");
                }
            }
            command.args(self.client);
        }
        command
    }
}

/// A program that is ended when nobody needs it any more.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Result<Running, String> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().map(Running).map_err(|e| format!("did not start: {e}"))
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }

    /// What it said, if it ended well. None of them says more than a pipe holds.
    fn finish(mut self) -> Result<String, String> {
        let deadline = Instant::now() + MEASUREMENT_TIMEOUT;
        while !self.has_ended() {
            if Instant::now() > deadline {
                return Err(format!("it did not end within {} s", MEASUREMENT_TIMEOUT.as_secs()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        let status = self.0.wait().map_err(|e| e.to_string())?;
        let mut text = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut text).map_err(|e| e.to_string())?;
        }
        if status.success() { Ok(text) } else { Err(format!("it failed: {status}")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The last line of nothing but numbers, of which there are at least so many.
fn numbers(text: &str, least: usize) -> Option<Vec<f64>> {
    let line = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>();
    text.lines().rev().filter_map(line).find(|numbers| numbers.len() >= least)
}

/// Columns: bytes, iterations, least, most, typical microseconds, and more.
fn perftest_latency(text: &str) -> Option<f64> {
    numbers(text, 7)?.get(4).map(|micros| micros * 1e3)
}

/// Columns: bytes, iterations, peak and average MiB per second, million messages per second.
fn perftest_bandwidth(text: &str) -> Option<f64> {
    numbers(text, 5)?.get(3).map(|mib| mib * f64::from(1 << 20))
}

fn perftest_rate(text: &str) -> Option<f64> {
    numbers(text, 5)?.get(4).map(|million| million * 1e6)
}

/// Columns: iterations, latency (median, average, overall), bandwidth (average, overall), messages (average, overall).
fn ucx_latency(text: &str) -> Option<f64> {
    numbers(&text.replace("Final:", ""), 8)?.get(1).map(|micros| micros * 1e3)
}

fn ucx_bandwidth(text: &str) -> Option<f64> {
    numbers(&text.replace("Final:", ""), 8)?.get(5).map(|mib| mib * f64::from(1 << 20))
}

fn ucx_rate(text: &str) -> Option<f64> {
    numbers(&text.replace("Final:", ""), 8)?.get(7).copied()
}

/// Lines such as `latency = 9.5 us` and `bw = 3.2 GB/sec`.
fn qperf(text: &str) -> Option<f64> {
    let value = text.lines().find_map(|line| line.split_once('=')).map(|(_, value)| value.trim())?;
    let (number, unit) = value.split_once(' ')?;
    let scale = match unit.trim() {
        "ns" | "bytes/sec" => 1.0,
        "us" | "KB/sec" => 1e3,
        "ms" | "MB/sec" => 1e6,
        "sec" | "GB/sec" => 1e9,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

/// `---> percentile 50.000 = 7.123`, microseconds of half a round trip.
fn sockperf(text: &str) -> Option<f64> {
    let (_, rest) = text.split_once("percentile 50.000 =")?;
    Some(rest.split_whitespace().next()?.parse::<f64>().ok()? * 1e3)
}

/// Columns: name, bytes, messages, rounds, total, seconds, gigabits per second, microseconds per message.
fn rstream_micros(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.starts_with("custom"))?;
    line.split_whitespace().nth(7)?.parse().ok()
}

fn rstream_latency(text: &str) -> Option<f64> {
    rstream_micros(text).map(|micros| micros * 1e3)
}

fn rstream_bandwidth(text: &str) -> Option<f64> {
    rstream_micros(text).map(|micros| f64::from(1 << 20) / (micros / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_programs_say() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n 64      1000          0.61           9.04         0.66                0.70             0.21            1.02                    9.04   \n---\n";
        assert_eq!(perftest_latency(latency), Some(660.0));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 1048576    1000             9000.00            8000.00                   0.008000\n";
        assert_eq!(perftest_bandwidth(bandwidth), Some(8000.0 * 1_048_576.0));
        assert_eq!(perftest_rate(bandwidth), Some(8000.0));
        let ucx = "|    Stage     | # iterations | 50.0%ile | average |\n[thread 0]  17291  0.570 10822.032 148.180 0.01 0.41 92 6749\nFinal:      20000      0.552    60.821   136.347        1.00       0.45       16442        7334\n";
        assert_eq!(ucx_latency(ucx), Some(552.0));
        assert_eq!(ucx_bandwidth(ucx), Some(0.45 * 1_048_576.0));
        assert_eq!(ucx_rate(ucx), Some(7334.0));
        assert_eq!(qperf("tcp_lat:\n    latency  =  9.5 us\n"), Some(9500.0));
        assert_eq!(qperf("tcp_bw:\n    bw  =  3.25 GB/sec\n"), Some(3.25e9));
        assert_eq!(sockperf("sockperf: ---> percentile 50.000 =    7.123\n").map(f64::round), Some(7123.0));
        let rstream = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\ncustom    64      1       20k     2.4m        0.36s      0.06       9.08\n";
        assert_eq!(rstream_latency(rstream).map(f64::round), Some(9080.0));
        assert_eq!(rstream_bandwidth("custom 1m 100 10 1.9g 0.2s 80 100.00\n").map(f64::round), Some(10_485_760_000.0));
        for read in PROGRAMS.iter().map(|program| program.read) {
            assert_eq!(read("connection refused\n"), None);
        }
    }

    #[test]
    fn ratios_are_made_round_by_round_and_lost_rounds_left_out() {
        let figures = BTreeMap::from([
            ("ib_send_lat".to_string(), vec![Some(2.0), None, Some(9.0), Some(3.0)]),
            ("tcp_spinning".to_string(), vec![Some(10.0), Some(10.0), Some(10.0), Some(10.0)]),
        ]);
        let ratios = ratios(&figures);
        assert_eq!(ratios.keys().collect::<Vec<_>>(), ["perftest_send_latency"]);
        let ratio = &ratios["perftest_send_latency"];
        assert_eq!((ratio.ratio, ratio.spread), (0.3, Some([0.2, 0.9])));
    }

    #[test]
    fn every_ratio_is_of_something_that_is_measured() {
        let own = ["tcp_spinning", "tcp_blocking", "tcp_64K", "tcp_1M"];
        let known = |name: &str| own.contains(&name) || PROGRAMS.iter().any(|program| program.name == name);
        assert!(RATIOS.iter().all(|(_, over, under)| known(over) && known(under)));
    }
}
