//! `ubiverbs bench`: latency, bandwidth and message rate of every RDMA operation between two processes, beside TCP,
//! Unix sockets, the limits of the machine and a second pair of processes over UDP, all in the same run; and how that
//! compares with the goals. Absolute numbers of a shared machine are noise; the ratios of one run are what to read.

mod document;
mod goals;
mod page;
mod plot;
mod questions;
mod table;

use crate::exit::{Exit, Failure};
use crate::measure::machine::Machine;
use crate::measure::{
    Carrier, Extras, FirstSide, Kind, LARGEST_MESSAGE, MANY_QUEUE_PAIRS_BYTES, Measured, Point, QUEUE_PAIR_COUNTS,
    Size, THREADS_SIZE, WaitMode, thread_counts,
};
use crate::meeting::{Ends, Link, Meeting};
use clap::{Args, ValueEnum};
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Measure latency, bandwidth and message rate, compared with TCP and Unix sockets
///
/// Two processes exchange messages by SEND, WRITE, READ and atomics, by TCP and by a Unix socket, and by as little as
/// possible: a ring in shared memory, process_vm_writev, memcpy. Two more processes do the same over UDP. All
/// alternate in short runs, so that other load of the machine affects all of them alike.
///
/// Latency is the time of a round trip, of programs that spin and of programs that sleep. A stream keeps many messages
/// under way and gives bandwidth and message rate.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    ends: Ends,
    /// Message sizes in bytes, separated by commas; K and M mean KiB and MiB
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size, default_value = "8,64,512,4K,64K,1M,8M")]
    sizes: Vec<usize>,
    /// Seconds to measure each figure, all rounds together
    #[arg(long, value_name = "SECONDS", default_value = "0.2", value_parser = seconds)]
    time: Duration,
    /// How many rounds; in each, everything has a turn
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Take seconds instead of minutes: four sizes, and three rounds in 0.02 seconds for each figure
    #[arg(long, conflicts_with_all = ["sizes", "time", "rounds"])]
    quick: bool,
    /// Measure only these, separated by commas, and TCP to compare with
    ///
    /// Kinds and operations narrow each other: `latency,write` is the latency of WRITE. What sleeps, limits and UDP are
    /// measured only if they are named, too: `latency,write,udp`.
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<BenchPart>,
    /// Measure programs that sleep until they are woken (completion channels, blocking sockets) instead of spinning
    #[arg(long)]
    events: bool,
    /// Write all figures as JSON; here and below, `-` is standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page to look at: one plot per question, and the tables; complete in one file
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    html: Option<PathBuf>,
    /// Write the plots as one SVG picture
    #[arg(long, value_name = "FILE", conflicts_with = "server")]
    svg: Option<PathBuf>,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs bench                        all, in minutes
  ubiverbs bench --quick                all, in seconds
  ubiverbs bench --html bench.html      a page with plots
  ubiverbs bench --only latency --sizes 64 --time 2
  ubiverbs bench --only bandwidth,write --sizes 1M
  ubiverbs bench --only latency,send,udp
  ubiverbs bench --events               programs that sleep
  ubiverbs bench --json - | jq '.goals[] | {what, measured}'
  ubiverbs bench --server 10.0.0.1      one half here, which says
  ubiverbs bench --connect 10.0.0.1     how to start the other elsewhere";

/// What `--only` can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum BenchPart {
    /// Round trips
    Latency,
    /// Streams: bandwidth and message rate
    Bandwidth,
    /// WRITEs posted in batches
    Rate,
    /// SEND, met by receives
    Send,
    /// WRITE into the peer's memory
    Write,
    /// READ of the peer's memory
    Read,
    /// FETCH_ADD
    Atomic,
    /// Nothing but TCP
    Tcp,
    /// Unix sockets
    Unix,
    /// Programs that sleep
    Events,
    /// What the machine could do at most: a bare ring, process_vm_writev, memcpy
    Limits,
    /// Connections per second
    Connections,
    /// What a WRITE costs when there are 10 to 10,000 queue pairs
    QueuePairs,
    /// Round trips by several threads, each with its own queue pair and completion queue
    Threads,
    /// Round trips over UDP, by two more processes
    Udp,
}

/// Everything that was measured, and where.
pub struct Outcome {
    pub rows: Vec<Measured>,
    pub waiting: WaitMode,
    pub device: String,
    pub link: &'static str,
    pub local: bool,
    pub machine: Machine,
}

