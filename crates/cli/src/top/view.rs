//! How `top` looks: a list of processes with their queue pairs, or all about one of them. Lines are cut where the terminal
//! ends, and columns that do not fit are left out from the right.

use super::rates::{HISTORY_LENGTH, Rates, RowKey};
use super::state::{Page, State};
use crate::ps::text::{amount, folded, time};
use crate::snapshot::{self, ProcessSnapshot, is_stuck, kind_name, state_name, waits_for};
use inventory::{QueuePair, names};
use ratatui_core::buffer::Buffer;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};
use std::time::{Duration, Instant};

/// The columns behind the name of a row, and how wide they are.
const COLUMNS: [(&str, usize); 7] =
    [("STATE", 6), ("MSG/s", 8), ("BYTES/s", 10), ("RETX/s", 7), ("RNR/s", 7), ("SENDS", 10), ("TREND", 9)];

/// The name of a row, in as much room as there is.
const NAME_WIDTH_MIN: usize = 12;
const NAME_WIDTH_MAX: usize = 40;

/// Looks that a row's trend shows.
const TREND_LENGTH: usize = 8;

const KEYS: &str = "arrows select  Enter open  s sort  / filter  p pause  ? help  q end";

const HELP: &str = "\
Up Down PageUp PageDown Home End   select a process or a queue pair
Enter   open what is selected; Enter or Escape goes back
s       sort by bytes, messages, retransmissions, stuck, number
/       show only rows with this text: a command, a number, RTS, UD
p       pause
q       end

MSG/s   messages sent and received, each SEND and each receive used up
BYTES/s octets of both directions, headers too
RETX/s  times that a requester went back to send again
RNR/s   receiver-not-ready NAKs, sent and received
SENDS   work of the send queue that is not done
TREND   bytes of the last seconds";

/// Styles of the words that stand out.
const PLAIN: Style = Style::new();
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const WARNING: Style = Style::new().fg(Color::Yellow);
const GOOD: Style = Style::new().fg(Color::Green);
const SELECTED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// Draws everything.
pub fn draw(state: &mut State, buffer: &mut Buffer) {
    let area = buffer.area;
    let width = usize::from(area.width);
    let lines = match state.page {
        Page::Help => HELP.lines().map(Line::from).collect(),
        Page::Opened => opened(state, width),
        Page::List => list(state, width, usize::from(area.height)),
    };
    let keys = match (state.page, state.types_text) {
        (_, true) => format!("/{}_  Enter keeps it, Escape clears it", state.text),
        (Page::List, _) => KEYS.to_owned(),
        _ => "Escape back  q end".to_owned(),
    };
    let height = area.height.saturating_sub(1);
    for (row, line) in (0..height).zip(lines) {
        buffer.set_line(area.x, area.y + row, &line, area.width);
    }
    if area.height > 0 {
        buffer.set_line(area.x, area.y + height, &Line::styled(keys, DIM), area.width);
    }
}

/// What is first said of the whole host.
fn headline(state: &State) -> Line<'static> {
    let processes = state.snapshot.as_ref().map_or(0, |snapshot| snapshot.processes.len());
    let stuck = state.stuck();
    let mut spans = vec![
        Span::styled("ubiverbs top", BOLD),
        Span::raw(format!("  {processes} processes, ")),
        Span::styled(format!("{stuck} stuck"), if stuck > 0 { BAD } else { PLAIN }),
        Span::raw(format!("  by {}", state.sort.name())),
    ];
    if state.is_paused() {
        spans.push(Span::styled("  paused", WARNING));
    }
    if !state.text.is_empty() {
        spans.push(Span::raw(format!("  /{}", state.text)));
    }
    Line::from(spans)
}

