//! The attributes of a queue pair: what a program may ask to change ([`Modify`]), what a query answers ([`Attributes`])
//! and what the device can do ([`Limits`]). Plain values; which of them a transition takes, and whether a value is in
//! range, is decided in [`crate::state`].

use crate::completion::Status;
use crate::kind::State;
use crate::rate::RateLimit;
use crate::time::Timers;
use core::fmt;
use wire::access::Access;
use wire::{Gid, Mtu, Psn, Qkey, Qpn};

/// The way to a peer, with the fields of `ibv_ah_attr`. RoCEv2 uses the global part; the rest is kept because queries
/// must return it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AddressVector {
    /// The peer's address.
    pub dgid: Gid,
    /// Which of the port's own addresses is the source.
    pub sgid_index: u8,
    /// IPv6 flow label; 20 bits travel.
    pub flow_label: u32,
    /// IP time to live.
    pub hop_limit: u8,
    /// IP DSCP and ECN byte.
    pub traffic_class: u8,
    /// Service level, on Ethernet the priority.
    pub service_level: u8,
    /// The local port, counted from 1.
    pub port: u8,
    /// Kept, not enforced.
    pub static_rate: u8,
    /// InfiniBand's local address; RoCE has none.
    pub dlid: u16,
    /// InfiniBand's source path bits; RoCE has none.
    pub src_path_bits: u8,
    /// Whether the global part counts. On RoCE it must.
    pub is_global: bool,
}

/// A global route from address 0 of port 1 to nowhere yet.
impl Default for AddressVector {
    fn default() -> AddressVector {
        AddressVector {
            dgid: Gid::ZERO,
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
            service_level: 0,
            port: 1,
            static_rate: 0,
            dlid: 0,
            src_path_bits: 0,
            is_global: true,
        }
    }
}

/// The second way to a peer, for path migration.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AlternatePath {
    /// The way.
    pub av: AddressVector,
    /// Index of its partition key.
    pub pkey_index: u16,
    /// Its local port.
    pub port: u8,
    /// Its local ACK timeout, encoded as the primary one's.
    pub timeout: u8,
}

/// Where path migration stands, with the numbers of `ibv_mig_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum MigrationState {
    /// Nothing is armed; the state after RESET.
    #[default]
    Migrated = 0,
    /// The program asked to arm.
    Rearm = 1,
    /// Both sides may switch to the alternate path.
    Armed = 2,
}

/// How much work a queue pair holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Capabilities {
    /// Send work requests outstanding at once.
    pub max_send_wr: u32,
    /// Receive work requests outstanding at once.
    pub max_recv_wr: u32,
    /// Pieces of one send work request.
    pub max_send_sge: u32,
    /// Pieces of one receive work request.
    pub max_recv_sge: u32,
    /// Bytes a send work request may carry itself.
    pub max_inline_data: u32,
}

bitflags::bitflags! {
    /// Names of attributes, with the bits of `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AttributeMask: u32 {
        /// The state to go to.
        const STATE = 1 << 0;
        /// The state the program believes the queue pair is in.
        const CUR_STATE = 1 << 1;
        /// Whether an event tells that the send queue has drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What peers may do.
        const ACCESS_FLAGS = 1 << 3;
        /// Index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// The local port.
        const PORT = 1 << 5;
        /// The key datagrams must show.
        const QKEY = 1 << 6;
        /// The way to the peer.
        const AV = 1 << 7;
        /// The most payload of a packet.
        const PATH_MTU = 1 << 8;
        /// The local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// How often a packet is sent again.
        const RETRY_CNT = 1 << 10;
        /// How often a receiver that is not ready is asked again.
        const RNR_RETRY = 1 << 11;
        /// The first sequence number expected.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The second way to the peer.
        const ALT_PATH = 1 << 14;
        /// How long a peer waits when we are not ready.
        const MIN_RNR_TIMER = 1 << 15;
        /// The first sequence number sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics kept as responder.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration.
        const PATH_MIG_STATE = 1 << 18;
        /// The queues' sizes.
        const CAP = 1 << 19;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
        /// Pacing of packets.
        const RATE_LIMIT = 1 << 25;
    }
}

