//! Runs a program on the simulator beside the model: every end takes its steps as soon as it may, receives are posted and links disturbed at their
//! times, completions are judged as they come. What posting does to the model is in `post`, what completions must look like in `judge`.

use super::judge::Incoming;
use super::post::{Effect, Expect};
use super::program::*;
use super::stage::Stage;
use super::watch::{self, Watch};
use sim::{Fate, QpId};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use trace::Event;
use transport::{AsyncEvent, Bind, Modify, Operation, PostError, State};
use wire::Key;

/// Virtual time after which a run is stuck. The slowest wait of a program is a tenth of a second.
const STUCK_AFTER_NANOS: u64 = 5_000_000_000;

/// Things that may happen between two looks at the clock before a run is taken for a storm.
const STORM: u64 = 3_000_000;

/// Why a run failed.
pub type Verdict = Result<(), String>;

/// A run.
pub struct Run<'p> {
    pub program: &'p Program,
    pub stage: Stage,
    pub watch: watch::Shared,
    pub actors: Vec<Actor>,
    /// Every work request, by its number.
    pub tickets: Vec<Ticket>,
    /// Per shared queue: how many receives were posted, and how many used.
    pub shared: Vec<SharedState>,
    agenda: VecDeque<(u64, Cue)>,
    /// Bytes of which the model does not know whether they were touched: host and range of its heap.
    pub doubtful: Vec<(usize, std::ops::Range<usize>)>,
    pub additions: Vec<Addition>,
    /// Packets a perfect network would need.
    pub ideal: u64,
}

/// An end in action.
pub struct Actor {
    pub qp: QpId,
    cursor: usize,
    wake: u64,
    draining: Option<Draining>,
    /// A window work request of ours that the peer carries out.
    errand: Option<u64>,
    /// What this end has posted and not yet seen completed, oldest first.
    pub expects: VecDeque<Expect>,
    /// A completion was an error: all others will be.
    pub failed: bool,
    pub last_success: Option<u64>,
    /// It failed before the work that was to fail, because it never heard.
    pub unheard: bool,
    pub receives_failed: bool,
    /// The work that must fail has been posted: nothing after it has an effect.
    pub doomed: bool,
    /// Receives of its own that are posted, oldest first.
    pub posted: VecDeque<u64>,
    pub last_shared: Option<usize>,
    /// Messages under way to it.
    pub incoming: Incoming,
    /// What its work did to its target, for when it is not known how much of it was done.
    pub effects: Vec<Effect>,
    pub tallied: u32,
    pub key: Option<Key>,
    /// Where the window is: offset and length in the target, and whether addresses count from 0.
    pub window: Option<(u32, u32, bool)>,
    /// It does not exist any more.
    pub gone: bool,
}

/// An addition to a shared counter.
pub struct Addition {
    pub host: usize,
    pub counter: usize,
    pub add: u64,
    pub end: usize,
    pub place: u32,
}

struct Draining {
    posts: usize,
    drained: bool,
}

#[derive(Default)]
pub struct SharedState {
    pub posted: usize,
    pub used: Vec<bool>,
}

/// What a work request number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ticket {
    Send(usize),
    Receive(usize, usize),
    Shared(usize, usize),
}

#[derive(Clone, Copy)]
enum Cue {
    Receive(usize, usize),
    SharedReceive(usize, usize),
    Disturb(usize),
    Fault,
}

/// Runs a program to its end. With `events`, they are kept there.
pub fn run(program: &Program, events: Option<Rc<RefCell<Vec<Event>>>>) -> (Verdict, watch::Tally) {
    let mut run = Run::new(program, events);
    let mut verdict = run.play();
    if program.encore && verdict.is_ok() {
        verdict = run.begin_again().and_then(|()| run.play());
    }
    let watch = run.watch.borrow();
    let verdict = match &watch.violation {
        Some(violation) => Err(violation.clone()),
        None => verdict,
    };
    (verdict, watch.tally.clone())
}

