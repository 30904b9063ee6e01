//! A queue pair under test that can be brought to any state, and a peer that is ready for it.

use scenery::{ALL_ACCESS, Log};
use sim::{ConnectOptions, HostConfig, HostId, QpId, QpSpec, Region, Sim, SrqId, SrqSpec, Work};
use trace::DropReason;
use transport::{AsyncEvent, Attributes, Completion, Kind, Modify, ModifyError, PostError, Sge, State, Status};
use wire::{Deth, Headers, Key, Opcode, Operation, Position, Psn, Tail};

pub use State::{
    Error, Init, ReadyToReceive as Rtr, ReadyToSend as Rts, Reset, SendQueueDrained as Sqd, SendQueueError as Sqe,
};

/// The first sequence number of the queue pair under test, and of its peer.
pub const OWN: Psn = Psn::new(100);
pub const OTHER: Psn = Psn::new(200);

/// A queue pair under test on Alice's host, and a peer on Bob's that is ready for it.
pub struct Rig {
    pub sim: Sim,
    pub log: Log,
    pub kind: Kind,
    pub alice: HostId,
    pub bob: HostId,
    pub qp: QpId,
    pub peer: QpId,
    pub near: Region,
    pub far: Region,
    /// What an XRC target draws from.
    pub queue: SrqId,
    pub options: ConnectOptions,
}

/// The kinds that speak the transport's protocol. Raw packet queue pairs send and receive frames, which the simulator does
/// not carry: `transport/tests/suite/frames.rs` has theirs.
pub fn kinds() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| *kind != Kind::RawPacket)
}

pub fn spec(kind: Kind) -> QpSpec {
    QpSpec::new(kind)
}

pub fn other_end(kind: Kind) -> Kind {
    match kind {
        Kind::XrcInitiator => Kind::XrcTarget,
        Kind::XrcTarget => Kind::XrcInitiator,
        kind => kind,
    }
}

/// The states a queue pair of this kind can be in.
pub fn states(kind: Kind) -> Vec<State> {
    State::ALL.into_iter().filter(|state| *state != Sqe || !kind.is_reliable()).collect()
}

/// The moves of IBA 10.3.1, figure 124.
pub fn is_legal(kind: Kind, from: State, to: State) -> bool {
    match (from, to) {
        (_, Reset | Error) => true,
        (Reset | Init, Init) | (Init, Rtr) | (Rtr, Rts) | (Rts | Sqd, Rts | Sqd) => true,
        (Sqe, Rts) => !kind.is_reliable(),
        _ => false,
    }
}

impl Rig {
    pub fn new(kind: Kind) -> Rig {
        let mut sim = Sim::new(1);
        let log = Log::of(&mut sim);
        let alice = sim.add_host(HostConfig::named("alice"));
        let bob = sim.add_host(HostConfig::named("bob"));
        let qp = sim.create_qp(alice, spec(kind));
        let peer = sim.create_qp(bob, spec(other_end(kind)));
        let queue = sim.create_srq(alice, SrqSpec { xrc_domain: Some(1), ..SrqSpec::default() });
        let bobs = sim.create_srq(bob, SrqSpec { xrc_domain: Some(1), ..SrqSpec::default() });
        let near = sim.register(alice, QpSpec::PD, 10_000, ALL_ACCESS);
        let far = sim.register(bob, QpSpec::PD, 10_000, ALL_ACCESS);
        let options = ConnectOptions { psn: Some((OWN, OTHER)), ..ConnectOptions::default() };
        for state in [Init, Rtr, Rts] {
            let modify = sim.modification(peer, qp, OTHER, OWN, state, &options);
            sim.modify(peer, &modify).unwrap();
        }
        if other_end(kind) == Kind::XrcTarget {
            for _ in 0..50 {
                sim.receive_shared(bobs, 0, &[far.sge(0, 100)]).unwrap();
            }
        } else if other_end(kind).has_receive_queue() {
            for _ in 0..50 {
                sim.receive(peer, 0, &[far.sge(0, 200)]).unwrap();
            }
        }
        log.clear();
        Rig { sim, log, kind, alice, bob, qp, peer, near, far, queue, options }
    }

