//! Scripts: small programs told as events, for tests of the rules. Each method is a call of the program or something
//! that the NIC did; the findings come out at the end.
#![allow(dead_code)] // each test program uses a part of it

use std::collections::{BTreeMap, BTreeSet};

use checks::{Checker, Finding, Number, Settings, Witness};
use trace::{Access, Call, Event, Failure, Kind, Piece, Pieces, Queue, StateCause, Text};
use wire::{Key, Qkey, Qpn, Srqn};

/// The protection domain that [`Script::new`] makes.
pub const PD: u32 = 3;
/// The completion queue that [`Script::new`] makes, with room for 64.
pub const CQ: u32 = 4;
/// The context that [`Script::new`] opens.
pub const CONTEXT: u32 = 1;
/// Everything that a region may grant to a peer, and to the NIC.
pub const ALL_ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// A program that runs under the checker.
pub struct Script {
    checker: Checker,
    /// What the process says of its memory.
    pub memory: Memory,
    findings: Vec<Finding>,
    now: u64,
    thread: u32,
}

/// The memory of the program, as the witness tells of it. What was never written holds zeros and is mapped.
#[derive(Default)]
pub struct Memory {
    bytes: BTreeMap<u64, u8>,
    unmapped: Vec<(u64, u64)>,
    /// Where the stack is.
    pub stack: (u64, u64),
    /// Nobody can say anything, as in a log.
    pub silent: bool,
}

impl Witness for Memory {
    fn digest(&mut self, pieces: &Pieces) -> Option<u64> {
        let mut digest = 1469598103934665603_u64;
        for piece in pieces.kept() {
            for (address, byte) in self.bytes.range(piece.address..piece.address + u64::from(piece.length)) {
                digest = (digest ^ address ^ u64::from(*byte)).wrapping_mul(1099511628211);
            }
        }
        (!self.silent).then_some(digest)
    }

    fn is_mapped(&mut self, address: u64, length: u64) -> Option<bool> {
        let hole = self.unmapped.iter().any(|(start, bytes)| *start < address + length && address < start + bytes);
        (!self.silent).then_some(!hole)
    }

    fn is_on_stack(&mut self, address: u64, length: u64) -> Option<bool> {
        let (start, bytes) = self.stack;
        (!self.silent).then_some(start < address + length && address < start + bytes)
    }
}

/// A queue pair to be made.
#[derive(Clone, Copy)]
pub struct NewPair {
    pub kind: &'static str,
    pub pd: u32,
    pub send_cq: u32,
    pub receive_cq: u32,
    pub srq: Option<u32>,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub signals_all: bool,
}

impl Default for NewPair {
    fn default() -> NewPair {
        NewPair {
            kind: "RC",
            pd: PD,
            send_cq: CQ,
            receive_cq: CQ,
            srq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 0,
            signals_all: false,
        }
    }
}

/// A work request for a send queue.
#[derive(Clone)]
pub struct Send {
    pub wr_id: u64,
    pub opcode: &'static str,
    pub signaled: bool,
    pub inline: bool,
    pub fence: bool,
    pub solicited: bool,
    /// Address, length, key.
    pub pieces: Vec<(u64, u32, u32)>,
    /// Address, key.
    pub remote: Option<(u64, u32)>,
    pub remote_qpn: Option<u32>,
    pub remote_qkey: Option<u32>,
}

impl Default for Send {
    fn default() -> Send {
        Send {
            wr_id: 1,
            opcode: "SEND",
            signaled: true,
            inline: false,
            fence: false,
            solicited: false,
            pieces: Vec::new(),
            remote: None,
            remote_qpn: None,
            remote_qkey: None,
        }
    }
}

/// A modification that changes nothing; fill in what it changes with `..`-less assignment in a `match`, or see
/// [`Script::modify`].
pub fn no_change() -> Call {
    Call::ModifyQp {
        state: None,
        pkey_index: None,
        port: None,
        access: None,
        qkey: None,
        path_mtu: None,
        dest_qpn: None,
        rq_psn: None,
        sq_psn: None,
        max_rd_atomic: None,
        max_dest_rd_atomic: None,
        min_rnr_timer: None,
        timeout: None,
        retry_cnt: None,
        rnr_retry: None,
        dgid: None,
        sgid_index: None,
    }
}

/// A scatter/gather list of address, length, key.
pub fn pieces(list: &[(u64, u32, u32)]) -> Pieces {
    list.iter()
        .map(|(address, length, key)| Piece { address: *address, length: *length, key: Key::new(*key) })
        .collect()
}

impl Script {
    /// A program with all rules on, that has opened a device and made a protection domain and a completion queue.
    pub fn new() -> Script {
        Script::with(Settings::all())
    }

