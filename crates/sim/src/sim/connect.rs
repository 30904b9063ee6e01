//! Walking queue pairs through their states, as two programs that know each other do.

use transport::state::requirements;
use transport::{Access, AddressVector, AttributeMask, DatagramTarget, Kind, Modify, ModifyError, State};
use wire::{Mtu, Psn, Qkey};

use super::Sim;
use crate::host::{HostId, QpId, World};
use crate::link::LinkKind;

/// Which of its two usual addresses a host uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Family {
    /// IPv4: entry 0 of the GID table.
    #[default]
    V4,
    /// IPv6: entry 1.
    V6,
}

impl Family {
    /// Its place in the GID table of a host that chose no addresses itself.
    pub const fn index(self) -> u8 {
        match self {
            Family::V4 => 0,
            Family::V6 => 1,
        }
    }
}

/// What two queue pairs agree on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ConnectOptions {
    /// Path MTU.
    pub mtu: Mtu,
    /// Local ACK timeout, `4.096 us * 2^timeout`; 0 for never.
    pub timeout: u8,
    /// How often a packet is sent again.
    pub retry_cnt: u8,
    /// How often a receiver that is not ready is asked again; 7 for always.
    pub rnr_retry: u8,
    /// What a receiver that is not ready asks for, as the RNR NAK encodes it.
    pub min_rnr_timer: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics kept as responder.
    pub max_dest_rd_atomic: u8,
    /// What the peer may do.
    pub access: Access,
    /// The first sequence number of each side; random if not given.
    pub psn: Option<(Psn, Psn)>,
    /// Which addresses.
    pub family: Family,
    /// UD: the queue key.
    pub qkey: Qkey,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv6 flow label, and the source port that follows from it.
    pub flow_label: u32,
}

impl Default for ConnectOptions {
    fn default() -> ConnectOptions {
        ConnectOptions {
            mtu: Mtu::B1024,
            timeout: 8, // a millisecond
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 1, // 10 us
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            access: Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT,
            psn: None,
            family: Family::V4,
            qkey: Qkey::new(0x1111_1111),
            traffic_class: 0,
            flow_label: 0,
        }
    }
}

impl Sim {
    /// Connects two queue pairs of the same kind (or an XRC initiator and an XRC target), or one with itself: both go
    /// to RTS.
    ///
    /// # Panics
    /// If a queue pair refuses; walk it with [`modify`](Sim::modify) to see why.
    pub fn connect(&mut self, a: QpId, b: QpId, options: &ConnectOptions) {
        let (psn_a, psn_b) = options.psn.unwrap_or_else(|| (self.random_psn(), self.random_psn()));
        self.walk(a, b, psn_a, psn_b, options);
        if a != b {
            self.walk(b, a, psn_b, psn_a, options);
        }
    }

    /// Brings a datagram queue pair to RTS.
    ///
    /// # Panics
    /// If it refuses.
    pub fn activate(&mut self, qp: QpId, options: &ConnectOptions) {
        let psn = options.psn.map_or_else(|| self.random_psn(), |(psn, _)| psn);
        self.walk(qp, qp, psn, psn, options);
    }

