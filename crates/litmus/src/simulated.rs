//! Runs a test on the simulator: the real transport between simulated hosts, processes whose steps interleave by
//! chance, and processors that keep stores back as x86 does (TSO). One stage serves many runs, as setting it takes
//! longer than a run.

use crate::outcome::Seen;
use crate::test::{Cells, Operand, Posted, Step, Test, What};
use sim::{ConnectOptions, HostConfig, LinkConfig, QpId, QpSpec, Region, Rng, Sim, Work};
use std::collections::VecDeque;
use transport::weak::Weakness;
use transport::{Access, Status};
use wire::Placement;

/// One cell, in bytes.
const CELL_BYTES: usize = 8;
/// So many fruitless tries in a row, with nothing under way, and the processes wait for each other for ever.
const MAX_FRUITLESS_TRIES: u32 = 500;
/// How long messages travel, in nanoseconds: by chance one of these.
const LINK_DELAYS: [u64; 3] = [500, 5_000, 20_000];
/// How many times in eight a process takes its turn, not the NICs: by chance one of these.
const PROCESS_TURNS: [u64; 4] = [1, 4, 6, 7];

/// Why a run came to no end.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// Work failed: the test asks for something that does not work.
    #[error("{process}: work {handle} ended with {status}")]
    Failed {
        /// Whose.
        process: String,
        /// Which.
        handle: String,
        /// How.
        status: &'static str,
    },
    /// A post was refused.
    #[error("{process}: step {step} was refused: {error}")]
    Refused {
        /// Whose.
        process: String,
        /// Counted from 1.
        step: usize,
        /// Why.
        error: String,
    },
    /// Processes wait, and nothing will happen.
    #[error("the processes wait for each other for ever: {waiting}")]
    Stuck {
        /// Who waits at which step.
        waiting: String,
    },
}

/// A simulation with everything that a test needs.
pub struct Stage<'t> {
    test: &'t Test,
    sim: Sim,
    regions: Vec<Region>,
    /// By connection: the queue pair of each end.
    pairs: Vec<[QpId; 2]>,
    is_spent: bool,
    weakness: Option<Weakness>,
}

/// A process that runs.
#[derive(Default)]
struct Runner {
    next: usize,
    /// Stores that other processes and the NIC do not see yet.
    buffer: VecDeque<(usize, u64)>,
    done: Vec<bool>,
}

struct Run {
    runners: Vec<Runner>,
    registers: Vec<u64>,
    signals: Vec<bool>,
}

