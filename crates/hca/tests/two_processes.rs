//! Two processes of one host. The second is this program started again: it registers memory, says where, and then its only thread does
//! something that is no call of ours.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transport::{
    AddressVector, Capabilities, Completion, Data, Kind, Limits, Modify, Operation, QueuePairConfig, ReceiveRequest,
    Remote, SendFlags, SendRequest, Sge, State, Status,
};
use ubiverbs_hca::{CompletionQueue, Joins, Nic, Qp};
use wire::{Key, Mtu, Pkey, Psn, Qpn};

const LENGTH: usize = 1 << 20;

/// One test at a time: a process that is killed takes along what the kernel had given it for others, and one that has ended cannot say it again.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

struct End {
    nic: Arc<Nic>,
    qp: Arc<Qp>,
    cq: Arc<CompletionQueue>,
    memory: Vec<u64>,
    key: Key,
    av: AddressVector,
}

impl End {
    fn new() -> End {
        let nic = Nic::open().unwrap();
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
        let mut memory = vec![0u64; LENGTH / 8];
        let spec = memory::RegionSpec {
            translation: memory::Translation { address: memory.as_mut_ptr().cast(), length: LENGTH, iova: None },
            domain: memory::Domain(domain.0),
            access: memory::Access::LOCAL_WRITE
                | memory::Access::REMOTE_WRITE
                | memory::Access::REMOTE_READ
                | memory::Access::REMOTE_ATOMIC,
        };
        // SAFETY: the memory lives as long as the process, and is read only when nothing is under way or through volatile reads.
        let key = Key::new(unsafe { nic.memory().register(&spec) }.unwrap().0);
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

    fn connect(&self, peer: Qpn) {
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
                timeout: Some(14),
                retry_cnt: Some(7),
                rnr_retry: Some(7),
                max_rd_atomic: Some(16),
                ..Modify::default()
            },
        ];
        for step in steps {
            self.qp.modify(&self.nic, &step).unwrap();
        }
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn run(&self, operation: Operation, length: u32) -> Completion {
        let sges = [Sge { address: self.address(), length, key: self.key }];
        let request = SendRequest {
            wr_id: 1,
            operation,
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&sges),
            target: None,
            xrc_srq: None,
        };
        self.qp.post_send(&self.nic, &[request]).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let mut found = None;
            self.nic.poll(&self.cq, 1, |entry| found = Some(entry.completion));
            if let Some(completion) = found {
                return completion;
            }
            assert!(Instant::now() < deadline, "no completion in twenty seconds");
        }
    }
}

/// What the second process does while it is written to.
const OCCUPATIONS: [&str; 3] = ["sleep", "spin", "compute"];

/// The second process. Not a test of its own: without its environment variable it has nothing to do.
#[test]
fn the_other_process() {
    let Ok(occupation) = std::env::var("UBIVERBS_TEST_OCCUPATION") else { return };
    let end = End::new();
    let stdin = std::io::stdin();
    let mut lines = stdin.lock().lines();
    let peer: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    end.connect(Qpn::new(peer));
    let sges = [Sge { address: end.address(), length: 8, key: end.key }];
    end.qp.post_receive(&end.nic, &[ReceiveRequest { wr_id: 7, sges: &sges }]).unwrap();
    println!("here {} {} {}", end.qp.qpn().value(), end.address(), end.key.value());
    if occupation == "leave" {
        // Polls, and ends without a word when it has what it waits for: no call after the one that told it.
        let mut came = false;
        while !came {
            end.nic.poll(&end.cq, 1, |_| came = true);
        }
        std::process::exit(0);
    }
    let last = end.memory.len() - 1;
    let mut sum = 0u64;
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match occupation.as_str() {
            "sleep" => std::thread::sleep(Duration::from_millis(50)),
            "spin" => std::hint::spin_loop(),
            _ => {
                for n in 0..1_000_000u64 {
                    sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n));
                }
            }
        }
        // SAFETY: a read of our own live memory, which a peer may change at any time: so volatile.
        let flag = unsafe { std::ptr::read_volatile(&raw const end.memory[last]) };
        if flag == u64::MAX || Instant::now() > until {
            break;
        }
    }
    println!("seen {}", end.memory[0]);
}