fn list(state: &mut State, width: usize, height: usize) -> Vec<Line<'static>> {
    let rows = state.rows();
    if state.selected.is_none_or(|selected| !rows.contains(&selected)) {
        state.selected = rows.first().copied();
    }
    let mut lines = vec![headline(state), Line::styled(table_head(width), BOLD)];
    let room = height.saturating_sub(lines.len() + 1);
    let selected = state.selected.and_then(|selected| rows.iter().position(|row| *row == selected)).unwrap_or(0);
    let drawn = |key: RowKey| row_lines(state, key, width);
    // Backwards from the selected row, as many as there is room for.
    let (mut first_fitting, mut left) = (selected, room);
    for place in (0..=selected).rev() {
        let Some(rest) = rows.get(place).and_then(|key| left.checked_sub(drawn(*key).len())) else { break };
        (first_fitting, left) = (place, rest);
    }
    let first = state.first.clamp(first_fitting, selected);
    for key in rows.iter().skip(first) {
        if lines.len() + 1 >= height {
            break;
        }
        lines.extend(drawn(*key));
    }
    state.first = first;
    if rows.is_empty() {
        let what = if state.text.is_empty() { "No process has a device open." } else { "No row has this text." };
        lines.push(Line::raw(what));
    }
    lines
}

/// A row, and what there is to say of it below.
fn row_lines(state: &State, key: RowKey, width: usize) -> Vec<Line<'static>> {
    let Some((process, pair)) = state.find(key) else { return Vec::new() };
    let (text, style) = match pair {
        None => process_row(state, key, process, width),
        Some(pair) => pair_row(state, key, pair, width),
    };
    let style = if Some(key) == state.selected { style.patch(SELECTED) } else { style };
    let more = match pair {
        None => process.silence(),
        Some(pair) if is_stuck(pair) || !pair.stop.is_empty() => told(state, pair),
        Some(_) => None,
    };
    let below = if pair.is_some_and(is_stuck) { BAD } else { WARNING };
    let more = more.iter().flat_map(|more| folded(more, width.saturating_sub(4).max(1))).take(MAX_LINES_BELOW);
    let more = more.map(|part| Line::styled(format!("    {part}"), below));
    [Line::styled(text, style)].into_iter().chain(more).collect()
}

/// Lines that say why a row is stuck.
const MAX_LINES_BELOW: usize = 3;

/// What a queue pair waits for, and how long.
fn told(state: &State, pair: &QueuePair) -> Option<String> {
    let reason = state.snapshot.as_ref()?.reason(pair)?;
    Some(match waits_for(pair) {
        Some(waited) if is_stuck(pair) => format!("stuck for {}: {reason}", time(waited)),
        Some(waited) => format!("waits for {}: {reason}", time(waited)),
        None => reason,
    })
}

/// How wide the name of a row is, and how many columns are behind it.
fn layout(width: usize) -> (usize, usize) {
    let mut left = width.saturating_sub(NAME_WIDTH_MIN);
    let fitting = COLUMNS.iter().take_while(|(_, width)| match left.checked_sub(*width) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    });
    let columns = fitting.count();
    ((NAME_WIDTH_MIN + left).min(NAME_WIDTH_MAX).min(width), columns)
}

/// A row: its name and as many columns as fit.
fn row(name: &str, cells: &[String; COLUMNS.len()], width: usize) -> String {
    let (name_width, columns) = layout(width);
    let name: String = name.chars().take(name_width.saturating_sub(1)).collect();
    let mut text = format!("{name:<name_width$}");
    for (cell, (_, width)) in cells.iter().zip(COLUMNS).take(columns) {
        let cell: String = cell.chars().take(width - 1).collect();
        text.push_str(&format!("{cell:>width$}"));
    }
    text
}

fn table_head(width: usize) -> String {
    row("PID, QP", &COLUMNS.map(|(title, _)| title.to_owned()), width)
}

fn process_row(state: &State, key: RowKey, process: &ProcessSnapshot, width: usize) -> (String, Style) {
    let name = format!("{} {}", process.pid, process.command);
    let Ok(report) = &process.report else {
        let what = if process.is_stopped() { "STOP" } else { "?" };
        let cells = [what, "", "", "", "", "", ""].map(str::to_owned);
        return (row(&name, &cells, width), BAD);
    };
    let rates = state.book.of(key);
    let sends: u64 = report.queue_pairs.iter().map(|pair| u64::from(pair.sends)).sum();
    (row(&name, &cells(state, key, &rates, percent(rates.engine), sends.to_string()), width), BOLD)
}

fn pair_row(state: &State, key: RowKey, pair: &QueuePair, width: usize) -> (String, Style) {
    let rates = state.book.of(key);
    let sends = format!("{}/{}", pair.sends, pair.max_sends);
    let name = format!("  {:#08x} {} {}", pair.number, kind_name(pair), link(pair));
    let style = match state_name(pair) {
        _ if is_stuck(pair) => BAD,
        "ERR" | "SQE" => BAD,
        "RTS" if rates.bytes > 0.0 => GOOD,
        _ => PLAIN,
    };
    (row(&name, &cells(state, key, &rates, state_name(pair).to_owned(), sends), width), style)
}

