//! The calls that a program on a simulated host would make, as events.

use trace::{Call, Kind};
use transport::{Modify, QueuePairConfig};

/// The call by which a program would make this queue pair.
pub(crate) fn create_call(config: &QueuePairConfig) -> Kind {
    let capabilities = config.capabilities;
    let call = Call::CreateQp {
        kind: config.kind.name(),
        context: 1,
        pd: config.pd.0,
        send_cq: Some(1),
        receive_cq: Some(1),
        srq: config.srq,
        max_send_wr: capabilities.max_send_wr,
        max_recv_wr: capabilities.max_recv_wr,
        max_send_sge: capabilities.max_send_sge,
        max_recv_sge: capabilities.max_recv_sge,
        max_inline_data: capabilities.max_inline_data,
        signals_all: config.signal_all,
    };
    Kind::Called { thread: 0, call }
}

/// The call by which a program would change a queue pair so.
pub(crate) fn modify_call(modify: &Modify) -> Kind {
    let call = Call::ModifyQp {
        state: modify.state.map(|state| state.name()),
        pkey_index: modify.pkey_index.map(u32::from),
        port: modify.port,
        access: modify.access,
        qkey: modify.qkey,
        path_mtu: modify.path_mtu.map(|mtu| mtu.bytes()),
        dest_qpn: modify.dest_qpn,
        rq_psn: modify.rq_psn.map(|psn| psn.value()),
        sq_psn: modify.sq_psn.map(|psn| psn.value()),
        max_rd_atomic: modify.max_rd_atomic.map(u32::from),
        max_dest_rd_atomic: modify.max_dest_rd_atomic.map(u32::from),
        min_rnr_timer: modify.min_rnr_timer,
        timeout: modify.timeout,
        retry_cnt: modify.retry_cnt,
        rnr_retry: modify.rnr_retry,
        dgid: modify.av.as_ref().map(|av| av.dgid.octets()),
        sgid_index: modify.av.as_ref().map(|av| av.sgid_index),
    };
    Kind::Called { thread: 0, call }
}
