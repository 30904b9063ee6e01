//! Two processes of one host: the test, which starts the other, and the other, which is the program `peer`. Here is what
//! both are made of: an end of a connection, and for each subject the other process's role and what the test shares with
//! it.

pub mod answers;
pub mod connecting;
pub mod datagrams;
pub mod direct;
pub mod drops;
pub mod faults;
pub mod ids;
pub mod interfaces;
pub mod killed;
pub mod neighbours;
mod other;
pub mod progress;
pub mod rates;
pub mod scripts;
pub mod shared_memory;
pub mod two_processes;

pub use other::Other;

use hca::{CompletionQueue, Joins, Mapping, Nic, Options, Qp};
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transport::{
    AddressVector, Capabilities, Completion, Data, Kind, Limits, Modify, Operation, QueuePairConfig, SendFlags,
    SendRequest, Sge, State,
};
use wire::{Key, Mtu, Pkey, Psn, Qpn};

/// Bytes of memory of an end.
pub const LENGTH: usize = 1 << 20;

/// One test at a time: a process that is killed takes along what the kernel had given it for others, and one that has
/// ended cannot say it again.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits until no other test of this program runs.
pub fn turn() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue pair of the NIC's device on `lo`, with memory that its peer may read and write.
#[derive(Debug)]
pub struct End {
    /// The NIC of this end.
    pub nic: Arc<Nic>,
    /// The queue pair: reliable and connected, as soon as [`End::connect`] was called.
    pub qp: Arc<Qp>,
    /// Where its work completes.
    pub cq: Arc<CompletionQueue>,
    /// Its memory, [`LENGTH`] bytes.
    pub memory: EndMemory,
    /// The memory's key, local and remote.
    pub key: Key,
    /// How to reach this host.
    pub av: AddressVector,
}

/// Memory of an end.
#[derive(Debug)]
pub enum EndMemory {
    /// Of the heap.
    Heap(Vec<u64>),
    /// A mapping: of a file that peers may map, or private pages.
    Mapped(Mapping),
    /// A mapping of a file of the program's, sealed or not.
    Shared(Mapping, OwnedFd),
}

impl EndMemory {
    fn new(is_shareable: bool) -> EndMemory {
        match is_shareable {
            true if std::env::var_os(SHAREABLE_VARIABLE).is_some_and(|kind| kind == PRIVATE_PAGES) => {
                EndMemory::Mapped(Mapping::anonymous(LENGTH).unwrap())
            }
            true if is_file_of_program() => {
                let file = program_file(std::env::var_os(SHAREABLE_VARIABLE).is_some_and(|kind| kind == SEALED_FILE));
                EndMemory::Shared(Mapping::of_file(file.as_fd(), 0, LENGTH, true).unwrap(), file)
            }
            true => EndMemory::Mapped(Mapping::shareable(LENGTH).expect("the system has files in memory")),
            false => EndMemory::Heap(vec![0; LENGTH / 8]),
        }
    }
}

impl Deref for EndMemory {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            EndMemory::Heap(words) => words,
            // SAFETY: so many zeroed bytes from a page's boundary on; peers write them when tests expect it.
            EndMemory::Mapped(map) | EndMemory::Shared(map, _) => unsafe {
                std::slice::from_raw_parts(map.first().cast(), LENGTH / 8)
            },
        }
    }
}

impl DerefMut for EndMemory {
    fn deref_mut(&mut self) -> &mut [u64] {
        match self {
            EndMemory::Heap(words) => words,
            // SAFETY: as above; the mapping is borrowed for as long.
            EndMemory::Mapped(map) | EndMemory::Shared(map, _) => unsafe {
                std::slice::from_raw_parts_mut(map.first().cast(), LENGTH / 8)
            },
        }
    }
}

/// An end of a process that has this variable has memory that peers may map.
pub const SHAREABLE_VARIABLE: &str = "UBIVERBS_TEST_SHAREABLE";
/// Private pages instead, if this is its value.
pub const PRIVATE_PAGES: &str = "private";
/// A file that the program has made and mapped itself, which can, or cannot, become shorter.
pub const LOOSE_FILE: &str = "loose";
/// See there.
pub const SEALED_FILE: &str = "sealed";

/// A queue pair of a process that has this variable stays in RTR.
pub const PASSIVE_VARIABLE: &str = "UBIVERBS_TEST_PASSIVE";

fn is_file_of_program() -> bool {
    std::env::var_os(SHAREABLE_VARIABLE).is_some_and(|kind| kind == LOOSE_FILE || kind == SEALED_FILE)
}

/// A file in memory, as a program makes it.
fn program_file(is_sealed: bool) -> OwnedFd {
    // SAFETY: a C string and a flag; the descriptor is new and nobody else's.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"program".as_ptr(), libc::MFD_ALLOW_SEALING)) };
    file.set_len(LENGTH as u64).unwrap();
    if is_sealed {
        // SAFETY: a call without pointers.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert_eq!(sealed, 0);
    }
    file.into()
}