struct Other {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Other {
    fn start(occupation: &str) -> Other {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["the_other_process", "--exact", "--nocapture"])
            .env("UBIVERBS_TEST_OCCUPATION", occupation)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Other { child, stdin, stdout }
    }

    /// The numbers of the line that begins with `word`.
    fn hear(&mut self, word: &str) -> Vec<u64> {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "the other process ended without saying {word:?}");
            // The test harness prints on the same lines.
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].split_whitespace().map_while(|number| number.parse().ok()).collect();
            }
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn one_sided_work_completes_whatever_the_target_does() {
    let _turn = turn();
    for occupation in OCCUPATIONS {
        let mut end = End::new();
        let mut other = Other::start(occupation);
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
        end.connect(Qpn::new(qpn as u32));
        let remote = |offset: u64| Remote { address: address + offset, key: Key::new(key as u32) };
        end.memory.iter_mut().enumerate().for_each(|(n, word)| *word = n as u64 * 3 + 1);
        let half = LENGTH as u32 / 2;
        let write = end.run(Operation::Write { remote: remote(0), immediate: None }, half);
        assert_eq!(write.status, Status::Success, "{occupation}: {write:?}");
        end.memory.fill(0);
        let read = end.run(Operation::Read { remote: remote(0) }, half);
        assert_eq!(read.status, Status::Success, "{occupation}: {read:?}");
        assert!(end.memory[..LENGTH / 16].iter().enumerate().all(|(n, word)| *word == n as u64 * 3 + 1));
        let add = end.run(Operation::FetchAdd { remote: remote(0), add: 41 }, 8);
        assert_eq!((add.status, end.memory[0]), (Status::Success, 1));
        // The last word tells it that we are done.
        end.memory[0] = u64::MAX;
        let last = end.run(Operation::Write { remote: remote(LENGTH as u64 - 8), immediate: None }, 8);
        assert_eq!(last.status, Status::Success);
        assert_eq!(other.hear("seen "), [42], "{occupation}");
        assert!(other.child.wait().unwrap().success());
        end.nic.destroy_qp(&end.qp);
    }
}

#[test]
fn a_killed_peer_is_an_error_in_bounded_time() {
    let _turn = turn();
    let end = End::new();
    let mut other = Other::start("sleep");
    writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    end.connect(Qpn::new(qpn as u32));
    let operation = Operation::Write { remote: Remote { address, key: Key::new(key as u32) }, immediate: None };
    assert_eq!(end.run(operation, 4096).status, Status::Success);
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    let completion = end.run(operation, 4096);
    assert_eq!(completion.status, Status::RetryExceeded, "{completion:?}");
    assert_eq!(end.qp.state(), State::Error);
    end.nic.destroy_qp(&end.qp);
}

#[test]
fn a_message_that_was_received_is_acknowledged_though_its_receiver_ends_at_once() {
    let _turn = turn();
    // Several times: the engine may look in at the right moment.
    for _ in 0..5 {
        let end = End::new();
        let mut other = Other::start("leave");
        writeln!(other.stdin, "{}", end.qp.qpn().value()).unwrap();
        let [qpn, ..] = other.hear("here ")[..] else { panic!("three numbers") };
        end.connect(Qpn::new(qpn as u32));
        // Long enough for it to drive by polling.
        std::thread::sleep(Duration::from_millis(50));
        let completion = end.run(Operation::Send { immediate: None }, 8);
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        assert!(other.child.wait().unwrap().success());
        end.nic.destroy_qp(&end.qp);
    }
}
