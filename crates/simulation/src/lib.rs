//! Programs under test: their parties as tasks of one thread, each on a simulated host, on a network that loses,
//! reorders, duplicates and damages packets as a seed says, by a clock that costs no time.
//!
//! ```
//! use ubiverbs::{cm, simulation::Simulation};
//!
//! async fn server() -> Result<(), ubiverbs::Error> {
//!     let listener = cm::Listener::bind("0.0.0.0:7471")?;
//!     let connection = listener.accept().await?;
//!     let message = connection.recv(connection.pd().allocate(64)?)?.await?;
//!     assert_eq!(message.payload(), b"hello");
//!     connection.closed().await?;
//!     Ok(())
//! }
//!
//! async fn client() -> Result<(), ubiverbs::Error> {
//!     let connection = cm::connect("server:7471").await?;
//!     connection.send_inline(b"hello")?.await?;
//!     connection.disconnect().await?;
//!     Ok(())
//! }
//!
//! Simulation::builder().loss(0.05).reordering(0.05).seeds(20).check(|simulation| {
//!     simulation.party("server", server());
//!     simulation.party("client", client());
//! });
//! ```
//!
//! The same functions run on the NIC of a process, unchanged: inside of a party, `ubiverbs::devices`, the
//! connection manager and the API's timers are the simulation's. Packets, retries, timeouts and errors are those of
//! the same transport and the same connection manager, and memory is the program's own.
//!
//! # What is simulated
//!
//! | | |
//! |---|---|
//! | a party | one host with one device (`ubi_sim0`), an address of IPv4 and one of IPv6, one process. `cm::connect("name:port")` finds it by its name |
//! | time | stands still while a party computes; when all of them wait, it goes on to the next thing that happens. `ubiverbs::sleep` and `timeout` go by it |
//! | chance | whose turn it is, and every fault, follow from the seed: same seed, same events |
//! | a party that [is killed](Faults::kill) | its process ends without a word; its host tells its peers, as the NIC of a process does |
//! | a host that [loses its power](Faults::power_off) | nobody tells anybody |
//!
//! A run ends well when all parties have; it [fails](Failure) when a party ends with an error or panics, when parties
//! wait and nothing is left to happen, or when the time is up. The failure names the parties, what they wait for, and
//! the seed.
//!
//! # What a party must not do
//!
//! - **Wait in a call that blocks** (`wait`, `wait_for`, `block_on`): the clock would stand still
//!   for ever. Such a call panics, and says so; await instead.
//! - **Poll in a loop** without awaiting: after a million looks at empty queues it panics, and says so.
//! - **Use threads, sockets or clocks** of the system, if the run is to be had again.
//! - **Use `ubiverbs::stream`s**: they have their own way to the NIC of the process and answer an error.
#![deny(unsafe_code)]

mod builder;
mod connections;
mod current;
mod executor;
mod failure;
mod manager;
mod memory;
mod nic;
mod pair;
mod queue;
mod world;

pub use builder::Builder;
pub use failure::Failure;
/// The simulator's words: what the network did, and what a link is like.
pub use sim::{Counters, LinkConfig, LinkKind, Red};

use executor::{Executor, Work};
use latch::lock;
use seam::environment::Deadline;
use sim::Sim;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use transport::Time;
use world::World;

/// A simulated network with its parties. Made by [`Simulation::builder`]; see the [module](self).
pub struct Simulation {
    executor: Rc<Executor>,
    seed: u64,
    limit: Time,
}

impl Simulation {
    /// What the simulation is to be like.
    pub fn builder() -> Builder {
        Builder::default()
    }

    fn new(builder: &Builder, seed: u64) -> Simulation {
        let mut sim = Sim::with_seed(seed);
        sim.set_default_link(builder.link);
        let rng = sim.rng().fork();
        let log = builder.log.then(|| Arc::new(Mutex::new(String::new())));
        if let Some(log) = &log {
            let log = Arc::clone(log);
            sim.watch(move |passing| lock(&log).push_str(&line(passing)));
        }
        if let Some(path) = &builder.capture {
            let captured = hca::create_private(path).map_err(|error| error.to_string());
            let captured = captured.and_then(|file| {
                let writer = std::io::BufWriter::new(file);
                sim.capture(writer).map_err(|error| error.to_string())
            });
            if let Err(error) = captured {
                panic!("cannot write a capture to {}: {error}", path.display());
            }
        }
        let world = Arc::new(World::new(sim));
        world.with(|inner| inner.log = log);
        let nanos = u64::try_from(builder.time_limit.as_nanos()).unwrap_or(u64::MAX);
        Simulation { executor: Rc::new(Executor::new(world, rng)), seed, limit: Time::from_nanos(nanos) }
    }

