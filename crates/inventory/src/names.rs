//! A port's counters by the names that the kernel and hardware give them. Where a name counts something that cannot
//! happen here, a link that is retrained, say, it is 0.

use transport::Counters;

/// The files in `counters`: what InfiniBand's port counters are (volume 1, 16.1.3.5). Data is in units of four octets,
/// from the IP header to the ICRC; waiting in microseconds.
pub fn port(counters: &Counters) -> Vec<(&'static str, u64)> {
    let Counters { traffic, incidents, .. } = counters;
    let (sent_groups, received_groups) = (incidents.multicast_sent_packets, incidents.multicast_received_packets);
    vec![
        ("VL15_dropped", 0),
        ("excessive_buffer_overrun_errors", 0),
        ("link_downed", 0),
        ("link_error_recovery", 0),
        ("local_link_integrity_errors", 0),
        ("multicast_rcv_packets", received_groups),
        ("multicast_xmit_packets", sent_groups),
        ("port_rcv_constraint_errors", 0),
        ("port_rcv_data", traffic.received_octets / 4),
        ("port_rcv_errors", incidents.receive_errors),
        ("port_rcv_packets", traffic.received_packets),
        ("port_rcv_remote_physical_errors", 0),
        ("port_rcv_switch_relay_errors", 0),
        ("port_xmit_constraint_errors", 0),
        ("port_xmit_data", traffic.sent_octets / 4),
        ("port_xmit_discards", incidents.send_errors),
        ("port_xmit_packets", traffic.sent_packets),
        ("port_xmit_wait", incidents.wait_nanos / 1000),
        ("symbol_error", 0),
        ("unicast_rcv_packets", traffic.received_packets.saturating_sub(received_groups)),
        ("unicast_xmit_packets", traffic.sent_packets.saturating_sub(sent_groups)),
    ]
}

/// The files in `hw_counters`: what queue pairs count, and why the NIC's engine woke.
pub fn hardware(counters: &Counters) -> Vec<(&'static str, u64)> {
    let wakes = &counters.engine_wakes;
    let mut all = queue_pair(counters);
    all.extend([
        ("engine_wakes_doorbell", wakes.doorbell),
        ("engine_wakes_socket", wakes.socket),
        ("engine_wakes_bell", wakes.bell),
        ("engine_wakes_interface", wakes.interface),
        ("engine_wakes_link", wakes.link),
        ("engine_wakes_timeout", wakes.timeout),
    ]);
    all
}

/// What queue pairs count: the names of kernel Soft-RoCE in its order, then those of mlx5 that have a meaning here.
pub fn queue_pair(counters: &Counters) -> Vec<(&'static str, u64)> {
    let Counters { traffic, incidents, .. } = counters;
    vec![
        ("sent_pkts", traffic.sent_packets),
        ("rcvd_pkts", traffic.received_packets),
        ("duplicate_request", incidents.duplicate_requests),
        ("out_of_seq_request", incidents.out_of_sequence_requests),
        ("rcvd_rnr_err", incidents.rnr_naks_received),
        ("send_rnr_err", incidents.rnr_naks_sent),
        ("rcvd_seq_err", incidents.sequence_naks_received),
        ("ack_deferred", incidents.acknowledgements_deferred),
        ("retry_exceeded_err", incidents.retries_exceeded),
        ("retry_rnr_exceeded_err", incidents.rnr_retries_exceeded),
        ("completer_retry_err", incidents.retries),
        ("send_err", incidents.send_errors),
        ("link_downed", 0),
        ("rdma_sends", traffic.sends),
        ("rdma_recvs", traffic.receives),
        ("out_of_buffer", incidents.no_receives),
        ("out_of_sequence", incidents.out_of_sequence_requests),
        ("packet_seq_err", incidents.sequence_naks_received),
        ("implied_nak_seq_err", incidents.implied_naks),
        ("local_ack_timeout_err", incidents.timeouts),
        ("rnr_nak_retry_err", incidents.rnr_naks_received),
        ("resp_remote_access_errors", incidents.access_refused),
        ("rx_read_requests", incidents.read_requests),
        ("rx_atomic_requests", incidents.atomic_requests),
        ("np_cnp_sent", incidents.cnps_sent),
        ("rp_cnp_handled", incidents.cnps_handled),
        ("rp_cnp_ignored", incidents.cnps_ignored),
        ("np_ecn_marked_roce_packets", incidents.marked_packets),
        ("rx_icrc_encapsulated", 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_name_comes_twice() {
        for names in [port(&Counters::default()), hardware(&Counters::default())] {
            assert_eq!(names.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), names.len());
        }
    }

    #[test]
    fn data_is_in_units_of_four_octets() {
        let mut counters = Counters::default();
        (counters.traffic.sent_octets, counters.traffic.sent_packets) = (4288, 4);
        counters.incidents.multicast_sent_packets = 1;
        let value = |name| port(&counters).into_iter().find(|(other, _)| *other == name).unwrap().1;
        assert_eq!([value("port_xmit_data"), value("port_xmit_packets"), value("port_rcv_data")], [1072, 4, 0]);
        assert_eq!([value("unicast_xmit_packets"), value("multicast_xmit_packets")], [3, 1]);
    }
}
