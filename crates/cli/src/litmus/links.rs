//! Runs litmus tests on the software NIC: a thread for each process, over the link inside a process, through shared
//! memory, or over UDP. Unlike on the simulator, chance is that of the machine; the seed only decides how long threads
//! dally, and what the weakest NIC does.
#![allow(unsafe_code, reason = "memory that peers write while it is read is registered by its address")]

use crate::exit::Failure;
use clap::ValueEnum;
use hca::{CompletionQueue, Context, Joins, Nic, Options, Qp};
use litmus::{Broken, Cells, Operand, Posted, Seen, Step, Tally, Test, What};
use sim::Rng;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use transport::weak::Weakness;
use transport::{
    Access, AddressVector, Capabilities, Data, Kind, Limits, Modify, Operation, ProtectionDomain, QueuePairConfig,
    ReceiveRequest, Remote, SendFlags, SendRequest, Sge, State, Status,
};
use wire::{Key, Mtu, Pkey, Placement, Psn, Selectivity};

/// How long a process waits for something before the run is given up.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);
/// Work of the runner itself, by which it hears that all is quiet.
const CLOSING_WORK: u64 = u64::MAX;
/// A thread dallies so many turns of a loop at most between two steps.
const MAX_DALLY_TURNS: u64 = 2_000;
const CELL_BYTES: u64 = 8;

/// Where tests run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Ground {
    /// On the simulator: fast, and a seed gives the same run again
    Simulator,
    /// On one NIC, over the link inside a process
    Inside,
    /// On a NIC for each process, through shared memory
    Shared,
    /// On a NIC for each process, over UDP
    Udp,
}

/// A process of a test: its NIC and what it has there.
struct End {
    nic: Arc<Nic>,
    context: Arc<Context>,
    domain: ProtectionDomain,
    cq: Arc<CompletionQueue>,
    cells: &'static [AtomicU64],
    key: Key,
}

/// What all threads of a test have in common.
struct Table<'t> {
    test: &'t Test,
    ends: Vec<End>,
    /// By connection: the queue pair of each end.
    pairs: Vec<[Arc<Qp>; 2]>,
    registers: Vec<AtomicU64>,
    signals: Vec<AtomicBool>,
    /// Why the run has come to no end.
    broken: Mutex<Option<Broken>>,
    is_broken: AtomicBool,
    /// All threads, and the one that counts.
    barrier: Barrier,
}

