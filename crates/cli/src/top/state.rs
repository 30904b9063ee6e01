//! What `top` shows and what is selected: rows in order, and what keys do to them.

use super::keys::Key;
use super::rates::{Book, RowKey};
use crate::ps::Filter;
use crate::snapshot::{ProcessSnapshot, Snapshot, is_stuck, waits_for};
use clap::ValueEnum;
use inventory::QueuePair;
use std::cmp::Ordering;
use std::time::Instant;

/// Queue pairs of a process that are listed.
const MAX_LISTED_QUEUE_PAIRS: usize = 1000;

/// Letters of a filter.
const MAX_FILTER_LETTERS: usize = 40;

/// Rows that a page key moves.
const PAGE_ROWS: usize = 10;

/// What comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Sort {
    Bytes,
    Messages,
    Retransmissions,
    /// How long the oldest work waits.
    Stuck,
    /// Numbers of processes and queue pairs.
    Number,
}

impl Sort {
    pub fn name(self) -> &'static str {
        match self {
            Sort::Bytes => "bytes",
            Sort::Messages => "messages",
            Sort::Retransmissions => "retransmissions",
            Sort::Stuck => "stuck",
            Sort::Number => "number",
        }
    }

    fn next(self) -> Sort {
        let all = Sort::value_variants();
        let place = all.iter().position(|sort| *sort == self).unwrap_or(0);
        all[(place + 1) % all.len()]
    }
}

/// What fills the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Page {
    List,
    /// One row of the list, with all that is known of it.
    Opened,
    Help,
}

/// Whether the terminal shows UTF-8, as the first of these variables that is set says.
fn has_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let said = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    said.is_some_and(|value| value.to_lowercase().replace('-', "").contains("utf8"))
}

/// See the module.
pub struct State {
    pub snapshot: Option<Snapshot>,
    pub book: Book,
    pub page: Page,
    pub sort: Sort,
    pub selected: Option<RowKey>,
    /// Text that rows must have in them, while it is typed or after.
    pub text: String,
    pub types_text: bool,
    /// The first row that is shown.
    pub first: usize,
    /// Bars of blocks, which a terminal without UTF-8 does not have.
    pub unicode: bool,
    filter: Filter,
    paused: bool,
}