/// The names as a person lists them: "DEST_QPN, RQ_PSN and AV", or "nothing".
impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.iter_names().count();
        if left == 0 {
            return f.write_str("nothing");
        }
        for (name, _) in self.iter_names() {
            left -= 1;
            f.write_str(name)?;
            f.write_str(match left {
                0 => "",
                1 => " and ",
                _ => ", ",
            })?;
        }
        Ok(())
    }
}

/// What a program asks to change. A field that is `None` stays as it is; the default asks for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[doc(alias = "ibv_modify_qp")]
pub struct Modify {
    /// The state to go to; without it the queue pair stays in its state.
    pub state: Option<State>,
    /// The state the program believes the queue pair is in; refused if it is another.
    pub current_state: Option<State>,
    /// Whether an event tells that the send queue has drained.
    pub sqd_async_notify: Option<bool>,
    /// What peers may do.
    pub access: Option<Access>,
    /// Index of the partition key.
    pub pkey_index: Option<u16>,
    /// The local port, counted from 1.
    pub port: Option<u8>,
    /// The key datagrams must show.
    pub qkey: Option<Qkey>,
    /// The way to the peer.
    pub av: Option<AddressVector>,
    /// The most payload of a packet.
    pub path_mtu: Option<Mtu>,
    /// The local ACK timeout: `4.096 us * 2^timeout`, 0 for never.
    pub timeout: Option<u8>,
    /// How often a packet is sent again before the queue pair gives up: 0 to 7.
    pub retry_cnt: Option<u8>,
    /// How often a receiver that is not ready is asked again: 0 to 6, 7 for always.
    pub rnr_retry: Option<u8>,
    /// The first sequence number expected.
    pub rq_psn: Option<Psn>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// The second way to the peer.
    pub alternate: Option<AlternatePath>,
    /// How long a peer waits when we are not ready, as the RNR NAK encodes it: 0 to 31.
    pub min_rnr_timer: Option<u8>,
    /// The first sequence number sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics kept as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// Path migration.
    pub migration: Option<MigrationState>,
    /// The queues' sizes.
    pub capabilities: Option<Capabilities>,
    /// The peer's queue pair.
    pub dest_qpn: Option<Qpn>,
    /// Pacing of packets.
    pub rate_limit: Option<RateLimit>,
}

impl Modify {
    /// The names of what it asks for.
    pub fn mask(&self) -> AttributeMask {
        use AttributeMask as A;
        let present = [
            (self.state.is_some(), A::STATE),
            (self.current_state.is_some(), A::CUR_STATE),
            (self.sqd_async_notify.is_some(), A::EN_SQD_ASYNC_NOTIFY),
            (self.access.is_some(), A::ACCESS_FLAGS),
            (self.pkey_index.is_some(), A::PKEY_INDEX),
            (self.port.is_some(), A::PORT),
            (self.qkey.is_some(), A::QKEY),
            (self.av.is_some(), A::AV),
            (self.path_mtu.is_some(), A::PATH_MTU),
            (self.timeout.is_some(), A::TIMEOUT),
            (self.retry_cnt.is_some(), A::RETRY_CNT),
            (self.rnr_retry.is_some(), A::RNR_RETRY),
            (self.rq_psn.is_some(), A::RQ_PSN),
            (self.max_rd_atomic.is_some(), A::MAX_QP_RD_ATOMIC),
            (self.alternate.is_some(), A::ALT_PATH),
            (self.min_rnr_timer.is_some(), A::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), A::SQ_PSN),
            (self.max_dest_rd_atomic.is_some(), A::MAX_DEST_RD_ATOMIC),
            (self.migration.is_some(), A::PATH_MIG_STATE),
            (self.capabilities.is_some(), A::CAP),
            (self.dest_qpn.is_some(), A::DEST_QPN),
            (self.rate_limit.is_some(), A::RATE_LIMIT),
        ];
        present.into_iter().filter(|(given, _)| *given).map(|(_, name)| name).collect()
    }
}