/// Runs a test `runs` times.
pub fn run(test: &Test, ground: Ground, weakness: Option<Weakness>, seed: u64, runs: u64) -> Result<Tally, Failure> {
    let table = Table::lay(test, ground, weakness)?;
    let mut tally = Tally::new(test);
    thread::scope(|scope| {
        for process in 0..test.processes.len() {
            let table = &table;
            scope.spawn(move || {
                for run in 0..runs {
                    table.barrier.wait();
                    let mut chance = Rng::new(seed.wrapping_add(run) ^ (process as u64) << 56);
                    table.play(process, &mut chance);
                    table.barrier.wait();
                    // Others may still have to look at what this one was sent.
                    table.settle(process);
                    table.barrier.wait();
                    if table.is_broken.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
        }
        for run in 0..runs {
            table.reset();
            for _ in 0..4 {
                table.barrier.wait();
            }
            let broken = table.broken.lock().ok().and_then(|mut broken| broken.take());
            tally.count(test, seed.wrapping_add(run), broken.map_or_else(|| Ok(table.seen()), Err));
            if table.is_broken.load(Ordering::Acquire) {
                break;
            }
        }
    });
    table.clear();
    Ok(tally)
}

impl<'t> Table<'t> {
    fn lay(test: &'t Test, ground: Ground, weakness: Option<Weakness>) -> Result<Table<'t>, Failure> {
        let open = || {
            let mut options = Options::default();
            (options.weakness, options.only_udp) = (weakness, ground == Ground::Udp);
            Nic::open_with(options).map_err(Failure::Nic)
        };
        let first = open()?;
        let mut ends = Vec::new();
        for (index, process) in test.processes.iter().enumerate() {
            let nic = if index == 0 || ground == Ground::Inside { Arc::clone(&first) } else { open()? };
            ends.push(End::new(nic, process.cells.len())?);
        }
        let mut pairs = Vec::new();
        for pair in &test.pairs {
            let kind = if pair.unreliable { Kind::UnreliableConnected } else { Kind::ReliableConnected };
            let [one, other] = [ends[pair.ends[0]].queue_pair(kind)?, ends[pair.ends[1]].queue_pair(kind)?];
            ends[pair.ends[0]].connect(&one, &other);
            ends[pair.ends[1]].connect(&other, &one);
            pairs.push([one, other]);
        }
        Ok(Table {
            test,
            pairs,
            registers: test.registers.iter().map(|_| AtomicU64::new(0)).collect(),
            signals: test.signals.iter().map(|_| AtomicBool::new(false)).collect(),
            broken: Mutex::new(None),
            is_broken: AtomicBool::new(false),
            barrier: Barrier::new(ends.len() + 1),
            ends,
        })
    }

    /// Everything is as it is before a run.
    fn reset(&self) {
        for (end, process) in self.ends.iter().zip(&self.test.processes) {
            for (cell, (_, value)) in end.cells.iter().zip(&process.cells) {
                cell.store(*value, Ordering::SeqCst);
            }
        }
        self.registers.iter().for_each(|register| register.store(0, Ordering::SeqCst));
        self.signals.iter().for_each(|signal| signal.store(false, Ordering::SeqCst));
    }

    fn seen(&self) -> Seen {
        let load = |cell: &AtomicU64| cell.load(Ordering::SeqCst);
        let cells = self.ends.iter().zip(&self.test.processes);
        Seen {
            registers: self.registers.iter().map(load).collect(),
            memory: cells
                .map(|(end, process)| end.cells.iter().take(process.cells.len()).map(load).collect())
                .collect(),
        }
    }

    fn clear(&self) {
        for (pair, ends) in self.test.pairs.iter().zip(&self.pairs) {
            for (process, qp) in pair.ends.iter().zip(ends) {
                self.ends[*process].nic.destroy_qp(qp);
            }
        }
        for end in &self.ends {
            // Nothing uses it any more, so it cannot fail; the cells stay.
            let _ = end.nic.deregister(end.key);
        }
    }

    fn breaks(&self, broken: Broken) {
        if let Ok(mut first) = self.broken.lock() {
            first.get_or_insert(broken);
        }
        self.is_broken.store(true, Ordering::Release);
    }

    /// A process does its steps.
    fn play(&self, process: usize, chance: &mut Rng) {
        let mut done = vec![false; self.test.processes[process].handles.len()];
        for (index, step) in self.test.processes[process].steps.iter().enumerate() {
            for _ in 0..chance.below(3) {
                thread::yield_now();
            }
            for _ in 0..chance.below(MAX_DALLY_TURNS) {
                hint::spin_loop();
            }
            if let Err(broken) = self.step(process, index, step, &mut done) {
                return self.breaks(broken);
            }
        }
        // What is under way is to have completed before the next run.
        let posted = |step: &Step| match step {
            Step::Post(posted) if !posted.unsignaled => Some(posted.handle),
            Step::Receive { handle, .. } => Some(*handle),
            _ => None,
        };
        for handle in self.test.processes[process].steps.iter().filter_map(posted) {
            let waited = self.until(process, usize::MAX, || {
                self.collect(process, &mut done)?;
                Ok(done[handle])
            });
            if let Err(broken) = waited {
                return self.breaks(broken);
            }
        }
    }

    fn step(&self, process: usize, index: usize, step: &Step, done: &mut [bool]) -> Result<(), Broken> {
        let end = &self.ends[process];
        match step {
            Step::Store(cell, operand) => {
                let value = match operand {
                    Operand::Value(value) => *value,
                    Operand::Register(register) => self.registers[*register].load(Ordering::Relaxed),
                };
                end.cells[*cell].store(value, Ordering::Release);
            }
            Step::Load(cell, register) => {
                self.registers[*register].store(end.cells[*cell].load(Ordering::Acquire), Ordering::Relaxed);
            }
            Step::Fence => fence(Ordering::SeqCst),
            Step::Post(posted) => self.post(process, index, posted)?,
            Step::Receive { pair, cells, handle } => {
                let qp = &self.pairs[*pair][self.test.end(*pair, process)];
                let receive = ReceiveRequest { wr_id: *handle as u64, sges: &[end.sge(*cells)] };
                let posted = qp.post_receive(&end.nic, &[receive]);
                posted.map_err(|(_, error)| self.refused(process, index, &error))?;
            }
            Step::Wait(handle) => self.until(process, index, || {
                self.collect(process, done)?;
                Ok(done[*handle])
            })?,
            Step::Poll(handle, register) => {
                self.collect(process, done)?;
                self.registers[*register].store(done[*handle].into(), Ordering::Relaxed);
            }
            Step::Spin(cell, value) => {
                self.until(process, index, || Ok(end.cells[*cell].load(Ordering::Acquire) == *value))?;
            }
            Step::Signal(signal) => self.signals[*signal].store(true, Ordering::SeqCst),
            Step::Await(signal) => {
                self.until(process, index, || Ok(self.signals[*signal].load(Ordering::SeqCst)))?;
            }
        }
        Ok(())
    }

    /// Waits until something is so.
    fn until(
        &self,
        process: usize,
        step: usize,
        mut is_so: impl FnMut() -> Result<bool, Broken>,
    ) -> Result<(), Broken> {
        let deadline = Instant::now() + RUN_TIMEOUT;
        while !is_so()? {
            if self.is_broken.load(Ordering::Acquire) || Instant::now() > deadline {
                let name = &self.test.processes[process].name;
                let waiting = match step {
                    usize::MAX => format!("{name} at its end"),
                    step => format!("{name} at step {}", step + 1),
                };
                return Err(Broken::Stuck { waiting });
            }
            thread::yield_now();
        }
        Ok(())
    }

    fn refused(&self, process: usize, step: usize, error: &transport::PostError) -> Broken {
        Broken::Refused { process: self.test.processes[process].name.clone(), step: step + 1, error: error.to_string() }
    }

    fn post(&self, process: usize, step: usize, posted: &Posted) -> Result<(), Broken> {
        let end = &self.ends[process];
        let peer = &self.ends[self.test.peer(posted.pair, process)];
        let remote = peer.remote(posted.remote.unwrap_or(0));
        let operation = match posted.what {
            What::Send => Operation::Send { immediate: None },
            What::Write => Operation::Write { remote, immediate: None },
            What::WriteImmediate(value) => Operation::Write { remote, immediate: Some(value) },
            What::Read => Operation::Read { remote },
            What::FetchAdd(add) => Operation::FetchAdd { remote, add },
            What::CompareSwap(compare, swap) => Operation::CompareSwap { remote, compare, swap },
            What::AtomicWrite => Operation::AtomicWrite { remote },
            What::Flush => Operation::Flush {
                remote,
                length: CELL_BYTES as u32,
                placement: Placement::GLOBAL,
                selectivity: Selectivity::Range,
            },
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, !posted.unsignaled);
        flags.set(SendFlags::FENCE, posted.fenced);
        let pieces: Vec<Sge> = posted.local.iter().map(|cells| end.sge(*cells)).collect();
        let mut bytes = Vec::new();
        if let (true, Some(Cells { first, count })) = (posted.inline, posted.local) {
            let cells = end.cells[first..first + count].iter();
            bytes = cells.flat_map(|cell| cell.load(Ordering::Acquire).to_ne_bytes()).collect();
        }
        let data = if posted.inline { Data::Inline(&bytes) } else { Data::Gather(&pieces) };
        let wr_id = posted.handle as u64;
        let request = SendRequest { wr_id, operation, flags, data, target: None, xrc_srq: None };
        let qp = &self.pairs[posted.pair][self.test.end(posted.pair, process)];
        qp.post_send(&end.nic, &[request]).map_err(|(_, error)| self.refused(process, step, &error))
    }

    /// Polls once.
    fn collect(&self, process: usize, done: &mut [bool]) -> Result<usize, Broken> {
        let end = &self.ends[process];
        let (mut closed, mut broken) = (0, None);
        end.nic.poll(&end.cq, 16, |completion, _| match done.get_mut(completion.wr_id as usize) {
            _ if completion.status != Status::Success => {
                let process = &self.test.processes[process];
                let handle = process.handles.get(completion.wr_id as usize);
                broken = Some(Broken::Failed {
                    process: process.name.clone(),
                    handle: handle.map_or_else(|| "of the runner".to_owned(), Clone::clone),
                    status: completion.status.name(),
                });
            }
            Some(done) => *done = true,
            None => closed += 1,
        });
        broken.map_or(Ok(closed), Err)
    }

    /// A message to and fro on each connection: once it has come, what was written before it has been placed.
    fn settle(&self, process: usize) {
        let end = &self.ends[process];
        let own: Vec<&Arc<Qp>> = self
            .test
            .pairs
            .iter()
            .zip(&self.pairs)
            .filter_map(|(pair, ends)| pair.ends.iter().position(|end| *end == process).map(|side| &ends[side]))
            .collect();
        let receive = ReceiveRequest { wr_id: CLOSING_WORK, sges: &[] };
        let send = SendRequest {
            wr_id: CLOSING_WORK,
            operation: Operation::Send { immediate: None },
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&[]),
            target: None,
            xrc_srq: None,
        };
        let mut posted = own.iter().all(|qp| qp.post_receive(&end.nic, &[receive]).is_ok());
        // An unreliable message is lost where no receive waits for it.
        self.barrier.wait();
        posted &= own.iter().all(|qp| qp.post_send(&end.nic, &[send]).is_ok());
        if !posted {
            return self.breaks(Broken::Stuck { waiting: "a queue pair has stopped".into() });
        }
        let mut closed = 0;
        let waited = self.until(process, usize::MAX, || {
            closed += self.collect(process, &mut [])?;
            Ok(closed >= 2 * own.len())
        });
        if let Err(broken) = waited {
            self.breaks(broken);
        }
    }
}

impl End {
    fn new(nic: Arc<Nic>, cells: usize) -> Result<End, Failure> {
        let devices = nic.devices();
        let device = devices.iter().find(|device| device.name() == "ubi_lo").or(devices.first());
        let device = device.ok_or(Failure::NoDevice)?;
        let context = nic.open_device(device).map_err(Failure::Nic)?;
        let domain = context.new_domain();
        let cq = nic.create_cq(256, None).map_err(Failure::Nic)?;
        let cells: &'static [AtomicU64] = (0..cells.max(1)).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::FLUSH_GLOBAL;
        let length = cells.len() * CELL_BYTES as usize;
        // SAFETY: the cells are there for ever, and are used as atomics only.
        let key =
            unsafe { nic.register(cells.as_ptr().cast_mut().cast(), length, domain, access) }.map_err(Failure::Nic)?;
        Ok(End { nic, context, domain, cq, cells, key })
    }

    fn address(&self, cell: usize) -> u64 {
        self.cells.as_ptr() as u64 + CELL_BYTES * cell as u64
    }

    fn sge(&self, cells: Cells) -> Sge {
        Sge { address: self.address(cells.first), length: CELL_BYTES as u32 * cells.count as u32, key: self.key }
    }

    fn remote(&self, cell: usize) -> Remote {
        Remote { address: self.address(cell), key: self.key }
    }

    fn queue_pair(&self, kind: Kind) -> Result<Arc<Qp>, Failure> {
        let config = QueuePairConfig {
            qpn: wire::Qpn::new(0),
            kind,
            pd: self.domain,
            capabilities: Capabilities {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 512,
            },
            srq: None,
            signal_all: false,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: self.context.device().port().mtu(),
        };
        let joins = Joins {
            context: Arc::clone(&self.context),
            send_cq: Some(Arc::clone(&self.cq)),
            receive_cq: Some(Arc::clone(&self.cq)),
            xrc_domain: None,
        };
        self.nic.create_qp(config, joins).map_err(Failure::Nic)
    }

    /// Walks a queue pair to RTS.
    fn connect(&self, qp: &Qp, peer: &Qp) {
        // A copy, as the original is locked.
        let port = self.context.device().port().clone();
        let gids = port.gids.iter().enumerate();
        let (index, gid) = gids.filter_map(|(index, gid)| gid.map(|gid| (index, gid))).next().unwrap_or_default();
        let av = AddressVector { dgid: gid, sgid_index: index as u8, port: 1, ..AddressVector::default() };
        let reliable = qp.kind().is_reliable();
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::FLUSH_GLOBAL;
        let steps = [
            Modify {
                state: Some(State::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: Some(access),
                ..Modify::default()
            },
            Modify {
                state: Some(State::ReadyToReceive),
                av: Some(av),
                path_mtu: Some(Mtu::B1024),
                dest_qpn: Some(peer.qpn()),
                rq_psn: Some(Psn::new(7)),
                max_dest_rd_atomic: reliable.then_some(16),
                min_rnr_timer: reliable.then_some(1),
                ..Modify::default()
            },
            Modify {
                state: Some(State::ReadyToSend),
                sq_psn: Some(Psn::new(7)),
                timeout: reliable.then_some(18),
                retry_cnt: reliable.then_some(7),
                rnr_retry: reliable.then_some(7),
                max_rd_atomic: reliable.then_some(16),
                ..Modify::default()
            },
        ];
        for step in &steps {
            if let Err(error) = qp.modify(&self.nic, step) {
                panic!("a queue pair of a device that is there refuses {:?}: {error}", step.state);
            }
        }
    }
}
