//! The victim of hostile requests: Bob, to whom forged packets come as from Alice, and what must hold of him after each.

use scenery::{Log, Pair, Seen, Setting};
use sim::{Rng, Work};
use trace::DropReason;
use transport::{AsyncEvent, Modify, State, Status};
use wire::{
    Aeth, AtomicEth, Deth, Feth, HeaderSet, Headers, Key, Msn, NakCode, Opcode, Placement, Psn, Qkey, Qpn, Reth,
    Selectivity, Srqn, Syndrome,
};

/// Bytes of Bob's memory the forged requests may touch; everything behind is checked to stay as it is.
pub const OPEN: usize = 8192;

/// Bob is the victim; forged packets come as from Alice.
pub struct Victim {
    pub pair: Pair,
    pub log: Log,
}

impl Victim {
    pub fn new() -> Victim {
        Victim::under(&Setting::default())
    }

    pub fn under(setting: &Setting) -> Victim {
        let mut pair = Pair::rc(setting);
        let log = Log::of(&mut pair.sim);
        pair.sim.bytes_mut(&pair.far).fill(0xee);
        Victim { pair, log }
    }

    pub fn expected(&self) -> Psn {
        self.pair.sim.attributes(self.pair.b).rq_psn
    }

    /// A request in the form its opcode demands, aimed at the start of Bob's memory.
    pub fn forge(&self, opcode: Opcode, psn: Psn) -> Headers {
        let far = &self.pair.far;
        forge(opcode, self.pair.b.qpn, psn, far.address, far.key)
    }

    /// A packet arrives; answers why Bob dropped it and what Bob sent.
    pub fn hit(&mut self, headers: &Headers, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        self.log.clear();
        let source = self.pair.sim.gid(self.pair.alice, 0);
        self.pair.sim.inject(self.pair.bob, source, headers, payload).unwrap();
        self.settle()
    }

    pub fn hit_with_train(&mut self, headers: &Headers, count: u32, payload: &[u8]) -> (Vec<DropReason>, Vec<Seen>) {
        self.log.clear();
        let source = self.pair.sim.gid(self.pair.alice, 0);
        self.pair.sim.inject_train(self.pair.bob, source, headers, count, payload);
        self.settle()
    }

    pub fn settle(&mut self) -> (Vec<DropReason>, Vec<Seen>) {
        self.pair.sim.run_for(1);
        let bob = self.pair.bob;
        let sent = self.log.packets().into_iter().filter(|seen| seen.from == bob).collect();
        let drops = self.log.drops(bob);
        self.pair.sim.run_until_idle();
        (drops, sent)
    }

    pub fn state(&self) -> State {
        self.pair.sim.state(self.pair.b)
    }

    /// Nothing of Bob's memory has changed.
    #[track_caller]
    pub fn assert_untouched(&self) {
        assert!(self.pair.sim.bytes(&self.pair.far).iter().all(|byte| *byte == 0xee));
    }

    /// The connection carries honest traffic in both directions.
    #[track_caller]
    pub fn assert_works(&mut self) {
        let pair = &mut self.pair;
        for qp in [pair.a, pair.b] {
            assert_eq!(pair.sim.completions(qp), []);
            assert_eq!(pair.sim.async_events(qp), []);
        }
        work_both_ways(pair);
        self.pair.sim.bytes_mut(&self.pair.far).fill(0xee);
    }

    /// Bob refused with this code and is in error; nothing came of the request.
    #[track_caller]
    pub fn assert_refused(&mut self, sent: &[Seen], code: NakCode, event: AsyncEvent, what: &str) {
        let refusals: Vec<_> = sent.iter().map(|seen| (seen.opcode(), seen.syndrome())).collect();
        assert_eq!(refusals.last(), Some(&(Opcode::RcAcknowledge, Some(Syndrome::Nak(code)))), "{what}");
        assert_eq!(self.state(), State::Error, "{what}");
        assert_eq!(self.pair.sim.async_events(self.pair.b), [event], "{what}");
        assert_eq!(self.pair.sim.completions(self.pair.b), [], "{what}");
        assert_eq!(self.pair.sim.state(self.pair.a), State::ReadyToSend, "{what}: Alice asked for nothing");
    }

    /// Both ends begin a new life, in which everything works.
    #[track_caller]
    pub fn assert_recovers(&mut self) {
        let pair = &mut self.pair;
        for qp in [pair.a, pair.b] {
            pair.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
            pair.sim.async_events(qp);
            pair.sim.completions(qp);
        }
        pair.sim.connect(pair.a, pair.b, &pair.options);
        work_both_ways(pair);
    }
}

