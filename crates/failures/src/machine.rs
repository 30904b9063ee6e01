//! When failures strike: what happens goes in, strikes come out.
//!
//! A failure waits for its start (a time, so many messages, so many bytes, or nothing), and then, if it names a call, for
//! that call. Then it *fires*: by its `rate`, and as often as its `times` allow. What fires either strikes a thing
//! ([`Phase::Begin`], and [`Phase::End`] where it lasts), or takes hold of the next call, completion, event or message
//! that fits ([`Action::hook`]), or of all that come while it lasts.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::action::{Action, Hook};
use crate::dice::Dice;
use crate::moment::{Moment, Scene, Who};
use crate::script::{CallTrigger, Failure, Nanos, Of, Script, Since, Start};
use crate::words::names_call;

#[cfg(all(test, feature = "parse"))]
mod tests;

/// How many queue pairs or devices have a count of their own; those that come later share one.
const MAX_COUNTED: usize = 1 << 18;

/// Something to carry out now.
#[derive(Clone, PartialEq, Debug)]
pub struct Strike {
    /// What to do. A failure that flaps gives strikes of [`Action::PortDown`].
    pub action: Action,
    /// Begin it, or end it.
    pub phase: Phase,
    /// What the script says: where, and in which line.
    pub failure: Arc<Failure>,
    /// The how manieth strike of this failure it is, from 1; an end has the count of its begin.
    pub count: u64,
    /// It strikes what the moment was about that the machine was fed with, not everything that its place fits.
    pub is_of_moment: bool,
}

impl Strike {
    /// The line of the script that says so.
    #[must_use]
    pub fn line(&self) -> usize {
        self.failure.line
    }
}

/// What is to be done about a failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It happens, or begins.
    Begin,
    /// It ends: all is as before.
    End,
}

/// Which moments a machine needs to be fed with; that a device was opened it always needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    /// [`Moment::Message`].
    pub messages: bool,
    /// [`Moment::Call`].
    pub calls: bool,
    /// [`Moment::Completion`].
    pub completions: bool,
    /// Moments of connections.
    pub connections: bool,
    /// [`Moment::GpuCopy`].
    pub gpu_copies: bool,
}

/// Obeys a script in one process.
#[derive(Debug)]
pub struct Machine {
    states: Vec<State>,
    wants: Wants,
    end: Option<Nanos>,
    leaves_broken: bool,
    /// When the first device was opened.
    opened: Option<Nanos>,
    has_ended: bool,
    /// There was a message.
    has_message: bool,
}

/// A failure, and how far it is.
#[derive(Debug)]
struct State {
    failure: Arc<Failure>,
    dice: Dice,
    /// The start was there: only calls are waited for.
    has_started: bool,
    /// Fires then, without any other trigger.
    due: Option<Nanos>,
    counts: BTreeMap<u32, u64>,
    calls: u64,
    fired: u64,
    struck: u64,
    /// It has begun and not ended.
    lasts: Option<Lasting>,
    /// So many of what comes next are taken hold of.
    waiting_hits: u64,
}

/// What has begun.
#[derive(Clone, Copy, Debug)]
struct Lasting {
    until: Option<Nanos>,
    /// Of a failure that flaps: when it changes next, and whether it is down now.
    flap: Option<(Nanos, bool)>,
}

impl Machine {
    /// Obeys `script` in this process. Failures of other processes and hosts are left out.
    #[must_use]
    pub fn new(script: &Script, seed: u64, who: &Who) -> Machine {
        let of_ours = script.failures.iter().filter(|failure| failure.place.is_process(who));
        let states: Vec<State> = of_ours.map(|failure| State::new(failure, seed, who.index)).collect();
        let mut wants = Wants::default();
        for state in &states {
            state.add_wants(&mut wants);
        }
        Machine {
            states,
            wants,
            end: script.end,
            leaves_broken: script.leaves_broken,
            opened: None,
            has_ended: false,
            has_message: false,
        }
    }

    /// What to feed it with.
    #[must_use]
    pub fn wants(&self) -> Wants {
        self.wants
    }

