//! Failure scripts that run in this process: what happens is fed to their machines, and strikes come out. It carries
//! nothing out: what strikes a passing completion, call or message is done where that passes, the rest by
//! `nic::scripts`. While no script runs it costs one relaxed load.

mod report_file;

pub(crate) use report_file::ReportFile;

use crate::progress::timers::Alarm;
use failures::{Action, Machine, Moment, Scene, Strike, Wants};
use latch::Rank;
use latch::plain::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use transport::Time;
use wire::Qpn;

/// Bits of what the running scripts want to be fed with.
const RUNS: u8 = 1;
const MESSAGES: u8 = 2;
const CALLS: u8 = 4;
const COMPLETIONS: u8 = 8;
const CONNECTIONS: u8 = 16;
const GPU_COPIES: u8 = 32;

/// The scripts of this process.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// What they want; 0 while none runs.
    wants: AtomicU8,
    state: Mutex<State>,
    /// How many completions are held back.
    held_completions: AtomicU64,
}

#[derive(Default)]
struct State {
    running: Vec<Running>,
    report: Option<ReportFile>,
    /// In which order queue pairs were made.
    pair_orders: HashMap<Qpn, u32>,
    /// How many queue pairs were made.
    pairs: u32,
    /// What is to be carried out by the next thread that may.
    waiting: Vec<Struck>,
    alarm: Alarm,
    opened_at: Option<Time>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

/// A script that runs.
struct Running {
    number: u32,
    name: Arc<str>,
    machine: Machine,
}

/// A strike, and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct Struck {
    /// The number of the script in this process, from 0.
    pub number: u32,
    /// Its name.
    pub script: Arc<str>,
    pub strike: Strike,
    /// What the moment was about that brought it.
    pub about: About,
}

/// What a moment was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct About {
    /// The place of its device among all.
    pub device: Option<u32>,
    pub port: Option<u8>,
    pub qpn: Option<Qpn>,
    /// The number of its completion queue.
    pub queue: Option<u32>,
}

impl About {
    fn of(scene: &Scene<'_>) -> About {
        About {
            device: scene.device.map(|device| device.index),
            port: scene.port,
            qpn: scene.pair.map(|pair| Qpn::new(pair.number)),
            queue: scene.queue.map(|queue| queue.number),
        }
    }
}

/// What came of a moment.
#[derive(Debug, Default)]
pub(crate) struct Fed {
    /// What struck.
    pub struck: Vec<Struck>,
    /// When the scripts want to hear that time has passed, if that is earlier than they wanted before.
    pub wake: Option<Time>,
}

impl Default for Scripts {
    fn default() -> Scripts {
        Scripts {
            wants: AtomicU8::new(0),
            state: Mutex::new(Rank::Scripts, State::default()),
            held_completions: AtomicU64::new(0),
        }
    }
}

impl Scripts {
    #[inline]
    fn has(&self, bit: u8) -> bool {
        self.wants.load(Ordering::Relaxed) & bit != 0
    }

    /// Whether any runs.
    #[inline]
    pub fn run(&self) -> bool {
        self.has(RUNS)
    }

    /// Whether one wants to hear of messages.
    #[inline]
    pub fn wants_messages(&self) -> bool {
        self.has(MESSAGES)
    }

    /// Whether one wants to hear of calls.
    #[inline]
    pub fn wants_calls(&self) -> bool {
        self.has(CALLS)
    }

    /// Whether what completes is looked at one by one.
    #[inline]
    pub fn watch_completions(&self) -> bool {
        self.has(COMPLETIONS | MESSAGES)
    }

    /// Whether one wants to hear of completions.
    #[inline]
    pub fn wants_completions(&self) -> bool {
        self.has(COMPLETIONS)
    }

    /// Whether one wants to hear of connections.
    #[inline]
    pub fn wants_connections(&self) -> bool {
        self.has(CONNECTIONS)
    }

    /// Whether one wants to hear of copies from and to GPU memory.
    #[inline]
    pub fn wants_gpu_copies(&self) -> bool {
        self.has(GPU_COPIES)
    }

    /// Runs one more script. Its time begins when the first device is opened, or now if one is.
    pub fn start(&self, now: Time, name: &str, machine: Machine, is_open: bool) -> Fed {
        let mut state = self.state.lock();
        if is_open {
            state.opened_at.get_or_insert(now);
        }
        let Wants { messages, calls, completions, connections, gpu_copies } = machine.wants();
        let mut wants = RUNS;
        for (wanted, bit) in [
            (messages, MESSAGES),
            (calls, CALLS),
            (completions, COMPLETIONS),
            (connections, CONNECTIONS),
            (gpu_copies, GPU_COPIES),
        ] {
            wants |= if wanted { bit } else { 0 };
        }
        let number = state.running.len() as u32;
        state.running.push(Running { number, name: name.into(), machine });
        self.wants.fetch_or(wants, Ordering::Relaxed);
        match state.opened_at {
            Some(_) => state.feed(now, &Moment::Opened(Scene::default()), Some(number)),
            None => Fed::default(),
        }
    }

