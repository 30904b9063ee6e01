//! Three processes of one host, told as events: `A`, `B` and `C`, with queue pairs between each two, 4096 bytes of
//! registered memory each, and a language of one statement per step.
//!
//! | statement | what happens |
//! |---|---|
//! | `A write ab 0+8` | A posts a WRITE of 8 bytes of B's memory; `read`, `imm`; `faa`, `cas` with a place alone |
//! | `A send ab`, `A dgram ad at=C` | A posts a message of 8 bytes; `len=` |
//! | `from=4+8`, `to=4+8`, `fence`, `inline`, `quiet`, `window` | of its own memory; flags; by the newest window |
//! | `B recv ba into=0+8`, `B srecv into=0+8` | B posts a receive, to its shared queue |
//! | `A poll ab` | the oldest signaled work completes and is polled; `fail` instead of that |
//! | `B arrives ba`, `B got ba` | the next message fills a receive; and B polls it |
//! | `A stop ab`, `A cm`, `B dereg`, `B rereg`, `B bind 0+64`, `C stranger cx`, `C refused cb 0+8` | what they say |

use std::collections::{BTreeMap, VecDeque};

use checks::races::{ProcessFacts, Races, Step};
use checks::{Finding, Settings};
use trace::{Access, Call, Event, Kind, Piece, Pieces, Queue, Text};

use wire::{Deth, Headers, Key, Opcode, Psn, Qkey, Qpn, Srqn};

/// Names, the process, the service, and the peer.
const PAIRS: &[(&str, usize, &str, &str)] = &[
    ("ab", 0, "RC", "ba"),
    ("ba", 1, "RC", "ab"),
    ("ab2", 0, "RC", "ba2"),
    ("ba2", 1, "RC", "ab2"),
    ("ac", 0, "RC", "ca"),
    ("ca", 2, "RC", "ac"),
    ("bc", 1, "RC", "cb"),
    ("cb", 2, "RC", "bc"),
    ("ub", 0, "UC", "bu"),
    ("bu", 1, "UC", "ub"),
    ("ad", 0, "UD", ""),
    ("bd", 1, "UD", ""),
    ("cd", 2, "UD", ""),
    ("cx", 2, "RC", ""),
];

const REGION_BYTES: u64 = 4096;
const SRQ: u32 = 77;

/// What was found, in few words.
#[derive(Debug)]
pub struct Race {
    pub rule: u16,
    /// Where, from the beginning of the memory.
    pub start: u64,
}

/// Work that is under way.
struct Sent {
    wr_id: u64,
    opcode: &'static str,
    signaled: bool,
}

pub struct Stage {
    races: Races,
    now: u64,
    wr_id: u64,
    scratch: u64,
    /// The newest keys of the three regions, and of B's window.
    keys: [u32; 3],
    window: u32,
    sent: BTreeMap<String, VecDeque<Sent>>,
    /// Messages to a queue pair: the sender, its bytes, and its sequence number.
    coming: BTreeMap<String, VecDeque<(String, u64, u32)>>,
    receives: BTreeMap<String, VecDeque<u64>>,
    arrived: BTreeMap<String, VecDeque<u64>>,
    psn: u32,
    shares: bool,
}

fn memory(process: usize) -> u64 {
    0x10_0000 * (process as u64 + 1)
}

fn pair(name: &str) -> (usize, Qpn, &'static str, &'static str) {
    let place = PAIRS.iter().position(|(known, ..)| *known == name).unwrap_or_else(|| panic!("no queue pair {name}"));
    let (_, process, kind, peer) = PAIRS[place];
    (process, Qpn::new(0x10 * (process as u32 + 1) + place as u32), kind, peer)
}