impl Default for End {
    fn default() -> End {
        End::new()
    }
}

impl End {
    /// An end on a NIC of its own.
    pub fn new() -> End {
        End::on(&Nic::open().unwrap())
    }

    /// An end on a NIC of its own that sends nothing through shared memory.
    pub fn over_udp() -> End {
        let mut options = Options::default();
        options.only_udp = true;
        End::on(&Nic::open_with(options).unwrap())
    }

    /// One that does not slow down when its peer tells of congestion.
    pub fn ignoring_congestion(only_udp: bool) -> End {
        let mut options = Options::default();
        (options.only_udp, options.ignores_congestion) = (only_udp, true);
        End::on(&Nic::open_with(options).unwrap())
    }

    /// Another queue pair of the same process.
    pub fn another(&self) -> End {
        End::with(&self.nic, !matches!(self.memory, EndMemory::Heap(_)))
    }

    /// An end on a NIC of its own, with memory that peers may map, or not.
    pub fn with_memory(is_shareable: bool) -> End {
        End::with(&Nic::open().unwrap(), is_shareable)
    }

    fn on(nic: &Arc<Nic>) -> End {
        End::with(nic, std::env::var_os(SHAREABLE_VARIABLE).is_some())
    }

    fn with(nic: &Arc<Nic>, is_shareable: bool) -> End {
        let nic = Arc::clone(nic);
        let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
        let context = nic.open_device(&device).unwrap();
        let domain = context.new_domain();
        let cq = nic.create_cq(64, None).unwrap();
        let capabilities =
            Capabilities { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let config = QueuePairConfig {
            qpn: Qpn::new(0),
            kind: Kind::ReliableConnected,
            pd: domain,
            capabilities,
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        let joins = Joins {
            context: Arc::clone(&context),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            xrc_domain: None,
        };
        let qp = nic.create_qp(config, joins).unwrap();
        let mut memory = EndMemory::new(is_shareable);
        let spec = memory::RegionSpec {
            translation: memory::Translation { address: memory.as_mut_ptr().cast(), length: LENGTH, iova: None },
            domain,
            access: memory::Access::LOCAL_WRITE
                | memory::Access::REMOTE_WRITE
                | memory::Access::REMOTE_READ
                | memory::Access::REMOTE_ATOMIC,
        };
        // SAFETY: the memory lives as long as the process, and is read only when nothing is under way or through volatile reads.
        let key = unsafe { nic.memory().register(&spec) }.unwrap();
        let port = device.port().clone();
        let index = port.gids.iter().position(|gid| gid.is_some_and(|gid| gid.to_ip().is_ipv4())).unwrap();
        let av = AddressVector {
            dgid: port.gids[index].unwrap(),
            sgid_index: index as u8,
            port: 1,
            ..AddressVector::default()
        };
        End { nic, qp, cq, memory, key, av }
    }

    /// Patient: an answer may take a second, which on the busiest machine it does not.
    pub fn connect(&self, peer: Qpn) {
        self.connect_with(peer, 18);
    }

    /// With the timeout of the specification's table that this number stands for: 14 is 67 ms.
    pub fn connect_with(&self, peer: Qpn, timeout: u8) {
        let access =
            transport::Access::REMOTE_WRITE | transport::Access::REMOTE_READ | transport::Access::REMOTE_ATOMIC;
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
                av: Some(self.av),
                path_mtu: Some(Mtu::B4096),
                dest_qpn: Some(peer),
                rq_psn: Some(Psn::new(5)),
                max_dest_rd_atomic: Some(16),
                min_rnr_timer: Some(1),
                ..Modify::default()
            },
            Modify {
                state: Some(State::ReadyToSend),
                sq_psn: Some(Psn::new(5)),
                timeout: Some(timeout),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(16),
                ..Modify::default()
            },
        ];
        let is_passive = std::env::var_os(PASSIVE_VARIABLE).is_some();
        for step in steps.into_iter().take(if is_passive { 2 } else { 3 }) {
            self.qp.modify(&self.nic, &step).unwrap();
        }
    }

    /// Where its memory begins.
    pub fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    /// Posts work; false if the queue pair takes none.
    pub fn post(&self, operation: Operation, length: u32) -> bool {
        let sges = [Sge { address: self.address(), length, key: self.key }];
        let request = SendRequest {
            wr_id: 1,
            operation,
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&sges),
            target: None,
            xrc_srq: None,
        };
        self.qp.post_send(&self.nic, &[request]).is_ok()
    }

    /// Posts work, and polls until it has completed.
    pub fn run(&self, operation: Operation, length: u32) -> Completion {
        assert!(self.post(operation, length));
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut found = None;
            self.nic.poll(&self.cq, 1, |completion, _| found = Some(*completion));
            if let Some(completion) = found {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion in a minute");
        }
    }
}

/// Takes a completion, if there is one.
pub fn poll(end: &End) -> Option<Completion> {
    let mut found = None;
    end.nic.poll(&end.cq, 1, |completion, _| found = Some(*completion));
    found
}

/// The numbers of a line.
pub fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
