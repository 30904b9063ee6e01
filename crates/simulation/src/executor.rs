//! The tasks of a simulation and the loop that runs them: one thread, which chance, seeded, tells whose turn it is.
//! When all of them wait, the clock goes on to the next thing that happens.

use super::current;
use super::failure::{Trouble, WaitingTask};
use super::world::{Step, World};
use latch::lock;
use seam::Backend;
use sim::Rng;
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use transport::Time;

/// How a task ends.
pub(super) type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

pub(super) type Work = Pin<Box<dyn Future<Output = Outcome>>>;

/// How a party is started, and started again.
type Start = Rc<dyn Fn() -> Work>;

/// How often tasks may be polled at one moment of the clock: more are tasks that wake each other for ever.
const MOST_POLLS: u64 = 10_000_000;

pub(super) struct Executor {
    pub(super) world: Arc<World>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    next_task: Cell<u64>,
    ready: Arc<Ready>,
    parties: RefCell<Vec<Local>>,
    rng: RefCell<Rng>,
    /// How many tasks the run waits for.
    awaited: Cell<usize>,
    failed: RefCell<Option<Trouble>>,
}

/// What this thread knows of a party.
struct Local {
    name: String,
    address: IpAddr,
    start: Option<Start>,
    /// The run goes on until it has ended.
    awaited: bool,
    nic: Option<Arc<dyn Backend>>,
    /// What the API keeps for its program.
    kept: Rc<OnceCell<Arc<dyn Any + Send + Sync>>>,
}

struct Task {
    party: Option<usize>,
    /// The party is done when this is.
    main: bool,
    /// The run goes on until it has ended.
    awaited: bool,
    at: &'static Location<'static>,
    /// Out while it is polled.
    work: Option<Work>,
    waker: Waker,
    waits_for: Vec<String>,
}

/// Tasks that have been woken, each once.
#[derive(Default)]
struct Ready {
    tasks: Mutex<VecDeque<u64>>,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<TaskWaker>) {
        let mut tasks = lock(&self.ready.tasks);
        if !tasks.contains(&self.task) {
            tasks.push_back(self.task);
        }
    }
}

impl Executor {
    pub(super) fn new(world: Arc<World>, rng: Rng) -> Executor {
        Executor {
            world,
            tasks: RefCell::default(),
            next_task: Cell::new(0),
            ready: Arc::default(),
            parties: RefCell::default(),
            rng: RefCell::new(rng),
            awaited: Cell::new(0),
            failed: RefCell::new(None),
        }
    }

    /// Adds a party, which has yet to be started.
    pub(super) fn add_party(&self, name: &str, start: Option<Start>, awaited: bool) -> usize {
        assert!(self.party(name).is_none(), "two parties of a simulation are called {name}");
        let (party, address) = self.world.with(|inner| {
            let party = inner.add_party(sim::HostConfig::named(name), name);
            let host = inner.parties[party].host;
            (party, inner.sim_ref().gid(host, 0).to_ip())
        });
        let local = Local { name: name.to_owned(), address, start, awaited, nic: None, kept: Rc::default() };
        self.parties.borrow_mut().push(local);
        party
    }

    pub(super) fn party(&self, name: &str) -> Option<usize> {
        self.parties.borrow().iter().position(|party| party.name == name)
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.parties.borrow().iter().map(|party| party.name.clone()).collect()
    }

    pub(super) fn address(&self, name: &str) -> Option<IpAddr> {
        self.parties.borrow().iter().find(|party| party.name == name).map(|party| party.address)
    }

    pub(super) fn nic(&self, party: usize, make: impl FnOnce() -> Arc<dyn Backend>) -> Arc<dyn Backend> {
        if let Some(nic) = &self.parties.borrow()[party].nic {
            return Arc::clone(nic);
        }
        let nic = make();
        self.parties.borrow_mut()[party].nic = Some(Arc::clone(&nic));
        nic
    }

    pub(super) fn kept(&self, party: usize) -> Rc<OnceCell<Arc<dyn Any + Send + Sync>>> {
        Rc::clone(&self.parties.borrow()[party].kept)
    }

