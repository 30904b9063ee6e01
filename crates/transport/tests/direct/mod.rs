//! Two queue pairs wired back to back through flat memory: the shortest driver there is, for benchmarks and for
//! counting allocations. It carries trains whole or packet by packet and has no time, loss or protection; the simulator
//! has those.

use ubiverbs_transport::congestion::Window;
use ubiverbs_transport::{
    Access, AddressVector, Atomic, Bind, Capabilities, Completion, Data, Inbound, Kind, Limits, Modify, Operation,
    Port, ProtectionDomain, QueuePair, QueuePairConfig, Range, ReceiveWork, Refusal, Remote, SendFlags, SendRequest,
    Sge, SharedReceiveQueue, State, Subject, TagList, TaggedTaken, TakenReceive, Time, Toward,
};
use wire::access::RefusalCause;
use wire::{Feth, Gid, Headers, Key, Mtu, Pkey, Psn, Qpn, Srqn};

/// Memory without keys: an address is an offset.
pub struct Flat {
    pub bytes: Vec<u8>,
    window: Window,
    pub shared: Option<Shared>,
    /// What reaches beyond its end is refused.
    bounded: bool,
}

/// A shared receive queue that matches tags.
pub struct Shared {
    pub tags: TagList,
    pub receives: SharedReceiveQueue,
}

impl Flat {
    fn slice(&mut self, range: Range) -> &mut [u8] {
        &mut self.bytes[range.address as usize..][..range.length as usize]
    }
}

impl Port for Flat {
    fn check(&mut self, _: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        let length = self.bytes.len() as u64;
        match range.address.checked_add(range.length) {
            _ if !self.bounded => Ok(()),
            Some(end) if end <= length => Ok(()),
            _ => Err(Refusal { range, access, cause: RefusalCause::OutOfBounds { start: 0, length } }),
        }
    }
    fn read(&mut self, _: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal> {
        out.copy_from_slice(self.slice(range));
        Ok(())
    }
    fn write(&mut self, _: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.slice(range).copy_from_slice(data);
        Ok(())
    }
    fn atomic(&mut self, _: Subject, range: Range, _: Atomic) -> Result<u64, Refusal> {
        let bytes = self.slice(range);
        let before = u64::from_ne_bytes(bytes.try_into().unwrap());
        bytes.copy_from_slice(&before.wrapping_add(1).to_ne_bytes());
        Ok(before)
    }
    fn flush(&mut self, _: Subject, _: Range, _: Feth) -> Result<(), Refusal> {
        Ok(())
    }
    fn invalidate(&mut self, _: Subject, _: Key) -> Result<(), Refusal> {
        Ok(())
    }
    fn bind(&mut self, _: Subject, _: &Bind) -> Result<(), Refusal> {
        Ok(())
    }
    fn take_receive(&mut self, _: Qpn, _: Srqn, _: &mut ReceiveWork) -> TakenReceive {
        TakenReceive::Unknown
    }
    fn take_tagged(&mut self, _: Qpn, _: Srqn, tag: Option<u64>, into: &mut ReceiveWork) -> TaggedTaken {
        let Some(shared) = &mut self.shared else { return TaggedTaken::Unknown };
        if tag.is_some_and(|tag| shared.tags.take(tag, into)) {
            return TaggedTaken::Matched;
        }
        match shared.receives.take(into) {
            true => TaggedTaken::Unmatched { out_of_step: tag.is_some() && shared.tags.was_unexpected() },
            false => TaggedTaken::Empty,
        }
    }
    fn shared_domain(&mut self, _: Qpn, _: Srqn) -> Option<ProtectionDomain> {
        None
    }
    fn window<R>(&mut self, _: Qpn, _: Toward, f: impl FnOnce(&mut Window) -> R) -> R {
        f(&mut self.window)
    }
}

/// One end.
pub struct End {
    pub qp: QueuePair,
    pub memory: Flat,
    pub gid: Gid,
}

/// A carried train, with buffers that are used again.
#[derive(Default)]
struct Carried {
    headers: Option<Headers>,
    count: u32,
    payload: Vec<u8>,
}

/// Two ends and what is under way between them.
pub struct Pair {
    pub a: End,
    pub b: End,
    pub now: Time,
    /// Split trains into packets, as a datagram link does.
    pub packets: bool,
    flying: Vec<Carried>,
    pub carried: u64,
}

fn end(number: u8, memory: usize, srq: Option<Srqn>) -> End {
    end_of(Kind::ReliableConnected, number, memory, srq)
}

/// A raw packet queue pair that sends and receives, with `memory` bytes.
#[allow(dead_code, reason = "most of those that use this module have connections")]
pub fn raw(memory: usize) -> End {
    let mut end = end_of(Kind::RawPacket, 1, memory, None);
    for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
        let port = (state == State::Init).then_some(1);
        let step = Modify { state: Some(state), port, ..Modify::default() };
        end.qp.modify(Time::ZERO, &step, &mut end.memory).unwrap();
    }
    end
}

fn end_of(kind: Kind, number: u8, memory: usize, srq: Option<Srqn>) -> End {
    let capabilities =
        Capabilities { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 256 };
    let qp = QueuePair::new(QueuePairConfig {
        qpn: Qpn::new(u32::from(number)),
        kind,
        pd: ProtectionDomain(1),
        capabilities,
        srq,
        signal_all: false,
        limits: Limits::default(),
        pkey: Pkey::DEFAULT,
        port_mtu: Mtu::B4096,
    });
    let gid = Gid::from_ipv4([10, 0, 0, number].into());
    let memory = Flat { bytes: vec![number; memory], window: Window::unlimited(), shared: None, bounded: false };
    End { qp, memory, gid }
}