/// Every attribute, as the queue pair holds it: what a query answers. Those that every message needs come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
#[doc(alias = "ibv_query_qp")]
pub struct Attributes {
    /// The state. [`Attributes::apply`] leaves it alone: the queue pair moves it when the move is done.
    pub state: State,
    /// The most payload of a packet.
    pub path_mtu: Mtu,
    /// The local ACK timeout: `4.096 us * 2^timeout`, 0 for never.
    pub timeout: u8,
    /// Whether an event tells that the send queue has drained.
    pub sqd_async_notify: bool,
    /// What peers may do.
    pub access: Access,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The way to the peer.
    pub av: AddressVector,
    /// How often a packet is sent again before the queue pair gives up.
    pub retry_cnt: u8,
    /// How often a receiver that is not ready is asked again, 7 for always.
    pub rnr_retry: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics kept as responder.
    pub max_dest_rd_atomic: u8,
    /// How long a peer waits when we are not ready, as the RNR NAK encodes it.
    pub min_rnr_timer: u8,
    /// The local port, counted from 1.
    pub port: u8,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Path migration.
    pub migration: MigrationState,
    /// The first sequence number expected.
    pub rq_psn: Psn,
    /// The first sequence number sent.
    pub sq_psn: Psn,
    /// The key datagrams must show.
    pub qkey: Qkey,
    /// The second way to the peer.
    pub alternate: AlternatePath,
    /// The queues' sizes.
    pub capabilities: Capabilities,
    /// Pacing of packets.
    pub rate_limit: RateLimit,
}

/// A queue pair fresh from RESET. Nothing of it is used before the transition that sets it; the MTU is the one every
/// path carries.
impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            state: State::Reset,
            sqd_async_notify: false,
            access: Access::empty(),
            pkey_index: 0,
            port: 1,
            qkey: Qkey::default(),
            av: AddressVector::default(),
            path_mtu: Mtu::B256,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rq_psn: Psn::default(),
            max_rd_atomic: 0,
            alternate: AlternatePath::default(),
            min_rnr_timer: 0,
            sq_psn: Psn::default(),
            max_dest_rd_atomic: 0,
            migration: MigrationState::Migrated,
            capabilities: Capabilities::default(),
            dest_qpn: Qpn::default(),
            rate_limit: RateLimit::default(),
        }
    }
}

impl Attributes {
    /// Takes over what `modify` asks for, except the state. The caller has had it checked by [`crate::state::check`].
    pub fn apply(&mut self, modify: &Modify) {
        fn take<T: Copy>(field: &mut T, asked: Option<T>) {
            if let Some(value) = asked {
                *field = value;
            }
        }
        take(&mut self.sqd_async_notify, modify.sqd_async_notify);
        take(&mut self.access, modify.access);
        take(&mut self.pkey_index, modify.pkey_index);
        take(&mut self.port, modify.port);
        take(&mut self.qkey, modify.qkey);
        take(&mut self.av, modify.av);
        take(&mut self.path_mtu, modify.path_mtu);
        take(&mut self.timeout, modify.timeout);
        take(&mut self.retry_cnt, modify.retry_cnt);
        take(&mut self.rnr_retry, modify.rnr_retry);
        take(&mut self.rq_psn, modify.rq_psn);
        take(&mut self.max_rd_atomic, modify.max_rd_atomic);
        take(&mut self.alternate, modify.alternate);
        take(&mut self.min_rnr_timer, modify.min_rnr_timer);
        take(&mut self.sq_psn, modify.sq_psn);
        take(&mut self.max_dest_rd_atomic, modify.max_dest_rd_atomic);
        take(&mut self.migration, modify.migration);
        take(&mut self.capabilities, modify.capabilities);
        take(&mut self.dest_qpn, modify.dest_qpn);
        take(&mut self.rate_limit, modify.rate_limit);
    }
}