    /// A number that follows from the seed.
    pub(super) fn random(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    /// A number below a bound that follows from the seed.
    pub(super) fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    #[track_caller]
    pub(super) fn spawn(&self, party: Option<usize>, main: bool, work: Work) {
        let task = self.next_task.get();
        self.next_task.set(task + 1);
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: Arc::clone(&self.ready) }));
        waker.wake_by_ref();
        let at = Location::caller();
        let awaited = main && party.is_some_and(|party| self.parties.borrow()[party].awaited);
        self.awaited.set(self.awaited.get() + usize::from(awaited));
        let task_of = Task { party, main, awaited, at, work: Some(work), waker, waits_for: Vec::new() };
        self.tasks.borrow_mut().insert(task, task_of);
    }

    /// Starts a party's process with this work.
    #[track_caller]
    pub(super) fn start(&self, party: usize, work: Work) {
        self.world.with(|inner| inner.start(party));
        self.spawn(Some(party), true, work);
    }

    /// Starts a party again that has been killed or has ended. False if nobody said how.
    pub(super) fn restart(self: &Rc<Self>, party: usize) -> bool {
        let Some(start) = self.parties.borrow()[party].start.clone() else { return false };
        self.kill(party, true);
        self.world.with(|inner| inner.start(party));
        let work = current::run_as(self, Some(party), || start());
        self.spawn(Some(party), true, work);
        true
    }

    /// Ends a party's process, or takes its host's power away.
    pub(super) fn kill(self: &Rc<Self>, party: usize, power: bool) {
        self.world.with(|inner| inner.kill(party, power));
        self.end_tasks(party);
        let (nic, kept) = {
            let local = &mut self.parties.borrow_mut()[party];
            (local.nic.take(), std::mem::take(&mut local.kept))
        };
        drop((nic, kept));
    }

    /// Ends all tasks of a party.
    fn end_tasks(self: &Rc<Self>, party: usize) {
        let mine: Vec<u64> = {
            let tasks = self.tasks.borrow();
            tasks.iter().filter(|(_, task)| task.party == Some(party)).map(|(number, _)| *number).collect()
        };
        for number in mine {
            let task = self.take_out(number);
            current::run_as(self, Some(party), || drop(task));
        }
    }

    fn take_out(&self, number: u64) -> Option<Task> {
        let task = self.tasks.borrow_mut().remove(&number)?;
        self.awaited.set(self.awaited.get() - usize::from(task.awaited));
        Some(task)
    }

    fn fail(&self, trouble: Trouble) {
        self.failed.borrow_mut().get_or_insert(trouble);
    }

    fn name_of(&self, party: Option<usize>) -> String {
        party.map_or("the script of faults".to_owned(), |party| self.parties.borrow()[party].name.clone())
    }

    /// Takes one of the tasks that have been woken, by chance.
    fn next_ready(&self) -> Option<u64> {
        let mut tasks = lock(&self.ready.tasks);
        let at = match tasks.len() {
            0 => return None,
            1 => 0,
            many => self.below(many as u64) as usize,
        };
        tasks.remove(at)
    }

    fn poll(self: &Rc<Self>, number: u64) {
        let (party, main, waker, work) = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&number) else { return };
            let Some(work) = task.work.take() else { return };
            (task.party, task.main, task.waker.clone(), work)
        };
        let mut work = work;
        current::begin_poll();
        let polled = current::run_as(self, party, || {
            let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut Context::from_waker(&waker))));
            let waits_for = current::end_poll();
            match &polled {
                Ok(Poll::Pending) => {
                    if let Some(task) = self.tasks.borrow_mut().get_mut(&number) {
                        task.waits_for = waits_for;
                        task.work = Some(work);
                        return polled;
                    }
                    // It was killed meanwhile, perhaps by itself.
                    drop(work);
                }
                _ => {
                    let task = self.take_out(number);
                    drop((work, task));
                }
            }
            polled
        });
        match polled {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(outcome)) => {
                if let Err(error) = outcome {
                    self.fail(Trouble::Error { party: self.name_of(party), error });
                } else if let (true, Some(party)) = (main, party) {
                    // Its process ends, and with it whatever else it did.
                    self.end_tasks(party);
                    self.world.with(|inner| inner.note(|inner| format!("{} ends", inner.parties[party].name)));
                }
            }
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                self.fail(Trouble::Panic { party: self.name_of(party), message });
            }
        }
    }

    /// Who waits, and for what.
    fn waiting(&self) -> Vec<WaitingTask> {
        let tasks = self.tasks.borrow();
        let of = |task: &Task| WaitingTask {
            party: self.name_of(task.party),
            at: task.at.to_string(),
            waits_for: task.waits_for.clone(),
        };
        tasks.values().filter(|task| task.party.is_some()).map(of).collect()
    }

    /// Runs everything until all parties that are awaited have ended.
    pub(super) fn run(self: &Rc<Self>, limit: Time) -> Result<(), Trouble> {
        let mut polls = (self.world.now(), 0);
        loop {
            while let Some(task) = self.next_ready() {
                self.poll(task);
                if let Some(trouble) = self.failed.borrow_mut().take() {
                    return Err(trouble);
                }
                polls = if polls.0 == self.world.now() { (polls.0, polls.1 + 1) } else { (self.world.now(), 0) };
                if polls.1 > MOST_POLLS {
                    return Err(Trouble::Livelock { waiting: self.waiting() });
                }
            }
            if self.awaited.get() == 0 {
                return Ok(());
            }
            match self.world.step(limit) {
                Step::Happened => {}
                Step::Later => return Err(Trouble::TimeLimit { waiting: self.waiting() }),
                Step::Never => return Err(Trouble::Deadlock { waiting: self.waiting() }),
            }
        }
    }

    /// Lets go of all tasks: nothing happens any more.
    pub(super) fn end(self: &Rc<Self>) {
        loop {
            let Some((_, task)) = self.tasks.borrow_mut().pop_first() else { break };
            current::run_as(self, task.party, || drop(task.work));
        }
        self.world.with(|inner| inner.over = true);
        let parties = std::mem::take(&mut *self.parties.borrow_mut());
        drop(parties);
    }
}