fn range(text: &str) -> (u64, u64) {
    let (start, length) = text.split_once('+').unwrap_or((text, "8"));
    (start.parse().unwrap(), length.parse().unwrap())
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(false)
    }

    /// What is told of a script.
    pub fn play(script: &str) -> Vec<Race> {
        let mut stage = Stage::with(script.contains("srecv"));
        stage.run(script);
        let place = |text: &str| {
            let place = text.split(" bytes at 0x").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            u64::from_str_radix(place, 16).unwrap() % 0x10_0000
        };
        let races = stage
            .findings()
            .into_iter()
            .map(|(_, _, finding)| Race { rule: finding.rule.0, start: place(&finding.what) });
        races.collect()
    }

    fn with(shares: bool) -> Stage {
        let mut races = Races::new(Settings { races: true, ..Settings::default() });
        for (number, program) in ["alpha", "beta", "gamma"].into_iter().enumerate() {
            let facts = ProcessFacts { pid: 100 + number as u32, program: program.into(), host: 1 };
            assert_eq!(races.process(facts), number as u32);
        }
        let mut stage = Stage {
            races,
            now: 0,
            wr_id: 0,
            scratch: 0x9000_0000,
            keys: [0; 3],
            window: 0x5000,
            sent: BTreeMap::new(),
            coming: BTreeMap::new(),
            receives: BTreeMap::new(),
            arrived: BTreeMap::new(),
            psn: 0,
            shares,
        };
        for (name, process, kind, _) in PAIRS {
            let srq = (shares && *process == 1).then_some(Srqn::new(SRQ));
            stage.call(*process, Some(pair(name).1), create(kind, srq));
        }
        for (name, process, _, peer) in PAIRS {
            let dest = if peer.is_empty() { Qpn::new(0x999) } else { pair(peer).1 };
            stage.call(*process, Some(pair(name).1), connect(dest));
        }
        (0..3).for_each(|process| stage.register(process));
        stage
    }

    pub fn run(&mut self, script: &str) {
        for statement in script.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            self.step(statement);
        }
    }

    pub fn findings(&mut self) -> Vec<(u32, u64, Finding)> {
        let mut found = Vec::new();
        self.races.finish(&mut |process, count, finding| found.push((process, count, finding)));
        found
    }

    pub fn remembered(&self) -> (usize, usize) {
        self.races.remembered()
    }

    pub fn forgotten(&self) -> u64 {
        self.races.looked().forgotten
    }

    /// Whether the next message completes; false if its post was not seen.
    pub fn try_arrive(&mut self, _process: &str, name: &str) -> bool {
        let (process, qpn, ..) = pair(name);
        let wr_id = *self.receives[name].front().unwrap();
        let event = completed(self.now, qpn, wr_id, Queue::Receive, "IBV_WC_SUCCESS", 8);
        self.races.observe(process as u32, &event) == Step::Done
    }

    /// A WRITE into memory of C's that no region describes closer: own memory, scattered.
    pub fn scattered_write(&mut self, address: u64) {
        let pieces = [Piece { address, length: 8, key: Key::new(0) }].into_iter().collect();
        self.post("ab", 1, "SEND", pieces, None, &[]);
    }

    fn emit(&mut self, process: usize, qpn: Option<Qpn>, kind: Kind) -> Step {
        self.now += 1000;
        self.races.observe(process as u32, &Event { at: self.now, qpn, kind })
    }

    fn call(&mut self, process: usize, qpn: Option<Qpn>, call: Call) {
        self.emit(process, qpn, Kind::Called { thread: 1, call });
    }

    fn register(&mut self, process: usize) {
        self.keys[process] += 0x100 * if self.keys[process] == 0 { process as u32 + 1 } else { 16 };
        let (key, address) = (Key::new(self.keys[process]), memory(process));
        let access = Access::LOCAL_WRITE;
        self.call(
            process,
            None,
            Call::RegisterMemory { key, pd: 1, address, length: REGION_BYTES, iova: address, access },
        );
    }

    fn step(&mut self, statement: &str) {
        let words: Vec<&str> = statement.split_whitespace().collect();
        let (who, thread) = words[0].split_once('.').unwrap_or((words[0], "1"));
        let (process, thread) = ("ABC".find(who).unwrap(), thread.parse().unwrap());
        let flags = &words[2..];
        let name = flags.first().copied().unwrap_or("");
        let option = |key: &str| flags.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        match words[1] {
            "write" | "read" | "imm" | "faa" | "cas" | "send" | "dgram" | "refused" => {
                self.posts(process, thread, words[1], name, flags);
            }
            "recv" | "srecv" => {
                self.wr_id += 1;
                let (start, length) = option("into").map_or((0, 0), range);
                let piece = match length {
                    0 => self.scratch_piece(64),
                    _ => self.own_piece(process, start, length),
                };
                let is_shared = words[1] == "srecv";
                let srq = is_shared.then_some(Srqn::new(SRQ));
                let qpn = if is_shared { None } else { Some(pair(name).1) };
                let queue = if is_shared { "srq" } else { name };
                self.receives.entry(queue.to_owned()).or_default().push_back(self.wr_id);
                let pieces = std::iter::once(piece).collect();
                self.call(process, qpn, Call::PostReceive { wr_id: self.wr_id, srq, index: 0, pieces });
            }
            "poll" | "fail" => {
                let is_success = words[1] == "poll";
                let queue = self.sent.entry(name.to_owned()).or_default();
                let Some(place) = queue.iter().position(|sent| sent.signaled || !is_success) else { return };
                let Some(Sent { wr_id, opcode, .. }) = queue.drain(..=place).next_back() else { return };
                let status = if is_success { "IBV_WC_SUCCESS" } else { "IBV_WC_REM_ACCESS_ERR" };
                let qpn = pair(name).1;
                let mut event = completed(self.now, qpn, wr_id, Queue::Send, status, 8);
                if let Kind::Completed { opcode: said, .. } = &mut event.kind {
                    *said = opcode;
                }
                self.emit(process, Some(qpn), event.kind);
                self.call(process, Some(qpn), Call::Polled { cq: 1, wr_id, status });
            }
            "arrives" | "got" => self.message_arrives(process, name, words[1] == "got"),
            "stranger" => {
                let qpn = pair(name).1;
                let kind = completed(self.now, qpn, 4711, Queue::Receive, "IBV_WC_SUCCESS", 8).kind;
                self.races.observe_at_last(process as u32, &Event { at: self.now, qpn: Some(qpn), kind });
                self.call(process, Some(qpn), Call::Polled { cq: 1, wr_id: 4711, status: "IBV_WC_SUCCESS" });
            }
            "stop" => self.call(process, Some(pair(name).1), Call::DestroyQp { sends: 0, receives: 0 }),
            "cm" => {
                let call = Call::CmEvent {
                    event: "RDMA_CM_EVENT_DISCONNECTED",
                    id: 1,
                    listen_id: None,
                    status: 0,
                    id_qpn: None,
                };
                self.call(process, None, call);
            }
            "dereg" => self.call(process, None, Call::DeregisterMemory { key: Key::new(self.keys[process]) }),
            "rereg" => {
                self.call(process, None, Call::DeregisterMemory { key: Key::new(self.keys[process]) });
                self.register(process);
            }
            "bind" => {
                let (start, length) = range(name);
                let (window, region) = (Key::new(self.window), Key::new(self.keys[process]));
                self.window += 1;
                let new_key = Key::new(self.window);
                let address = memory(process) + start;
                let access = Access::REMOTE_WRITE;
                self.call(process, None, Call::BindWindow { window, new_key, region, address, length, access });
            }
            other => panic!("no statement {other}"),
        }
    }

    fn posts(&mut self, process: usize, thread: u32, verb: &str, name: &str, flags: &[&str]) {
        let option = |key: &str| flags.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        let opcode = match verb {
            "write" | "refused" => "RDMA_WRITE",
            "imm" => "RDMA_WRITE_WITH_IMM",
            "read" => "RDMA_READ",
            "faa" => "ATOMIC_FETCH_AND_ADD",
            "cas" => "ATOMIC_CMP_AND_SWP",
            _ => "SEND",
        };
        let is_message = matches!(verb, "send" | "dgram");
        let (start, length) =
            if is_message { (0, option("len").map_or(8, |text| text.parse().unwrap())) } else { range(flags[1]) };
        let pieces: Pieces = match option("from").or(option("to")) {
            Some(ranges) => ranges
                .split(',')
                .map(|text| {
                    let (at, length) = range(text);
                    self.own_piece(process, at, length)
                })
                .collect(),
            None => std::iter::once(self.scratch_piece(length as u32)).collect(),
        };
        let peer = pair(name).3;
        let remote = (!is_message).then(|| {
            let target = pair(peer).0;
            let key = if flags.contains(&"window") { self.window } else { self.keys[target] };
            (memory(target).wrapping_add(start), Key::new(key))
        });
        if verb == "refused" {
            self.wr_id += 1;
            let call = self.post_call(opcode, pieces, remote, flags);
            self.call(process, Some(pair(name).1), call);
            let kind = Kind::PostRefused { wr_id: self.wr_id, queue: Queue::Send, reason: "queue_full" };
            self.emit(process, Some(pair(name).1), kind);
            return;
        }
        self.post(name, thread, opcode, pieces, remote, flags);
        if is_message || verb == "imm" {
            self.psn += 1;
            let target = match (verb, flags.contains(&"at=C")) {
                ("dgram", true) => "cd",
                ("dgram", _) => "bd",
                _ => peer,
            };
            let bytes = if verb == "dgram" { length + 40 } else { length };
            self.coming.entry(target.to_owned()).or_default().push_back((name.to_owned(), bytes, self.psn));
            if let Some(headers) = headers(name, target, self.psn) {
                let (wr_id, qpn) = (Some(self.wr_id), Some(pair(name).1));
                self.emit(
                    process,
                    qpn,
                    Kind::PacketSent { headers, payload_len: 8, packets: 1, wr_id, retransmit: false },
                );
            }
        }
    }

    fn post(
        &mut self,
        name: &str,
        thread: u32,
        opcode: &'static str,
        pieces: Pieces,
        remote: Option<(u64, Key)>,
        flags: &[&str],
    ) {
        self.wr_id += 1;
        let (process, qpn, ..) = pair(name);
        let program = ["alpha", "beta", "gamma"][process];
        // The same statement is the same place.
        let caller = Text::of(format_args!("{program}: {opcode} {name} {}", flags.join(" ")));
        let place = caller.as_str().bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        self.emit(process, None, Kind::Called { thread, call: Call::PostedFrom { place, caller } });
        let call = self.post_call(opcode, pieces, remote, flags);
        self.emit(process, Some(qpn), Kind::Called { thread, call });
        let bytes = pieces.bytes;
        self.emit(process, Some(qpn), Kind::WorkPosted { wr_id: self.wr_id, queue: Queue::Send, opcode, bytes });
        let sent = Sent { wr_id: self.wr_id, opcode, signaled: !flags.contains(&"quiet") };
        self.sent.entry(name.to_owned()).or_default().push_back(sent);
    }

    fn post_call(&self, opcode: &'static str, pieces: Pieces, remote: Option<(u64, Key)>, flags: &[&str]) -> Call {
        Call::PostSend {
            wr_id: self.wr_id,
            opcode,
            index: 0,
            signaled: !flags.contains(&"quiet"),
            inline: flags.contains(&"inline"),
            fence: flags.contains(&"fence"),
            solicited: false,
            pieces,
            remote_address: remote.map(|(address, _)| address),
            remote_key: remote.map(|(_, key)| key),
            remote_qpn: None,
            remote_qkey: None,
            remote_gid: None,
        }
    }

    fn message_arrives(&mut self, process: usize, name: &str, is_polled: bool) {
        let (_, qpn, kind, _) = pair(name);
        let is_shared = self.shares && process == 1;
        let Some((from, bytes, psn)) = self.coming.entry(name.to_owned()).or_default().pop_front() else { return };
        let queue = if is_shared { "srq" } else { name };
        let Some(wr_id) = self.receives.entry(queue.to_owned()).or_default().pop_front() else { return };
        if kind != "RC" {
            let headers = headers(&from, name, psn).unwrap();
            self.emit(process, Some(qpn), Kind::PacketReceived { headers, payload_len: 8, packets: 1 });
        }
        let queue = if is_shared { Queue::SharedReceive } else { Queue::Receive };
        let event = completed(self.now, qpn, wr_id, queue, "IBV_WC_SUCCESS", bytes);
        self.races.observe_at_last(process as u32, &event);
        self.arrived.entry(name.to_owned()).or_default().push_back(wr_id);
        if is_polled {
            while let Some(wr_id) = self.arrived.get_mut(name).and_then(VecDeque::pop_front) {
                self.call(process, Some(qpn), Call::Polled { cq: 1, wr_id, status: "IBV_WC_SUCCESS" });
            }
        }
    }

    fn own_piece(&self, process: usize, start: u64, length: u64) -> Piece {
        Piece { address: memory(process) + start, length: length as u32, key: Key::new(self.keys[process]).local() }
    }

    /// Memory that nothing else uses.
    fn scratch_piece(&mut self, length: u32) -> Piece {
        self.scratch += 0x2000;
        Piece { address: self.scratch, length, key: Key::new(0) }
    }
}

