//! Names and numbers that scripts may say: errno, statuses of completions, events, messages, reasons, signals, calls.

#[cfg(feature = "parse")]
use alloc::vec::Vec;

/// Names with their numbers.
pub type Table = &'static [(&'static str, u32)];

/// The number of a name in a table.
#[must_use]
pub fn number(table: Table, name: &str) -> Option<u32> {
    table.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The first name of a number in a table.
#[must_use]
pub fn name(table: Table, number: u32) -> Option<&'static str> {
    table.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
}

/// Errors of the system, with the numbers of Linux.
pub const ERRNOS: Table = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("ENODEV", 19),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ENOSPC", 28),
    ("ERANGE", 34),
    ("ENOSYS", 38),
    ("ENODATA", 61),
    ("EREMOTEIO", 121),
    ("EPROTO", 71),
    ("EOVERFLOW", 75),
    ("EMSGSIZE", 90),
    ("EPROTONOSUPPORT", 93),
    ("EOPNOTSUPP", 95),
    ("ENOTSUP", 95),
    ("EAFNOSUPPORT", 97),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETDOWN", 100),
    ("ENETUNREACH", 101),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", 106),
    ("ENOTCONN", 107),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
    ("EALREADY", 114),
    ("ESTALE", 116),
    ("ECANCELED", 125),
];

/// `ibv_wc_status` without `IBV_WC_`.
pub const STATUSES: Table = &[
    ("LOC_LEN_ERR", 1),
    ("LOC_QP_OP_ERR", 2),
    ("LOC_PROT_ERR", 4),
    ("WR_FLUSH_ERR", 5),
    ("MW_BIND_ERR", 6),
    ("BAD_RESP_ERR", 7),
    ("LOC_ACCESS_ERR", 8),
    ("REM_INV_REQ_ERR", 9),
    ("REM_ACCESS_ERR", 10),
    ("REM_OP_ERR", 11),
    ("RETRY_EXC_ERR", 12),
    ("RNR_RETRY_EXC_ERR", 13),
    ("REM_ABORT_ERR", 16),
    ("GENERAL_ERR", 21),
];

/// Whether work of this kind can complete with a status of [`STATUSES`] (InfiniBand specification, 11.6.2): some are what
/// a requester makes of its peer's answers, or of none; others are a responder's alone.
#[must_use]
pub fn completes_with(status: u32, is_receive: bool, pair_kind: &str) -> bool {
    let is_reliable = !matches!(pair_kind, "UC" | "UD" | "RAW_PACKET");
    let has_remote_access = !matches!(pair_kind, "UD" | "RAW_PACKET");
    match status {
        // BAD_RESP_ERR, REM_INV_REQ_ERR, REM_ACCESS_ERR, REM_OP_ERR, RETRY_EXC_ERR, RNR_RETRY_EXC_ERR
        7 | 9..=13 => !is_receive && is_reliable && pair_kind != "XRC_RECV",
        // MW_BIND_ERR
        6 => !is_receive && has_remote_access && pair_kind != "XRC_RECV",
        // LOC_ACCESS_ERR: of a receive that a WRITE with immediate data takes
        8 => is_receive && has_remote_access && pair_kind != "XRC_SEND",
        _ => true,
    }
}

/// Vendor errors that ConnectX gives with a status, where its driver's tables and users' reports name one.
#[cfg(feature = "parse")]
pub(crate) const VENDOR_ERRORS: &[(u32, u32)] =
    &[(2, 0x68), (4, 0x51), (5, 0xf9), (9, 0x8a), (10, 0x88), (11, 0x89), (12, 0x81), (13, 0x87)];

/// `rdma_cm_event_type` without `RDMA_CM_EVENT_`, as far as an event is a failure.
pub const CM_EVENTS: Table = &[
    ("ADDR_ERROR", 1),
    ("ROUTE_ERROR", 3),
    ("CONNECT_ERROR", 6),
    ("UNREACHABLE", 7),
    ("REJECTED", 8),
    ("DISCONNECTED", 10),
    ("DEVICE_REMOVAL", 11),
    ("MULTICAST_ERROR", 13),
    ("ADDR_CHANGE", 14),
    ("TIMEWAIT_EXIT", 15),
];

/// The event in whose place an event of [`CM_EVENTS`] comes; the others come by themselves.
#[must_use]
pub fn replaced_cm_event(event: u32) -> Option<u32> {
    match event {
        1 => Some(0),
        3 => Some(2),
        6..=8 => Some(9),
        13 => Some(12),
        _ => None,
    }
}

