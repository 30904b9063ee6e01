//! The objects of a program, as far as rules want to know them. Completion queues have a file of their own.

use trace::{Call, Failure, StateCause, Text};
use wire::access::Access;
use wire::{Key, Qkey, Qpn};

use super::work::WorkQueue;

/// An open device.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The device's name.
    pub device: Text<32>,
}

/// A protection domain.
#[derive(Clone, Copy, Debug)]
pub struct Domain {
    /// Its context.
    pub context: u32,
}

/// Registered memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its `rkey`.
    pub key: Key,
    /// The protection domain.
    pub pd: u32,
    /// Where the memory lies.
    pub address: u64,
    /// How many bytes.
    pub length: u64,
    /// The address under which it is known.
    pub iova: u64,
    /// The rights granted.
    pub access: Access,
    /// The rights that were used so far, by this program and by peers.
    pub used: Access,
    /// Whether a window was ever bound to it.
    pub windowed: bool,
    /// When it was registered.
    pub made_at: u64,
    /// When it was deregistered.
    pub gone_at: Option<u64>,
}

impl Region {
    /// The address behind its last byte, as it is known to requests.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.iova.saturating_add(self.length)
    }

    /// Whether it is the region of `ibv_alloc_null_mr`: what is written to it is gone, and every address is in it.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.address == 0 && self.length == 0
    }

    /// Whether requests may name this range.
    #[must_use]
    pub fn holds(&self, address: u64, length: u64) -> bool {
        let inside = || address >= self.iova && length <= self.length && address - self.iova <= self.length - length;
        self.is_null() || inside()
    }

    /// Where in the process a byte lies that requests name by this address.
    #[must_use]
    pub fn place(&self, address: u64) -> u64 {
        self.address.wrapping_add(address.wrapping_sub(self.iova))
    }

    /// Whether it has bytes of this range of the process's memory.
    #[must_use]
    pub fn overlaps(&self, address: u64, length: u64) -> bool {
        self.address < address.saturating_add(length) && address < self.address.saturating_add(self.length)
    }
}

/// A memory window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The protection domain.
    pub pd: u32,
    /// Whether it is of type 2.
    pub type_2: bool,
    /// The key it was bound under last.
    pub bound_as: Option<Key>,
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct SharedQueue {
    /// Its protection domain.
    pub pd: u32,
    /// How many receives it holds.
    pub max_wr: u32,
    /// How many pieces a receive may have.
    pub max_sge: u32,
    /// Below how many receives an event is raised.
    pub limit: u32,
    /// Receives that are posted.
    pub receives: WorkQueue,
}

/// Capabilities that a program asked for with 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // as `ibv_qp_cap` has them
pub struct AskedForNone {
    /// `max_send_wr`.
    pub sends: bool,
    /// `max_recv_wr`.
    pub receives: bool,
    /// `max_send_sge`.
    pub send_pieces: bool,
    /// `max_recv_sge`.
    pub receive_pieces: bool,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Its number.
    pub qpn: Qpn,
    /// `RC`, `UC`, `UD`, …; empty if its making was not seen.
    pub kind: &'static str,
    /// Its context.
    pub context: u32,
    /// Its protection domain.
    pub pd: u32,
    /// Where its sends complete.
    pub send_cq: Option<u32>,
    /// Where its receives complete.
    pub receive_cq: Option<u32>,
    /// Where its receives come from, if not from its own queue.
    pub srq: Option<u32>,
    /// What was granted, as `ibv_qp_cap` has it.
    pub max_send_wr: u32,
    /// See there.
    pub max_recv_wr: u32,
    /// See there.
    pub max_send_sge: u32,
    /// See there.
    pub max_recv_sge: u32,
    /// See there.
    pub max_inline_data: u32,
    /// Whether every send is signaled.
    pub signals_all: bool,
    /// Of which of these the program has asked for none, and got one.
    pub asked_for_none: AskedForNone,
    /// The state, as verbs spell it.
    pub state: &'static str,
    /// Since when.
    pub state_since: u64,
    /// Why.
    pub state_cause: Option<StateCause>,
    /// What the program said of the connection.
    pub connection: Connection,
    /// Work of the send queue.
    pub sends: WorkQueue,
    /// Work of its own receive queue.
    pub receives: WorkQueue,
    /// How much work has completed.
    pub completed: u64,
    /// How many of its completions the program has polled.
    pub polled: u64,
    /// When a packet of the peer arrived last.
    pub heard_at: Option<u64>,
    /// When a request of the peer arrived last: a message, a WRITE, a READ.
    pub asked_at: Option<u64>,
    /// The first work that failed since RESET, flushes apart: its name, its status, why.
    pub first_failure: Option<(u64, &'static str, Failure)>,
    /// When it was made.
    pub made_at: u64,
}

impl Pair {
    /// One whose making was not seen.
    pub(super) fn unknown(qpn: Qpn) -> Pair {
        Pair {
            qpn,
            kind: "",
            context: 0,
            pd: 0,
            send_cq: None,
            receive_cq: None,
            srq: None,
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
            signals_all: false,
            asked_for_none: AskedForNone::default(),
            state: "RESET",
            state_since: 0,
            state_cause: None,
            connection: Connection::default(),
            sends: WorkQueue::default(),
            receives: WorkQueue::default(),
            completed: 0,
            polled: 0,
            heard_at: None,
            asked_at: None,
            first_failure: None,
            made_at: 0,
        }
    }