fn link(pair: &QueuePair) -> &str {
    if snapshot::has_peer(pair) { pair.link.split(' ').next().unwrap_or_default() } else { "" }
}

fn cells(state: &State, key: RowKey, rates: &Rates, condition: String, sends: String) -> [String; COLUMNS.len()] {
    [
        condition,
        rate(rates.messages),
        rate(rates.bytes),
        rate(rates.retransmissions),
        rate(rates.not_ready),
        sends,
        trend(state, key, TREND_LENGTH),
    ]
}

fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// A rate in five letters at most.
fn rate(value: f64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let (mut value, mut unit) = (value, 0);
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match value {
        0.0 => "0".to_owned(),
        _ if unit == 0 && value >= 9.95 => format!("{value:.0}"),
        99.95.. => format!("{value:.0}{}", UNITS[unit]),
        _ => format!("{value:.1}{}", UNITS[unit]),
    }
}

/// The bytes of the last looks as bars, the highest for the most of them.
fn trend(state: &State, key: RowKey, length: usize) -> String {
    let Some(history) = state.book.histories.get(&key) else { return String::new() };
    let bars: &[char] = if state.unicode {
        &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█']
    } else {
        &['_', '.', '-', '=', '+', '*', '#']
    };
    let shown = history.iter().skip(history.len().saturating_sub(length));
    let most = history.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| match most {
        0.0 => bars[0],
        _ => bars[((value / most * (bars.len() - 1) as f64).round() as usize).min(bars.len() - 1)],
    };
    shown.map(bar).collect()
}

/// All about what is selected.
fn opened(state: &State, width: usize) -> Vec<Line<'static>> {
    let Some((key, (process, pair))) = state.selected.and_then(|key| Some((key, state.find(key)?))) else {
        return vec![Line::raw("It has gone. Escape goes back.")];
    };
    let mut page = PageWriter { lines: Vec::new(), width };
    match pair {
        Some(pair) => of_pair(state, key, process, pair, &mut page),
        None => of_process(state, key, process, &mut page),
    }
    page.lines
}

/// Lines that are folded where the terminal ends.
struct PageWriter {
    lines: Vec<Line<'static>>,
    width: usize,
}

impl PageWriter {
    fn say(&mut self, text: impl AsRef<str>) {
        self.say_in(PLAIN, text);
    }

    fn say_in(&mut self, style: Style, text: impl AsRef<str>) {
        let folded = folded(text.as_ref(), self.width.max(1));
        self.lines.extend(folded.into_iter().map(|line| Line::styled(line, style)));
    }

    /// Several words on a line, as many as fit.
    fn list(&mut self, title: &str, words: Vec<String>) {
        if !words.is_empty() {
            self.say(format!("{title}  {}", words.join("  ")));
        }
    }
}