impl<'p> Run<'p> {
    fn new(program: &'p Program, events: Option<Rc<RefCell<Vec<Event>>>>) -> Run<'p> {
        let mut stage = Stage::set(program);
        let watch = Rc::new(RefCell::new(Watch::new(program, stage.ends[0].qp.qpn)));
        if let Some(events) = events {
            stage.sim.observe(move |_, event| events.borrow_mut().push(*event));
        }
        let observer = Rc::clone(&watch);
        stage.sim.observe(move |_, event| observer.borrow_mut().observe(event));
        let adversary = Rc::clone(&watch);
        stage.sim.intercept(move |sighting| -> Fate { adversary.borrow_mut().fate(sighting) });
        stage.sim.set_event_cap(STORM);
        stage.connect(program);
        let actors = (0..program.ends()).map(|end| Actor::new(&stage, end)).collect();
        let shared = program.shared.iter().map(|_| SharedState::default()).collect();
        Run {
            program,
            stage,
            watch,
            actors,
            tickets: Vec::new(),
            shared,
            agenda: agenda(program, 0),
            doubtful: Vec::new(),
            additions: Vec::new(),
            ideal: 0,
        }
    }

    /// All queue pairs are reset, connected anew, and do their work once more on the memory they left.
    fn begin_again(&mut self) -> Verdict {
        for end in 0..self.actors.len() {
            let qp = self.actors[end].qp;
            let modify = Modify { state: Some(State::Reset), ..Modify::default() };
            self.stage.sim.modify(qp, &modify).map_err(|error| format!("end {end} refuses RESET: {error}"))?;
            if self.stage.sim.completion_count(qp) > 0 {
                return Err(format!("end {end} completes work after a reset"));
            }
        }
        self.watch.borrow_mut().begin_again();
        self.stage.renew_windows(self.program);
        self.stage.connect(self.program);
        self.actors = (0..self.program.ends()).map(|end| Actor::new(&self.stage, end)).collect();
        self.additions.clear();
        self.agenda = agenda(self.program, self.now());
        Ok(())
    }

    fn now(&self) -> u64 {
        self.stage.sim.now().as_nanos()
    }

    fn play(&mut self) -> Verdict {
        loop {
            self.collect()?;
            self.relieve();
            let mut moved = false;
            while self.agenda.front().is_some_and(|(at, _)| *at <= self.now()) {
                let Some((_, cue)) = self.agenda.pop_front() else { break };
                self.act(cue)?;
                moved = true;
            }
            for end in 0..self.actors.len() {
                while self.advance(end)? {
                    moved = true;
                }
            }
            if let Some(violation) = &self.watch.borrow().violation {
                return Err(violation.clone());
            }
            if moved {
                continue;
            }
            let finished = (0..self.actors.len()).all(|end| self.is_finished(end));
            if finished && self.agenda.is_empty() {
                return self.reckon();
            }
            self.pass_time()?;
        }
    }

    /// Lets time pass until something completes or a host has something to do.
    fn pass_time(&mut self) -> Verdict {
        let now = self.now();
        let wakes = self.actors.iter().map(|actor| actor.wake).filter(|wake| *wake > now);
        let next = wakes.chain(self.agenda.front().map(|(at, _)| *at)).min();
        let patience = next.map_or(STUCK_AFTER_NANOS, |next| next - now);
        let watch = Rc::clone(&self.watch);
        let mut looks = 0u32;
        let windows = self.windows();
        let mut overfull = None;
        let news = self.stage.sim.run_until(patience, |sim| {
            looks += 1;
            if looks.is_multiple_of(32) {
                overfull =
                    overfull.or_else(|| windows.iter().copied().find(|(host, gid)| is_overfull(sim, *host, *gid)));
            }
            let watch = watch.borrow();
            watch.news || watch.relief || watch.violation.is_some()
        });
        if let Some((host, gid)) = overfull {
            return Err(format!("host {} has more in flight towards {gid} than its window's limit", host.index()));
        }
        match next {
            _ if news => Ok(()),
            Some(next) => {
                self.stage.sim.run_for(next.saturating_sub(self.now()));
                Ok(())
            }
            None => Err(format!("nothing happens any more, but {} waits", self.who_waits())),
        }
    }

    fn who_waits(&self) -> String {
        let waits = |(number, actor): (usize, &Actor)| {
            (!self.is_finished(number)).then(|| {
                let expects = actor.expects.front().map(|expect| expect.wr_id);
                format!("end {number} at step {} with work {expects:?} oldest", actor.cursor)
            })
        };
        self.actors.iter().enumerate().filter_map(waits).collect::<Vec<_>>().join(", ")
    }

    /// Every congestion window there may be: of which host, towards whom.
    pub fn windows(&self) -> Vec<(sim::HostId, wire::Gid)> {
        let hosts = &self.stage.hosts;
        let towards = |to: sim::HostId| [0, 1].map(|index| self.stage.sim.gid(to, index));
        hosts.iter().flat_map(|from| hosts.iter().flat_map(move |to| towards(*to)).map(|gid| (*from, gid))).collect()
    }

    /// Lets everything happen that still will.
    pub fn settle(&mut self) -> Verdict {
        loop {
            let watch = Rc::clone(&self.watch);
            let relief = self.stage.sim.run_until(STUCK_AFTER_NANOS, |_| {
                let watch = watch.borrow();
                watch.relief || watch.violation.is_some()
            });
            self.collect()?;
            self.relieve();
            if let Some(violation) = &self.watch.borrow().violation {
                return Err(violation.clone());
            }
            if !relief {
                break;
            }
        }
        // Only what comes after all patience is left.
        let before = self.now();
        self.stage.sim.run_until_idle();
        match self.now() - before {
            waited if waited > STUCK_AFTER_NANOS => Err("something happens long after everybody is done".into()),
            _ => self.collect(),
        }
    }

    /// Where a retry budget is about to run out, the links and hosts are good for the rest of the run.
    fn relieve(&mut self) {
        if !std::mem::take(&mut self.watch.borrow_mut().relief) {
            return;
        }
        self.watch.borrow_mut().partitions.clear();
        for number in 0..self.stage.hosts.len() {
            let host = self.stage.hosts[number];
            self.stage.sim.set_service(host, 0);
            self.stage.sim.resume(host);
            for to in 0..self.stage.hosts.len() {
                let to = self.stage.hosts[to];
                self.stage.sim.change_link(host, to, |link| {
                    *link = sim::LinkConfig { delay: link.delay, ring: link.ring, ..sim::LinkConfig::of(link.kind) };
                });
            }
        }
        self.agenda.retain(|(_, cue)| !matches!(cue, Cue::Disturb(_)));
    }

    fn is_finished(&self, end: usize) -> bool {
        let actor = &self.actors[end];
        actor.gone || actor.cursor >= self.program.end(end).steps.len() && actor.draining.is_none()
    }

    /// Takes the next step of an end, if it may. True if it did.
    fn advance(&mut self, end: usize) -> Result<bool, String> {
        let actor = &self.actors[end];
        if actor.gone || actor.wake > self.now() {
            return Ok(false);
        }
        let program = self.program;
        let step = program.end(end).steps.get(actor.cursor);
        if actor.draining.is_some() && !self.drain_on(end, step)? {
            return Ok(false);
        }
        let Some(step) = step else { return Ok(false) };
        let done = match step {
            Step::Post(item) => match self.post(end, item) {
                Ok(()) => true,
                Err(PostError::QueueFull { capacity, .. }) => {
                    let known = self.actors[end].expects.len();
                    if known < capacity as usize {
                        return Err(format!("end {end}: {known} work requests fill a queue of {capacity}"));
                    }
                    self.actors[end].wake = self.now() + 20_000;
                    false
                }
                Err(error) => return Err(format!("end {end} may not post {item}: {error}")),
            },
            Step::Wait => {
                let done = self.actors[end].expects.is_empty();
                if done {
                    self.compare_end(end)?;
                }
                done
            }
            Step::Pause(nanos) => {
                self.actors[end].wake = self.now() + nanos;
                true
            }
            Step::Refill { offset, length, seed } => {
                self.refill(end, *offset, *length, *seed);
                true
            }
            Step::Drain { posts } => {
                let modify =
                    Modify { state: Some(State::SendQueueDrained), sqd_async_notify: Some(true), ..Modify::default() };
                if self.stage.sim.state(self.actors[end].qp) == State::ReadyToSend {
                    self.actors[end].draining = Some(Draining { posts: *posts, drained: false });
                    let modified = self.stage.sim.modify(self.actors[end].qp, &modify);
                    modified.map_err(|error| format!("end {end} may not go to SQD: {error}"))?;
                }
                true
            }
            Step::Bind { offset, length, zero_based } => self.bind(end, Some((*offset, *length, *zero_based)))?,
            Step::Unbind => self.bind(end, None)?,
        };
        if done {
            self.actors[end].cursor += 1;
        }
        Ok(done)
    }

    /// While it drains, an end may post a little more; then it waits for the word and goes back to RTS. True if it may take its step.
    fn drain_on(&mut self, end: usize, step: Option<&Step>) -> Result<bool, String> {
        let qp = self.actors[end].qp;
        let Some(draining) = &mut self.actors[end].draining else { return Ok(true) };
        if draining.posts > 0 && matches!(step, Some(Step::Post(_))) {
            // Work posted now only waits, and a full queue would wait for ever.
            draining.posts -= 1;
            if self.actors[end].expects.len() < self.program.end(end).capabilities.max_send_wr as usize {
                return Ok(true);
            }
        }
        let Some(draining) = &mut self.actors[end].draining else { return Ok(true) };
        draining.posts = 0;
        draining.drained |= self.stage.sim.async_events(qp).contains(&AsyncEvent::SendQueueDrained);
        if !draining.drained {
            return Ok(false);
        }
        let modify = Modify { state: Some(State::ReadyToSend), ..Modify::default() };
        let back = self.stage.sim.modify(qp, &modify);
        back.map_err(|error| format!("end {end} may not go back to RTS: {error}"))?;
        self.actors[end].draining = None;
        Ok(true)
    }

    /// Has the peer bind or take away the window over an end's target.
    fn bind(&mut self, end: usize, place: Option<(u32, u32, bool)>) -> Result<bool, String> {
        if let Some(errand) = self.actors[end].errand {
            if self.actors[end ^ 1].expects.iter().any(|expect| expect.wr_id == errand) {
                return Ok(false);
            }
            self.actors[end].errand = None;
            self.actors[end].window = place;
            return Ok(true);
        }
        if !self.actors[end].expects.is_empty() {
            return Ok(false);
        }
        let Some(key) = self.actors[end].key else { return Ok(true) };
        let target = self.stage.ends[end].target;
        let heap = self.stage.heaps[target.host];
        let type_two = self.program.end(end).areas.window == Some(2);
        let (offset, length, zero_based) = place.unwrap_or((0, 0, false));
        let mut access = scenery::ALL_ACCESS - transport::Access::LOCAL_WRITE;
        access.set(transport::Access::ZERO_BASED, zero_based);
        let new_key = Key::new(key.value() & !0xff | (key.value() + 1) & 0xff);
        let operation = match place {
            None if type_two => Operation::LocalInvalidate { key },
            _ => Operation::BindWindow(Bind {
                window: key,
                new_key,
                region: heap.key,
                address: heap.address + u64::from(target.offset + offset),
                length: u64::from(length),
                access,
            }),
        };
        match self.post_errand(end ^ 1, operation) {
            Ok(errand) => self.actors[end].errand = Some(errand),
            Err(PostError::QueueFull { .. }) => {
                self.actors[end].wake = self.now() + 20_000;
                return Ok(false);
            }
            Err(error) => return Err(format!("end {} may not bind: {error}", end ^ 1)),
        }
        if matches!(operation, Operation::BindWindow(_)) {
            self.actors[end].key = Some(new_key);
        }
        Ok(false)
    }

    fn act(&mut self, cue: Cue) -> Verdict {
        match cue {
            Cue::Receive(end, index) => self.post_receive(end, index),
            Cue::SharedReceive(queue, index) => self.post_shared(queue, index),
            Cue::Disturb(index) => {
                self.disturb(self.program.disturbances[index].1);
                Ok(())
            }
            Cue::Fault => self.strike(),
        }
    }

    fn disturb(&mut self, what: Disturbance) {
        let hosts = self.stage.hosts.clone();
        let sim = &mut self.stage.sim;
        match what {
            Disturbance::Link(from, to, config) => sim.set_direction(hosts[from], hosts[to], config),
            Disturbance::Partition(a, b) => drop(self.watch.borrow_mut().partitions.insert((a.min(b), a.max(b)))),
            Disturbance::Heal(a, b) => drop(self.watch.borrow_mut().partitions.remove(&(a.min(b), a.max(b)))),
            Disturbance::Pause(host) => sim.pause(hosts[host]),
            Disturbance::Resume(host) => sim.resume(hosts[host]),
            Disturbance::Service(host, nanos) => sim.set_service(hosts[host], nanos),
        }
    }

    /// The fault that has a time.
    fn strike(&mut self) -> Verdict {
        let Some(Fault { end, kind }) = self.program.fault else { return Ok(()) };
        let to = |state| Modify { state: Some(state), ..Modify::default() };
        let (own, peer) = (self.actors[end].qp, self.actors[end ^ 1].qp);
        let modified = match kind {
            FaultKind::Work(_) => Ok(()),
            FaultKind::Silence(_) => {
                self.watch.borrow_mut().silenced.insert(end / 2);
                Ok(())
            }
            FaultKind::Aborts(_) => self.stage.sim.modify(own, &to(State::Error)),
            FaultKind::PeerLeaves(_, Leave::Error) => self.stage.sim.modify(peer, &to(State::Error)),
            FaultKind::PeerLeaves(_, Leave::Reset) => {
                self.collect()?;
                self.forget_receives(end ^ 1);
                self.stage.sim.modify(peer, &to(State::Reset))
            }
            FaultKind::PeerLeaves(_, Leave::Destroyed) => {
                self.actors[end ^ 1].gone = true;
                self.stage.sim.destroy_qp(peer);
                Ok(())
            }
        };
        modified.map_err(|error| format!("a queue pair refused to leave: {error}"))
    }
}

impl Actor {
    fn new(stage: &Stage, end: usize) -> Actor {
        Actor {
            qp: stage.ends[end].qp,
            cursor: 0,
            wake: 0,
            draining: None,
            errand: None,
            expects: VecDeque::new(),
            failed: false,
            last_success: None,
            unheard: false,
            receives_failed: false,
            doomed: false,
            posted: VecDeque::new(),
            last_shared: None,
            incoming: Incoming::default(),
            effects: Vec::new(),
            tallied: 0,
            key: stage.ends[end].window,
            window: None,
            gone: false,
        }
    }
}

fn is_overfull(sim: &sim::Sim, host: sim::HostId, gid: wire::Gid) -> bool {
    // One packet is always let through when nothing is in flight.
    let most = |window: &transport::congestion::Window| window.limit().max(transport::congestion::FULL_PACKET);
    sim.window(host, gid).is_some_and(|window| window.in_flight() > most(window))
}

/// Everything that happens at a time of its own, in order.
fn agenda(program: &Program, from: u64) -> VecDeque<(u64, Cue)> {
    let mut cues = Vec::new();
    for end in 0..program.ends() {
        if let Receives::Own(receives) = &program.end(end).receives {
            cues.extend(receives.iter().enumerate().map(|(index, receive)| (receive.at, Cue::Receive(end, index))));
        }
    }
    for (queue, shared) in program.shared.iter().enumerate() {
        let receives = shared.receives.iter().enumerate();
        cues.extend(receives.map(|(index, receive)| (receive.at, Cue::SharedReceive(queue, index))));
    }
    cues.extend(program.disturbances.iter().enumerate().map(|(index, (at, _))| (*at, Cue::Disturb(index))));
    let at = match program.fault.map(|fault| fault.kind) {
        Some(FaultKind::Silence(at) | FaultKind::PeerLeaves(at, _) | FaultKind::Aborts(at)) => Some(at),
        _ => None,
    };
    cues.extend(at.map(|at| (at, Cue::Fault)));
    cues.sort_by_key(|(at, _)| *at);
    cues.into_iter().map(|(at, cue)| (from + at, cue)).collect()
}
