//! Queue pairs of simulated hosts. One that is not in use is a few words: its numbers and its way. The transport's
//! queue pair is made when it is needed, and given up again when many others are and it has nothing to remember.

use crate::calls::{create_call, modify_call};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use transport::{
    Access, AddressVector, Capabilities, Kind, Limits, Modify, Port, ProtectionDomain, QueuePair, QueuePairConfig,
    State, Time, Train,
};
use wire::{Gid, Headers, Mtu, Pkey, Psn, Qpn, Srqn};

/// Queue pair numbers begin after those that management has.
const FIRST_QPN: u32 = 0x10;

/// The most queue pairs there can be: numbers have 24 bits.
pub(crate) const MAX_QUEUE_PAIRS: usize = (1 << 24) - FIRST_QPN as usize;

/// Work requests that one holds.
const SEND_QUEUE_DEPTH: u32 = 1 << 15;

/// A queue pair at rest, and in use.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub host: u32,
    pub peer_host: u32,
    /// The one at the other end.
    pub peer: u32,
    /// Where its way begins in the list of all paths.
    pub path: u32,
    pub window: u32,
    pub sq_psn: Psn,
    pub rq_psn: Psn,
    /// Messages to and from it that are not over.
    pub open: u32,
    pub live: Option<Box<Live>>,
}

/// One in use.
#[derive(Debug)]
pub(crate) struct Live {
    pub qp: QueuePair,
    /// What it wants to send and the port has not taken yet.
    pub pending: VecDeque<Pending>,
    /// The sequence number after the last that has left.
    pub high: Psn,
    /// When it will be woken.
    pub armed: u64,
    /// It is in the list of its port.
    pub ready: bool,
}

/// A train of which packets are left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    headers: Headers,
    count: u32,
    next: u32,
    mtu: u32,
    payload: u32,
    /// Of requests: the work request.
    pub wr_id: Option<u64>,
}

impl Pending {
    pub fn new(train: &Train<'_>) -> Pending {
        Pending {
            headers: train.headers,
            count: train.count,
            next: 0,
            mtu: train.mtu,
            payload: train.payload.len(),
            wr_id: train.wr_id,
        }
    }

    /// The next packet: its headers and the length of its payload.
    pub fn packet(&mut self) -> (Headers, u32) {
        let index = self.next;
        self.next += 1;
        let headers = wire::packet_of(&self.headers, self.count, index, self.payload, self.mtu);
        (headers, wire::slice_of(self.count, index, self.payload, self.mtu).1)
    }

    /// The sequence number after its last.
    pub fn end(&self) -> Psn {
        self.headers.bth.psn.add(self.count)
    }

    pub fn is_over(&self) -> bool {
        self.next >= self.count
    }
}

/// What queue pairs of a network have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub mtu: Mtu,
    pub timeout: u8,
    pub retries: u8,
    pub line_rate: u64,
    pub obeys_congestion: bool,
}

/// The number of an endpoint on the wire.
pub(crate) fn qpn_of(endpoint: u32) -> Qpn {
    Qpn::new(endpoint + FIRST_QPN)
}

/// The endpoint of a number.
pub(crate) fn endpoint_of(qpn: Qpn) -> u32 {
    qpn.value().wrapping_sub(FIRST_QPN)
}

/// The address of a host: 10.0.0.1 and on.
pub(crate) fn gid_of(host: u32) -> Gid {
    let [_, a, b, c] = (host + 1).to_be_bytes();
    Gid::from_ipv4(Ipv4Addr::new(10, a, b, c))
}

impl Endpoint {
    /// The transport's queue pair, connected.
    pub fn wake<P: Port>(
        &mut self,
        number: u32,
        settings: &Settings,
        now: Time,
        port: &mut P,
    ) -> Result<&mut Live, transport::ModifyError> {
        if self.live.is_none() {
            let qp = self.connected(number, settings, now, port)?;
            let high = self.sq_psn;
            self.live = Some(Box::new(Live { qp, pending: VecDeque::new(), high, armed: u64::MAX, ready: false }));
        }
        Ok(self.live.as_mut().expect("it was just made"))
    }

    fn connected<P: Port>(
        &self,
        number: u32,
        settings: &Settings,
        now: Time,
        port: &mut P,
    ) -> Result<QueuePair, transport::ModifyError> {
        let config = QueuePairConfig {
            qpn: qpn_of(number),
            kind: Kind::ReliableConnected,
            pd: ProtectionDomain(1),
            capabilities: Capabilities {
                max_send_wr: SEND_QUEUE_DEPTH,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            srq: Some(Srqn::new(1)),
            signal_all: true,
            limits: Limits {
                line_rate: settings.line_rate,
                obeys_congestion: settings.obeys_congestion,
                // The network cards that are simulated here go back.
                keeps_early: false,
                ..Limits::default()
            },
            pkey: Pkey::DEFAULT,
            port_mtu: Mtu::B4096,
        };
        tell(number, now, port, || create_call(&config));
        let mut qp = QueuePair::new(config);
        let init = Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_WRITE),
            ..Modify::default()
        };
        let receive = Modify {
            state: Some(State::ReadyToReceive),
            av: Some(AddressVector { dgid: gid_of(self.peer_host), ..AddressVector::default() }),
            path_mtu: Some(settings.mtu),
            dest_qpn: Some(qpn_of(self.peer)),
            rq_psn: Some(self.rq_psn),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(1),
            ..Modify::default()
        };
        let send = Modify {
            state: Some(State::ReadyToSend),
            timeout: Some(settings.timeout),
            retry_cnt: Some(settings.retries),
            rnr_retry: Some(7),
            sq_psn: Some(self.sq_psn),
            max_rd_atomic: Some(1),
            ..Modify::default()
        };
        for step in [init, receive, send] {
            tell(number, now, port, || modify_call(&step));
            qp.modify(now, &step, port)?;
        }
        Ok(qp)
    }

    /// Gives the transport's queue pair up, if it has nothing to remember but its numbers. Returns it.
    pub fn rest(&mut self, now: Time) -> Option<Box<Live>> {
        let live = self.live.as_mut()?;
        let quiet = self.open == 0
            && live.qp.state() == State::ReadyToSend
            && live.pending.is_empty()
            && !live.ready
            && !live.qp.may_transmit()
            && live.qp.poll_timeout().is_none()
            && live.qp.congested_rate(now).is_none();
        if !quiet {
            return None;
        }
        let attributes = live.qp.attributes();
        (self.sq_psn, self.rq_psn) = (attributes.sq_psn, attributes.rq_psn);
        self.live.take()
    }
}

/// Tells of a call, if anyone listens.
fn tell<P: Port>(number: u32, now: Time, port: &mut P, call: impl FnOnce() -> trace::Kind) {
    if port.tracing() {
        port.record(&trace::Event { at: now.as_nanos(), qpn: Some(qpn_of(number)), kind: call() });
    }
}