fn of_pair(state: &State, key: RowKey, process: &ProcessSnapshot, pair: &QueuePair, page: &mut PageWriter) {
    let device = process.device(pair.interface, pair.port);
    let kind = kind_name(pair);
    page.say_in(BOLD, format!("QP {:#08x} {kind} of PID {} {} on {device}", pair.number, process.pid, process.command));
    if snapshot::has_peer(pair) {
        let found = state.snapshot.as_ref().and_then(|snapshot| snapshot.peer_of(pair));
        let at = match found {
            Some((peer, theirs)) => format!("PID {} {} ({})", peer.pid, peer.command, state_name(theirs)),
            None => snapshot::destination(pair).map(|address| address.to_string()).unwrap_or_default(),
        };
        page.say(format!("peer     {:#08x} {at}, {}", pair.peer, pair.link));
    }
    let now = Instant::now();
    let seen = state.book.states.get(&key).into_iter().flatten().map(|(code, since)| {
        let name = transport::State::from_code(*code).map_or("?", transport::State::name);
        format!("{name} {} ago", time(now.duration_since(*since)))
    });
    page.say(format!("state    {}  (seen: {})", state_name(pair), seen.collect::<Vec<_>>().join(", ")));
    if let Some(told) = told(state, pair) {
        page.say_in(if is_stuck(pair) || !pair.stop.is_empty() { BAD } else { WARNING }, told);
    }
    page.say(format!(
        "PSN      next sent {}, next expected {}{}",
        pair.send_psn,
        pair.receive_psn,
        pair.waiting.as_ref().map(|waiting| format!(", oldest not acknowledged {}", waiting.psn)).unwrap_or_default()
    ));
    page.say(format!("sends    {} of {}", bar(state, pair.sends, pair.max_sends), pair.max_sends));
    let receives = match pair.shared_queue {
        0 => format!("{} of {}", bar(state, pair.receives, pair.max_receives), pair.max_receives),
        number => format!("from the shared receive queue {number:#x}"),
    };
    page.say(format!("receives {receives}"));
    if let Some(way) = &pair.congestion {
        let round_trip =
            way.round_trip_nanos.map(|nanos| format!(", round trip {}", time(Duration::from_nanos(nanos))));
        let rate = way.rate.map(|bits| format!(", limited to {}bit/s", rate(bits as f64)));
        page.say(format!(
            "window   {} under way of {}{}{}",
            amount(way.in_flight),
            amount(way.window),
            round_trip.unwrap_or_default(),
            rate.unwrap_or_default()
        ));
    }
    let rates = state.book.of(key);
    page.say(format!(
        "rates    {} messages/s, {}B/s, {} retransmissions/s, {} RNR/s",
        rate(rates.messages),
        rate(rates.bytes),
        rate(rates.retransmissions),
        rate(rates.not_ready)
    ));
    page.say(trend(state, key, HISTORY_LENGTH));
    let counters = names::queue_pair(&pair.counters).into_iter().filter(|(_, value)| *value > 0);
    page.list("counted ", counters.map(|(name, value)| format!("{name} {value}")).collect());
}

fn of_process(state: &State, key: RowKey, process: &ProcessSnapshot, page: &mut PageWriter) {
    page.say_in(BOLD, format!("PID {} {} of {}", process.pid, process.command, process.user));
    let Ok(report) = &process.report else {
        page.say_in(BAD, process.silence().unwrap_or_default());
        return;
    };
    let (rates, activity) = (state.book.of(key), &report.activity);
    page.say(format!("version  {}, NIC for {}", activity.version, time(Duration::from_nanos(activity.age_nanos))));
    let driver = if activity.driven_by_program > 0 { "the polling program" } else { "the engine" };
    page.say(format!("driven   by {driver}; {} threads block in calls", activity.blocked_callers));
    page.say(format!(
        "engine   {} of a processor, {} wakes/s; {} empty polls/s",
        percent(rates.engine),
        rate(rates.wakes),
        rate(rates.polls)
    ));
    page.say(format!(
        "rates    {} messages/s, {}B/s, {} retransmissions/s, {} RNR/s, {} drops/s",
        rate(rates.messages),
        rate(rates.bytes),
        rate(rates.retransmissions),
        rate(rates.not_ready),
        rate(rates.drops)
    ));
    page.say(trend(state, key, HISTORY_LENGTH));
    for (reason, per_second) in &rates.reasons {
        page.say(format!("         {reason}: {}/s", rate(*per_second)));
    }
    let bytes = report.regions.iter().fold(0_u64, |sum, region| sum.saturating_add(region.length));
    page.say(format!("memory   {} regions of {}", report.regions.len(), amount(bytes)));
    for queue in report.completion_queues.iter().take(MAX_QUEUES_SHOWN) {
        let lost = if queue.overflowed > 0 { ", OVERFLOWED" } else { "" };
        let filled = bar(state, queue.waiting, queue.entries);
        page.say(format!("CQ {:<6}{filled} of {} not polled{lost}", queue.number, queue.entries));
    }
    page.say(format!("others   {} QPs, {} CM ids", report.queue_pairs.len(), report.ids.len()));
}

/// Completion queues of a process that are shown.
const MAX_QUEUES_SHOWN: usize = 8;

/// Letters of a bar.
const BAR_WIDTH: u64 = 10;

/// How full something is.
fn bar(state: &State, used: u32, of: u32) -> String {
    let (full, empty) = if state.unicode { ('█', '░') } else { ('#', '.') };
    let filled = u64::from(used).min(u64::from(of)) * BAR_WIDTH / u64::from(of).max(1);
    let bar: String = (0..BAR_WIDTH).map(|place| if place < filled { full } else { empty }).collect();
    format!("{bar} {used}")
}

