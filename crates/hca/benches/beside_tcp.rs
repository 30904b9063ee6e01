//! Two processes over UDP on loopback beside two processes over TCP, interleaved in one run: 64-byte messages to and fro with both sides
//! spinning, and 1 MiB WRITEs in one direction at a path MTU of 4096. The machine is shared, so the ratios are what to read.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{
    AddressVector, Capabilities, Data, Kind, Limits, Modify, Operation, QueuePairConfig, ReceiveRequest, Remote,
    SendFlags, SendRequest, Sge, State, Status,
};
use ubiverbs_hca::{CompletionQueue, Joins, Nic, Qp};
use wire::{Key, Mtu, Pkey, Psn, Qpn};

const PEER: &str = "UBIVERBS_BENCH_PEER";
const LENGTH: usize = 8 << 20;
const MESSAGE: usize = 64;
const ROUNDS: usize = 40;
const TRIPS: u32 = 1_000;
const WRITES: u32 = 50;
const WRITE: u32 = 1 << 20;
/// WRITEs under way at a time.
const DEPTH: u32 = 8;

struct End {
    nic: Arc<Nic>,
    qp: Arc<Qp>,
    cq: Arc<CompletionQueue>,
    memory: Vec<u64>,
    key: Key,
    av: AddressVector,
    /// Sends and receives that were waited for, less those that completed.
    missing: Cell<(i64, i64)>,
}

impl End {
    fn new() -> End {
        End::on(Nic::open().unwrap())
    }