impl<'t> Stage<'t> {
    /// Sets the stage. `weakness` is that of all NICs; none is a NIC that does everything in order and at once.
    pub fn new(test: &'t Test, weakness: Option<Weakness>, seed: u64) -> Stage<'t> {
        let mut sim = Sim::with_seed(seed);
        let mut hosts = Vec::new();
        let mut regions = Vec::new();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        for process in &test.processes {
            let host = sim.add_host(HostConfig { weakness, ..HostConfig::named(&process.name) });
            let bytes = CELL_BYTES * process.cells.len().max(1);
            regions.push(sim.register(host, QpSpec::PD, bytes, access));
            hosts.push(host);
        }
        let mut chance = Rng::new(seed);
        let delay = LINK_DELAYS[chance.below(LINK_DELAYS.len() as u64) as usize];
        let config = if chance.below(2) == 0 { LinkConfig::WHOLE } else { LinkConfig::PERFECT };
        sim.set_default_link(LinkConfig { delay, ..config });
        let pairs = test.pairs.iter().map(|pair| {
            let spec = if pair.unreliable { QpSpec::uc() } else { QpSpec::rc() };
            let ends = pair.ends.map(|process| sim.create_qp(hosts[process], spec));
            sim.connect(ends[0], ends[1], &ConnectOptions::default());
            ends
        });
        let pairs = pairs.collect();
        Stage { test, sim, regions, pairs, is_spent: false, weakness }
    }

    /// Runs the test once. The same seed gives the same outcome.
    pub fn run(&mut self, seed: u64) -> Result<Seen, Broken> {
        if self.is_spent {
            *self = Stage::new(self.test, self.weakness, seed);
        }
        self.is_spent = true;
        let mut chance = Rng::new(seed);
        self.sim.reseed(chance.next_u64());
        let test = self.test;
        for (process, region) in test.processes.iter().zip(&self.regions) {
            let bytes = self.sim.bytes_mut(region).chunks_exact_mut(CELL_BYTES);
            for (bytes, (_, value)) in bytes.zip(&process.cells) {
                bytes.copy_from_slice(&value.to_ne_bytes());
            }
        }
        let runner = |handles: usize| Runner { done: vec![false; handles], ..Runner::default() };
        let mut run = Run {
            runners: test.processes.iter().map(|process| runner(process.handles.len())).collect(),
            registers: vec![0; test.registers.len()],
            signals: vec![false; test.signals.len()],
        };
        let turns = PROCESS_TURNS[chance.below(PROCESS_TURNS.len() as u64) as usize];
        let mut fruitless = 0;
        let mut running: Vec<usize> = (0..test.processes.len()).collect();
        running.retain(|process| !test.processes[*process].steps.is_empty());
        while !running.is_empty() {
            let moved = if chance.below(8) < turns {
                let at = chance.below(running.len() as u64) as usize;
                let process = running[at];
                let moved = self.turn(process, &mut run, &mut chance)?;
                let runner = &run.runners[process];
                if runner.next == test.processes[process].steps.len() && runner.buffer.is_empty() {
                    running.swap_remove(at);
                }
                moved
            } else {
                self.sim.run_one()
            };
            fruitless = if moved { 0 } else { fruitless + 1 };
            if fruitless > MAX_FRUITLESS_TRIES && self.sim.next_at().is_none() {
                return Err(self.stuck(&run, &running));
            }
        }
        for process in 0..test.processes.len() {
            self.drain(process, &mut run, usize::MAX);
        }
        self.sim.run_until_idle();
        for process in 0..test.processes.len() {
            self.collect(process, &mut run)?;
        }
        // A receive that was not filled would be there in the next run.
        self.is_spent = run.runners.iter().any(|runner| runner.done.contains(&false));
        let memory = self.regions.iter().zip(&test.processes).map(|(region, process)| {
            let cells = self.sim.bytes(region).chunks_exact(CELL_BYTES).take(process.cells.len());
            cells.map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("a cell"))).collect()
        });
        Ok(Seen { registers: run.registers, memory: memory.collect() })
    }

    /// A process does its next step, or one of its stores becomes visible. False if it waits.
    fn turn(&mut self, process: usize, run: &mut Run, chance: &mut Rng) -> Result<bool, Broken> {
        if !run.runners[process].buffer.is_empty() && chance.below(2) == 0 {
            self.drain(process, run, 1);
            return Ok(true);
        }
        let next = run.runners[process].next;
        // At its end what it has stored is yet to become visible.
        let Some(step) = self.test.processes[process].steps.get(next) else { return Ok(false) };
        let done = match step {
            Step::Store(cell, operand) => {
                let value = match operand {
                    Operand::Value(value) => *value,
                    Operand::Register(register) => run.registers[*register],
                };
                run.runners[process].buffer.push_back((*cell, value));
                true
            }
            Step::Load(cell, register) => {
                run.registers[*register] = self.load(process, run, *cell);
                true
            }
            Step::Spin(cell, value) => self.load(process, run, *cell) == *value,
            Step::Fence => {
                self.drain(process, run, usize::MAX);
                true
            }
            Step::Post(posted) => {
                // The doorbell is a store behind a barrier.
                self.drain(process, run, usize::MAX);
                self.post(process, next, posted)?;
                if posted.unsignaled {
                    run.runners[process].done[posted.handle] = true;
                }
                true
            }
            Step::Receive { pair, cells, handle } => {
                self.drain(process, run, usize::MAX);
                let sge = self.sge(process, *cells);
                let qp = self.pairs[*pair][self.test.end(*pair, process)];
                let posted = self.sim.receive(qp, *handle as u64, &[sge]);
                posted.map_err(|error| self.refused(process, next, &error))?;
                true
            }
            Step::Wait(handle) => {
                self.collect(process, run)?;
                run.runners[process].done[*handle]
            }
            Step::Poll(handle, register) => {
                self.collect(process, run)?;
                run.registers[*register] = u64::from(run.runners[process].done[*handle]);
                true
            }
            Step::Signal(signal) => {
                self.drain(process, run, usize::MAX);
                run.signals[*signal] = true;
                true
            }
            Step::Await(signal) => run.signals[*signal],
        };
        run.runners[process].next += usize::from(done);
        Ok(done)
    }

    fn refused(&self, process: usize, step: usize, error: &transport::PostError) -> Broken {
        Broken::Refused { process: self.test.processes[process].name.clone(), step: step + 1, error: error.to_string() }
    }

    fn post(&mut self, process: usize, step: usize, posted: &Posted) -> Result<(), Broken> {
        let peer = self.test.peer(posted.pair, process);
        let remote = self.regions[peer].remote((CELL_BYTES * posted.remote.unwrap_or(0)) as u64);
        let mut work = match posted.what {
            What::Send => Work::send(),
            What::Write => Work::write(remote),
            What::WriteImmediate(value) => Work::write(remote).immediate(value),
            What::Read => Work::read(remote),
            What::FetchAdd(add) => Work::fetch_add(remote, add),
            What::CompareSwap(compare, swap) => Work::compare_swap(remote, compare, swap),
            What::AtomicWrite => Work::atomic_write(remote),
            What::Flush => Work::flush(remote, CELL_BYTES as u32, Placement::GLOBAL),
        };
        work = work.id(posted.handle as u64);
        if let Some(cells) = posted.local {
            work = match posted.inline {
                true => {
                    let from = CELL_BYTES * cells.first;
                    work.inline(&self.sim.bytes(&self.regions[process])[from..from + CELL_BYTES * cells.count])
                }
                false => work.sge(self.sge(process, cells)),
            };
        }
        if posted.fenced {
            work = work.fenced();
        }
        if posted.unsignaled {
            work = work.unsignaled();
        }
        let qp = self.pairs[posted.pair][self.test.end(posted.pair, process)];
        let result = self.sim.post(qp, &work);
        result.map_err(|error| self.refused(process, step, &error))
    }

    fn sge(&self, process: usize, cells: Cells) -> transport::Sge {
        self.regions[process].sge((CELL_BYTES * cells.first) as u64, (CELL_BYTES * cells.count) as u32)
    }

    fn load(&mut self, process: usize, run: &Run, cell: usize) -> u64 {
        let own = run.runners[process].buffer.iter().rev().find(|(stored, _)| *stored == cell);
        own.map_or_else(
            || {
                let from = CELL_BYTES * cell;
                let bytes = &self.sim.bytes(&self.regions[process])[from..from + CELL_BYTES];
                u64::from_ne_bytes(bytes.try_into().expect("a cell"))
            },
            |(_, value)| *value,
        )
    }

    /// So many stores become visible, oldest first.
    fn drain(&mut self, process: usize, run: &mut Run, most: usize) {
        let buffer = &mut run.runners[process].buffer;
        for (cell, value) in buffer.drain(..most.min(buffer.len())) {
            let from = CELL_BYTES * cell;
            self.sim.bytes_mut(&self.regions[process])[from..from + CELL_BYTES].copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Polls the completion queue, which all queue pairs of a process share.
    fn collect(&mut self, process: usize, run: &mut Run) -> Result<(), Broken> {
        for (pair, ends) in self.test.pairs.iter().zip(&self.pairs) {
            let Some(end) = pair.ends.iter().position(|end| *end == process) else { continue };
            while let Some(completion) = self.sim.next_completion(ends[end]) {
                let handle = completion.wr_id as usize;
                if completion.status != Status::Success {
                    let process = &self.test.processes[process];
                    return Err(Broken::Failed {
                        process: process.name.clone(),
                        handle: process.handles[handle].clone(),
                        status: completion.status.name(),
                    });
                }
                run.runners[process].done[handle] = true;
            }
        }
        Ok(())
    }

    fn stuck(&self, run: &Run, running: &[usize]) -> Broken {
        let waiting = running.iter().map(|process| {
            let name = &self.test.processes[*process].name;
            format!("{name} at step {}", run.runners[*process].next + 1)
        });
        Broken::Stuck { waiting: waiting.collect::<Vec<_>>().join(", ") }
    }
}