/// A buffer for tests, drawn once.
#[cfg(test)]
fn drawn(state: &mut State, width: u16, height: u16) -> Vec<String> {
    let mut buffer = Buffer::empty(ratatui_core::layout::Rect::new(0, 0, width, height));
    draw(state, &mut buffer);
    let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..height).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::super::state::tests::sample;
    use super::*;

    #[test]
    fn a_list_fits_eighty_columns() {
        let mut state = sample();
        state.unicode = false;
        let lines = drawn(&mut state, 80, 24);
        let text = lines.join("\n");
        for part in [
            "ubiverbs top  3 processes, 1 stuck  by bytes",
            "PID, QP                 STATE   MSG/s   BYTES/s RETX/s  RNR/s     SENDS    TREND",
            "4242 client               25%    1.0k      5.0M    3.0      0         3       _#",
            "  0x01a2b3 RC shared      RTS    1.0k",
            "    stuck for 3.2 s: no acknowledgement of PSN 77 (sent again 2 of 7 times)",
            "4300 frozen              STOP",
            "    it is stopped (SIGSTOP, a terminal or a debugger) and cannot answer",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(lines[23].starts_with("arrows select"), "{text}");
    }

    #[test]
    fn a_queue_pair_can_be_opened() {
        let mut state = sample();
        state.unicode = false;
        drawn(&mut state, 80, 24);
        state.press(Key::Down);
        state.press(Key::Enter);
        let text = drawn(&mut state, 80, 24).join("\n");
        for part in [
            "QP 0x01a2b3 RC of PID 4242 client on ubi_lo",
            "peer     0x01f00d PID 4250 server (RTS), shared memory",
            "state    RTS  (seen: RTS ",
            "stuck for 3.2 s: no acknowledgement of PSN 77",
            "oldest not acknowledged 77",
            "sends    .......... 3 of 128",
            "rates    1.0k messages/s, 5.0MB/s, 3.0 retransmissions/s",
            "completer_retry_err 6",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        state.press(Key::Escape);
        state.press(Key::Up);
        state.press(Key::Enter);
        let text = drawn(&mut state, 80, 24).join("\n");
        for part in
            ["PID 4242 client of root", "25% of a processor, 40 wakes/s; 9.0k empty polls/s", "wakes, timeout: 40/s"]
        {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn every_size_of_terminal_is_drawn_on() {
        let mut state = sample();
        for page in [Page::List, Page::Opened, Page::Help] {
            for unicode in [false, true] {
                for (width, height) in [(0, 0), (1, 1), (20, 5), (20, 24), (3, 100), (200, 2), (80, 3), (500, 60)] {
                    (state.page, state.unicode) = (page, unicode);
                    drawn(&mut state, width, height);
                }
            }
        }
        state.page = Page::List;
        let narrow = drawn(&mut state, 20, 10).join("\n");
        assert!(narrow.contains("4242 client") && narrow.contains("25%"), "{narrow}");
    }

    #[test]
    fn a_selected_row_is_on_the_screen_however_long_the_list_is() {
        let mut state = sample();
        let mut snapshot = crate::top::rates::tests::counted(3);
        let report = snapshot.processes[1].report.as_mut().unwrap();
        let pair = report.queue_pairs[0].clone();
        report.queue_pairs = (0..500).map(|number| QueuePair { number, ..pair.clone() }).collect();
        state.learn(snapshot, Instant::now());
        for _ in 0..40 {
            state.press(Key::PageDown);
            drawn(&mut state, 80, 24);
            let selected = state.selected.unwrap();
            let name = match selected.queue_pair {
                Some(number) => format!("{number:#08x}"),
                None => selected.pid.to_string(),
            };
            assert!(drawn(&mut state, 80, 24).iter().any(|line| line.contains(&name)), "{name}");
        }
    }

    #[test]
    fn rates_are_short() {
        let said = [0.0, 0.25, 9.9, 12.0, 999.4, 1000.0, 12_345.0, 999_600.0, 1e9, 7e14].map(rate);
        assert_eq!(said, ["0", "0.2", "9.9", "12", "999", "1.0k", "12.3k", "1.0M", "1.0G", "700T"]);
    }
}