impl Outcome {
    /// The TCP row that a row is compared with: of its size, waiting as it does.
    pub fn tcp(&self, row: &Measured) -> Option<&Measured> {
        self.find(row.point.beside())
    }

    /// What was measured of a point.
    pub fn find(&self, point: Point) -> Option<&Measured> {
        self.rows.iter().find(|row| row.point == point)
    }

    /// How it compares with TCP.
    pub fn ratio(&self, row: &Measured) -> Option<f64> {
        self.tcp(row).map(|tcp| row.ratio(tcp))
    }

    /// What was measured with many queue pairs, the fewest first.
    pub fn crowds(&self) -> impl Iterator<Item = (u32, &Measured)> {
        self.rows
            .iter()
            .filter_map(|row| if let Kind::ManyQueuePairs(count) = row.point.kind { Some((count, row)) } else { None })
    }

    /// What was measured with several threads, the fewest first.
    pub fn threads(&self) -> impl Iterator<Item = (u32, &Measured)> {
        self.rows
            .iter()
            .filter_map(|row| if let Kind::Threads(count) = row.point.kind { Some((count, row)) } else { None })
    }

    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Measured> {
        self.rows.iter().filter(move |row| row.point.kind == kind)
    }
}

fn size(text: &str) -> Result<usize, String> {
    let trimmed = text.trim().trim_end_matches(['b', 'B', 'i']);
    let (digits, unit) = match trimmed.char_indices().last() {
        Some((at, 'k' | 'K')) => (&trimmed[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&trimmed[..at], 1 << 20),
        _ => (trimmed, 1),
    };
    match digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit)) {
        Some(size) if (1..=LARGEST_MESSAGE).contains(&size) => Ok(size),
        _ => Err("a size from 1 to 64M is needed, such as 64, 4K or 1M".into()),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.001 to 60 is needed".into()),
    }
}

/// Measures.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    if let Some(address) = &options.ends.server {
        return crate::second_side::serve(&options.ends, "bench", address, out);
    }
    let wanted = [
        ("--json", &options.json, document::render as fn(&Outcome) -> String),
        ("--html", &options.html, page::page),
        ("--svg", &options.svg, page::picture),
    ];
    // What cannot be written should be known before a minute has passed.
    let (mut files, mut to_stdout) = (Vec::new(), None);
    for (option, path, render) in
        wanted.into_iter().filter_map(|(option, path, render)| Some((option, path.as_ref()?, render)))
    {
        if path == Path::new("-") {
            if to_stdout.replace(render).is_some() {
                let reason = "only one of them can be on standard output".to_owned();
                return Err(Failure::Argument { option, text: "-".into(), reason });
            }
        } else {
            files.push((path.clone(), open(path)?, render));
        }
    }
    let machine = Machine::now();
    let mut meeting = options.ends.meet()?;
    let measured = measure(options, machine, &mut meeting);
    meeting.end();
    let outcome = measured?;
    let text = to_stdout.unwrap_or(table::render)(&outcome);
    out.write_all(text.as_bytes()).map_err(Failure::Output)?;
    for (path, mut file, render) in files {
        // What was there before is kept until there is something better.
        let cut = if file.metadata().is_ok_and(|file| file.is_file()) { file.set_len(0) } else { Ok(()) };
        let written = cut.and_then(|()| file.write_all(render(&outcome).as_bytes()));
        written.map_err(|source| Failure::Open { path: path.clone(), source })?;
        if to_stdout.is_none() {
            writeln!(out, "Written: {}", path.display()).map_err(Failure::Output)?;
        }
    }
    Ok(Exit::Ok)
}

fn open(path: &Path) -> Result<File, Failure> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.map_err(|source| Failure::Open { path: path.to_owned(), source })
}

