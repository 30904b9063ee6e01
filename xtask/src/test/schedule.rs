//! Which step may start next: a pure decision over the steps' names, what they need, and what is under way. Programs under
//! test mostly wait, and leave the processors to the compiler; a build often waits for one long crate, and leaves a
//! processor to another build.

use std::collections::BTreeMap;

/// What a step does to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// Keeps processors busy.
    Compiles,
    /// Compiles, and has cargo's lock on target/debug, for which a second such step would only wait.
    CompilesDev,
    /// Starts programs, and waits for them or for the network.
    Runs,
    /// Starts so many programs that all processors are busy, and programs that spin where they poll: beside a compiler they
    /// would take longer than after it.
    Alone,
}

/// How many steps are under way at a time, and how many of them compile and run.
const STEPS_AT_A_TIME: usize = 3;
const COMPILING_STEPS: usize = 2;
const RUNNING_STEPS: usize = 1;

/// Where a step stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Waiting,
    Running,
    Passed,
    Failed,
    /// A step that it needs failed, or never ran.
    Dropped,
}

/// A step as the schedule sees it.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    pub name: &'a str,
    pub load: Load,
    /// Steps that must have passed. Those that were not selected count as passed: what they build is built on demand.
    pub needs: &'a [&'a str],
}

/// The steps of a run, in order of preference.
#[derive(Debug)]
pub struct Schedule<'a> {
    steps: Vec<(Plan<'a>, Stage)>,
}

impl<'a> Schedule<'a> {
    pub fn new(plans: impl IntoIterator<Item = Plan<'a>>) -> Schedule<'a> {
        Schedule { steps: plans.into_iter().map(|plan| (plan, Stage::Waiting)).collect() }
    }

    /// Marks the next step that may start as running, and returns its name.
    pub fn start(&mut self) -> Option<&'a str> {
        let stages: BTreeMap<&str, Stage> = self.steps.iter().map(|(plan, stage)| (plan.name, *stage)).collect();
        let running = || self.steps.iter().filter(|(_, stage)| *stage == Stage::Running).map(|(plan, _)| plan.load);
        if running().count() >= STEPS_AT_A_TIME || running().any(|load| load == Load::Alone) {
            return None;
        }
        let under_way = |kind: Load| running().filter(|load| *load == kind).count();
        let compiling = under_way(Load::Compiles) + under_way(Load::CompilesDev);
        let [dev, runs] = [Load::CompilesDev, Load::Runs].map(under_way);
        let idle = running().next().is_none();
        let has_passed = |need: &&str| stages.get(*need).is_none_or(|stage| *stage == Stage::Passed);
        let may_start = |(plan, stage): &&mut (Plan<'a>, Stage)| {
            *stage == Stage::Waiting
                && plan.needs.iter().all(has_passed)
                && match plan.load {
                    Load::Compiles => compiling < COMPILING_STEPS,
                    Load::CompilesDev => compiling < COMPILING_STEPS && dev == 0,
                    Load::Runs => runs < RUNNING_STEPS,
                    Load::Alone => idle,
                }
        };
        let (plan, stage) = self.steps.iter_mut().find(may_start)?;
        *stage = Stage::Running;
        Some(plan.name)
    }

    /// A step has ended. Returns the steps that can no longer run.
    pub fn end(&mut self, name: &str, passed: bool) -> Vec<&'a str> {
        if let Some((_, stage)) = self.steps.iter_mut().find(|(plan, _)| plan.name == name) {
            *stage = if passed { Stage::Passed } else { Stage::Failed };
        }
        let mut dropped = Vec::new();
        loop {
            let lost: Vec<&str> = self.steps.iter().filter(|step| step.1.is_lost()).map(|step| step.0.name).collect();
            let next = self
                .steps
                .iter_mut()
                .find(|(plan, stage)| *stage == Stage::Waiting && plan.needs.iter().any(|need| lost.contains(need)));
            let Some((plan, stage)) = next else { return dropped };
            *stage = Stage::Dropped;
            dropped.push(plan.name);
        }
    }

    /// Whether nothing is left to start or to wait for.
    pub fn is_done(&self) -> bool {
        !self.steps.iter().any(|(_, stage)| matches!(stage, Stage::Waiting | Stage::Running))
    }
}

impl Stage {
    fn is_lost(self) -> bool {
        matches!(self, Stage::Failed | Stage::Dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::{Load, Plan, Schedule};

    const PLANS: [Plan<'static>; 6] = [
        Plan { name: "tools", load: Load::Runs, needs: &[] },
        Plan { name: "release", load: Load::Compiles, needs: &[] },
        Plan { name: "build", load: Load::CompilesDev, needs: &[] },
        Plan { name: "clippy", load: Load::CompilesDev, needs: &[] },
        Plan { name: "tests", load: Load::Runs, needs: &["tools", "build"] },
        Plan { name: "soak", load: Load::Alone, needs: &["build"] },
    ];

    #[test]
    fn builds_go_on_beside_what_runs() {
        let mut schedule = Schedule::new(PLANS);
        let first = (schedule.start(), schedule.start(), schedule.start(), schedule.start());
        assert_eq!(first, (Some("tools"), Some("release"), Some("build"), None));
        schedule.end("tools", true);
        schedule.end("release", true);
        assert_eq!(schedule.start(), None, "the tests need the build, and clippy would wait for its lock");
        schedule.end("build", true);
        let next = (schedule.start(), schedule.start(), schedule.start());
        assert_eq!(next, (Some("clippy"), Some("tests"), None), "soak waits until it is alone");
        schedule.end("clippy", true);
        assert_eq!(schedule.start(), None);
        schedule.end("tests", true);
        assert_eq!(schedule.start(), Some("soak"));
        assert!(!schedule.is_done());
        schedule.end("soak", true);
        assert!(schedule.is_done());
    }

    #[test]
    fn what_needs_a_failed_step_does_not_run() {
        let mut schedule = Schedule::new(PLANS);
        while schedule.start().is_some() {}
        assert_eq!(schedule.end("build", false), ["tests", "soak"]);
        schedule.end("tools", true);
        schedule.end("release", true);
        assert_eq!((schedule.start(), schedule.start()), (Some("clippy"), None));
        schedule.end("clippy", true);
        assert!(schedule.is_done());
    }

    #[test]
    fn what_was_not_selected_is_not_waited_for() {
        let mut schedule = Schedule::new([PLANS[4]]);
        assert_eq!(schedule.start(), Some("tests"));
    }
}