    /// Whether nothing will ever strike: no failure is about this process.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.states.is_empty()
    }

    /// When to feed it with [`Moment::Time`], if nothing else happens before.
    #[must_use]
    pub fn next_time(&self) -> Option<Nanos> {
        let opened = self.opened?;
        if self.has_ended {
            return None;
        }
        let end = self.end.map(|end| opened.saturating_add(end));
        self.states.iter().filter_map(State::next_time).chain(end).min()
    }

    /// This happens now. `strikes` gets what is to be carried out, in order: first what is due by time, then what this
    /// moment brings. Times never go back.
    pub fn feed(&mut self, now: Nanos, moment: &Moment<'_>, strikes: &mut Vec<Strike>) {
        if let (Moment::Opened(_), None) = (moment, self.opened) {
            self.opened = Some(now);
            for state in &mut self.states {
                state.begin_times(Since::Start, now);
            }
        }
        if self.has_ended {
            return;
        }
        for state in &mut self.states {
            state.pass_time(now, strikes);
        }
        let end = self.opened.zip(self.end).map(|(opened, end)| opened.saturating_add(end));
        if end.is_some_and(|end| end <= now) {
            self.finish(strikes);
            return;
        }
        if let (Moment::Message { .. }, false) = (moment, self.has_message) {
            self.has_message = true;
            for state in &mut self.states {
                state.begin_times(Since::FirstMessage, now);
                state.pass_time(now, strikes);
            }
        }
        for state in &mut self.states {
            state.meet(now, moment, strikes);
        }
    }

    /// The script ends here: what it broke is whole again, unless it says otherwise.
    pub fn finish(&mut self, strikes: &mut Vec<Strike>) {
        if core::mem::replace(&mut self.has_ended, true) || self.leaves_broken {
            return;
        }
        for state in &mut self.states {
            state.end(strikes);
        }
    }
}

impl State {
    fn new(failure: &Arc<Failure>, seed: u64, process: u32) -> State {
        State {
            failure: Arc::clone(failure),
            dice: Dice::new(seed, process, failure.line),
            has_started: failure.when.start == Start::Call,
            due: None,
            counts: BTreeMap::new(),
            calls: 0,
            fired: 0,
            struck: 0,
            lasts: None,
            waiting_hits: 0,
        }
    }

    fn add_wants(&self, wants: &mut Wants) {
        let Failure { when, action, .. } = &*self.failure;
        let hook = action.hook();
        wants.messages |= match when.start {
            Start::Messages(..) | Start::Bytes(..) => matches!(hook, None | Some(Hook::Call)),
            Start::Time { since, .. } => since == Since::FirstMessage,
            Start::Call => false,
        };
        wants.calls |= when.call.is_some();
        match hook {
            Some(Hook::Call) | None => {}
            Some(Hook::Completion) => wants.completions = true,
            Some(Hook::GpuCopy) => wants.gpu_copies = true,
            Some(Hook::ConnectionEvent(_) | Hook::ConnectionRequest | Hook::ConnectionMessage(_)) => {
                wants.connections = true;
            }
        }
    }

    fn next_time(&self) -> Option<Nanos> {
        let lasting =
            self.lasts.and_then(|lasting| lasting.until.into_iter().chain(lasting.flap.map(|flap| flap.0)).min());
        self.due.into_iter().chain(lasting).min()
    }

    fn has_times_left(&self) -> bool {
        self.failure.when.times.is_none_or(|times| self.fired < times)
    }

    fn begin_times(&mut self, since: Since, now: Nanos) {
        if let Start::Time { at, since: from } = self.failure.when.start
            && from == since
            && self.fired == 0
        {
            self.due = Some(now.saturating_add(at));
        }
    }

    /// Ends, changes and fires what is due, in the order of time.
    fn pass_time(&mut self, now: Nanos, strikes: &mut Vec<Strike>) {
        while let Some(at) = self.next_time().filter(|at| *at <= now) {
            if let Some(lasting) = &mut self.lasts {
                if lasting.until.is_some_and(|until| until <= at) {
                    self.end(strikes);
                    continue;
                }
                if let Some((next, is_down)) = lasting.flap
                    && next <= at
                {
                    self.flap(now, next, is_down, strikes);
                    continue;
                }
            }
            self.due = None;
            self.started_by_time(at, now, strikes);
        }
    }