    /// A program like that of [`new`](Script::new), with other settings.
    pub fn with(settings: Settings) -> Script {
        let mut script = Script {
            checker: Checker::new(settings),
            memory: Memory::default(),
            findings: Vec::new(),
            now: 1_000_000_000,
            thread: 7,
        };
        script.call(Call::OpenDevice { context: CONTEXT, device: Text::of("ubi_lo") });
        script.call(Call::AllocPd { pd: PD, context: CONTEXT });
        script.cq(CQ, 64);
        script
    }

    /// The calls that follow are made by this thread.
    pub fn thread(&mut self, thread: u32) -> &mut Script {
        self.thread = thread;
        self
    }

    /// Time passes, and the checker is told so.
    pub fn pass_ms(&mut self, milliseconds: u64) -> &mut Script {
        self.now += milliseconds * 1_000_000;
        let Script { checker, memory, findings, .. } = self;
        checker.tick(self.now, memory, &mut |finding| findings.push(finding));
        self
    }

    /// Something happened, a microsecond after what was before.
    pub fn happens(&mut self, qpn: Option<u32>, kind: Kind) -> &mut Script {
        self.now += 1_000;
        let event = Event { at: self.now, qpn: qpn.map(Qpn::new), kind };
        let Script { checker, memory, findings, .. } = self;
        checker.observe(&event, memory, &mut |finding| findings.push(finding));
        self
    }

    /// A call that is about no queue pair.
    pub fn call(&mut self, call: Call) -> &mut Script {
        self.happens(None, Kind::Called { thread: self.thread, call })
    }

    /// A call about a queue pair.
    pub fn call_on(&mut self, qpn: u32, call: Call) -> &mut Script {
        self.happens(Some(qpn), Kind::Called { thread: self.thread, call })
    }

    /// A call was refused.
    pub fn refused(&mut self, qpn: Option<u32>, function: &'static str, errno: i32, reason: &str) -> &mut Script {
        let call = Call::Refused { function, errno, reason: Text::of(reason) };
        self.happens(qpn, Kind::Called { thread: self.thread, call })
    }

    pub fn pd(&mut self, pd: u32) -> &mut Script {
        self.call(Call::AllocPd { pd, context: CONTEXT })
    }

    pub fn cq(&mut self, cq: u32, capacity: u32) -> &mut Script {
        self.call(Call::CreateCq { cq, capacity, wanted: capacity, channel: None })
    }

    pub fn channel_and_cq(&mut self, channel: u32, cq: u32, capacity: u32) -> &mut Script {
        self.call(Call::CreateChannel { channel });
        self.call(Call::CreateCq { cq, capacity, wanted: capacity, channel: Some(channel) })
    }

    pub fn srq(&mut self, srq: u32, max_wr: u32) -> &mut Script {
        self.call(Call::CreateSrq { srq: Srqn::new(srq), pd: PD, max_wr, max_sge: 4 })
    }

    /// Registers memory in [`PD`].
    pub fn mr(&mut self, key: u32, address: u64, length: u64, access: Access) -> &mut Script {
        self.mr_in(PD, key, address, length, access)
    }

    pub fn mr_in(&mut self, pd: u32, key: u32, address: u64, length: u64, access: Access) -> &mut Script {
        self.call(Call::RegisterMemory { key: Key::new(key), pd, address, length, iova: address, access })
    }

    pub fn dereg(&mut self, key: u32) -> &mut Script {
        self.call(Call::DeregisterMemory { key: Key::new(key) })
    }

    /// Makes a queue pair as [`NewPair::default`] has it.
    pub fn qp(&mut self, qpn: u32) -> &mut Script {
        self.qp_with(qpn, NewPair::default())
    }

    pub fn qp_with(&mut self, qpn: u32, new: NewPair) -> &mut Script {
        let call = Call::CreateQp {
            kind: new.kind,
            context: CONTEXT,
            pd: new.pd,
            send_cq: Some(new.send_cq),
            receive_cq: Some(new.receive_cq),
            srq: new.srq.map(Srqn::new),
            max_send_wr: new.max_send_wr,
            max_recv_wr: new.max_recv_wr,
            max_send_sge: new.max_send_sge,
            max_recv_sge: new.max_recv_sge,
            max_inline_data: new.max_inline_data,
            signals_all: new.signals_all,
        };
        self.call_on(qpn, call)
    }

    pub fn destroy_qp(&mut self, qpn: u32) -> &mut Script {
        self.call_on(qpn, Call::DestroyQp { sends: 0, receives: 0 })
    }

    /// `ibv_modify_qp`: the call as `change` leaves it, and the change of state if it has one.
    pub fn modify(&mut self, qpn: u32, change: impl FnOnce(&mut Call)) -> &mut Script {
        let mut call = no_change();
        change(&mut call);
        let Call::ModifyQp { state, .. } = call else { panic!("not a modification: {call}") };
        self.call_on(qpn, call);
        if let Some(to) = state {
            self.state(qpn, to, StateCause::Modify);
        }
        self
    }

