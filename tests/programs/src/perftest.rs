//! perftest's eight programs for SEND, WRITE, READ and atomics: over every kind of service they know, in all sizes, with several queue pairs, both ways, with
//! events, inline data and shared receive queues, on one host and between two, and where packets get lost.

use crate::Test;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, Pair, Where};

/// A program: the arguments it knows in place of others.
struct Tool {
    program: &'static str,
    /// Kinds of service besides RC.
    services: &'static [&'static str],
    /// Sizes other than the one of an atomic.
    sizes: bool,
    /// Both ways, and several queue pairs: what measures bandwidth.
    bandwidth: bool,
    events: bool,
    inline: bool,
    shared: bool,
}

const fn tool(program: &'static str, services: &'static [&'static str]) -> Tool {
    Tool { program, services, sizes: true, bandwidth: false, events: true, inline: false, shared: false }
}

const TOOLS: [Tool; 8] = [
    Tool { inline: true, shared: true, ..tool("ib_send_lat", &["UC", "UD", "XRC"]) },
    Tool { inline: true, shared: true, bandwidth: true, ..tool("ib_send_bw", &["UC", "UD", "XRC"]) },
    // The programs refuse events for WRITE: its target has none.
    Tool { inline: true, events: false, ..tool("ib_write_lat", &["UC", "XRC"]) },
    Tool { inline: true, events: false, bandwidth: true, ..tool("ib_write_bw", &["UC", "XRC"]) },
    tool("ib_read_lat", &["XRC"]),
    Tool { bandwidth: true, ..tool("ib_read_bw", &["XRC"]) },
    Tool { sizes: false, ..tool("ib_atomic_lat", &["XRC"]) },
    Tool { sizes: false, bandwidth: true, ..tool("ib_atomic_bw", &["XRC"]) },
];

/// The largest size of `-a`, and the number of its sizes.
const SIZES: std::ops::RangeInclusive<u32> = 1..=23;

/// How long a queue pair waits for an acknowledgement before it sends again, as `-u` wants it: 4.096 us times two to
/// this. After eight times it gives up. Usually it is 14, half a second in all, which is little on a busy machine. Where
/// packets are lost it waits now and then, and not as long.
const ACK_TIMEOUT_EXPONENT: u32 = 18;
const PATIENCE_WITH_FAULTS: u32 = 16;

const ROW: Row = Row {
    program: "`ib_{send,write,read}_{lat,bw}`, `ib_atomic_{lat,bw}`",
    version: Version::Package("perftest"),
    what: "RC, UC, UD, XRC where the program has them; all sizes, 4 queue pairs, both ways, events, inline, shared \
        receive queue; loopback and two hosts; multicast; 1 % of packets lost",
};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for tool in &TOOLS {
        let Tool { program, services, sizes, bandwidth, events, inline, shared } = tool;
        let mut lines = vec!["-n 50".to_owned()];
        // What UC and UD lose stays lost, and the receiver waits for it for ever: all of it must fit the smallest buffer.
        let small = |service| if service == "XRC" { "" } else { " -s 1024" };
        lines.extend(services.iter().map(|service| format!("-n 50 -c {service}{}", small(*service))));
        let mut add = |condition: bool, more: &[&str]| {
            lines.extend(more.iter().filter(|_| condition).map(|line| (*line).to_owned()));
        };
        // Where both sides spin on two busy cores, all sizes take a minute; asleep they take half of that.
        add(*sizes, &[if *events && !bandwidth { "-n 5 -a -e" } else { "-n 5 -a" }]);
        add(*bandwidth, &["-n 50 -q 4", "-n 50 -b", "-n 50 -b -q 4"]);
        add(*events, &["-n 50 -e"]);
        add(*inline, &["-n 50 -I 64 -s 64"]);
        add(*shared, &["-n 50 -r 64 --use-srq"]);
        let fetch = program.contains("atomic");
        add(fetch, &["-n 50 -A FETCH_AND_ADD"]);
        // All sizes take long, because the programs calibrate a clock anew for each: bandwidth is measured with them on one host, latency
        // between two.
        let sized = |line: &&String, at| !line.contains("-a") || *bandwidth == (at == Where::OneHost);
        for line in lines.iter().filter(|line| sized(line, Where::OneHost)) {
            tests.push(test(Where::OneHost, program, line, None));
        }
        // The same host by its other link: one line for each kind of service, and many at once.
        let lines_over_udp =
            lines.iter().filter(|line| *line == "-n 50" || line.contains("-c ") || line.contains("-b -q"));
        for line in lines_over_udp {
            tests.push(test_over(Link::Udp, Where::OneHost, program, line, None));
        }
        // Processes of one user share memory, and lose nothing: here UC need not go slowly.
        if *bandwidth && services.contains(&"UC") {
            for line in ["-n 2000 -c UC", "-n 1000 -c UC -b"] {
                tests.push(test(Where::OneHost, program, line, None));
            }
        }
        // Nor UD, one way: its receiver always has receives posted.
        if *bandwidth && services.contains(&"UD") {
            tests.push(test(Where::OneHost, program, "-n 5000 -c UD -s 2048", None));
        }
        // Between hosts what differs is the way; not everything again.
        let lines = lines.iter().filter(|line| sized(line, Where::TwoHosts));
        for line in lines.filter(|line| !line.contains("-I") && !line.contains("-q 4") || line.contains("-b -q")) {
            tests.push(test(Where::TwoHosts, program, line, None));
        }
        for line in ["-n 50 -s 8192", "-n 50 -b -q 4"].into_iter().filter(|line| *bandwidth || !line.contains("-b")) {
            let line = if *sizes { line.to_owned() } else { line.replace(" -s 8192", "") };
            tests.push(test(Where::TwoHosts, program, &line, Some("drop=1%")));
        }
        tests.push(test_over(Link::Udp, Where::OneHost, program, "-n 50 -c XRC", Some("drop=1%,seed=5")));
    }
    // To a group: ff15::9, and 239.77.0.9 from the second address. The group they choose themselves, ff01::, is one that Linux keeps on the host.
    for program in ["ib_send_lat", "ib_send_bw"] {
        for group in ["255:21:0:0:0:0:0:0:0:0:0:0:0:0:0:9", "0:0:0:0:0:0:0:0:0:0:255:255:239:77:0:9 -x 1"] {
            tests.push(test(Where::TwoHosts, program, &format!("-n 50 -c UD -s 1024 -g -M {group}"), None));
        }
    }
    all_of(&ROW, tests)
}