/// A request with the headers its opcode demands, as a parser would give them.
pub fn forge(opcode: Opcode, to: Qpn, psn: Psn, va: u64, rkey: Key) -> Headers {
    let demanded = opcode.headers();
    let has = |header| demanded.contains(header);
    let mut headers = Headers::new(opcode, to, psn);
    headers.bth.ack_req = true;
    headers.reth = has(HeaderSet::RETH).then_some(Reth { va, rkey, len: 8 });
    headers.atomic = has(HeaderSet::ATOMIC_ETH).then_some(AtomicEth { va, rkey, swap_add: 1, compare: 0 });
    let flush = Feth { placement: Placement::GLOBAL, selectivity: Selectivity::Range };
    headers.feth = has(HeaderSet::FETH).then_some(flush);
    headers.aeth = has(HeaderSet::AETH).then_some(Aeth { syndrome: Syndrome::ACK, msn: Msn::new(1) });
    headers.atomic_ack = has(HeaderSet::ATOMIC_ACK_ETH).then_some(wire::AtomicAckEth { original: 0 });
    headers.immediate = has(HeaderSet::IMMEDIATE).then_some(5);
    headers.invalidate = has(HeaderSet::IETH).then_some(rkey);
    headers.xrc = has(HeaderSet::XRCETH).then_some(Srqn::new(1));
    let datagram = Deth { qkey: Qkey::new(0x1111_1111), src_qpn: Qpn::new(0x11) };
    headers.deth = has(HeaderSet::DETH).then_some(datagram);
    headers
}

/// A SEND, a WRITE, a READ and an atomic from each side.
#[track_caller]
pub fn work_both_ways(pair: &mut Pair) {
    for (here, there, near, far) in [(pair.a, pair.b, pair.near, pair.far), (pair.b, pair.a, pair.far, pair.near)] {
        let mut bytes = vec![0; 3000];
        Rng::new(99).fill(&mut bytes);
        pair.sim.bytes_mut(&near)[..3000].copy_from_slice(&bytes);
        pair.sim.receive(there, 1, &[far.sge(10_000, 4000)]).unwrap();
        pair.sim.post(here, &Work::send().sge(near.sge(0, 3000)).id(1)).unwrap();
        pair.sim.post(here, &Work::write(far.remote(20_000)).sge(near.sge(0, 3000)).id(2)).unwrap();
        pair.sim.post(here, &Work::read(far.remote(20_000)).sge(near.sge(30_000, 3000)).id(3)).unwrap();
        pair.sim.bytes_mut(&far)[24_000..24_008].fill(0);
        pair.sim.post(here, &Work::fetch_add(far.remote(24_000), 7).sge(near.sge(40_000, 8)).id(4)).unwrap();
        pair.sim.run_until_idle();
        let ends: Vec<_> = pair.sim.completions(here).iter().map(|c| (c.wr_id, c.status)).collect();
        assert_eq!(ends, [1, 2, 3, 4].map(|id| (id, Status::Success)));
        let got: Vec<_> = pair.sim.completions(there).iter().map(|c| (c.wr_id, c.status, c.bytes)).collect();
        assert_eq!(got, [(1, Status::Success, 3000)]);
        assert_eq!(pair.sim.bytes(&far)[10_000..13_000], bytes);
        assert_eq!(pair.sim.bytes(&far)[20_000..23_000], bytes);
        assert_eq!(pair.sim.bytes(&near)[30_000..33_000], bytes);
        assert_eq!(pair.sim.bytes(&far)[24_000..24_008], 7u64.to_ne_bytes());
        assert_eq!(pair.sim.bytes(&near)[40_000..40_008], [0; 8]);
    }
    assert_eq!((pair.sim.state(pair.a), pair.sim.state(pair.b)), (State::ReadyToSend, State::ReadyToSend));
}

/// Every request of a reliable connection that is one packet, and a payload that suits it.
pub fn single_requests() -> Vec<(Opcode, usize)> {
    use Opcode::*;
    vec![
        (RcSendOnly, 8),
        (RcSendOnlyImmediate, 8),
        (RcSendOnlyInvalidate, 8),
        (RcWriteOnly, 8),
        (RcWriteOnlyImmediate, 8),
        (RcReadRequest, 0),
        (RcCompareSwap, 0),
        (RcFetchAdd, 0),
        (RcAtomicWrite, 8),
        (RcFlush, 0),
    ]
}
