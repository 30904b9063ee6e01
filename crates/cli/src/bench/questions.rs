//! What a reader wants to know, one question per plot, and which of the figures answer it.

use super::{LINK_UDP, Outcome};
use crate::measure::{Carrier, Kind, Measured, Point, Size, WaitMode};

/// One plot.
pub struct Question {
    pub asks: &'static str,
    /// How to read it.
    pub note: String,
    pub unit: Unit,
    /// What the horizontal axis counts.
    pub across: Across,
    pub lines: Vec<Line>,
}

/// What belongs to one carrier.
pub struct Line {
    /// What stands beside the line.
    pub label: String,
    pub look: LineStyle,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// How a line is drawn: each has a colour, and a pattern that is seen without colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineStyle {
    Send,
    Write,
    Read,
    Atomic,
    Tcp,
    Unix,
    Ring,
    ProcessVm,
    Memcpy,
    /// WRITE in another way: in batches, or to a peer that looks at memory only.
    OtherWrite,
    /// SEND in another way: waiting in epoll.
    OtherSend,
    /// WRITE, waiting in epoll.
    ThirdWrite,
}

/// What the vertical axis measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    Nanoseconds,
    BytesPerSecond,
    PerSecond,
}

/// What the horizontal axis counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Across {
    Bytes,
    QueuePairs,
    Threads,
}