    pub fn at(kind: Kind, state: State) -> Rig {
        let mut rig = Rig::new(kind);
        rig.walk(state);
        rig.log.clear();
        rig
    }

    /// From RESET to `state` by the shortest way.
    pub fn walk(&mut self, state: State) {
        let way: &[State] = match state {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts | Sqe => &[Init, Rtr, Rts],
            Sqd => &[Init, Rtr, Rts, Sqd],
            Error => &[Error],
        };
        for step in way {
            self.go(*step).unwrap();
        }
        if state == Sqe {
            let bad = Sge { address: 0, length: 1, key: Key::new(0xdead_0000) };
            let work = self.address(Work::send()).sge(bad);
            self.sim.post(self.qp, &work).unwrap();
            assert_eq!(self.completions().len(), 1);
        }
        assert_eq!(self.state(), state);
    }

    /// What the move to `state` requires, and nothing else.
    pub fn move_to(&self, state: State) -> Modify {
        self.sim.modification(self.qp, self.peer, OWN, OTHER, state, &self.options)
    }

    pub fn go(&mut self, state: State) -> Result<(), ModifyError> {
        let modify = self.move_to(state);
        self.sim.modify(self.qp, &modify)
    }

    pub fn state(&self) -> State {
        self.sim.state(self.qp)
    }

    pub fn attributes(&self) -> Attributes {
        self.sim.attributes(self.qp)
    }

    pub fn completions(&mut self) -> Vec<Completion> {
        self.sim.completions(self.qp)
    }

    pub fn ends(&mut self) -> Vec<(u64, Status)> {
        self.completions().iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }

    pub fn events(&mut self) -> Vec<AsyncEvent> {
        self.sim.async_events(self.qp)
    }

    /// Adds what work of this kind of queue pair needs to find its way.
    pub fn address(&self, work: Work) -> Work {
        match self.kind {
            Kind::UnreliableDatagram => work.to(self.sim.datagram_target(self.peer, &self.options)),
            // Bob's queue is the second that was made.
            Kind::XrcInitiator => work.to_srq(wire::Srqn::new(2)),
            _ => work,
        }
    }

    /// A SEND of the peer's that it never sent, with the `nth` sequence number.
    pub fn request(&self, nth: u32) -> Headers {
        let transport = other_end(self.kind).transport();
        let opcode = Opcode::of(transport, Operation::Send, Position::Only, Tail::Plain).unwrap();
        let mut headers = Headers::new(opcode, self.qp.qpn, OTHER.add(nth));
        headers.bth.ack_req = self.kind.is_reliable();
        headers.xrc = (self.kind == Kind::XrcTarget).then_some(self.queue.srqn);
        if self.kind == Kind::UnreliableDatagram {
            headers.deth = Some(Deth { qkey: self.options.qkey, src_qpn: self.peer.qpn });
        }
        headers
    }

    pub fn inject(&mut self, headers: &Headers, payload: &[u8]) -> Vec<DropReason> {
        self.log.clear();
        let source = self.sim.gid(self.bob, 0);
        self.sim.inject(self.alice, source, headers, payload).unwrap();
        self.sim.run_until_idle();
        self.log.drops(self.alice)
    }

    pub fn post_receive(&mut self, wr_id: u64) -> Result<(), PostError> {
        if self.kind == Kind::XrcTarget {
            return self.sim.receive_shared(self.queue, wr_id, &[self.near.sge(0, 200)]);
        }
        self.sim.receive(self.qp, wr_id, &[self.near.sge(0, 200)])
    }

    pub fn takes_receives(&self) -> bool {
        self.kind.has_receive_queue()
    }
}
