//! A peer that sends nonsense: packets with good checksums, from the right address, to the right queue pair, and with everything else left to
//! chance around what would be right. Real work goes on in between. Whatever arrives, nothing panics, everything comes to rest, no byte changes that
//! no key opened, and no window stays charged.
//!
//! `UBIVERBS_PROGRAMS` runs more of them than the usual number.
#![allow(missing_docs)]

use sim::{
    ConnectOptions, HostConfig, HostId, LinkConfig, LinkKind, QpId, QpSpec, Region, Rng, Sim, SrqId, SrqSpec, Work,
};
use transport::{Access, Kind, Modify, State};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Gid, Headers, Key, Msn, Mtu, Opcode, Placement, Psn, Qkey, Qpn, Reth,
    Selectivity, Srqn, Syndrome, Transport,
};

const USUAL_PROGRAMS: u64 = 1500;

const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

struct Stage {
    sim: Sim,
    rng: Rng,
    kind: Kind,
    options: ConnectOptions,
    hosts: [HostId; 2],
    gids: [Gid; 2],
    qps: [QpId; 2],
    open: [Region; 2],
    closed: [Region; 2],
    srq: SrqId,
}

impl Stage {
    fn new(seed: u64) -> Stage {
        let mut rng = Rng::new(seed ^ 0x4e4f_4e53);
        let mut sim = Sim::new(seed);
        sim.set_event_cap(2_000_000);
        sim.set_default_link(LinkConfig::of(if rng.chance(0.5) { LinkKind::Datagram } else { LinkKind::Whole }));
        let hosts = [(); 2].map(|()| sim.add_host(HostConfig::default()));
        let kind = Kind::ALL[rng.below(5) as usize];
        let kinds = if kind.is_xrc() { [Kind::XrcInitiator, Kind::XrcTarget] } else { [kind; 2] };
        let srq = sim.create_srq(hosts[1], SrqSpec { xrc_domain: kind.is_xrc().then_some(1), ..SrqSpec::default() });
        let mut spec = QpSpec::new(kinds[1]);
        if !kind.is_xrc() && rng.chance(0.3) {
            spec = spec.with_srq(srq);
        }
        let qps = [sim.create_qp(hosts[0], QpSpec::new(kinds[0])), sim.create_qp(hosts[1], spec)];
        let options = ConnectOptions {
            mtu: Mtu::ALL[rng.below(5) as usize],
            psn: Some((random_psn(&mut rng), random_psn(&mut rng))),
            rnr_retry: rng.below(7) as u8,
            retry_cnt: rng.below(8) as u8,
            max_dest_rd_atomic: 1 + rng.below(4) as u8,
            ..ConnectOptions::default()
        };
        let open = hosts.map(|host| sim.register(host, QpSpec::PD, 100_000, ALL));
        let closed = hosts.map(|host| sim.register_bytes(host, QpSpec::PD, vec![0xcc; 100_000], Access::empty()));
        let gids = hosts.map(|host| sim.gid(host, 0));
        let mut stage = Stage { sim, rng, kind, options, hosts, gids, qps, open, closed, srq };
        stage.connect();
        for wr_id in 0..stage.rng.below(20) {
            let sges = [open[1].sge(wr_id * 1000, stage.rng.below(5000) as u32)];
            if kind.is_xrc() || spec.srq.is_some() {
                stage.sim.receive_shared(srq, wr_id, &sges).unwrap();
            } else {
                stage.sim.receive(qps[1], wr_id, &sges).unwrap();
            }
        }
        stage
    }

    fn connect(&mut self) {
        let [a, b] = self.qps;
        if self.kind.is_connected() {
            self.sim.connect(a, b, &self.options);
        } else {
            self.sim.activate(a, &self.options);
            self.sim.activate(b, &self.options);
        }
    }

    /// Another life for both queue pairs; what is under way belongs to the one before.
    fn reconnect(&mut self) {
        for qp in self.qps {
            self.sim.modify(qp, &Modify { state: Some(State::Reset), ..Modify::default() }).unwrap();
        }
        self.connect();
    }

    /// Honest work; it may be refused, or fail for all that arrives.
    fn work(&mut self) {
        let there = self.open[1].remote(self.rng.below(100) * 8);
        let work = match self.rng.below(4) {
            0 => Work::write(there),
            1 => Work::read(there),
            2 => Work::fetch_add(there, 1),
            _ => Work::send(),
        };
        let length = if self.rng.chance(0.2) { 8 } else { self.rng.below(6000) as u32 };
        let mut work = work.sge(self.open[0].sge(0, length));
        if self.kind.is_xrc() {
            work = work.to_srq(self.srq.srqn);
        }
        if !self.kind.is_connected() {
            work = work.to(self.sim.datagram_target(self.qps[1], &self.options));
        }
        let _ = self.sim.post(self.qps[0], &work);
    }

