//! Queue pairs and how they are connected: UV-05xx. What one end says alone is judged in `settings`, what both say in
//! `ends`, what goes from one to the other in `traffic`, and what becomes of a queue pair in `life`.

mod ends;
mod life;
mod peer;
mod settings;
mod traffic;

use alloc::collections::BTreeSet;

use trace::{Call, Kind};
use wire::Qpn;

use crate::checker::{Examine, Moment, Out, Sort};
use crate::model::Model;
use crate::rule::rules;
use crate::witness::Witness;

rules! {
    PATH_MTU_DIFFERS = 501 Error "the two ends of a connection have different path MTUs";
    PSN_DIFFERS = 502 Error "one end sends from another sequence number than the other expects";
    QKEY_DIFFERS = 503 Error "a datagram shows another Q_Key than its receiver has";
    PKEY_DIFFERS = 504 Error "a packet shows another P_Key than its receiver has";
    NO_SUCH_PEER = 505 Error "a queue pair is connected to one that does not exist";
    PEER_OF_ANOTHER = 506 Error "a queue pair is connected to one that is connected to another";
    KINDS_DIFFER = 507 Error "the two ends of a connection are of different types";
    ADDRESS_DIFFERS = 508 Error "one end sends from another address than the other expects";
    IP_VERSION_DIFFERS = 509 Error "source and destination GID are of different IP versions";
    LINK_LOCAL_SOURCE = 510 Warning "a link-local source GID goes to an address that is none";
    NO_HOPS = 511 Note "the hop limit lets no router pass the packets on";
    NO_RETRIES = 512 Warning "retry_cnt is 0: one lost packet ends the connection";
    NO_RNR_RETRIES = 513 Note "rnr_retry is 0: a receive posted late ends the connection";
    NO_TIMEOUT = 514 Warning "timeout is 0: a lost packet is waited for without end";
    LONG_TIMEOUT = 515 Note "a peer that is gone is noticed after more than five minutes";
    SHORT_TIMEOUT = 516 Performance "timeout is shorter than acknowledgements take on a busy host";
    LONG_RNR_TIMER = 517 Performance "min_rnr_timer is 0, which means 655 milliseconds";
    READS_EXCEED_PEER = 518 Warning "max_rd_atomic is larger than the peer's max_dest_rd_atomic";
    ACCESS_NOT_GRANTED = 519 Error "the peer's queue pair does not allow the operation";
    WAITS_FOR_RECEIVE = 520 Warning "a sender waits without end for a receive that nobody posts";
    PEER_NOT_READY = 521 Warning "work is posted while the peer cannot receive yet";
    NEVER_READY = 522 Warning "a queue pair got work and was never brought to the state that does it";
    SQE_NOT_HANDLED = 523 Error "work is posted to a send queue that has stopped (SQE)";
    POSTED_IN_ERROR = 524 Warning "work is posted to a queue pair that has failed";
    ERROR_NOT_SEEN = 525 Warning "a queue pair failed by what its peer did and the program never looked";
    DATAGRAM_TO_NOBODY = 526 Error "a datagram goes to a queue pair that cannot take it";
    FIRST_RECEIVE_LATE = 527 Warning "the peer's message came before the first receive was posted";
    SRQ_RAN_EMPTY = 528 Performance "a shared receive queue ran empty";
    SRQ_LIMIT_NOT_REARMED = 529 Warning "the limit of a shared receive queue was not set again";
    NUMBER_CUT = 530 Error "the number of the peer's queue pair has more than 24 bits";
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Connections {
    /// Queue pairs that changed with the event before this one: the model has the change only now.
    changed: BTreeSet<Qpn>,
    peers: peer::Peers,
    traffic: traffic::Traffic,
    life: life::Life,
}

impl Connections {
    /// Compares the ends that changed.
    fn compare_changed(&mut self, model: &Model, out: &mut Out<'_>) {
        while let Some(qpn) = self.changed.pop_first() {
            self.peers.named(qpn, model);
            for end in self.peers.touched_by(qpn, model) {
                ends::compare(end, &self.peers.of(end, model), self.peers.may_be_managed(end.qpn), out);
            }
        }
    }
}

impl Examine for Connections {
    fn sees(&self) -> Sort {
        Sort::all() - Sort::SENT
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        if let Kind::Called { call: Call::Poll { .. } | Call::Polled { status: "IBV_WC_SUCCESS", .. }, .. } =
            moment.event.kind
        {
            return;
        }
        self.compare_changed(moment.model, out);
        if let (Kind::Called { call, .. }, None) = (&moment.event.kind, moment.event.qpn) {
            match *call {
                Call::Path { sgid, dgid, hop_limit } => settings::way(None, sgid, dgid, hop_limit, out),
                // Attributes of a queue pair were asked of the connection manager.
                Call::CmMovesQp { .. } => self.peers.manager_is_used(),
                Call::CmEvent { event: "RDMA_CM_EVENT_CONNECT_REQUEST", id, .. } => self.peers.asked(id),
                _ => {}
            }
        }
        if let (Kind::Called { call, .. }, Some(qpn)) = (&moment.event.kind, moment.event.qpn) {
            match call {
                // Nothing of a connection that is taken down is compared.
                Call::ModifyQp { state: Some("ERR" | "RESET" | "SQD"), .. } => {
                    self.changed.remove(&qpn);
                }
                Call::ModifyQp { .. } | Call::Path { .. } => {
                    settings::judge(qpn, call, &self.peers, moment.model, out);
                    self.changed.insert(qpn);
                }
                Call::PeerSeen { .. } => {
                    self.peers.seen(call);
                    self.changed.insert(qpn);
                }
                Call::NumberCut { given } => out.tell(settings::number_cut(qpn, *given, moment.model)),
                Call::CmMovesQp { id, .. } => self.peers.managed(qpn, *id),
                Call::DestroyQp { .. } => self.peers.forget(qpn, moment.model),
                _ => {}
            }
        }
        self.traffic.observe(moment, &self.peers, out);
        if !matches!(moment.event.kind, Kind::PacketReceived { .. }) {
            self.life.observe(moment, out);
        }
    }

    fn tick(&mut self, now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.compare_changed(model, out);
        self.traffic.tick(now, model, &self.peers, out);
    }

    fn finish(&mut self, now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.compare_changed(model, out);
        self.traffic.tick(now, model, &self.peers, out);
        self.life.finish(model, out);
    }
}