    /// The queue pair is in another state.
    pub fn state(&mut self, qpn: u32, to: &'static str, cause: StateCause) -> &mut Script {
        let number = Qpn::new(qpn);
        let from = self.checker.model().pair(number).map_or("RESET", |pair| pair.state);
        self.happens(Some(qpn), Kind::StateChanged { from, to, cause })
    }

    pub fn init(&mut self, qpn: u32) -> &mut Script {
        self.modify(qpn, |call| {
            let Call::ModifyQp { state, pkey_index, port, access, .. } = call else { return };
            (*state, *pkey_index, *port, *access) = (Some("INIT"), Some(0), Some(1), Some(ALL_ACCESS));
        })
    }

    pub fn rtr(&mut self, qpn: u32, peer: u32) -> &mut Script {
        self.modify(qpn, |call| {
            let Call::ModifyQp { state, path_mtu, dest_qpn, rq_psn, max_dest_rd_atomic, min_rnr_timer, .. } = call
            else {
                return;
            };
            (*state, *path_mtu, *dest_qpn) = (Some("RTR"), Some(1024), Some(Qpn::new(peer)));
            (*rq_psn, *max_dest_rd_atomic, *min_rnr_timer) = (Some(0), Some(4), Some(12));
        })
    }

    pub fn rts(&mut self, qpn: u32) -> &mut Script {
        self.modify(qpn, |call| {
            let Call::ModifyQp { state, sq_psn, max_rd_atomic, timeout, retry_cnt, rnr_retry, .. } = call else {
                return;
            };
            (*state, *sq_psn, *max_rd_atomic) = (Some("RTS"), Some(0), Some(4));
            (*timeout, *retry_cnt, *rnr_retry) = (Some(14), Some(7), Some(7));
        })
    }

    /// Takes a queue pair from RESET to RTS, connected to `peer`.
    pub fn connect(&mut self, qpn: u32, peer: u32) -> &mut Script {
        self.init(qpn).rtr(qpn, peer).rts(qpn)
    }

    /// Takes a queue pair for datagrams from RESET to RTS.
    pub fn ready_for_datagrams(&mut self, qpn: u32, key: u32) -> &mut Script {
        self.modify(qpn, |call| {
            let Call::ModifyQp { state, pkey_index, port, qkey, .. } = call else { return };
            (*state, *pkey_index, *port, *qkey) = (Some("INIT"), Some(0), Some(1), Some(Qkey::new(key)));
        });
        for next in ["RTR", "RTS"] {
            self.modify(qpn, |call| {
                let Call::ModifyQp { state, sq_psn, .. } = call else { return };
                (*state, *sq_psn) = (Some(next), (next == "RTS").then_some(0));
            });
        }
        self
    }

    /// Posts one work request to a send queue, which takes it.
    pub fn send(&mut self, qpn: u32, send: Send) -> &mut Script {
        self.send_list(qpn, &[send])
    }

    /// Posts a list to a send queue, which takes all of it.
    pub fn send_list(&mut self, qpn: u32, list: &[Send]) -> &mut Script {
        for (index, send) in list.iter().enumerate() {
            let bytes = self.about_to_send(qpn, index, send);
            let kind = Kind::WorkPosted { wr_id: send.wr_id, queue: Queue::Send, opcode: send.opcode, bytes };
            self.happens(Some(qpn), kind);
        }
        self
    }

    /// Posts a work request to a send queue, which refuses it.
    pub fn send_refused(&mut self, qpn: u32, send: &Send, reason: &'static str) -> &mut Script {
        self.about_to_send(qpn, 0, send);
        self.happens(Some(qpn), Kind::PostRefused { wr_id: send.wr_id, queue: Queue::Send, reason })
    }

    fn about_to_send(&mut self, qpn: u32, index: usize, send: &Send) -> u64 {
        let pieces = pieces(&send.pieces);
        self.call_on(
            qpn,
            Call::PostSend {
                wr_id: send.wr_id,
                opcode: send.opcode,
                index: index as u32,
                signaled: send.signaled,
                inline: send.inline,
                fence: send.fence,
                solicited: send.solicited,
                pieces,
                remote_address: send.remote.map(|(address, _)| address),
                remote_key: send.remote.map(|(_, key)| Key::new(key)),
                remote_qpn: send.remote_qpn.map(Qpn::new),
                remote_qkey: send.remote_qkey.map(Qkey::new),
                remote_gid: None,
            },
        );
        pieces.bytes
    }