impl Unit {
    /// A value as people say it: three digits at most, and a unit.
    pub fn say(self, value: f64) -> String {
        const TIMES: &[(f64, &str)] = &[(1e9, " s"), (1e6, " ms"), (1e3, " µs"), (1.0, " ns")];
        const BYTES: &[(f64, &str)] = &[(1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s")];
        const RATES: &[(f64, &str)] = &[(1e6, " M/s"), (1e3, " k/s"), (1.0, " /s")];
        let units = match self {
            Unit::Nanoseconds => TIMES,
            Unit::BytesPerSecond => BYTES,
            Unit::PerSecond => RATES,
        };
        let fits = units.iter().find(|(size, _)| value >= size * 0.9995);
        let (size, name) = fits.or(units.last()).copied().unwrap_or((1.0, ""));
        format!("{}{name}", three_digits(value / size))
    }
}

/// `1.25`, `12.5`, `125`, and no zeros behind the point.
fn three_digits(value: f64) -> String {
    let digits = match value {
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

impl Across {
    pub fn say(self, value: f64) -> String {
        match self {
            // As `--sizes` has them: others would not stand beside each other.
            Across::Bytes => {
                Size(value as usize).to_string().replace(" MiB", "M").replace(" KiB", "K").replace(" B", "")
            }
            Across::QueuePairs if value >= 1000.0 => format!("{},000", value as u64 / 1000),
            Across::QueuePairs | Across::Threads => format!("{value:.0}"),
        }
    }

    /// What stands below the axis.
    pub fn title(self) -> &'static str {
        match self {
            Across::Bytes => "bytes of a message",
            Across::QueuePairs => "queue pairs that have their turns",
            Across::Threads => "threads of each side",
        }
    }
}

/// What of a row is drawn.
type Value = fn(&Measured) -> f64;

/// Up to this size messages are small.
const SMALL_MESSAGE_MAX: usize = 64 << 10;

/// The questions that these figures answer.
pub fn of(outcome: &Outcome) -> Vec<Question> {
    let over_udp = outcome.link == LINK_UDP;
    let way = if over_udp { "Over UDP" } else { "Through shared memory" };
    let p50 = |row: &Measured| row.summary.p50 as f64;
    let rate = |row: &Measured| row.messages_per_second;
    let stream = |row: &Measured| row.point.kind == Kind::Stream;
    let spins = |row: &Measured| matches!(row.point.waiting, WaitMode::Spin | WaitMode::Memory);
    // Of long messages people ask how many bytes pass; if there are no others, they are all there is to show.
    let only_long = !outcome.rows.iter().any(|row| row.size() <= SMALL_MESSAGE_MAX);
    let short = |row: &Measured| row.size() <= SMALL_MESSAGE_MAX || only_long;
    let trip = |row: &Measured| row.point.kind == Kind::RoundTrip && short(row);
    let copies = |row: &Measured| matches!(row.point.carrier, Carrier::ProcessVm | Carrier::Memcpy);
    // A stream alone says it as bytes; its messages are worth a plot beside batches, which give the most.
    let batches = outcome.of(Kind::Batch).next().is_some();
    let many =
        |row: &Measured| batches && matches!(row.point.kind, Kind::Stream | Kind::Batch) && short(row) && !copies(row);
    let asked = |asks, note, unit, lines| Question { asks, note, unit, across: Across::Bytes, lines };
    let sleeps = |row: &Measured| trip(row) && !spins(row);
    let ours =
        |wanted: &dyn Fn(&Measured) -> bool, value: Value| lines(outcome, &|row| !row.point.udp && wanted(row), value);
    let udp = |wanted: &dyn Fn(&Measured) -> bool, value: Value| {
        // TCP is the common measure of everything that goes through the kernel.
        let beside = |row: &Measured| row.point.carrier == Carrier::Tcp && row.point == row.point.beside();
        let beside = |row: &Measured| beside(row) && (!trip(row) || spins(row) == (outcome.waiting == WaitMode::Spin));
        lines(outcome, &|row| wanted(row) && (row.point.udp || beside(row)), value)
    };
    let less = |how: &str| format!("Median; less is better. {how}");
    let more = |how: &str| format!("More is better. {how}");
    let waiting = if outcome.waiting == WaitMode::Spin { "Programs spin" } else { "Programs sleep" };
    let time = Unit::Nanoseconds;
    let mut questions = vec![
        asked(
            "How long do a message and its answer take?",
            less(&format!("{way}; programs spin.")),
            time,
            ours(&|row| trip(row) && spins(row), p50),
        ),
        asked("How many bytes per second?", more(&format!("{way}.")), Unit::BytesPerSecond, {
            ours(&stream, Measured::bytes_per_second)
        }),
        asked("How many messages per second?", more(&format!("{way}.")), Unit::PerSecond, ours(&many, rate)),
        asked(
            "And if the programs sleep until it comes?",
            less(&format!("{way}; programs are woken.")),
            time,
            ours(&sleeps, p50),
        ),
        asked(
            "How long over UDP, as between hosts?",
            less(&format!("Both on this machine. {waiting}.")),
            time,
            udp(&trip, p50),
        ),
        asked("How many bytes per second over UDP?", more("Both on this machine."), Unit::BytesPerSecond, {
            udp(&stream, Measured::bytes_per_second)
        }),
        asked(
            "How many messages per second over UDP?",
            more("Both on this machine."),
            Unit::PerSecond,
            udp(&many, rate),
        ),
    ];
    // Nothing but what they would be compared with is no answer.
    questions
        .retain(|question| question.lines.iter().any(|line| !matches!(line.look, LineStyle::Tcp | LineStyle::Unix)));
    let count = |pairs: Vec<(u32, f64)>| pairs.into_iter().map(|(count, value)| (f64::from(count), value)).collect();
    let crowds: Vec<(f64, f64)> =
        count(outcome.crowds().map(|(count, row)| (count, 1e9 / row.messages_per_second)).collect());
    let threads: Vec<(f64, f64)> =
        count(outcome.threads().map(|(count, row)| (count, row.messages_per_second)).collect());
    if crowds.len() > 1 {
        questions.push(Question {
            asks: "What does a WRITE cost with many queue pairs?",
            note: format!("Time of one 64 B WRITE; less is better. {way}."),
            unit: time,
            across: Across::QueuePairs,
            lines: vec![Line { label: "WRITE".into(), look: LineStyle::Write, points: crowds }],
        });
    }
    if threads.len() > 1 {
        questions.push(Question {
            asks: "How many round trips by several threads?",
            note: "64 B SEND, each thread with a queue pair of its own; more is better.".into(),
            unit: Unit::PerSecond,
            across: Across::Threads,
            lines: vec![Line { label: "SEND".into(), look: LineStyle::Send, points: threads }],
        });
    }
    questions
}

fn lines(outcome: &Outcome, wanted: &dyn Fn(&Measured) -> bool, value: Value) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in outcome.rows.iter().filter(|row| wanted(row)) {
        let (label, point) = (label(row.point), (row.size() as f64, value(row).max(1e-3)));
        match lines.iter_mut().find(|line| line.label == label) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { label, look: look(row.point), points: vec![point] }),
        }
    }
    lines
}