/// Reasons of a REJ, by their names in the kernel.
pub const REJECT_REASONS: Table = &[
    ("NO_QP", 1),
    ("NO_EEC", 2),
    ("NO_RESOURCES", 3),
    ("TIMEOUT", 4),
    ("UNSUPPORTED", 5),
    ("INVALID_COMM_ID", 6),
    ("INVALID_COMM_INSTANCE", 7),
    ("INVALID_SERVICE_ID", 8),
    ("INVALID_TRANSPORT_TYPE", 9),
    ("STALE_CONN", 10),
    ("RDC_NOT_EXIST", 11),
    ("INVALID_GID", 12),
    ("INVALID_LID", 13),
    ("INVALID_SL", 14),
    ("INVALID_TRAFFIC_CLASS", 15),
    ("INVALID_HOP_LIMIT", 16),
    ("INVALID_PACKET_RATE", 17),
    ("INVALID_ALT_GID", 18),
    ("INVALID_ALT_LID", 19),
    ("INVALID_ALT_SL", 20),
    ("INVALID_ALT_TRAFFIC_CLASS", 21),
    ("INVALID_ALT_HOP_LIMIT", 22),
    ("INVALID_ALT_PACKET_RATE", 23),
    ("PORT_CM_REDIRECT", 24),
    ("PORT_REDIRECT", 25),
    ("INVALID_MTU", 26),
    ("INSUFFICIENT_RESP_RESOURCES", 27),
    ("CONSUMER_DEFINED", 28),
    ("INVALID_RNR_RETRY", 29),
    ("DUPLICATE_LOCAL_COMM_ID", 30),
    ("INVALID_CLASS_VERSION", 31),
    ("INVALID_FLOW_LABEL", 32),
    ("INVALID_ALT_FLOW_LABEL", 33),
];

/// Messages of the connection manager, by their attribute identifiers.
pub const CM_MESSAGES: Table = &[
    ("REQ", 0x10),
    ("MRA", 0x11),
    ("REJ", 0x12),
    ("REP", 0x13),
    ("RTU", 0x14),
    ("DREQ", 0x15),
    ("DREP", 0x16),
    ("SIDR_REQ", 0x17),
    ("SIDR_REP", 0x18),
    ("LAP", 0x19),
    ("APR", 0x1a),
];

/// Signals that `kill` sends, with the numbers of Linux.
pub const SIGNALS: Table = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("BUS", 7),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("TERM", 15),
];

/// Types of queue pairs.
pub const PAIR_KINDS: &[&str] = &["RC", "UC", "UD", "XRC_SEND", "XRC_RECV", "RAW_PACKET"];

/// Calls that can be named. A name with `*` at its end stands for all that begin so.
pub const CALLS: &[&str] = &[
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_advise_mr",
    "ibv_alloc_dm",
    "ibv_alloc_mw",
    "ibv_alloc_null_mr",
    "ibv_alloc_parent_domain",
    "ibv_alloc_pd",
    "ibv_alloc_td",
    "ibv_attach_mcast",
    "ibv_bind_mw",
    "ibv_close_device",
    "ibv_close_xrcd",
    "ibv_create_ah",
    "ibv_create_ah_from_wc",
    "ibv_create_comp_channel",
    "ibv_create_comp_cntr",
    "ibv_create_counters",
    "ibv_create_cq",
    "ibv_create_cq_ex",
    "ibv_create_flow",
    "ibv_create_qp",
    "ibv_create_qp_ex",
    "ibv_create_rwq_ind_table",
    "ibv_create_srq",
    "ibv_create_srq_ex",
    "ibv_create_wq",
    "ibv_dealloc_mw",
    "ibv_dealloc_pd",
    "ibv_dealloc_td",
    "ibv_dereg_mr",
    "ibv_destroy_ah",
    "ibv_destroy_comp_channel",
    "ibv_destroy_comp_cntr",
    "ibv_destroy_counters",
    "ibv_destroy_cq",
    "ibv_destroy_flow",
    "ibv_destroy_qp",
    "ibv_destroy_rwq_ind_table",
    "ibv_destroy_srq",
    "ibv_destroy_wq",
    "ibv_detach_mcast",
    "ibv_free_dm",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_list",
    "ibv_import_device",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_modify_cq",
    "ibv_modify_qp",
    "ibv_modify_qp_rate_limit",
    "ibv_modify_srq",
    "ibv_modify_wq",
    "ibv_open_device",
    "ibv_open_qp",
    "ibv_open_xrcd",
    "ibv_poll_cq",
    "ibv_post_recv",
    "ibv_post_send",
    "ibv_post_srq_ops",
    "ibv_post_srq_recv",
    "ibv_post_wq_recv",
    "ibv_query_device",
    "ibv_query_device_ex",
    "ibv_query_ece",
    "ibv_query_gid",
    "ibv_query_gid_ex",
    "ibv_query_gid_table",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_query_rt_values_ex",
    "ibv_query_srq",
    "ibv_reg_dm_mr",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr",
    "ibv_reg_mr_ex",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_req_notify_cq",
    "ibv_rereg_mr",
    "ibv_resize_cq",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_set_ece",
    "ibv_start_poll",
    "ibv_wr_abort",
    "ibv_wr_complete",
    "ibv_wr_start",
    "rdma_accept",
    "rdma_ack_cm_event",
    "rdma_bind_addr",
    "rdma_connect",
    "rdma_create_ep",
    "rdma_create_event_channel",
    "rdma_create_id",
    "rdma_create_qp",
    "rdma_create_qp_ex",
    "rdma_create_srq",
    "rdma_create_srq_ex",
    "rdma_destroy_ep",
    "rdma_destroy_id",
    "rdma_destroy_qp",
    "rdma_destroy_srq",
    "rdma_disconnect",
    "rdma_establish",
    "rdma_get_cm_event",
    "rdma_get_devices",
    "rdma_get_request",
    "rdma_getaddrinfo",
    "rdma_join_multicast",
    "rdma_join_multicast_ex",
    "rdma_leave_multicast",
    "rdma_listen",
    "rdma_migrate_id",
    "rdma_notify",
    "rdma_reject",
    "rdma_resolve_addr",
    "rdma_resolve_route",
    "rdma_set_option",
    "umad_recv",
    "umad_register",
    "umad_register2",
    "umad_send",
];