    /// Adds a party: a host of that name, whose process does `work`. The run ends when all parties have.
    ///
    /// # Panics
    /// If another party has that name.
    #[track_caller]
    pub fn party<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        &mut self,
        name: &str,
        work: impl Future<Output = Result<(), E>> + 'static,
    ) {
        let party = self.executor.add_party(name, None, true);
        self.executor.start(party, work_of(work));
    }

    /// Adds a party that can be started again, and whose end the run does not wait for: a server.
    ///
    /// # Panics
    /// If another party has that name.
    #[track_caller]
    pub fn service<E: Into<Box<dyn std::error::Error + Send + Sync>>, W: Future<Output = Result<(), E>> + 'static>(
        &mut self,
        name: &str,
        start: impl Fn() -> W + 'static,
    ) {
        let start = Rc::new(move || work_of(start()));
        let party = self.executor.add_party(name, Some(start.clone()), false);
        self.executor.start(party, Box::pin(async move { start().await }));
    }

    /// The address of a party.
    pub fn address(&self, party: &str) -> Option<IpAddr> {
        self.executor.address(party)
    }

    /// Arranges faults: `script` runs beside the parties, by the same clock, and is no party itself.
    ///
    /// ```
    /// # use ubiverbs::simulation::Simulation;
    /// # use std::time::Duration;
    /// # let mut simulation = Simulation::builder().build();
    /// # simulation.party("a", async { ubiverbs::sleep(Duration::from_millis(30)).await; Ok::<(), ubiverbs::Error>(()) });
    /// # simulation.party("b", async { Ok::<(), ubiverbs::Error>(()) });
    /// simulation.script(|faults| async move {
    ///     ubiverbs::sleep(Duration::from_millis(5)).await;
    ///     faults.partition("a", "b");
    ///     ubiverbs::sleep(Duration::from_millis(20)).await;
    ///     faults.heal("a", "b");
    /// });
    /// # simulation.run().unwrap();
    /// ```
    #[track_caller]
    pub fn script<W: Future<Output = ()> + 'static>(&mut self, script: impl FnOnce(Faults) -> W) {
        let work = script(self.faults());
        self.executor.spawn(
            None,
            false,
            Box::pin(async move {
                work.await;
                Ok(())
            }),
        );
    }

    /// Kills a party at a moment.
    #[track_caller]
    pub fn kill_at(&mut self, party: &str, at: Duration) {
        let party = party.to_owned();
        self.script(move |faults| async move {
            let mut moment = current::moment(&faults.executor, at);
            poll_fn(|context| if moment.has_come(context.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
            faults.kill(&party);
        });
    }

    /// Kills a party at a moment that chance chooses, and answers which.
    #[track_caller]
    pub fn kill_within(&mut self, party: &str, when: Range<Duration>) -> Duration {
        let span = when.end.saturating_sub(when.start).as_nanos() as u64;
        let at = when.start + Duration::from_nanos(self.below(span));
        self.kill_at(party, at);
        at
    }

    /// Faults as they are arranged by hand.
    pub fn faults(&self) -> Faults {
        Faults { executor: Rc::clone(&self.executor) }
    }

    /// A number below `bound` that follows from the seed, for whatever a test leaves to chance.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.executor.below(bound)
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Runs until all parties have ended.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn run(self) -> Result<Report, Failure> {
        let running = current::begin(&self.executor);
        let outcome = self.executor.run(self.limit);
        let at = self.executor.world.now();
        let report = self.executor.world.with(|inner| {
            let counters = inner.sim().counters().clone();
            let log = inner.log.as_ref().map(|log| std::mem::take(&mut *lock(log)));
            let _ = inner.sim().finish_capture();
            Report { elapsed: Duration::from_nanos(at.as_nanos()), counters, log: log.unwrap_or_default() }
        });
        self.executor.end();
        drop(running);
        match outcome {
            Ok(()) => Ok(report),
            Err(trouble) => Err(Failure { trouble, seed: self.seed, at, log: report.log }),
        }
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        self.executor.end();
    }
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Simulation(seed {}, parties {:?})", self.seed, self.executor.names())
    }
}

fn work_of<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    work: impl Future<Output = Result<(), E>> + 'static,
) -> Work {
    Box::pin(async move { work.await.map_err(Into::into) })
}