/// The question says how the others wait and by which way messages go.
fn label(point: Point) -> String {
    let label = point.label();
    label.trim_end_matches(", UDP").trim_end_matches(", spinning").trim_end_matches(" only").to_owned()
}

fn look(point: Point) -> LineStyle {
    match (point.carrier, point.kind, point.waiting) {
        (Carrier::Write, Kind::Batch, _) | (Carrier::Write, _, WaitMode::Memory) => LineStyle::OtherWrite,
        (Carrier::Write, _, WaitMode::Epoll) => LineStyle::ThirdWrite,
        (Carrier::Write, ..) => LineStyle::Write,
        (Carrier::Send, _, WaitMode::Epoll) => LineStyle::OtherSend,
        (Carrier::Send, ..) | (Carrier::Manager, ..) => LineStyle::Send,
        (Carrier::Read, ..) => LineStyle::Read,
        (Carrier::Atomic, ..) => LineStyle::Atomic,
        (Carrier::Tcp, ..) => LineStyle::Tcp,
        (Carrier::Unix, ..) => LineStyle::Unix,
        (Carrier::Ring, ..) => LineStyle::Ring,
        (Carrier::ProcessVm, ..) => LineStyle::ProcessVm,
        (Carrier::Memcpy, ..) => LineStyle::Memcpy,
    }
}

/// The figure that matters most, as a sentence.
pub fn headline(outcome: &Outcome) -> String {
    latency(outcome).or_else(|| bandwidth(outcome)).unwrap_or_else(|| "RDMA in user space, measured".to_owned())
}

/// Of round trips, at the size that is nearest to 64 bytes.
fn latency(outcome: &Outcome) -> Option<String> {
    let ours = |row: &&Measured| {
        let point = row.point;
        point.carrier.is_verb() && point.carrier != Carrier::Atomic && !point.udp && point.waiting == outcome.waiting
    };
    let far = |row: &&Measured| (row.size().abs_diff(64), row.point.carrier);
    let row = outcome.of(Kind::RoundTrip).filter(ours).min_by_key(far)?;
    let tcp = outcome.tcp(row)?;
    let say = |row: &Measured| Unit::Nanoseconds.say(two_digits(row.summary.p50 as f64));
    let (size, took, theirs) = (Size(row.size()), say(row), say(tcp));
    let does = if row.point.carrier == Carrier::Send { "message and its answer take" } else { "round trip takes" };
    let beside = match 1.0 / row.ratio(tcp) {
        faster if faster >= 1.05 => format!("{}× faster than TCP ({theirs})", three_digits(two_digits(faster))),
        _ => format!("TCP takes {theirs}"),
    };
    Some(format!("A {size} {does} {took}: {beside}"))
}

/// Of streams, at the largest size up to a megabyte.
fn bandwidth(outcome: &Outcome) -> Option<String> {
    let ours = |row: &&Measured| row.point.carrier.is_verb() && !row.point.udp;
    let far = |row: &&Measured| (row.size().abs_diff(1 << 20), row.point.carrier != Carrier::Write);
    let row = outcome.of(Kind::Stream).filter(ours).min_by_key(far)?;
    let tcp = outcome.tcp(row)?;
    let (size, name) = (Size(row.size()), row.point.carrier.name());
    let say = |row: &Measured| Unit::BytesPerSecond.say(row.bytes_per_second());
    Some(format!("{name} moves {} by messages of {size}: TCP {}", say(row), say(tcp)))
}