    fn started_by_time(&mut self, at: Nanos, now: Nanos, strikes: &mut Vec<Strike>) {
        if self.failure.when.call.is_some() {
            self.has_started = true;
            return;
        }
        self.repeat(at, now);
        self.fire(at, false, strikes);
    }

    /// Makes it due again, if it is to be. What was missed, because nothing was fed, is not made up for.
    fn repeat(&mut self, at: Nanos, now: Nanos) {
        let left = self.failure.when.times.is_none_or(|times| self.fired + 1 < times);
        if let Some(every) = self.failure.when.every.filter(|_| left) {
            let missed = now.saturating_sub(at) / every;
            self.due = Some(at.saturating_add(every.saturating_mul(missed + 1)));
        }
    }

    fn flap(&mut self, now: Nanos, next: Nanos, is_down: bool, strikes: &mut Vec<Strike>) {
        let Action::Flap { period } = self.failure.action else { return };
        let half = (period / 2).max(1);
        let now = self.lasts.and_then(|lasting| lasting.until).map_or(now, |until| until.min(now));
        // Late by several periods: it is where it would be then.
        let missed = now.saturating_sub(next) / half;
        let changes = missed + 1;
        let becomes_down = is_down ^ (changes % 2 == 1);
        if let Some(lasting) = &mut self.lasts {
            lasting.flap = Some((next.saturating_add(half.saturating_mul(changes)), becomes_down));
        }
        if becomes_down != is_down {
            self.struck += u64::from(becomes_down);
            self.strike(Action::PortDown, if becomes_down { Phase::Begin } else { Phase::End }, false, strikes);
        }
    }

    /// Something happened that may count, fire, or be taken hold of.
    fn meet(&mut self, now: Nanos, moment: &Moment<'_>, strikes: &mut Vec<Strike>) {
        let scene = moment.scene();
        let failure = Arc::clone(&self.failure);
        let fits = failure.place.fits(&scene);
        let calls = failure.when.call.as_ref();
        if (fits || failure.place.may_fit(&scene)) && self.counted(moment, &scene) {
            match calls {
                Some(_) => self.has_started = true,
                None if self.due.is_none() => {
                    self.repeat(now, now);
                    self.fire(now, fits, strikes);
                }
                // It repeats by time now.
                None => {}
            }
        }
        if let (Some(calls), Moment::Call { name, .. }) = (calls, moment)
            && self.has_started
            && (fits || failure.action.hook() != Some(Hook::Call) && failure.place.may_fit(&scene))
            && names_call(&calls.name, name)
        {
            self.called(now, calls, fits, strikes);
        }
        if fits && failure.action.takes_hold_of(moment) {
            self.take_hold(strikes);
        }
    }

    /// Whether this moment is the one that the start counts to.
    ///
    /// What takes hold of completions, events, messages of the connection manager or copies counts these; everything else
    /// counts messages.
    fn counted(&mut self, moment: &Moment<'_>, scene: &Scene<'_>) -> bool {
        let action = self.failure.action;
        let size = match (moment, action.hook()) {
            (Moment::Message { bytes, .. }, None | Some(Hook::Call)) => *bytes,
            (_, Some(_)) if action.takes_hold_of(moment) => match moment {
                Moment::Completion { bytes, .. } => *bytes,
                _ => 0,
            },
            _ => return false,
        };
        let (wanted, of, step) = match self.failure.when.start {
            Start::Messages(wanted, of) => (wanted, of, 1),
            Start::Bytes(wanted, of) => (wanted, of, size),
            Start::Time { .. } | Start::Call => return false,
        };
        if self.has_started || (!self.has_times_left() && self.failure.when.call.is_none()) {
            return false;
        }
        let key = match of {
            Of::Process => 0,
            Of::Device => scene.device.map_or(0, |device| device.index + 1),
            Of::QueuePair => scene.pair.map_or(0, |pair| pair.order),
        };
        let key = if self.counts.len() < MAX_COUNTED || self.counts.contains_key(&key) { key } else { 0 };
        let count = self.counts.entry(key).or_default();
        *count = count.saturating_add(step);
        let is_there = *count >= wanted;
        if is_there {
            *count = 0;
        }
        is_there
    }

