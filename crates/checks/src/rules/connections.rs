//! Queue pairs and how they are connected: UV-05xx. What one end says alone is judged in `settings`, what both say in
//! `ends`, what goes from one to the other in `traffic`, and what becomes of a queue pair in `life`.

mod ends;
mod life;
mod peer;
mod settings;
mod traffic;

use trace::{Call, Kind};
use wire::Qpn;

use crate::examine::{Examine, Moment, Out, Sort};
use crate::map::Set;
use crate::model::Model;
use crate::rule::catalogue::connections::*;
use crate::witness::Witness;

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Connections {
    /// Queue pairs that changed with the event before this one: the model has the change only now.
    changed: Set<Qpn>,
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