    /// Whether completions are held back.
    pub fn holds_completions(&self) -> bool {
        self.held_completions.load(Ordering::Relaxed) > 0
    }

    /// A completion is held back.
    pub fn hold_completion(&self) {
        self.held_completions.fetch_add(1, Ordering::Relaxed);
    }

    /// A completion is held back no longer.
    pub fn let_go_of_completion(&self) {
        self.held_completions.fetch_sub(1, Ordering::Relaxed);
    }

    /// Where strikes are reported.
    pub fn report_to(&self, file: ReportFile) {
        self.state.lock().report = Some(file);
    }

    /// This has happened. What struck is the caller's to carry out, or to [`postpone`](Scripts::postpone).
    pub fn feed(&self, now: Time, moment: &Moment<'_>) -> Fed {
        let mut state = self.state.lock();
        if let Moment::Opened(_) = moment {
            state.opened_at.get_or_insert(now);
        }
        state.feed(now, moment, None)
    }

    /// A queue pair was made. Returns as the how manieth.
    pub fn pair_made(&self, qpn: Qpn) -> u32 {
        let mut state = self.state.lock();
        state.pairs += 1;
        let order = state.pairs;
        state.pair_orders.insert(qpn, order);
        order
    }

    /// A queue pair is no longer.
    pub fn pair_gone(&self, qpn: Qpn) {
        self.state.lock().pair_orders.remove(&qpn);
    }

    /// As the how manieth this queue pair was made; 0 if it was made before the first script ran.
    pub fn pair_order(&self, qpn: Qpn) -> u32 {
        self.state.lock().pair_orders.get(&qpn).copied().unwrap_or(0)
    }

    /// Keeps strikes for the next thread that may carry them out.
    pub fn postpone(&self, struck: impl IntoIterator<Item = Struck>) {
        self.state.lock().waiting.extend(struck);
    }

    /// What was kept, and what is due now. `entry` is the entry of the NIC's timers that came up.
    pub fn due(&self, now: Time, entry: Time) -> Fed {
        let mut state = self.state.lock();
        state.alarm.comes_up(entry);
        let mut struck = std::mem::take(&mut state.waiting);
        let fed = state.feed(now, &Moment::Time, None);
        struck.extend(fed.struck);
        Fed { struck, wake: fed.wake }
    }

    /// Writes into the report what struck, or why nothing was struck.
    pub fn report(&self, now: Time, struck: &Struck, outcome: Result<&str, &str>) {
        let mut state = self.state.lock();
        let since = state.opened_at.map_or(0, |opened| now.since(opened));
        if let Some(report) = &mut state.report {
            report.tell(&struck.script, &struck.strike, since, outcome);
        }
    }
}

impl State {
    /// Feeds all scripts, or one of them.
    fn feed(&mut self, now: Time, moment: &Moment<'_>, only: Option<u32>) -> Fed {
        let about = About::of(&moment.scene());
        let mut struck = Vec::new();
        let mut next: Option<u64> = None;
        for running in &mut self.running {
            if only.is_none_or(|only| only == running.number) {
                let mut strikes = Vec::new();
                running.machine.feed(now.as_nanos(), moment, &mut strikes);
                struck.extend(running.own(strikes, about));
            }
            next = next.into_iter().chain(running.machine.next_time()).min();
        }
        let next = next.map(Time::from_nanos);
        Fed { struck, wake: next.filter(|next| self.alarm.advances_to(*next)) }
    }
}

impl Running {
    fn own(&self, strikes: Vec<Strike>, about: About) -> impl Iterator<Item = Struck> {
        let (number, script) = (self.number, Arc::clone(&self.name));
        strikes.into_iter().map(move |strike| {
            let about = if strike.is_of_moment { about } else { About::default() };
            Struck { number, script: Arc::clone(&script), strike, about }
        })
    }
}

impl Struck {
    /// Whether it strikes the moment itself: it is done where that passes.
    pub fn takes_hold(&self) -> bool {
        self.strike.action.hook().is_some()
    }

    /// The action, and the line that says so.
    pub fn action(&self) -> Action {
        self.strike.action
    }
}

/// `line 12 of flap.toml: port-down`, with `ends` behind it at an end.
impl fmt::Display for Struck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = if self.strike.phase == failures::Phase::End { " ends" } else { "" };
        write!(f, "line {} of {}: {}{ends}", self.strike.line(), self.script, self.strike.action)
    }
}
