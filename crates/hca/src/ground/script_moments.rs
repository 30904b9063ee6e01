//! What failure scripts hear from the rooms of the NIC, and what is told of their strikes.

use crate::ground::Ground;
use crate::scripts::{Fed, Struck};
use failures::{Action, Moment};
use trace::{Event, Kind, Text};
use transport::Time;
use wire::Qpn;

/// Whose entries in the NIC's timers are those of scripts: no queue pair has this number.
pub(crate) const SCRIPT_TIMER: Qpn = Qpn::SMI;

impl Ground {
    /// Feeds scripts with this moment. Returns what takes hold of it, reported already; the rest is carried out by the
    /// next thread that drives. Locks in front of [`Rank::Scripts`](latch::Rank::Scripts) may be held.
    #[cold]
    pub fn strikes_on(&self, moment: &Moment<'_>) -> Vec<Struck> {
        let now = self.now();
        let Fed { struck, wake } = self.scripts.feed(now, moment);
        let (holds, others): (Vec<Struck>, Vec<Struck>) = struck.into_iter().partition(Struck::takes_hold);
        if !others.is_empty() {
            self.scripts.postpone(others);
            self.wake_scripts_at(now);
        }
        if let Some(wake) = wake {
            self.wake_scripts_at(wake);
        }
        for struck in &holds {
            self.tell_strike(now, struck, Ok(&shown(moment)));
        }
        holds
    }

    /// Feeds scripts with this moment. Returns what the last that takes hold of it does. See `strikes_on`.
    #[cold]
    pub fn take_hold(&self, moment: &Moment<'_>) -> Option<Action> {
        self.strikes_on(moment).last().map(Struck::action)
    }

    /// Tells the trace and the report of a strike.
    #[cold]
    pub fn tell_strike(&self, now: Time, struck: &Struck, outcome: Result<&str, &str>) {
        if self.records.trace.is_on() {
            let kind = Kind::Injected {
                script: Text::of(&struck.script),
                line: struck.strike.line() as u32,
                what: Text::of(struck.strike.action),
                ends: struck.strike.phase == failures::Phase::End,
                missed: outcome.is_err(),
            };
            self.records.trace.record(&Event { at: now.as_nanos(), qpn: struck.about.qpn, kind });
        }
        self.scripts.report(now, struck, outcome);
    }

    /// Has the next thread that drives look after scripts then.
    pub fn wake_scripts_at(&self, time: Time) {
        self.progress.wake_at(time, SCRIPT_TIMER);
    }
}

/// What a moment is about, for people.
pub(crate) fn shown(moment: &Moment<'_>) -> String {
    let scene = moment.scene();
    match *moment {
        Moment::Call { name, .. } => name.to_owned(),
        _ => match (scene.pair, scene.connection) {
            (Some(pair), _) => format!("queue pair {:#x}", pair.number),
            (None, Some(connection)) => format!("connection {}", connection.order),
            (None, None) => String::new(),
        },
    }
}