    fn on(nic: Arc<Nic>) -> End {
        let device = nic.devices().into_iter().find(|device| device.name() == "ubi_lo").expect("a device for lo");
        let context = nic.open_device(&device).unwrap();
        let pd = context.new_domain();
        let cq = nic.create_cq(256, None).unwrap();
        let capabilities =
            Capabilities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let config = QueuePairConfig {
            qpn: Qpn::new(0),
            kind: Kind::ReliableConnected,
            pd,
            capabilities,
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        let (send_cq, receive_cq) = (Some(Arc::clone(&cq)), Some(Arc::clone(&cq)));
        let joins = Joins { context: Arc::clone(&context), send_cq, receive_cq, xrc_domain: None };
        let qp = nic.create_qp(config, joins).unwrap();
        let mut memory = vec![1u64; LENGTH / 8];
        let spec = memory::RegionSpec {
            translation: memory::Translation { address: memory.as_mut_ptr().cast(), length: LENGTH, iova: None },
            domain: memory::Domain(pd.0),
            access: memory::Access::LOCAL_WRITE | memory::Access::REMOTE_WRITE,
        };
        // SAFETY: the memory lives as long as the process, and nobody makes references to it while work is under way.
        let key = Key::new(unsafe { nic.memory().register(&spec) }.unwrap().0);
        let port = device.port().clone();
        let index = port.gids.iter().position(|gid| gid.is_some_and(|gid| gid.to_ip().is_ipv4())).unwrap();
        let av = AddressVector {
            dgid: port.gids[index].unwrap(),
            sgid_index: index as u8,
            port: 1,
            ..AddressVector::default()
        };
        End { nic, qp, cq, memory, key, av, missing: Cell::new((0, 0)) }
    }

    fn connect(&self, peer: Qpn) {
        let init = Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(transport::Access::REMOTE_WRITE),
            ..Modify::default()
        };
        let receive = Modify {
            state: Some(State::ReadyToReceive),
            av: Some(self.av),
            path_mtu: Some(Mtu::B4096),
            dest_qpn: Some(peer),
            rq_psn: Some(Psn::new(0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..Modify::default()
        };
        let send = Modify {
            state: Some(State::ReadyToSend),
            sq_psn: Some(Psn::new(0)),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            max_rd_atomic: Some(1),
            ..Modify::default()
        };
        for step in [init, receive, send] {
            self.qp.modify(&self.nic, &step).unwrap();
        }
        (0..8).for_each(|_| self.receive());
    }

    fn sge(&self, length: u32) -> [Sge; 1] {
        [Sge { address: self.memory.as_ptr() as u64, length, key: self.key }]
    }

    fn receive(&self) {
        let sges = self.sge(MESSAGE as u32);
        self.qp.post_receive(&self.nic, &[ReceiveRequest { wr_id: 2, sges: &sges }]).unwrap();
    }

    fn send(&self, operation: Operation, length: u32) {
        let sges = self.sge(length);
        let request = SendRequest {
            wr_id: 1,
            operation,
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&sges),
            target: None,
            xrc_srq: None,
        };
        self.qp.post_send(&self.nic, &[request]).unwrap();
    }

    /// Polls until `sends` more sends and `receives` more receives have completed than were waited for before.
    fn until(&self, sends: i64, receives: i64) {
        let mut missing = self.missing.get();
        missing = (missing.0 + sends, missing.1 + receives);
        while missing.0 > 0 || missing.1 > 0 {
            self.nic.poll(&self.cq, 16, |entry| {
                assert_eq!(entry.completion.status, Status::Success);
                if entry.completion.wr_id == 2 { missing.1 -= 1 } else { missing.0 -= 1 }
            });
        }
        self.missing.set(missing);
    }

    /// Messages to and fro; the first to send is `first`. The send completion of one trip is taken with the receive of the next, as
    /// `ib_send_lat` does.
    fn trips(&self, first: bool) {
        let plain = Operation::Send { immediate: None };
        for _ in 0..TRIPS {
            if first {
                self.send(plain, MESSAGE as u32);
                self.until(1, 1);
                self.receive();
            } else {
                self.until(0, 1);
                self.receive();
                self.send(plain, MESSAGE as u32);
                self.until(1, 0);
            }
        }
    }
}

fn main() {
    match std::env::var(PEER) {
        Ok(address) => peer(&address),
        Err(_) if std::env::args().any(|word| word == "alone") => alone(),
        Err(_) => measure(),
    }
}

/// Both ends in one thread, for a profile without waiting: what a message costs in all.
fn alone() {
    let mut options = ubiverbs_hca::Options::default();
    options.only_udp = true;
    let nic = Nic::open_with(options).unwrap();
    let (one, other) = (End::on(Arc::clone(&nic)), End::on(nic));
    one.connect(other.qp.qpn());
    other.connect(one.qp.qpn());
    let plain = Operation::Send { immediate: None };
    let big = std::env::args().any(|word| word == "big");
    let began = Instant::now();
    if big {
        let write = Operation::Write {
            remote: Remote { address: other.memory.as_ptr() as u64, key: other.key },
            immediate: None,
        };
        for _ in 0..3000 {
            one.send(write, WRITE);
            one.until(1, 0);
        }
        println!("1 MiB WRITE: {:?}", began.elapsed() / 3000);
        return;
    }
    const COUNT: u32 = 200_000;
    for _ in 0..COUNT {
        one.send(plain, MESSAGE as u32);
        other.until(0, 1);
        other.receive();
        other.send(plain, MESSAGE as u32);
        one.until(1, 1);
        one.receive();
        other.missing.set((other.missing.get().0 + 1, other.missing.get().1));
    }
    println!("64 B SEND: {:?}", began.elapsed() / (2 * COUNT));
}

fn pin(cpu: usize) {
    // SAFETY: a plain call with a live set; zero is a value of the set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

fn tell(stream: &mut TcpStream, words: &[u64]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    stream.write_all(&bytes).unwrap();
}

fn hear<const N: usize>(stream: &mut TcpStream) -> [u64; N] {
    std::array::from_fn(|_| {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    })
}

fn spin_read(stream: &mut TcpStream, buffer: &mut [u8]) {
    let mut at = 0;
    while at < buffer.len() {
        match stream.read(&mut buffer[at..]) {
            Ok(0) => panic!("the peer has gone"),
            Ok(count) => at += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn peer(address: &str) {
    pin(1);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let end = End::new();
    let [qpn] = hear::<1>(&mut stream);
    end.connect(Qpn::new(qpn as u32));
    tell(&mut stream, &[end.qp.qpn().value().into(), end.memory.as_ptr() as u64, end.key.value().into()]);
    let mut buffer = vec![0; WRITE as usize];
    loop {
        match hear::<1>(&mut stream) {
            [1] => {
                stream.set_nonblocking(true).unwrap();
                for _ in 0..TRIPS {
                    spin_read(&mut stream, &mut buffer[..MESSAGE]);
                    stream.write_all(&buffer[..MESSAGE]).unwrap();
                }
                stream.set_nonblocking(false).unwrap();
            }
            [2] => end.trips(false),
            [3] => {
                for _ in 0..WRITES {
                    stream.read_exact(&mut buffer).unwrap();
                }
                tell(&mut stream, &[0]);
            }
            [4] => {
                // The target of WRITEs polls, as one that waits for their end would.
                end.until(0, 1);
                end.receive();
            }
            _ => return,
        }
    }
}

/// The first process: it and the peer do the same by TCP and by our NIC, by turns.
struct First {
    stream: TcpStream,
    end: End,
    /// The peer's memory.
    remote: Remote,
    buffer: Vec<u8>,
}

impl First {
    /// Messages to and fro: half a round trip by TCP and by SEND.
    fn latency(&mut self) -> (Duration, Duration) {
        let First { stream, end, buffer, .. } = self;
        tell(stream, &[1]);
        stream.set_nonblocking(true).unwrap();
        let began = Instant::now();
        for _ in 0..TRIPS {
            stream.write_all(&buffer[..MESSAGE]).unwrap();
            spin_read(stream, &mut buffer[..MESSAGE]);
        }
        let tcp = began.elapsed();
        stream.set_nonblocking(false).unwrap();
        tell(stream, &[2]);
        // Until the peer is there.
        std::thread::sleep(Duration::from_millis(5));
        let began = Instant::now();
        end.trips(true);
        (tcp / (2 * TRIPS), began.elapsed() / (2 * TRIPS))
    }

    /// Megabytes in one direction: all of them by TCP and by WRITE.
    fn bandwidth(&mut self) -> (Duration, Duration) {
        let First { stream, end, buffer, remote } = self;
        tell(stream, &[3]);
        let began = Instant::now();
        for _ in 0..WRITES {
            stream.write_all(buffer).unwrap();
        }
        hear::<1>(stream);
        let tcp = began.elapsed();
        tell(stream, &[4]);
        std::thread::sleep(Duration::from_millis(5));
        let began = Instant::now();
        for index in 0..WRITES {
            if index >= DEPTH {
                end.until(1, 0);
            }
            end.send(Operation::Write { remote: *remote, immediate: None }, WRITE);
        }
        end.until(DEPTH.into(), 0);
        let ours = began.elapsed();
        // The peer waits for this one.
        end.send(Operation::Send { immediate: None }, 8);
        end.until(1, 0);
        (tcp, ours)
    }
}

fn measure() {
    pin(0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(PEER, listener.local_addr().unwrap().to_string())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    let end = End::new();
    tell(&mut stream, &[end.qp.qpn().value().into()]);
    let [qpn, address, key] = hear::<3>(&mut stream);
    end.connect(Qpn::new(qpn as u32));
    let remote = Remote { address, key: Key::new(key as u32) };
    let mut first = First { stream, end, remote, buffer: vec![0; WRITE as usize] };
    let (latency, bandwidth): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| (first.latency(), first.bandwidth())).unzip();
    tell(&mut first.stream, &[0]);
    child.wait().unwrap();

    let microseconds = |time: f64| time * 1e6;
    print("64 B half round trip, us, beside TCP (less is better)", &latency, microseconds);
    let gigabytes = |time: f64| f64::from(WRITES) * f64::from(WRITE) / time / 1e9;
    print("1 MiB, GB/s, beside TCP (more is better)", &bandwidth, gigabytes);
}

/// The quickest round (the one the rest of the machine disturbed least), the quarter and the median.
fn print(what: &str, pairs: &[(Duration, Duration)], unit: impl Fn(f64) -> f64) {
    let sorted = |pick: fn(&(Duration, Duration)) -> Duration| {
        let mut times: Vec<f64> = pairs.iter().map(|pair| pick(pair).as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (tcp, ours) = (sorted(|pair| pair.0), sorted(|pair| pair.1));
    for (which, at) in [("quickest", 0), ("quarter", ROUNDS / 4), ("median", ROUNDS / 2)] {
        let (tcp, ours) = (unit(tcp[at]), unit(ours[at]));
        println!("{what}, {which}: TCP {tcp:.2}, ours {ours:.2}, ratio {:.2}", ours / tcp);
    }
}