/// Two digits are enough to compare.
fn two_digits(value: f64) -> f64 {
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

/// The figures to know: what, how much, beside what.
pub fn key_figures(outcome: &Outcome) -> Vec<[String; 3]> {
    let mut figures = Vec::new();
    let verb = |row: &&Measured| row.point.carrier.is_verb() && !row.point.udp;
    let time = |row: &Measured| Unit::Nanoseconds.say(row.summary.p50 as f64);
    let bytes = |row: &Measured| Unit::BytesPerSecond.say(row.bytes_per_second());
    let rate = |row: &Measured| Unit::PerSecond.say(row.messages_per_second);
    let mut push = |row: Option<&Measured>, what: &dyn Fn(&Measured) -> String, say: &dyn Fn(&Measured) -> String| {
        if let Some(row) = row {
            let beside = outcome.tcp(row).map(|tcp| format!("TCP {}", say(tcp))).unwrap_or_default();
            figures.push([what(row), say(row), beside]);
        }
    };
    let plain = |row: &&Measured| verb(row) && row.point.carrier != Carrier::Atomic;
    let asleep = |row: &&Measured| plain(row) && row.point.waiting == WaitMode::Sleep;
    let spinning = |row: &&Measured| plain(row) && row.point.waiting == WaitMode::Spin;
    let near = |size: usize| move |row: &&Measured| (row.size().abs_diff(size), row.point.carrier);
    let trips = || outcome.of(Kind::RoundTrip);
    let name = |row: &Measured| format!("{} {}", Size(row.size()), row.point.carrier.name());
    push(trips().filter(spinning).min_by_key(near(64)), &|row| format!("{} round trip, spinning", name(row)), &time);
    push(trips().filter(asleep).min_by_key(near(64)), &|row| format!("{} round trip, sleeping", name(row)), &time);
    let widest =
        outcome.of(Kind::Stream).filter(verb).max_by(|a, b| a.bytes_per_second().total_cmp(&b.bytes_per_second()));
    push(widest, &|row| format!("{}, most bytes", name(row)), &bytes);
    let streams = outcome.rows.iter().filter(|row| matches!(row.point.kind, Kind::Stream | Kind::Batch));
    let most = streams.filter(verb).max_by(|a, b| a.messages_per_second.total_cmp(&b.messages_per_second));
    push(most, &|row| format!("{}, most messages", name(row)), &rate);
    let calls = outcome.of(Kind::Connect).find(|row| row.point.carrier == Carrier::Manager);
    push(calls, &|_| "connections, made and ended".to_owned(), &rate);
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_said_with_three_digits_and_a_unit() {
        let time = |value| Unit::Nanoseconds.say(value);
        assert_eq!(
            [950.0, 1000.0, 1234.0, 9_999.0, 56_700.0, 2e6].map(time),
            ["950 ns", "1 µs", "1.23 µs", "10 µs", "56.7 µs", "2 ms"]
        );
        assert_eq!(Unit::BytesPerSecond.say(11.21e9), "11.2 GB/s");
        assert_eq!([4_560_000.0, 950.0, 0.5].map(|value| Unit::PerSecond.say(value)), ["4.56 M/s", "950 /s", "0.5 /s"]);
        assert_eq!([10.0, 1000.0, 10_000.0].map(|value| Across::QueuePairs.say(value)), ["10", "1,000", "10,000"]);
        assert_eq!([8.0, 4096.0, 1048576.0].map(|value| Across::Bytes.say(value)), ["8", "4K", "1M"]);
        assert_eq!([4314.0, 2.249, 0.96].map(two_digits).map(three_digits), ["4300", "2.2", "0.96"]);
    }
}