impl State {
    pub fn new(filter: Filter, sort: Sort) -> State {
        State {
            snapshot: None,
            book: Book::default(),
            page: Page::List,
            sort,
            selected: None,
            text: String::new(),
            types_text: false,
            first: 0,
            unicode: has_unicode(|name| std::env::var(name).ok()),
            filter,
            paused: false,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Learns what there is now.
    pub fn learn(&mut self, snapshot: Snapshot, now: Instant) {
        self.book.learn(&snapshot, now);
        self.snapshot = Some(snapshot);
    }

    /// The rows, each process before its queue pairs.
    pub fn rows(&self) -> Vec<RowKey> {
        let Some(snapshot) = &self.snapshot else { return Vec::new() };
        let mut processes: Vec<(RowKey, Vec<(RowKey, &QueuePair)>)> = Vec::new();
        for process in snapshot.processes.iter().filter(|process| self.filter.includes(process)) {
            let key = RowKey { pid: process.pid, queue_pair: None };
            let of_pair = |pair: &QueuePair| RowKey { queue_pair: Some(pair.number), ..key };
            let is_named = self.is_named(process, None);
            let pairs = self.filter.queue_pairs(process).filter(|pair| is_named || self.is_named(process, Some(pair)));
            let mut pairs: Vec<_> = pairs.map(|pair| (of_pair(pair), pair)).collect();
            pairs.sort_by(|one, other| self.compare(*one, *other));
            pairs.truncate(MAX_LISTED_QUEUE_PAIRS);
            let is_left_out = self.filter.selects_queue_pairs() && pairs.is_empty();
            if !is_left_out && (is_named || !pairs.is_empty()) {
                processes.push((key, pairs));
            }
        }
        let longest = |pairs: &[(RowKey, &QueuePair)]| pairs.iter().filter_map(|(_, pair)| waits_for(pair)).max();
        processes.sort_by(|(one, its), (other, theirs)| match self.sort {
            Sort::Stuck => longest(theirs).cmp(&longest(its)).then(one.cmp(other)),
            _ => self.compare_rates(*one, *other),
        });
        let with_pairs = |(key, pairs): (RowKey, Vec<(RowKey, &QueuePair)>)| {
            [key].into_iter().chain(pairs.into_iter().map(|(key, _)| key)).collect::<Vec<_>>()
        };
        processes.into_iter().flat_map(with_pairs).collect()
    }

    /// Whether the typed text is in the names of a row.
    fn is_named(&self, process: &ProcessSnapshot, pair: Option<&QueuePair>) -> bool {
        let names = match pair {
            None => format!("{} {} {}", process.pid, process.command, process.user),
            Some(pair) => format!(
                "{:#08x} {} {} {}",
                pair.number,
                crate::snapshot::kind_name(pair),
                crate::snapshot::state_name(pair),
                process.device(pair.interface, pair.port)
            ),
        };
        names.to_lowercase().contains(&self.text.to_lowercase())
    }

    fn compare(&self, (one, its): (RowKey, &QueuePair), (other, theirs): (RowKey, &QueuePair)) -> Ordering {
        match self.sort {
            Sort::Stuck => waits_for(theirs).cmp(&waits_for(its)).then(one.cmp(&other)),
            _ => self.compare_rates(one, other),
        }
    }

    fn compare_rates(&self, one: RowKey, other: RowKey) -> Ordering {
        let rate = |key| {
            let rates = self.book.rates.get(&key)?;
            Some(match self.sort {
                Sort::Bytes => rates.bytes,
                Sort::Messages => rates.messages,
                Sort::Retransmissions => rates.retransmissions,
                Sort::Stuck | Sort::Number => 0.0,
            })
        };
        let order = rate(other).partial_cmp(&rate(one)).unwrap_or(Ordering::Equal);
        order.then(one.cmp(&other))
    }

    /// The process of a row, and its queue pair if it is one's.
    pub fn find(&self, key: RowKey) -> Option<(&ProcessSnapshot, Option<&QueuePair>)> {
        let process = self.snapshot.as_ref()?.processes.iter().find(|process| process.pid == key.pid)?;
        let pairs = process.report.iter().flat_map(|report| &report.queue_pairs);
        match key.queue_pair {
            None => Some((process, None)),
            Some(number) => Some((process, Some(pairs.into_iter().find(|pair| pair.number == number)?))),
        }
    }

    /// How many queue pairs are stuck.
    pub fn stuck(&self) -> usize {
        let processes = self.snapshot.iter().flat_map(|snapshot| &snapshot.processes);
        let pairs = processes.flat_map(|process| &process.report).flat_map(|report| &report.queue_pairs);
        pairs.filter(|pair| is_stuck(pair)).count()
    }

    /// Does what a key says. False if that is to end.
    pub fn press(&mut self, key: Key) -> bool {
        if self.types_text {
            self.type_text(key);
            return true;
        }
        match key {
            Key::Letter('q') => return false,
            Key::Escape | Key::Erase if self.page == Page::List => self.text.clear(),
            Key::Escape | Key::Erase => self.page = Page::List,
            Key::Letter('?' | 'h') => self.page = if self.page == Page::Help { Page::List } else { Page::Help },
            Key::Enter if self.page == Page::List && self.selected.is_some() => self.page = Page::Opened,
            Key::Enter => self.page = Page::List,
            Key::Letter('s') => self.sort = self.sort.next(),
            Key::Letter('p' | ' ') => self.paused = !self.paused,
            Key::Letter('/') => (self.types_text, self.page) = (true, Page::List),
            Key::Up | Key::Letter('k') => self.step(-1),
            Key::Down | Key::Letter('j') => self.step(1),
            Key::PageUp => self.step(-(PAGE_ROWS as isize)),
            Key::PageDown => self.step(PAGE_ROWS as isize),
            Key::Home => self.step(isize::MIN),
            Key::Last => self.step(isize::MAX),
            Key::Letter(_) | Key::End => {}
        }
        true
    }

    fn type_text(&mut self, key: Key) {
        match key {
            Key::Letter(letter) if self.text.len() < MAX_FILTER_LETTERS => self.text.push(letter),
            Key::Erase => {
                self.text.pop();
            }
            Key::Escape => {
                self.text.clear();
                self.types_text = false;
            }
            Key::Enter | Key::Up | Key::Down => self.types_text = false,
            _ => {}
        }
    }

    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let place = self.selected.and_then(|selected| rows.iter().position(|row| *row == selected));
        let next = place.map_or(0, |place| place.saturating_add_signed(by)).min(rows.len().saturating_sub(1));
        self.selected = rows.get(next).copied();
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::top::rates::tests::counted;
    use std::time::Duration;

    /// A second of work of the first process, whose queue pair is stuck.
    pub fn sample() -> State {
        let (mut state, start) = (State::new(Filter::default(), Sort::Bytes), Instant::now());
        state.learn(counted(1), start);
        state.learn(counted(2), start + Duration::from_secs(1));
        state
    }

    fn pids(state: &State) -> Vec<i32> {
        state.rows().iter().filter(|row| row.queue_pair.is_none()).map(|row| row.pid).collect()
    }

    #[test]
    fn rows_are_sorted_by_what_is_asked_for() {
        let mut state = sample();
        assert_eq!(pids(&state), [4242, 4250, 4300]);
        assert_eq!(state.rows()[1], RowKey { pid: 4242, queue_pair: Some(0x0001_a2b3) });
        // All but the busiest are equal, and follow by number.
        let mut idle = counted(2);
        idle.processes[0].pid = 9000;
        state.learn(idle, Instant::now());
        for sort in [Sort::Stuck, Sort::Number] {
            state.sort = sort;
            let first = if sort == Sort::Stuck { 9000 } else { 4250 };
            assert_eq!(pids(&state)[0], first, "{sort:?}");
        }
        let cycle: Vec<Sort> = std::iter::successors(Some(Sort::Bytes), |sort| Some(sort.next())).take(6).collect();
        assert_eq!(cycle[..5], *Sort::value_variants());
        assert_eq!(cycle[5], Sort::Bytes);
    }

    #[test]
    fn a_selection_stays_with_its_row_and_typed_text_filters() {
        let mut state = sample();
        state.press(Key::Down);
        state.press(Key::Down);
        let selected = state.selected;
        assert_eq!(selected, Some(RowKey { pid: 4242, queue_pair: Some(0x0001_a2b3) }));
        state.sort = Sort::Number;
        assert_eq!(state.selected, selected);
        for (key, expected) in [(Key::Last, 4300), (Key::PageUp, 4242), (Key::Home, 4242), (Key::PageDown, 4300)] {
            state.press(key);
            assert_eq!(state.selected.map(|row| row.pid), Some(expected), "{key:?}");
        }
        state.press(Key::Letter('/'));
        "SERVER".chars().for_each(|letter| assert!(state.press(Key::Letter(letter))));
        assert_eq!(pids(&state), [4250]);
        state.press(Key::Erase);
        state.press(Key::Enter);
        assert_eq!((state.text.as_str(), state.types_text), ("SERVE", false));
        state.press(Key::Escape);
        assert_eq!(pids(&state).len(), 3);
        // A queue pair brings its process along.
        state.text = "1a2b3".into();
        assert_eq!(state.rows().len(), 2);
        assert!(!state.press(Key::Letter('q')));
    }

    #[test]
    fn blocks_are_for_terminals_with_utf_8() {
        let says = |set: &[(&str, &str)]| {
            has_unicode(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(says(&[("LANG", "C.UTF-8")]) && says(&[("LC_ALL", ""), ("LC_CTYPE", "de_DE.utf8")]));
        assert!(!says(&[]) && !says(&[("LANG", "en_US.UTF-8"), ("LC_ALL", "C")]));
    }

    #[test]
    fn no_key_breaks_an_empty_screen() {
        let mut state = State::new(Filter::default(), Sort::Bytes);
        for key in [Key::Up, Key::Down, Key::Enter, Key::Home, Key::Last, Key::Escape, Key::Letter('?'), Key::PageUp] {
            assert!(state.press(key));
        }
        assert!(state.rows().is_empty() && state.selected.is_none());
        state.press(Key::Letter('p'));
        assert!(state.is_paused());
    }
}