fn test(at: Where, program: &'static str, arguments: &str, faults: Option<&'static str>) -> Test {
    test_over(Link::SharedMemory, at, program, arguments, faults)
}

/// Over a link, if there are two to choose from.
fn test_over(link: Link, at: Where, program: &'static str, arguments: &str, faults: Option<&'static str>) -> Test {
    let (hosts, device) = if at == Where::OneHost { ("one host", "ubi_lo") } else { ("two hosts", "ubi_veth0") };
    let lossy = faults.map(|plan| format!(", {plan}")).unwrap_or_default();
    let over = if link == Link::Udp { ", UDP" } else { "" };
    let name = format!("{program} {arguments}, {hosts}{over}{lossy}");
    let all = arguments.contains("-a");
    let patience = if faults.is_some() { PATIENCE_WITH_FAULTS } else { ACK_TIMEOUT_EXPONENT };
    let line = format!("{program} -d {device} -x 0 -F -u {patience} {arguments}");
    let play = move |stage: &crate::stage::Stage| {
        let mut options = faults.map(|plan| vec!["--faults".to_owned(), plan.to_owned()]).unwrap_or_default();
        if link == Link::Udp {
            options.extend(link.options());
        }
        let text = stage.pair(&Pair { at, user: None, options, line: line.clone(), server: "", clients: 1 })?;
        let results = results(&text);
        match all {
            true if results == SIZES.map(|power| 1 << power).collect::<Vec<_>>() => Ok(()),
            false if results.len() == 1 => Ok(()),
            _ => Err(format!("results for {results:?}:\n{text}")),
        }
    };
    let test = Test::new(name, play).takes_seconds(if all { 20 } else { 0 });
    if at == Where::TwoHosts { test.for_root() } else { test }
}

/// The sizes there are results for: lines under the heading, of nothing but numbers. On a busy machine a complaint about
/// the clock may follow a number without a space.
fn results(text: &str) -> Vec<u64> {
    let text = text.replace("Correlation coefficient", "\nCorrelation coefficient");
    let rest = text.lines().skip_while(|line| !line.trim_start().starts_with("#bytes")).skip(1);
    let numbers = |line: &str| {
        let words: Option<Vec<f64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        words.filter(|words| words.len() >= 4)
    };
    rest.filter_map(numbers).filter_map(|words| words.first().map(|size| *size as u64)).collect()
}
