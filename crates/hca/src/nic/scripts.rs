//! Failure scripts: how they start, and how their strikes are carried out. What strikes a completion, a call, an event or
//! a message is done where that passes: `take_hold` says so there.

use crate::environment;
use crate::ground::script_moments::{SCRIPT_TIMER, shown};
use crate::nic::Nic;
use crate::nic::process;
use crate::nic::strikes::watch_gpu_copies;
use crate::objects::device::Device;
use crate::queue_pair::Qp;
use crate::scripts::{Fed, Struck};
use ::host::thread::Shield;
use failures::{Action, DeviceView, Machine, Moment, Scene, Script, Who};
use std::sync::Arc;
use std::time::Duration;
use transport::{Data, SendRequest, Time};

/// What a script does to a call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallFault {
    /// It takes so much longer.
    pub delay: Duration,
    /// It fails.
    pub failure: Option<CallFailure>,
}

/// Why a call fails that a script strikes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("injected by {by}")]
pub struct CallFailure {
    /// With this errno.
    pub errno: i32,
    /// The line of the script.
    pub line: u32,
    /// What the script says there.
    by: String,
}

impl CallFault {
    /// Lets the call take its time. Returns why it fails, if it does.
    #[must_use]
    pub fn wait(self) -> Option<CallFailure> {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        self.failure
    }
}

impl Nic {
    /// Runs the scripts that the environment names.
    pub(crate) fn start_scripts(self: &Arc<Nic>) {
        let Some(asked) = environment::scripts() else { return };
        if let Some(report) = asked.report {
            self.ground.scripts.report_to(report);
        }
        // What the program broke that this process was before it became another.
        self.devices().iter().for_each(|device| self.show_port(device));
        for (name, script) in &asked.scripts {
            self.start_script(script, asked.seed, name);
        }
    }

    /// Runs one more script from now on; its time begins when the first device is opened, or now if one is.
    pub fn start_script(self: &Arc<Nic>, script: &Script, seed: Option<u64>, name: &str) {
        let machine = Machine::new(script, script.seed(seed), &self.who());
        if machine.is_idle() {
            return;
        }
        if machine.wants().gpu_copies {
            watch_gpu_copies();
        }
        // Strikes are events, calls are told, and what is done at once, past everything, is not.
        self.ground.records.trace.keep_on();
        self.ground.open_memory();
        self.each_qp(|qp| {
            if self.ground.scripts.pair_order(qp.qpn()) == 0 {
                self.ground.scripts.pair_made(qp.qpn());
            }
        });
        let is_open = self.objects.first_opened.get().is_some();
        let fed = self.ground.scripts.start(self.now(), name, machine, is_open);
        self.carry_out_all(fed);
    }

    /// This process, as scripts name it.
    fn who(&self) -> Who {
        let mut hosts: Vec<String> = self
            .port_devices()
            .iter()
            .flat_map(|device| device.port().gids.clone())
            .flatten()
            .map(|gid| gid.to_ip().to_string())
            .collect();
        hosts.extend(environment::host_name());
        Who { hosts, names: environment::process_names(), index: environment::process_index() }
    }

    /// This has happened, and no lock is held: what struck is carried out at once. Returns what takes hold of the moment.
    #[cold]
    pub(crate) fn happened(&self, moment: &Moment<'_>) -> Vec<Struck> {
        let fed = self.ground.scripts.feed(self.now(), moment);
        let (holds, struck) = fed.struck.into_iter().partition(Struck::takes_hold);
        for struck in &holds {
            self.ground.tell_strike(self.now(), struck, Ok(&shown(moment)));
        }
        self.carry_out_all(Fed { struck, wake: fed.wake });
        holds
    }

    /// A device was opened.
    pub(crate) fn device_opened(&self, device: &Arc<Device>) {
        if self.ground.scripts.run() {
            let index = self.ground.host.device_index(device.number());
            let device = Some(DeviceView { name: device.name(), index });
            self.happened(&Moment::Opened(Scene { device, port: Some(1), ..Scene::default() }));
        }
    }

    /// The program makes this call. Returns what scripts do to it.
    #[cold]
    pub fn strike_call(&self, name: &str) -> Option<CallFault> {
        if !self.ground.scripts.wants_calls() {
            return None;
        }
        let struck = self.happened(&Moment::Call { scene: Scene::default(), name });
        let mut fault = CallFault::default();
        for struck in &struck {
            match struck.action() {
                Action::Delay { by } => fault.delay += Duration::from_nanos(by),
                Action::Fail { errno } => {
                    let line = struck.strike.line() as u32;
                    fault.failure = Some(CallFailure { errno, line, by: struck.to_string() });
                }
                _ => {}
            }
        }
        (!struck.is_empty()).then_some(fault)
    }

    /// An entry of scripts in the NIC's timers came up.
    #[cold]
    pub(crate) fn wake_scripts(&self, now: Time, entry: Time) {
        let fed = self.ground.scripts.due(now, entry);
        self.carry_out_all(fed);
        if self.ground.scripts.holds_completions() {
            self.each_qp(|qp| qp.tell_late_completions(&self.ground, now));
        }
    }

    /// A queue pair has been given these messages to send: what scripts do about it is done at once.
    #[cold]
    pub(crate) fn note_sent(&self, qp: &Qp, sent: &[SendRequest<'_>]) {
        if !self.ground.scripts.wants_messages() {
            return;
        }
        let peer = qp.peer_address();
        for request in sent {
            let bytes = match request.data {
                Data::Gather(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
                Data::Inline(bytes) => bytes.len() as u64,
            };
            self.happened(&Moment::Message { scene: qp.scene(&self.ground, peer, false), bytes });
        }
    }

    fn carry_out_all(&self, Fed { struck, wake }: Fed) {
        if let Some(wake) = wake {
            self.ground.progress.wake_at(wake, SCRIPT_TIMER);
        }
        if struck.is_empty() {
            return;
        }
        let _shield = Shield::up();
        let Some(nic) = process::weak(self).upgrade() else { return };
        for struck in struck {
            // A process that is killed tells nothing afterwards.
            let is_last_word = matches!(struck.action(), Action::Kill { .. });
            if is_last_word {
                nic.ground.tell_strike(nic.now(), &struck, Ok("the process"));
            }
            let outcome = nic.carry_out_one(&struck);
            let outcome = outcome.as_deref().map_err(String::as_str);
            if !is_last_word || outcome.is_err() {
                nic.ground.tell_strike(nic.now(), &struck, outcome);
            }
        }
    }

    /// Carries out a strike; no lock is held. Returns what was struck, or why nothing was.
    fn carry_out_one(self: &Arc<Nic>, struck: &Struck) -> Result<String, String> {
        if let Some(outcome) = self.strike_queues(struck).or_else(|| self.carry_out(struck)) {
            return outcome;
        }
        Err(format!("{} cannot be done here", struck.strike.action.name()))
    }
}

#[cfg(all(test, feature = "scripts"))]
mod tests;