fn headers(from: &str, to: &str, psn: u32) -> Option<Headers> {
    let (dest, psn) = (pair(to).1, Psn::new(psn));
    match pair(from).2 {
        "UC" => Some(Headers::new(Opcode::UcSendOnly, dest, psn)),
        "UD" => {
            let deth = Some(Deth { qkey: Qkey::new(1), src_qpn: pair(from).1 });
            Some(Headers { deth, ..Headers::new(Opcode::UdSendOnly, dest, psn) })
        }
        _ => None,
    }
}

fn completed(at: u64, qpn: Qpn, wr_id: u64, queue: Queue, status: &'static str, bytes: u64) -> Event {
    let kind = Kind::Completed { wr_id, queue, status, opcode: "IBV_WC_RECV", bytes, failure: None };
    Event { at, qpn: Some(qpn), kind }
}

fn create(kind: &'static str, srq: Option<Srqn>) -> Call {
    Call::CreateQp {
        kind,
        context: 1,
        pd: 1,
        send_cq: Some(1),
        receive_cq: Some(1),
        srq,
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
        signals_all: false,
    }
}

fn connect(dest: Qpn) -> Call {
    match super::super::script::no_change() {
        Call::ModifyQp {
            state,
            pkey_index,
            port,
            access,
            qkey,
            path_mtu,
            rq_psn,
            sq_psn,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            timeout,
            retry_cnt,
            rnr_retry,
            dgid,
            sgid_index,
            ..
        } => Call::ModifyQp {
            state,
            pkey_index,
            port,
            access,
            qkey,
            path_mtu,
            rq_psn,
            sq_psn,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            timeout,
            retry_cnt,
            rnr_retry,
            dgid,
            sgid_index,
            dest_qpn: Some(dest),
        },
        other => other,
    }
}