fn measure(options: &Options, machine: Machine, meeting: &mut Meeting) -> Result<Outcome, Failure> {
    let waiting = if options.events { WaitMode::Sleep } else { WaitMode::Spin };
    let (mut sizes, time, rounds) = match options.quick {
        true => (QUICK_SIZES.to_vec(), QUICK_TIME, 3),
        false => (options.sizes.clone(), options.time, options.rounds),
    };
    sizes.sort_unstable();
    sizes.dedup();
    let largest = sizes.last().copied().unwrap_or(8);
    let (device, local) = (meeting.station.context.name().to_owned(), meeting.local);
    let link = link(options, local);
    let own = meeting.is_own();
    let wants = |part| own && (options.only.is_empty() || options.only.contains(&part));
    // Where all is UDP already there is nothing to compare it with.
    let extras = Extras {
        unix: local,
        bare: wants(BenchPart::Limits),
        calls: wants(BenchPart::Connections),
        crowd: wants(BenchPart::QueuePairs),
        threads: wants(BenchPart::Threads),
        udp: wants(BenchPart::Udp) && link != LINK_UDP,
    };
    let mut turns = FirstSide::new(meeting, largest, extras)?;
    let calls = [Carrier::Manager, Carrier::Tcp].map(|carrier| Point::new(Kind::Connect, carrier, WaitMode::Sleep, 0));
    let calls: Vec<Point> = calls.into_iter().filter(|point| turns.can(point)).collect();
    let crowds = QUEUE_PAIR_COUNTS
        .map(|count| Point::new(Kind::ManyQueuePairs(count), Carrier::Write, WaitMode::Spin, MANY_QUEUE_PAIRS_BYTES));
    let crowds: Vec<Point> = crowds.into_iter().filter(|point| turns.can(point)).collect();
    let threads = thread_counts().into_iter().map(|count| {
        let kind = Kind::Threads(count);
        Point::new(kind, Carrier::Send, WaitMode::Spin, THREADS_SIZE)
    });
    let threads: Vec<Point> = threads.filter(|point| turns.can(point)).collect();
    let sets: Vec<Vec<Point>> = [&[Kind::RoundTrip][..], &[Kind::Stream, Kind::Batch]]
        .into_iter()
        .flat_map(|kinds| sizes.iter().map(move |size| (kinds, *size)))
        .map(|(kinds, size)| {
            let mut set: Vec<Point> = Vec::new();
            for &kind in kinds {
                let points = points(kind, size, &sizes, options, waiting, local);
                let new: Vec<Point> =
                    points.into_iter().filter(|point| turns.can(point) && !set.contains(point)).collect();
                set.extend(new);
            }
            set
        })
        .chain([calls, crowds, threads])
        .filter(|points| {
            points.iter().any(|point| point.carrier != Carrier::Tcp) || options.only.contains(&BenchPart::Tcp)
        })
        .collect();
    let mut rows: Vec<Measured> = Vec::new();
    let mut progress = Progress::new(sets.len());
    for set in &sets {
        rows.extend(turns.measure(set, time, rounds, &mut |point| progress.show(point))?);
        progress.done += 1;
    }
    progress.clear();
    turns.end();
    Ok(Outcome { rows, waiting, device, link, local, machine })
}

const QUICK_SIZES: [usize; 4] = [8, 64, 64 << 10, 1 << 20];
const QUICK_TIME: Duration = Duration::from_millis(20);

/// Up to this size WRITEs are measured in batches.
const BATCHED_WRITE_MAX: usize = 64;

const LINK_UDP: &str = "udp";

/// How the packets of the first pair travel.
fn link(options: &Options, local: bool) -> &'static str {
    let told = std::env::var_os(hca::environment::LINK_VARIABLE).is_some_and(|link| link == LINK_UDP);
    if options.ends.link == Link::Udp || told || !local { LINK_UDP } else { "shared" }
}

