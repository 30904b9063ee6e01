//! The packets of a storm: headers that could be meant for a queue pair, or nearly, and what may follow from one of them.

use super::{Choices, Member, OUTSTANDING, SIZE, Scene, SoFar};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Gid, HeaderSet, Headers, Key, Msn, Opcode, Pkey, Placement, Psn, Qkey,
    Qpn, Reth, Selectivity, Srqn, Syndrome,
};

impl Scene {
    /// One packet or train that the peer never sent.
    pub(super) fn forge(&mut self, nth: usize, choices: &mut Choices<'_>) {
        let Member { kind, qp, .. } = self.members[nth];
        let headers = self.headers(nth, choices);
        let mtu = self.options.mtu.bytes();
        let opcode = headers.bth.opcode;
        let said = headers.reth.map_or(8, |reth| reth.len);
        let fitting = if opcode.starts() && opcode.ends() { said } else { mtu };
        let length = match (opcode.has_payload(), choices.byte() % 4) {
            (false, _) => 0,
            (true, 0) => choices.of(&[0, 8, said, mtu - 1, mtu + 1, 2 * mtu, 3 * mtu]).min(4096),
            (true, _) => fitting.min(4096),
        };
        let payload = vec![choices.byte(); length as usize];
        let source = match choices.byte() {
            0..=7 => Gid::from_ipv4([192, 0, 2, 7].into()),
            _ => self.sim.gid(self.peer, self.options.family.index()),
        };
        let before = self.tally.borrow().so_far;
        let whole = choices.byte();
        match whole % 4 {
            0 => {
                let count =
                    choices.of(&[1, 1, length.div_ceil(mtu), 0, 2, 3, Psn::COUNT / 2 - 1, Psn::COUNT / 2, u32::MAX]);
                self.sim.inject_train(self.victim, source, &headers, count, &payload);
            }
            _ => {
                if self.sim.inject(self.victim, source, &headers, &payload).is_err() {
                    return;
                }
                self.recent = Some((source, headers, payload));
            }
        }
        *self.tally.borrow_mut().states.entry((kind, self.sim.state(qp))).or_default() += 1;
        self.react(&before);
    }

    /// A good frame with some bits flipped, or cut short.
    pub(super) fn damage(&mut self, nth: usize, choices: &mut Choices<'_>) {
        let headers = self.headers(nth, choices);
        let index = self.options.family.index();
        let (source, destination) = (self.sim.gid(self.peer, index), self.sim.gid(self.victim, index));
        let payload: &[u8] = if headers.bth.opcode.has_payload() { &[7; 12] } else { &[] };
        let Ok(mut frame) = self.sim.frame(source, destination, &headers, payload) else { return };
        for _ in 0..choices.byte() % 4 {
            let at = choices.word() as usize % frame.len();
            frame[at] ^= choices.byte();
        }
        if choices.one_in(4) {
            frame.truncate(choices.word() as usize % frame.len());
        }
        let before = self.tally.borrow().so_far;
        self.sim.inject_bytes(self.victim, frame);
        self.react(&before);
    }

    /// Lets a forged packet have its effect, which is noticed and in proportion.
    pub(super) fn react(&mut self, before: &SoFar) {
        self.sim.run_for(1);
        let mut tally = self.tally.borrow_mut();
        tally.forged += 1;
        assert!(tally.so_far.noticed > before.noticed, "a packet vanished without a trace");
        // A go-back sends all that is outstanding again; beyond that an acknowledgement or two.
        let most = (OUTSTANDING * 4 + 4) as u64;
        assert!(
            tally.so_far.sent - before.sent <= most,
            "{} packets in answer to one",
            tally.so_far.sent - before.sent
        );
        let most = SIZE as u64 / u64::from(self.options.mtu.bytes()) + 2;
        assert!(tally.so_far.responses - before.responses <= 2 * most, "more READ responses than there is memory");
    }