    fn nonsense(&mut self) {
        let to = self.rng.below(2) as usize;
        let headers = self.headers(to);
        let mtu = u64::from(self.options.mtu.bytes());
        let length = match self.rng.below(4) {
            _ if !headers.bth.opcode.has_payload() => 0,
            0 => 0,
            1 => mtu,
            2 => self.rng.below(20),
            _ => self.rng.below(5000),
        };
        let payload = vec![0x77; length as usize];
        let times = if self.rng.chance(0.2) { 3 } else { 1 };
        for _ in 0..times {
            self.sim.inject(self.hosts[to], self.gids[1 - to], &headers, &payload).unwrap();
        }
    }

    /// Headers that are right in part.
    fn headers(&mut self, to: usize) -> Headers {
        let psn = self.psn(to);
        let rng = &mut self.rng;
        let own = self.kind.transport();
        let opcode = loop {
            let opcode = Opcode::ALL[rng.below(Opcode::ALL.len() as u64) as usize];
            if opcode.transport() == own || opcode.transport() == Transport::Cnp || rng.chance(0.1) {
                break opcode;
            }
        };
        let region = if rng.chance(0.9) { &self.open[to] } else { &self.closed[to] };
        let rkey = if rng.chance(0.9) { region.key } else { Key::new(rng.next_u64() as u32) };
        let offset = if rng.chance(0.9) { rng.below(1000) * 8 } else { rng.next_u64() };
        let va = region.address.wrapping_add(offset);
        let mut headers = Headers::new(opcode, self.qps[to].qpn, psn);
        headers.bth.ack_req = rng.chance(0.5);
        headers.bth.becn = rng.chance(0.1);
        headers.bth.solicited = rng.chance(0.1);
        headers.xrc = Some(if rng.chance(0.9) { self.srq.srqn } else { Srqn::new(99) });
        let qkey = if rng.chance(0.8) { self.options.qkey } else { Qkey::new(1) };
        headers.deth = Some(Deth { qkey, src_qpn: Qpn::new(rng.below(30) as u32) });
        headers.feth = Some(Feth {
            placement: Placement::from_bits_truncate(rng.below(16) as u8),
            selectivity: Selectivity::from_bits(rng.below(4) as u8),
        });
        let len = match rng.below(5) {
            0 => 0,
            1 => rng.below(20) as u32,
            2 => rng.below(10_000) as u32,
            3 => self.options.mtu.bytes(),
            _ => rng.next_u64() as u32,
        };
        headers.reth = Some(Reth { va, rkey, len });
        headers.atomic = Some(AtomicEth { va: va.wrapping_add(rng.below(2)), rkey, swap_add: 1, compare: 0 });
        let syndrome = if rng.chance(0.5) { Syndrome::ACK } else { Syndrome::from_byte(rng.next_u64() as u8) };
        headers.aeth = Some(Aeth { syndrome, msn: Msn::new(rng.below(50) as u32) });
        headers.atomic_ack = Some(AtomicAckEth { original: 5 });
        headers.immediate = Some(4);
        headers.invalidate = Some(rkey);
        headers
    }

    /// A sequence number near one that matters.
    fn psn(&mut self, to: usize) -> Psn {
        let (here, there) = (self.sim.attributes(self.qps[to]), self.sim.attributes(self.qps[1 - to]));
        let rng = &mut self.rng;
        let base = [here.rq_psn, here.rq_psn, here.sq_psn, there.sq_psn][rng.below(4) as usize];
        match rng.below(5) {
            0 => base,
            1 => base.add(rng.below(5) as u32),
            2 => base.sub(rng.below(40) as u32),
            3 => base.add(1 << (20 + rng.below(4))),
            _ => random_psn(rng),
        }
    }

    fn check(&self, seed: u64) {
        for host in 0..2 {
            for gid in self.gids {
                let left = self.sim.window(self.hosts[host], gid).map_or(0, |window| window.in_flight());
                assert_eq!(left, 0, "a window of host {host} stays charged, {} (seed {seed})", self.kind);
            }
            let closed = self.sim.bytes(&self.closed[host]);
            assert!(closed.iter().all(|byte| *byte == 0xcc), "memory nobody opened was written (seed {seed})");
        }
    }
}

fn random_psn(rng: &mut Rng) -> Psn {
    Psn::new(rng.next_u64() as u32)
}

#[test]
fn nonsense_neither_breaks_nor_hangs_nor_leaks() {
    let programs = std::env::var("UBIVERBS_PROGRAMS").ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL_PROGRAMS);
    let mut delivered = 0;
    for seed in 0..programs {
        let mut stage = Stage::new(seed);
        for _ in 0..60 {
            if stage.rng.chance(0.3) {
                stage.work();
            }
            stage.nonsense();
            if stage.rng.chance(0.6) {
                let nanos = stage.rng.below(100_000);
                stage.sim.run_for(nanos);
            }
            // A queue pair that has failed drops everything: back to where it can be hurt.
            let failed = stage.qps.iter().any(|qp| stage.sim.state(*qp) == State::Error);
            if failed && stage.rng.chance(0.5) {
                stage.reconnect();
            }
        }
        stage.sim.run_until_idle();
        stage.check(seed);
        delivered += stage.sim.counters().delivered;
    }
    assert!(delivered > 50 * programs, "the nonsense must reach the queue pairs: {delivered} packets did");
}