/// Calls that programs write by another name than the library hears: macros of `verbs.h`.
const WRITTEN_AS: &[(&str, &str)] = &[
    ("ibv_reg_mr_iova2", "ibv_reg_mr"),
    ("ibv_reg_mr_iova2", "ibv_reg_mr_iova"),
    ("ibv_create_qp_ex", "ibv_create_qp"),
];

/// Whether a call of this name is one of those that a script names.
#[must_use]
pub fn names_call(named: &str, call: &str) -> bool {
    match named.strip_suffix('*') {
        Some(prefix) => call.starts_with(prefix),
        None => named == call || WRITTEN_AS.contains(&(call, named)),
    }
}

/// The known word that is nearest to this one, if one is near.
#[cfg(feature = "parse")]
#[must_use]
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MAX_COMPARED: usize = 40;
    if word.len() > MAX_COMPARED {
        return None;
    }
    let limit = (word.len() / 3).clamp(1, 4);
    let near = known.into_iter().map(|known| (distance(word.as_bytes(), known.as_bytes()), known));
    near.filter(|(steps, _)| *steps <= limit).min().map(|(_, known)| known)
}

/// How many characters must be added, taken away or changed (Levenshtein); capital letters are no others.
#[cfg(feature = "parse")]
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, from) in one.iter().enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], above + 1);
        for (at, to) in other.iter().enumerate() {
            let changed = diagonal + usize::from(!from.eq_ignore_ascii_case(to));
            diagonal = row[at + 1];
            row[at + 1] = changed.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(all(test, feature = "parse"))]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found_and_a_far_one_is_not() {
        assert_eq!(nearest("port-dwon", ["port-up", "port-down"]), Some("port-down"));
        assert_eq!(nearest("enomem", ["EIO", "ENOMEM"]), Some("ENOMEM"));
        assert_eq!(nearest("banana", ["port-up", "port-down"]), None);
        assert_eq!(nearest("", ["port-up"]), None);
    }

    #[test]
    fn a_call_goes_by_the_name_that_programs_write() {
        assert!(names_call("ibv_reg_mr", "ibv_reg_mr"));
        assert!(names_call("ibv_reg_mr", "ibv_reg_mr_iova2"));
        assert!(!names_call("ibv_reg_mr", "ibv_reg_mr_ex"));
        assert!(names_call("ibv_reg_*", "ibv_reg_dmabuf_mr"));
        assert!(!names_call("rdma_*", "ibv_reg_mr"));
    }

    #[test]
    fn statuses_are_those_of_sends_of_receives_or_of_both() {
        let takers = |name: &str| {
            let status = number(STATUSES, name).unwrap();
            let takes = |is_receive| {
                PAIR_KINDS.iter().copied().filter(|kind| completes_with(status, is_receive, kind)).collect::<Vec<_>>()
            };
            (takes(false), takes(true))
        };
        for of_requester in ["BAD_RESP_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR"] {
            assert_eq!(takers(of_requester), (["RC", "XRC_SEND"].into(), [].into()), "{of_requester}");
        }
        assert_eq!(takers("RNR_RETRY_EXC_ERR"), takers("RETRY_EXC_ERR"));
        assert_eq!(takers("MW_BIND_ERR"), (["RC", "UC", "XRC_SEND"].into(), [].into()));
        assert_eq!(takers("LOC_ACCESS_ERR"), ([].into(), ["RC", "UC", "XRC_RECV"].into()));
        for of_both in ["LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "GENERAL_ERR"] {
            assert_eq!(takers(of_both), (PAIR_KINDS.into(), PAIR_KINDS.into()), "{of_both}");
        }
    }

    #[test]
    fn names_and_numbers_lead_to_each_other() {
        for table in [ERRNOS, STATUSES, CM_EVENTS, REJECT_REASONS, CM_MESSAGES, SIGNALS] {
            for (word, value) in table {
                assert_eq!(number(table, word), Some(*value));
                assert!(name(table, *value).is_some());
            }
        }
        assert_eq!(name(STATUSES, 12), Some("RETRY_EXC_ERR"));
    }
}