    pub(super) fn made(qpn: Qpn, at: u64, call: &Call) -> Pair {
        let mut pair = Pair { made_at: at, state_since: at, ..Pair::unknown(qpn) };
        if let Call::CreateQp {
            kind,
            context,
            pd,
            send_cq,
            receive_cq,
            srq,
            max_send_wr,
            max_recv_wr,
            max_send_sge,
            max_recv_sge,
            max_inline_data,
            signals_all,
        } = *call
        {
            pair.kind = kind;
            pair.context = context;
            pair.pd = pd;
            pair.send_cq = send_cq;
            pair.receive_cq = receive_cq;
            pair.srq = srq.map(wire::Srqn::value);
            pair.max_send_wr = max_send_wr;
            pair.max_recv_wr = max_recv_wr;
            pair.max_send_sge = max_send_sge;
            pair.max_recv_sge = max_recv_sge;
            pair.max_inline_data = max_inline_data;
            pair.signals_all = signals_all;
        }
        pair
    }

    /// It is in RESET again: its work is gone.
    pub(super) fn reset(&mut self) {
        self.sends = WorkQueue::default();
        self.receives = WorkQueue::default();
        self.connection = Connection::default();
        self.first_failure = None;
        self.heard_at = None;
        self.asked_at = None;
    }
}

/// What the program said of a connection, with `ibv_modify_qp` or through the connection manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Connection {
    /// The queue pair of the peer.
    pub dest_qpn: Option<Qpn>,
    /// See `ibv_qp_attr`.
    pub rq_psn: Option<u32>,
    /// See there.
    pub sq_psn: Option<u32>,
    /// In bytes.
    pub path_mtu: Option<u32>,
    /// See there.
    pub pkey_index: Option<u32>,
    /// See there.
    pub qkey: Option<Qkey>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// See there.
    pub max_rd_atomic: Option<u32>,
    /// See there.
    pub max_dest_rd_atomic: Option<u32>,
    /// As the number verbs have.
    pub min_rnr_timer: Option<u8>,
    /// As the number verbs have.
    pub timeout: Option<u8>,
    /// See there.
    pub retry_cnt: Option<u8>,
    /// See there.
    pub rnr_retry: Option<u8>,
    /// Where the peer is.
    pub dgid: Option<[u8; 16]>,
    /// Its own GID, by which the peer knows it.
    pub sgid: Option<[u8; 16]>,
    /// How many routers its packets may pass, and one.
    pub hop_limit: Option<u8>,
}

impl Connection {
    /// The way that it sends from now on.
    pub(super) fn sends_by(&mut self, sgid: Option<[u8; 16]>, dgid: [u8; 16], hop_limit: u8) {
        self.sgid = sgid;
        self.dgid = Some(dgid);
        self.hop_limit = Some(hop_limit);
    }

    pub(super) fn modified(&mut self, call: &Call) {
        let Call::ModifyQp {
            pkey_index,
            access,
            qkey,
            path_mtu,
            dest_qpn,
            rq_psn,
            sq_psn,
            max_rd_atomic,
            max_dest_rd_atomic,
            min_rnr_timer,
            timeout,
            retry_cnt,
            rnr_retry,
            dgid,
            ..
        } = *call
        else {
            return;
        };
        self.pkey_index = pkey_index.or(self.pkey_index);
        self.access = access.or(self.access);
        self.qkey = qkey.or(self.qkey);
        self.path_mtu = path_mtu.or(self.path_mtu);
        self.dest_qpn = dest_qpn.or(self.dest_qpn);
        self.rq_psn = rq_psn.or(self.rq_psn);
        self.sq_psn = sq_psn.or(self.sq_psn);
        self.max_rd_atomic = max_rd_atomic.or(self.max_rd_atomic);
        self.max_dest_rd_atomic = max_dest_rd_atomic.or(self.max_dest_rd_atomic);
        self.min_rnr_timer = min_rnr_timer.or(self.min_rnr_timer);
        self.timeout = timeout.or(self.timeout);
        self.retry_cnt = retry_cnt.or(self.retry_cnt);
        self.rnr_retry = rnr_retry.or(self.rnr_retry);
        self.dgid = dgid.or(self.dgid);
    }
}