/// What to measure of one size.
fn points(kind: Kind, size: usize, sizes: &[usize], options: &Options, waiting: WaitMode, local: bool) -> Vec<Point> {
    let named: Vec<Carrier> = options.only.iter().filter_map(|part| part.carrier()).collect();
    let kinds: Vec<Kind> = options.only.iter().filter_map(|part| part.kind()).collect();
    if !kinds.is_empty() && !kinds.contains(&kind) {
        return Vec::new();
    }
    let also = |part| options.only.is_empty() || options.only.contains(&part);
    let wanted = |carrier: &Carrier| {
        let possible = match carrier {
            // Always eight bytes, and a round trip by nature: once, beside the smallest size.
            Carrier::Atomic => kind == Kind::RoundTrip && sizes.first() == Some(&size),
            Carrier::Unix => local,
            // It spins.
            Carrier::Ring => also(BenchPart::Limits) && (kind == Kind::Stream || waiting == WaitMode::Spin),
            // One side does it alone: no round trip.
            Carrier::ProcessVm | Carrier::Memcpy => also(BenchPart::Limits) && kind == Kind::Stream,
            _ => true,
        };
        possible && (named.is_empty() || named.contains(carrier) || *carrier == Carrier::Tcp || carrier.is_limit())
    };
    let waits = |carrier: Carrier| match kind {
        Kind::RoundTrip => waiting,
        _ if carrier.is_verb() => waiting,
        // A stream does best on sockets that block, so that is what the others are compared with.
        _ => WaitMode::Sleep,
    };
    let basic = Carrier::ALL.into_iter().filter(wanted).map(|carrier| Point::new(kind, carrier, waits(carrier), size));
    let mut points: Vec<Point> = match kind {
        Kind::RoundTrip | Kind::Stream => basic.collect(),
        Kind::Batch if size <= BATCHED_WRITE_MAX && wanted(&Carrier::Write) => {
            let write = Point::new(kind, Carrier::Write, WaitMode::Spin, size);
            vec![write, write.beside()]
        }
        Kind::Batch | Kind::Connect | Kind::ManyQueuePairs(_) | Kind::Threads(_) => Vec::new(),
    };
    if kind == Kind::RoundTrip && !points.is_empty() {
        let trip = |carrier, waiting| Point::new(kind, carrier, waiting, size);
        let mut more = Vec::new();
        if waiting == WaitMode::Spin {
            more.push(trip(Carrier::Write, WaitMode::Memory));
            // Most programs use TCP blocking, so show that too where the others spin.
            more.push(trip(Carrier::Tcp, WaitMode::Sleep));
        }
        if also(BenchPart::Events) || options.events {
            more.extend([Carrier::Send, Carrier::Write, Carrier::Unix].map(|carrier| trip(carrier, WaitMode::Sleep)));
            more.extend([Carrier::Send, Carrier::Write].map(|carrier| trip(carrier, WaitMode::Epoll)));
        }
        more.retain(|point| wanted(&point.carrier) && !points.contains(point));
        points.extend(more);
    }
    if also(BenchPart::Udp) {
        let over_udp = |point: &Point| point.carrier.is_verb() && (point.waiting == waiting || kind == Kind::Batch);
        let more: Vec<Point> = points.iter().filter(|point| over_udp(point)).map(|point| point.over_udp()).collect();
        points.extend(more);
    }
    points
}

impl BenchPart {
    fn carrier(self) -> Option<Carrier> {
        match self {
            BenchPart::Latency
            | BenchPart::Bandwidth
            | BenchPart::Rate
            | BenchPart::Events
            | BenchPart::Limits
            | BenchPart::Udp
            | BenchPart::Connections
            | BenchPart::QueuePairs
            | BenchPart::Threads => None,
            BenchPart::Send => Some(Carrier::Send),
            BenchPart::Write => Some(Carrier::Write),
            BenchPart::Read => Some(Carrier::Read),
            BenchPart::Atomic => Some(Carrier::Atomic),
            BenchPart::Tcp => Some(Carrier::Tcp),
            BenchPart::Unix => Some(Carrier::Unix),
        }
    }

    fn kind(self) -> Option<Kind> {
        match self {
            BenchPart::Latency => Some(Kind::RoundTrip),
            BenchPart::Bandwidth => Some(Kind::Stream),
            BenchPart::Rate => Some(Kind::Batch),
            BenchPart::Connections => Some(Kind::Connect),
            BenchPart::QueuePairs => Some(Kind::ManyQueuePairs(0)),
            BenchPart::Threads => Some(Kind::Threads(0)),
            _ => None,
        }
    }
}

/// A line on a terminal that says how far it is.
struct Progress {
    shown: bool,
    done: usize,
    of: usize,
}

impl Progress {
    fn new(of: usize) -> Progress {
        Progress { shown: io::stderr().is_terminal(), done: 0, of }
    }

    fn show(&self, point: Point) {
        if self.shown {
            let what = match point.kind {
                Kind::RoundTrip => "round trips",
                Kind::Stream => "stream",
                Kind::Batch => "batches",
                Kind::Connect => "connections",
                Kind::ManyQueuePairs(_) => "WRITEs",
                Kind::Threads(_) => "threads",
            };
            let (done, of) = (self.done + 1, self.of);
            eprint!("\r\x1b[K[{done}/{of}] {what} of {}, {}", Size(point.size), point.label());
        }
    }

    fn clear(&self) {
        if self.shown {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_as_people_write_them() {
        assert_eq!(
            ["8", "4K", "4k", "1M", "64MiB", "1KB"].map(|text| size(text).unwrap()),
            [8, 4096, 4096, 1 << 20, 64 << 20, 1024]
        );
        for wrong in ["", "0", "65M", "K", "-1", "1G", "99999999999999999999", "8 8"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "61", "NaN", "-1", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
