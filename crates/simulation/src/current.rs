//! Which party the code of this thread belongs to. The executor says so while it polls a task of the party, and while
//! the simulation calls one of its observers; everything in the API that depends on the NIC of "this program" asks for
//! its environment first, which this is.

use super::executor::Executor;
use super::nic::Nic;
use super::world::World;
use seam::{
    Backend, Error,
    environment::{self, Deadline, Environment},
};
use std::any::Any;
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;
use transport::Time;

/// Where the code of this thread runs.
struct Scope {
    executor: Rc<Executor>,
    /// None for the one who arranges faults.
    party: Option<usize>,
}

thread_local! {
    /// How often queues were polled in vain since the task was last polled.
    static IN_VAIN: Cell<u64> = const { Cell::new(0) };
    /// What the task that is polled waits for.
    static WAITS_FOR: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// How often a task may poll empty queues before it gives way: more is a loop that never ends, since the clock stands
/// still meanwhile.
const MOST_IN_VAIN: u64 = 1_000_000;

/// Runs something as a party, or as the one who arranges faults.
pub(super) fn run_as<R>(executor: &Rc<Executor>, party: Option<usize>, work: impl FnOnce() -> R) -> R {
    environment::run_in(Rc::new(Scope { executor: Rc::clone(executor), party }), work)
}

/// Runs something as a party of the simulation that runs in this thread. In another thread there is none; then it is
/// run as it is.
pub(super) fn as_party(party: usize, work: impl FnOnce()) {
    match EXECUTOR.with(|executor| executor.borrow().clone()) {
        Some(executor) => run_as(&executor, Some(party), work),
        None => work(),
    }
}

thread_local! {
    /// The simulation that runs in this thread.
    static EXECUTOR: RefCell<Option<Rc<Executor>>> = const { RefCell::new(None) };
}

/// Says which simulation runs in this thread, as long as the answer lives.
///
/// # Panics
/// If one runs already: parties of one are not parties of another.
pub(super) fn begin(executor: &Rc<Executor>) -> Running {
    EXECUTOR.with(|slot| {
        let mut slot = slot.borrow_mut();
        assert!(slot.is_none(), "a simulation runs in this thread already, and simulations do not nest");
        *slot = Some(Rc::clone(executor));
    });
    Running
}

pub(super) struct Running;

impl Drop for Running {
    fn drop(&mut self) {
        let executor = EXECUTOR.with(|slot| slot.borrow_mut().take());
        drop(executor);
    }
}

/// The executor whose task runs.
pub(super) fn executor() -> Option<(Rc<Executor>, Option<usize>)> {
    let environment: Rc<dyn Any> = environment::current()?;
    let scope = environment.downcast::<Scope>().ok()?;
    Some((Rc::clone(&scope.executor), scope.party))
}

impl Environment for Scope {
    fn backend(&self) -> Result<Arc<dyn Backend>, Error> {
        let Some(party) = self.party else {
            let source = "who arranges the faults of a simulation is no party and has no NIC".into();
            return Err(Error::Create { what: "the NIC", source });
        };
        Ok(self.executor.nic(party, || Arc::new(Nic::new(&self.executor.world, party))))
    }

    fn kept(&self) -> Option<Rc<OnceCell<Arc<dyn Any + Send + Sync>>>> {
        self.party.map(|party| self.executor.kept(party))
    }

    fn look_up(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = self.executor.address(name).map(|address| vec![SocketAddr::new(address, port)]);
        found.ok_or_else(|| {
            let names = self.executor.names().join(", ");
            let what = format!("no party of this simulation is called {name}; there are {names}");
            io::Error::new(io::ErrorKind::NotFound, what)
        })
    }

    fn deadline(&self, limit: Duration) -> Box<dyn Deadline> {
        Box::new(moment(&self.executor, limit))
    }

    fn later(&self, delay: Duration, work: Box<dyn FnOnce() + Send>) -> bool {
        let Some(party) = self.party else { return false };
        self.executor.world.with(|inner| {
            let at = inner.now() + delay;
            inner.later(at, party, work);
        });
        true
    }

    fn waits_for(&self, what: String) {
        WAITS_FOR.with(|waits| {
            let mut waits = waits.borrow_mut();
            if waits.len() < 8 {
                waits.push(what);
            }
        });
    }
}

/// A moment of a simulation that a task waits for.
pub(super) struct Moment {
    world: Arc<World>,
    at: Time,
    key: Option<u64>,
}

/// A moment so much later, by the clock of the simulation.
pub(super) fn moment(executor: &Executor, limit: Duration) -> Moment {
    let world = Arc::clone(&executor.world);
    let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let at = Time::from_nanos(world.now().as_nanos().saturating_add(nanos));
    Moment { world, at, key: None }
}

impl Deadline for Moment {
    fn has_come(&mut self, waker: &Waker) -> bool {
        if self.world.now() >= self.at {
            return true;
        }
        environment::waits_for(|| format!("{} on the clock", Clock(self.at)));
        self.key = Some(self.world.wake_at(self.at, self.key, waker.clone()));
        false
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.world.forget_timer(self.at, key);
        }
    }
}

/// A moment, for people.
pub(super) struct Clock(pub(super) Time);

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0.as_nanos()))
    }
}

/// A task is polled next.
pub(super) fn begin_poll() {
    IN_VAIN.set(0);
    WAITS_FOR.with(|waits| waits.borrow_mut().clear());
}

/// What the task waits for that was polled last.
pub(super) fn end_poll() -> Vec<String> {
    WAITS_FOR.with(|waits| std::mem::take(&mut *waits.borrow_mut()))
}

/// A queue was polled and had nothing.
///
/// # Panics
/// If the task has done so a million times without giving way.
pub(super) fn polled_in_vain() {
    let times = IN_VAIN.get() + 1;
    IN_VAIN.set(times);
    assert!(
        times < MOST_IN_VAIN,
        "a party of a simulation polled empty completion queues {times} times without awaiting anything: the clock of \
         a simulation stands still until all parties wait, so the loop would never end; await `next()` of the queue, \
         or `ubiverbs::sleep` between two looks"
    );
}