/// A packet as the log has it.
fn line(passing: &sim::Passing<'_>) -> String {
    let sim::Sighting { at, from, to, headers, payload, retransmission, .. } = passing.sighting;
    let again = if retransmission { " again" } else { "" };
    let fate = match passing.outcome {
        sim::Outcome::Arrives { at, again, corrupt, .. } => {
            let twice = again.map_or(String::new(), |again| format!(" and at {}", again.as_nanos()));
            format!("arrives at {}{twice}{}", at.as_nanos(), if corrupt { ", damaged" } else { "" })
        }
        sim::Outcome::Lost(reason) => format!("lost: {reason}"),
    };
    let (opcode, psn) = (headers.bth.opcode, headers.bth.psn.value());
    format!(
        "{} host {} -> {} {opcode:?}{again} qp {} psn {psn} {} bytes {fate}\n",
        at.as_nanos(),
        from.index(),
        to.index(),
        headers.bth.dest_qpn,
        payload.len()
    )
}

/// What came of a run that went well.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// How long it took, on its own clock.
    pub elapsed: Duration,
    /// What the network did, in packets.
    pub counters: Counters,
    /// What happened, if the builder [was asked to](Builder::log) write that down.
    pub log: String,
}

/// Faults of a simulation: its holder does to parties and links what happens to them in the world. A handle.
#[derive(Clone)]
pub struct Faults {
    executor: Rc<Executor>,
}

impl Faults {
    fn party(&self, name: &str) -> usize {
        self.executor.party(name).unwrap_or_else(|| panic!("no party of this simulation is called {name}"))
    }

    fn hosts<R>(&self, names: (&str, &str), work: impl FnOnce(&mut Sim, sim::HostId, sim::HostId) -> R) -> R {
        let (a, b) = (self.party(names.0), self.party(names.1));
        self.executor.world.with(|inner| {
            let (a, b) = (inner.parties[a].host, inner.parties[b].host);
            work(inner.sim(), a, b)
        })
    }

    /// Ends a party's process, at whatever it is, without a word of its own. Its host ends its connections: peers hear
    /// that it [has died](seam::CloseReason::PeerDied). A party that has ended already stays so.
    pub fn kill(&self, party: &str) {
        self.executor.kill(self.party(party), true);
    }

    /// A party's host loses its power: nothing of it answers any more, and nobody is told.
    pub fn power_off(&self, party: &str) {
        self.executor.kill(self.party(party), false);
    }

    /// Starts a [service](Simulation::service) again; if it still runs, it is killed before.
    ///
    /// # Panics
    /// If it is no service: nobody has said how to start it.
    pub fn restart(&self, party: &str) {
        assert!(self.executor.restart(self.party(party)), "{party} is no service, and cannot be started again");
    }

    /// From now on nothing passes between two parties.
    pub fn partition(&self, a: &str, b: &str) {
        self.hosts((a, b), Sim::partition);
    }

    /// From now on nothing passes from one party to another; the other way it does.
    pub fn partition_direction(&self, from: &str, to: &str) {
        self.hosts((from, to), Sim::partition_direction);
    }

    /// Ends a partition.
    pub fn heal(&self, a: &str, b: &str) {
        self.hosts((a, b), Sim::heal);
    }

    /// Changes the link between two parties, in both directions.
    pub fn change_link(&self, a: &str, b: &str, change: impl Fn(&mut LinkConfig)) {
        self.hosts((a, b), |sim, a, b| {
            sim.change_link(a, b, &change);
            sim.change_link(b, a, &change);
        });
    }

    /// A party stops to look at what arrives, as a stopped process does.
    pub fn pause(&self, party: &str) {
        self.hosts((party, party), |sim, host, _| sim.pause(host));
    }

    /// It goes on.
    pub fn resume(&self, party: &str) {
        self.hosts((party, party), |sim, host, _| sim.resume(host));
    }

    /// A number below `bound` that follows from the seed.
    pub fn below(&self, bound: u64) -> u64 {
        self.executor.below(bound)
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

/// The time since the run began, on the clock of the simulation whose party calls; none outside of one.
pub fn now() -> Option<Duration> {
    let (executor, _) = current::executor()?;
    Some(Duration::from_nanos(executor.world.now().as_nanos()))
}

/// A number that follows from the seed of the simulation whose party calls; none outside of one.
pub fn random() -> Option<u64> {
    current::executor().map(|(executor, _)| executor.random())
}

/// Another task of the party that calls. It ends with the party, and the run does not wait for it.
///
/// # Panics
/// Outside of a simulation: what runs tasks there has its own way to make them.
#[track_caller]
pub fn spawn(work: impl Future<Output = ()> + 'static) {
    let Some((executor, party)) = current::executor() else {
        panic!("`simulation::spawn` makes tasks of a simulation's party, and this is none");
    };
    executor.spawn(
        party,
        false,
        Box::pin(async move {
            work.await;
            Ok(())
        }),
    );
}
