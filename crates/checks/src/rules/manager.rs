//! The connection manager: UV-07xx. Ids and what becomes of them are in `ids`; what is done with their queue pairs is in
//! `pairs`.

mod ids;
mod pairs;

use crate::checker::{Examine, Moment, Out, Sort};
use crate::model::Model;
use crate::rule::rules;
use crate::witness::Witness;

rules! {
    ROUTE_BEFORE_ADDRESS = 701 Error "rdma_resolve_route is called before RDMA_CM_EVENT_ADDR_RESOLVED was taken";
    CONNECT_BEFORE_ROUTE = 702 Error "rdma_connect is called before RDMA_CM_EVENT_ROUTE_RESOLVED was taken";
    DESTROY_WAITS_FOR_ACK = 703 Error "rdma_destroy_id waits for an event that is not acknowledged";
    ACKNOWLEDGED_TWICE = 704 Error "an event of the connection manager is acknowledged twice";
    NEVER_ACKNOWLEDGED = 705 Warning "events of the connection manager are never acknowledged";
    REQUEST_NOT_ANSWERED = 706 Warning "a connection request is neither accepted nor rejected";
    DISCONNECT_NOT_ANSWERED = 707 Warning "the peer's disconnect is not answered";
    DESTROYED_CONNECTED = 708 Note "an id is destroyed while its connection stands";
    RECEIVES_AFTER_ACCEPT = 709 Warning "the peer's message came before a receive was posted on a new connection";
    MORE_READS_THAN_OFFERED = 710 Error "rdma_accept takes more READs at a time than the peer offered";
    RETRIES_OUT_OF_RANGE = 711 Warning "a retry count of rdma_conn_param is larger than 7";
    PAIR_LEFT_BEHIND = 712 Warning "an id is destroyed before its queue pair";
    MOVED_BY_HAND = 714 Warning "the program moves a queue pair that the connection manager moves";
    QKEY_NOT_OF_EVENT = 715 Error "a datagram does not show the Q_Key that the connection manager told";
    GROUP_NOT_LEFT = 716 Warning "an id is destroyed while it is in a multicast group";
    SENDS_AFTER_END = 717 Warning "work is posted for a connection that has ended";
    SENDS_BEFORE_ESTABLISHED = 718 Warning "work is posted before RDMA_CM_EVENT_ESTABLISHED was taken";
    CHANNEL_DESTROYED_EARLY = 719 Error "an event channel is destroyed while ids report to it";
    NO_QUEUE_PAIR = 720 Error "a connection is asked for or accepted without a queue pair";
}

/// The family.
#[derive(Default, Debug)]
pub(crate) struct Manager {
    ids: ids::Ids,
    pairs: pairs::Pairs,
}

impl Examine for Manager {
    fn sees(&self) -> Sort {
        Sort::POST | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        self.pairs.observe(moment, &self.ids, out);
        self.ids.observe(moment, out);
    }

    fn tick(&mut self, now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.ids.tick(now, out);
    }

    fn finish(&mut self, _now: u64, _model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        self.ids.finish(out);
    }
}