    /// A call that the failure names.
    fn called(&mut self, now: Nanos, calls: &CallTrigger, fits: bool, strikes: &mut Vec<Strike>) {
        let action = self.failure.action;
        let takes_hold = action.hook() == Some(Hook::Call);
        if takes_hold && self.lasts.is_some() {
            self.hit(strikes);
            return;
        }
        self.calls = self.calls.saturating_add(1);
        let is_it = if calls.and_later { self.calls >= calls.nth } else { self.calls == calls.nth };
        if !is_it || !self.has_times_left() {
            return;
        }
        if !calls.and_later {
            self.calls = 0;
        }
        if !takes_hold {
            self.fire(now, fits, strikes);
        } else if self.rolls() {
            self.fired += 1;
            self.struck += 1;
            self.strike(action, Phase::Begin, true, strikes);
            self.lasts =
                self.failure.when.lasts.map(|lasts| Lasting { until: Some(now.saturating_add(lasts)), flap: None });
        }
    }

    fn rolls(&mut self) -> bool {
        self.failure.when.rate.is_none_or(|rate| self.dice.chance(rate.0))
    }

    /// It fires: strikes a thing, which may be what the moment is about, or waits for what it takes hold of.
    fn fire(&mut self, at: Nanos, is_of_moment: bool, strikes: &mut Vec<Strike>) {
        if !self.has_times_left() {
            return;
        }
        let (action, lasts) = (self.failure.action, self.failure.when.lasts);
        let until = lasts.map(|lasts| at.saturating_add(lasts));
        if action.hook().is_some() {
            // A window is open to all that come, each by chance; otherwise chance has its say now.
            if lasts.is_some() {
                self.fired += 1;
                self.lasts = Some(Lasting { until, flap: None });
            } else if self.rolls() {
                self.fired += 1;
                self.waiting_hits += 1;
            }
            return;
        }
        if self.lasts.is_some() || !self.rolls() {
            return;
        }
        self.fired += 1;
        self.struck += 1;
        let shown = match action {
            Action::Flap { period } => {
                let next = at.saturating_add((period / 2).max(1));
                self.lasts = Some(Lasting { until, flap: Some((next, true)) });
                Action::PortDown
            }
            _ => {
                self.lasts = action.lasts().then_some(Lasting { until, flap: None });
                action
            }
        };
        self.strike(shown, Phase::Begin, is_of_moment, strikes);
    }

    /// What it takes hold of is there.
    fn take_hold(&mut self, strikes: &mut Vec<Strike>) {
        if self.lasts.is_some() {
            self.hit(strikes);
        } else if self.waiting_hits > 0 {
            self.waiting_hits -= 1;
            self.struck += 1;
            self.strike(self.failure.action, Phase::Begin, true, strikes);
        }
    }

    /// One of all that come while it lasts.
    fn hit(&mut self, strikes: &mut Vec<Strike>) {
        if self.rolls() {
            self.struck += 1;
            self.strike(self.failure.action, Phase::Begin, true, strikes);
        }
    }

    fn end(&mut self, strikes: &mut Vec<Strike>) {
        let Some(lasting) = self.lasts.take() else { return };
        match self.failure.action {
            Action::Flap { .. } if lasting.flap.is_some_and(|(_, is_down)| is_down) => {
                self.strike(Action::PortDown, Phase::End, false, strikes);
            }
            action if action.hook().is_none() && !matches!(action, Action::Flap { .. }) => {
                self.strike(action, Phase::End, false, strikes);
            }
            _ => {}
        }
    }

    fn strike(&self, action: Action, phase: Phase, is_of_moment: bool, strikes: &mut Vec<Strike>) {
        strikes.push(Strike { action, phase, failure: Arc::clone(&self.failure), count: self.struck, is_of_moment });
    }
}