/// What the device can do; a value beyond it is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limits {
    /// The most READs and atomics a queue pair may have outstanding.
    pub max_rd_atomic: u8,
    /// The most READs and atomics a queue pair keeps for replay.
    pub max_dest_rd_atomic: u8,
    /// Entries of a port's partition key table.
    pub pkeys: u16,
    /// Ports, counted from 1.
    pub ports: u8,
    /// The largest path MTU.
    pub max_mtu: Mtu,
    /// Entries of a port's address table.
    pub gids: u16,
    /// What the port sends at most, in bit/s: the rate of a sender that has heard of no congestion.
    pub line_rate: u64,
    /// Congestion notifications slow a sender down. If not, they are dropped; marks are answered all the same.
    pub obeys_congestion: bool,
    /// What comes before its turn, as something before it was lost, is kept until that is there, and what was lost is
    /// sent again alone. If not, it is go-back-N on both sides, as kernel Soft-RoCE does it.
    pub keeps_early: bool,
    /// What the device does not do, though its transport has it.
    pub refused_work: RefusedWork,
    /// How the device rounds times.
    pub timers: Timers,
}

/// Work that a device refuses when it is posted: nothing, unless it is like a card that does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RefusedWork {
    /// The profile of the card.
    pub profile: &'static str,
    /// The names of operations, and what C programs get.
    pub work: &'static [(&'static str, i32)],
    /// The names of operations that are taken and then fail, and with which status.
    pub failing: FailingWork,
}

impl RefusedWork {
    /// The refusal of an operation, if it is refused.
    #[must_use]
    pub fn of(&self, operation: &'static str) -> Option<DeviceRefusal> {
        let (_, errno) = *self.work.iter().find(|(name, _)| *name == operation)?;
        Some(DeviceRefusal { errno, profile: self.profile, what: operation })
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.work.is_empty() && self.failing.0.is_empty()
    }
}

/// Work that a device takes and then fails: the names of operations, and the codes of their statuses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FailingWork(pub &'static [(&'static str, u32)]);

impl FailingWork {
    /// The status with which an operation fails, if it does.
    #[must_use]
    #[inline]
    pub fn status_of(self, operation: &'static str) -> Option<Status> {
        let (_, status) = *self.0.iter().find(|(name, _)| *name == operation)?;
        Some(u8::try_from(status).ok().and_then(Status::of_code).unwrap_or(Status::LocalQpOperation))
    }
}

/// A device refuses what its transport has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the NIC's profile {profile} refuses {what}")]
pub struct DeviceRefusal {
    /// What C programs get.
    pub errno: i32,
    /// The profile of the card that it is like.
    pub profile: &'static str,
    /// What it refuses.
    pub what: &'static str,
}

/// One port, the default partition, and every address an index can name. As many READs and atomics as kernel Soft-RoCE
/// allows: programs ask for as many outstanding as their peer says it can answer, whatever their own device says.
impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_rd_atomic: 128,
            max_dest_rd_atomic: 128,
            pkeys: 1,
            ports: 1,
            max_mtu: Mtu::B4096,
            gids: 256,
            line_rate: 100_000_000_000,
            obeys_congestion: true,
            keeps_early: true,
            refused_work: RefusedWork::default(),
            timers: Timers::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_read_as_a_person_lists_them() {
        use AttributeMask as A;
        assert_eq!(A::empty().to_string(), "nothing");
        assert_eq!(A::AV.to_string(), "AV");
        assert_eq!((A::AV | A::QKEY).to_string(), "QKEY and AV");
        assert_eq!((A::AV | A::QKEY | A::RATE_LIMIT).to_string(), "QKEY, AV and RATE_LIMIT");
    }

    #[test]
    fn only_what_is_asked_for_changes_and_never_the_state() {
        let mut attributes = Attributes::default();
        attributes.apply(&Modify::default());
        assert_eq!(attributes, Attributes::default());
        let modify =
            Modify { state: Some(State::Init), pkey_index: Some(3), qkey: Some(Qkey::GSI), ..Modify::default() };
        attributes.apply(&modify);
        assert_eq!(attributes, Attributes { pkey_index: 3, qkey: Qkey::GSI, ..Attributes::default() });
    }
}