    /// Headers that could be meant for a queue pair, or nearly.
    fn headers(&self, nth: usize, choices: &mut Choices<'_>) -> Headers {
        let Member { kind, qp, peer } = self.members[nth];
        let attributes = self.sim.attributes(qp);
        let concerns = |opcode: &Opcode| {
            let role = if opcode.is_request() { kind.responds() } else { kind.has_send_queue() };
            opcode.transport() == kind.transport() && role
        };
        let ours: Vec<Opcode> = Opcode::ALL.iter().copied().filter(concerns).collect();
        let opcode = match choices.byte() {
            0..=15 => choices.of(Opcode::ALL),
            _ => choices.of(&ours),
        };
        const fn back(by: u32) -> u32 {
            Psn::COUNT - by
        }
        let psn = match (choices.byte() % 16, opcode.is_response()) {
            (0, _) => Psn::new(choices.word()),
            (1, _) => attributes.rq_psn.add(choices.of(&[1, 2, 3, 100, Psn::COUNT / 2 - 1, Psn::COUNT / 2])),
            (2, _) => attributes.sq_psn.add(choices.of(&[0, 1, 2, 100, Psn::COUNT / 2 - 1, Psn::COUNT / 2])),
            // Answers to what may be outstanding.
            (_, true) => {
                attributes.sq_psn.add(choices.of(&[back(1), back(1), back(2), back(3), back(4), back(6), back(9)]))
            }
            (3, false) => attributes.rq_psn.add(choices.of(&[back(1), back(2), back(3), back(100)])),
            (_, false) => attributes.rq_psn,
        };
        let mut headers = Headers::new(opcode, qp.qpn, psn);
        let flags = choices.byte();
        headers.bth.ack_req = flags & 1 != 0;
        headers.bth.solicited = flags & 2 != 0;
        headers.bth.mig_req = flags & 4 != 0;
        if flags & 0xf8 == 0 {
            headers.bth.pkey = Pkey::new(choices.word() as u16);
        }
        let memory = [&self.here.open, &self.here.open, &self.here.open, &self.here.private, &self.here.foreign];
        let region = choices.of(&memory);
        let rkey = choices.of(&[region.key, region.key, region.key, Key::new(0xdead_0000)]);
        let end = region.address + region.length;
        let va = choices.of(&[
            region.address,
            region.address,
            region.address + 8,
            region.address + 3,
            end - 8,
            end,
            0,
            u64::MAX - 3,
        ]);
        let mtu = self.options.mtu.bytes();
        let len = match opcode.ends() {
            true => choices.of(&[0, 1, 8, 8, 8, mtu, mtu + 1, 3 * mtu, SIZE as u32, 1 << 31, u32::MAX]),
            false => choices.of(&[2 * mtu, 2 * mtu, 3 * mtu, 3 * mtu, mtu, 8, SIZE as u32, 1 << 31, u32::MAX]),
        };
        let demanded = opcode.headers();
        let has = |header| demanded.contains(header);
        headers.reth = has(HeaderSet::RETH).then_some(Reth { va, rkey, len });
        if has(HeaderSet::ATOMIC_ETH) {
            headers.atomic =
                Some(AtomicEth { va, rkey, swap_add: choices.word().into(), compare: choices.word().into() });
        }
        if has(HeaderSet::FETH) {
            let placement = Placement::from_bits_truncate(choices.byte());
            headers.feth = Some(Feth { placement, selectivity: Selectivity::from_bits(choices.byte()) });
        }
        if has(HeaderSet::AETH) {
            // Mostly acknowledgements; else a refusal, or any syndrome there is.
            let syndrome = match choices.byte() {
                0..=127 => Syndrome::ACK,
                128..=191 => Syndrome::from_byte(choices.of(&[0x60, 0x61, 0x62, 0x63, 0x21, 0x2e])),
                _ => Syndrome::from_byte(choices.byte()),
            };
            headers.aeth = Some(Aeth { syndrome, msn: Msn::new(choices.byte().into()) });
        }
        headers.atomic_ack = has(HeaderSet::ATOMIC_ACK_ETH).then(|| AtomicAckEth { original: choices.word().into() });
        headers.immediate = has(HeaderSet::IMMEDIATE).then(|| choices.word());
        headers.invalidate = has(HeaderSet::IETH).then_some(rkey);
        if has(HeaderSet::XRCETH) {
            let here = self.xrc_here.srqn;
            headers.xrc = Some(choices.of(&[here, here, here, self.shared.srqn, Srqn::new(0x99)]));
        }
        if has(HeaderSet::DETH) {
            let qkey = choices.of(&[self.options.qkey, self.options.qkey, self.options.qkey, Qkey::new(3)]);
            headers.deth = Some(Deth { qkey, src_qpn: choices.of(&[peer.qpn, peer.qpn, Qpn::MULTICAST]) });
        }
        headers
    }
}