impl Pair {
    /// Two connected reliable queue pairs with `memory` bytes each.
    pub fn new(mtu: Mtu, memory: usize) -> Pair {
        Pair::of(end(1, memory, None), end(2, memory, None), mtu)
    }

    #[allow(dead_code, reason = "one test needs it")]
    /// Two connected reliable queue pairs, of which `b` receives from a shared receive queue that matches tags.
    pub fn with_tags(mtu: Mtu, memory: usize, max_tags: u32) -> Pair {
        let (srq, domain) = (Srqn::new(5), ProtectionDomain(1));
        let (mut a, mut b) = (end(1, memory, None), end(2, memory, Some(srq)));
        (a.memory.bounded, b.memory.bounded) = (true, true);
        b.qp.match_tags(srq, domain);
        let receives = SharedReceiveQueue::new(srq, domain, 1024, 4);
        b.memory.shared = Some(Shared { tags: TagList::new(max_tags, 4), receives });
        Pair::of(a, b, mtu)
    }

    fn of(a: End, b: End, mtu: Mtu) -> Pair {
        let mut pair = Pair { a, b, now: Time::ZERO, packets: false, flying: Vec::new(), carried: 0 };
        let (a, b) = (pair.a.gid, pair.b.gid);
        connect(&mut pair.a, 2, b, mtu);
        connect(&mut pair.b, 1, a, mtu);
        pair
    }

    /// Runs until nothing more is to be said; completions of `a` go to `take`.
    pub fn run(&mut self, mut take: impl FnMut(Completion)) {
        self.settle(&mut |index, end, now| {
            while let Some(completion) = end.qp.poll_completion(now, &mut end.memory) {
                if index == 0 {
                    take(completion);
                }
            }
        });
    }

    /// Runs until nothing more is to be said; each end, by number, goes to `take` whenever it may have completed
    /// something.
    pub fn settle(&mut self, take: &mut impl FnMut(usize, &mut End, Time)) {
        loop {
            let moved = carry(&mut self.a, &mut self.b, self.now, self.packets, &mut self.flying)
                + carry(&mut self.b, &mut self.a, self.now, self.packets, &mut self.flying);
            self.carried += moved;
            take(0, &mut self.a, self.now);
            take(1, &mut self.b, self.now);
            if moved == 0 {
                return;
            }
        }
    }

    /// Posts work on `a` over its memory from 0 on, aimed at `b`'s memory from 0 on.
    pub fn post(&mut self, wr_id: u64, operation: Operation, length: u32, flags: SendFlags) {
        let sges = [Sge { address: 0, length, key: Key::new(1) }];
        let data = Data::Gather(&sges);
        let request = SendRequest { wr_id, operation, flags, data, target: None, xrc_srq: None };
        self.a.qp.post_send(self.now, &request, &mut self.a.memory).unwrap();
    }
}

/// A WRITE to the start of the peer's memory.
pub fn write() -> Operation {
    Operation::Write { remote: Remote { address: 0, key: Key::new(1) }, immediate: None }
}

fn connect(end: &mut End, peer: u32, gid: Gid, mtu: Mtu) {
    let av = AddressVector { dgid: gid, is_global: true, port: 1, ..AddressVector::default() };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
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
            path_mtu: Some(mtu),
            dest_qpn: Some(Qpn::new(peer)),
            rq_psn: Some(Psn::new(0xff_fff0)),
            max_dest_rd_atomic: Some(16),
            min_rnr_timer: Some(12),
            ..Modify::default()
        },
        Modify {
            state: Some(State::ReadyToSend),
            timeout: Some(14),
            retry_cnt: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(Psn::new(0xff_fff0)),
            max_rd_atomic: Some(16),
            ..Modify::default()
        },
    ];
    for step in steps {
        end.qp.modify(Time::ZERO, &step, &mut end.memory).unwrap();
    }
}

/// Carries all that `from` has to send to `to`; answers how many trains or packets that was.
fn carry(from: &mut End, to: &mut End, now: Time, packets: bool, flying: &mut Vec<Carried>) -> u64 {
    let mut used = 0;
    while let Some(train) = from.qp.poll_transmit(now, &mut from.memory) {
        let pieces = if packets { train.count } else { 1 };
        for index in 0..pieces {
            if used == flying.len() {
                flying.push(Carried::default());
            }
            let (headers, count, (offset, length)) = match packets {
                true => (train.packet(index), 1, train.slice(index)),
                false => (train.headers, train.count, (0, train.payload.len())),
            };
            let carried = &mut flying[used];
            used += 1;
            carried.headers = Some(headers);
            carried.count = count;
            carried.payload.resize(length as usize, 0);
            // The gather reads the sender's memory while the train still borrows its queue pair: they are different
            // fields.
            train.payload.copy(offset, &mut carried.payload, &mut from.memory).unwrap();
        }
    }
    for carried in &flying[..used] {
        let inbound = Inbound {
            headers: carried.headers.as_ref().unwrap(),
            count: carried.count,
            payload: &carried.payload,
            from: from.gid,
            grh: &[0; 40],
            congestion_marked: false,
        };
        to.qp.handle(now, &inbound, &mut to.memory);
    }
    used as u64
}
