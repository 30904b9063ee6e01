//! `ubiverbs top`: what the processes of this host do on its NIC, live. Each second they are asked what they have
//! counted; `state` makes rates of it, `view` draws them, `terminal` is the terminal.

mod ending;
mod keys;
mod rates;
mod state;
mod terminal;
mod view;

use crate::exit::{Exit, Failure};
use crate::ps::Filter;
use crate::snapshot::{ANSWER_TIMEOUT, Snapshot};
use clap::Args;
use keys::Key;
use state::{Sort, State};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};
use terminal::Screen;

/// Watch processes and queue pairs live: messages, bytes, retransmissions, what is stuck and why
///
/// Arrows select a process or a queue pair, Enter opens it, s sorts, / filters, p pauses, q ends. It needs 80 columns to
/// show everything, and shows what fits in fewer.
#[derive(Args, Clone, Debug)]
#[command(after_help = HELP_EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    filter: Filter,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// What comes first
    #[arg(long, value_enum, default_value_t = Sort::Bytes)]
    sort: Sort,
    /// How many milliseconds the processes have to answer
    #[arg(long, value_name = "MS", default_value_t = ANSWER_TIMEOUT.as_millis() as u64)]
    timeout: u64,
}

const HELP_EXAMPLES: &str = "\
Examples:
  ubiverbs top
  ubiverbs top --stuck --interval 0.5
  ssh -t host ubiverbs top";

/// The shortest and the longest time between two looks, in seconds.
const INTERVAL_RANGE: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| INTERVAL_RANGE.contains(seconds));
    seconds.ok_or_else(|| format!("expected {} to {} seconds", INTERVAL_RANGE.start(), INTERVAL_RANGE.end()))
}

/// Runs until it is ended.
pub fn run(options: &Options) -> Result<Exit, Failure> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(Failure::NoTerminal);
    }
    let snapshot = || Snapshot::take(Duration::from_millis(options.timeout));
    let mut state = State::new(options.filter.clone(), options.sort);
    // Before the screen is taken: if this fails, it says so where it can be read.
    state.learn(snapshot()?, Instant::now());
    let failed = |source| Failure::System { what: "the terminal", source };
    // Dropped before this returns, and then a signal has its effect that ended the loop.
    let mut screen = Screen::take().map_err(failed)?;
    let interval = Duration::from_secs_f64(options.interval);
    let mut next = Instant::now() + interval;
    loop {
        screen.draw(|buffer| view::draw(&mut state, buffer)).map_err(failed)?;
        let keys = screen.keys(next.saturating_duration_since(Instant::now())).map_err(failed)?;
        for key in keys {
            if key == Key::End || !state.press(key) {
                return Ok(Exit::Ok);
            }
        }
        if Instant::now() >= next {
            if !state.is_paused() {
                state.learn(snapshot()?, Instant::now());
            }
            next = Instant::now() + interval;
        }
    }
}