    fn walk(&mut self, qp: QpId, peer: QpId, own: Psn, other: Psn, options: &ConnectOptions) {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            let modify = self.modification(qp, peer, own, other, state, options);
            if let Err(error) = self.modify(qp, &modify) {
                panic!("QP {} on its way to {state}: {error}", qp.qpn);
            }
        }
    }

    /// What takes a queue pair from where it is to `state`: the attributes this move requires, and no others.
    pub fn modification(
        &self,
        qp: QpId,
        peer: QpId,
        own: Psn,
        other: Psn,
        state: State,
        options: &ConnectOptions,
    ) -> Modify {
        let kind = self.hosts[qp.host.index()].slot(qp.qpn).expect("the queue pair exists").qp.kind();
        let required = requirements(kind, self.state(qp), state).map_or(AttributeMask::empty(), |need| need.required);
        let all = Modify {
            state: Some(state),
            access: Some(options.access),
            pkey_index: Some(0),
            port: Some(1),
            qkey: Some(options.qkey),
            av: Some(self.address_vector(peer.host, options)),
            path_mtu: Some(options.mtu),
            timeout: Some(options.timeout),
            retry_cnt: Some(options.retry_cnt),
            rnr_retry: Some(options.rnr_retry),
            rq_psn: Some(other),
            max_rd_atomic: Some(options.max_rd_atomic),
            min_rnr_timer: Some(options.min_rnr_timer),
            sq_psn: Some(own),
            max_dest_rd_atomic: Some(options.max_dest_rd_atomic),
            dest_qpn: Some(peer.qpn),
            ..Modify::default()
        };
        only(all, required)
    }

    /// The way to a host.
    pub fn address_vector(&self, host: HostId, options: &ConnectOptions) -> AddressVector {
        AddressVector {
            dgid: self.gid(host, options.family.index()),
            sgid_index: options.family.index(),
            traffic_class: options.traffic_class,
            flow_label: options.flow_label,
            ..AddressVector::default()
        }
    }

    /// A datagram queue pair as a target.
    pub fn datagram_target(&self, qp: QpId, options: &ConnectOptions) -> DatagramTarget {
        DatagramTarget { av: self.address_vector(qp.host, options), qpn: qp.qpn, qkey: options.qkey }
    }

    /// Modifies a queue pair.
    pub fn modify(&mut self, qp: QpId, modify: &Modify) -> Result<(), ModifyError> {
        let now = self.now();
        if let Some(av) = modify.av {
            self.choose_path(qp, &av);
        }
        let result = self.with_qp(qp, |queue_pair, world| queue_pair.modify(now, modify, world));
        self.drive_all(qp);
        result
    }

    /// Which windows a connected queue pair answers to: those of its peer's host, or none where the link loses nothing.
    fn choose_path(&mut self, qp: QpId, av: &AddressVector) {
        let peer = self.net.routes.get(&av.dgid).copied();
        let whole = peer.is_some_and(|peer| self.net.link(qp.host, peer).config.kind == LinkKind::Whole);
        let host = &mut self.hosts[qp.host.index()];
        let towards = if whole { World::UNLIMITED_WINDOW } else { host.world.window_towards(av.dgid) };
        let here = if whole { World::UNLIMITED_WINDOW } else { World::HOST_WINDOW };
        if let Some(slot) = host.slot_mut(qp.qpn)
            && slot.qp.kind() != Kind::UnreliableDatagram
        {
            slot.peer = peer;
            slot.windows = (towards, here);
        }
    }
}

/// `modify` without what is not in `mask`, except the state.
fn only(modify: Modify, mask: AttributeMask) -> Modify {
    use AttributeMask as A;
    fn keep<T>(value: Option<T>, mask: AttributeMask, name: AttributeMask) -> Option<T> {
        value.filter(|_| mask.contains(name))
    }
    Modify {
        state: modify.state,
        access: keep(modify.access, mask, A::ACCESS_FLAGS),
        pkey_index: keep(modify.pkey_index, mask, A::PKEY_INDEX),
        port: keep(modify.port, mask, A::PORT),
        qkey: keep(modify.qkey, mask, A::QKEY),
        av: keep(modify.av, mask, A::AV),
        path_mtu: keep(modify.path_mtu, mask, A::PATH_MTU),
        timeout: keep(modify.timeout, mask, A::TIMEOUT),
        retry_cnt: keep(modify.retry_cnt, mask, A::RETRY_CNT),
        rnr_retry: keep(modify.rnr_retry, mask, A::RNR_RETRY),
        rq_psn: keep(modify.rq_psn, mask, A::RQ_PSN),
        max_rd_atomic: keep(modify.max_rd_atomic, mask, A::MAX_QP_RD_ATOMIC),
        min_rnr_timer: keep(modify.min_rnr_timer, mask, A::MIN_RNR_TIMER),
        sq_psn: keep(modify.sq_psn, mask, A::SQ_PSN),
        max_dest_rd_atomic: keep(modify.max_dest_rd_atomic, mask, A::MAX_DEST_RD_ATOMIC),
        dest_qpn: keep(modify.dest_qpn, mask, A::DEST_QPN),
        ..Modify::default()
    }
}