    /// Posts a receive, which the queue pair takes.
    pub fn receive(&mut self, qpn: u32, wr_id: u64, list: &[(u64, u32, u32)]) -> &mut Script {
        let pieces = pieces(list);
        self.call_on(qpn, Call::PostReceive { wr_id, srq: None, index: 0, pieces });
        let kind = Kind::WorkPosted { wr_id, queue: Queue::Receive, opcode: "RECV", bytes: pieces.bytes };
        self.happens(Some(qpn), kind)
    }

    /// Posts a receive to a shared receive queue.
    pub fn receive_shared(&mut self, srq: u32, wr_id: u64, list: &[(u64, u32, u32)]) -> &mut Script {
        let srq = Some(Srqn::new(srq));
        self.call(Call::PostReceive { wr_id, srq, index: 0, pieces: pieces(list) })
    }

    /// A work request succeeds.
    pub fn completes(&mut self, qpn: u32, queue: Queue, wr_id: u64, opcode: &'static str, bytes: u64) -> &mut Script {
        self.happens(
            Some(qpn),
            Kind::Completed { wr_id, queue, status: "IBV_WC_SUCCESS", opcode, bytes, failure: None },
        )
    }

    /// A SEND succeeds.
    pub fn sent(&mut self, qpn: u32, wr_id: u64) -> &mut Script {
        self.completes(qpn, Queue::Send, wr_id, "SEND", 0)
    }

    /// A receive of the queue pair itself succeeds.
    pub fn received(&mut self, qpn: u32, wr_id: u64, bytes: u64) -> &mut Script {
        self.completes(qpn, Queue::Receive, wr_id, "RECV", bytes)
    }

    /// A work request fails.
    pub fn fails(&mut self, qpn: u32, queue: Queue, wr_id: u64, status: &'static str, failure: Failure) -> &mut Script {
        let opcode = if queue == Queue::Send { "SEND" } else { "RECV" };
        let kind = Kind::Completed { wr_id, queue, status, opcode, bytes: 0, failure: Some(failure) };
        self.happens(Some(qpn), kind)
    }

    /// Polls one completion.
    pub fn polls(&mut self, cq: u32, wr_id: u64) -> &mut Script {
        self.polls_status(cq, wr_id, "IBV_WC_SUCCESS")
    }

    /// Polls one completion of this queue pair.
    pub fn polls_of(&mut self, cq: u32, qpn: u32, wr_id: u64) -> &mut Script {
        self.call_on(qpn, Call::Polled { cq, wr_id, status: "IBV_WC_SUCCESS" });
        self.call(Call::Poll { cq, room: 1, got: 1 })
    }

    /// Polls one completion with this status.
    pub fn polls_status(&mut self, cq: u32, wr_id: u64, status: &'static str) -> &mut Script {
        self.call(Call::Poll { cq, room: 1, got: 1 });
        self.call(Call::Polled { cq, wr_id, status })
    }

    /// Polls an empty completion queue.
    pub fn polls_nothing(&mut self, cq: u32) -> &mut Script {
        self.call(Call::Poll { cq, room: 1, got: 0 })
    }

    /// The program stores to its memory.
    pub fn stores(&mut self, address: u64, byte: u8) -> &mut Script {
        self.memory.bytes.insert(address, byte);
        self
    }

    /// The program unmaps memory.
    pub fn unmaps(&mut self, address: u64, length: u64) -> &mut Script {
        self.memory.unmapped.push((address, length));
        self
    }

    /// The program ends. What was found since the start.
    pub fn ends(&mut self) -> &[Finding] {
        self.call(Call::Exit {});
        let Script { checker, memory, findings, .. } = self;
        checker.finish(self.now, memory, &mut |finding| findings.push(finding));
        &self.findings
    }

    /// What was found so far.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    /// The findings of one rule so far.
    pub fn of(&self, rule: u16) -> Vec<&Finding> {
        self.findings.iter().filter(|finding| finding.rule == Number(rule)).collect()
    }

    /// The rules that were broken so far.
    pub fn broken(&self) -> BTreeSet<u16> {
        self.findings.iter().map(|finding| finding.rule.0).collect()
    }

    /// The rule was broken, and what was told has all of these words.
    #[track_caller]
    pub fn shows(&self, rule: u16, words: &[&str]) -> &Script {
        let found = self.of(rule);
        let all: Vec<String> = self.findings.iter().map(ToString::to_string).collect();
        let told = found.first().unwrap_or_else(|| panic!("UV-{rule:04} was not found, but: {all:#?}")).to_string();
        for word in words {
            assert!(told.contains(word), "“{word}” is not in: {told}");
        }
        self
    }

    /// The rule was not broken.
    #[track_caller]
    pub fn keeps(&self, rule: u16) -> &Script {
        let found: Vec<String> = self.of(rule).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{found:#?}");
        self
    }
}
