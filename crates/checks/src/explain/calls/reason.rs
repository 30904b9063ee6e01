//! From the words of a refusal to its rule, and from the rule to what to do.

use alloc::format;
use alloc::string::String;

use crate::errno;
use crate::rule::Number;
use crate::rule::catalogue::calls::*;
use crate::rule::catalogue::events::INJECTED;

/// Words of a reason, and the rule they belong to. The first that occurs counts.
const RULES_OF_REASONS: &[(&str, Number)] = &[
    ("is not a transition of", NOT_A_TRANSITION),
    ("a work queue goes from RESET", NOT_A_TRANSITION),
    ("as CUR_STATE says", WRONG_CURRENT_STATE),
    ("curr_wq_state", WRONG_CURRENT_STATE),
    ("does not take", ATTRIBUTE_UNWANTED),
    ("attr_mask has a bit", ATTRIBUTE_UNWANTED),
    ("no global route", NO_ROUTE),
    ("is_global is 0", NO_ROUTE),
    ("sgid_index", NO_ROUTE),
    ("no way to", NO_ROUTE),
    ("injected by line", INJECTED),
    ("no host of the network answers", CM_ADDRESS),
    ("is not possible for an id that is", CM_STATE),
    ("the id has", CM_STATE),
    ("the id listens", CM_STATE),
    ("the id is for", VALUE_OUT_OF_RANGE),
    ("of another context", VALUE_OUT_OF_RANGE),
    ("there is no object at", GONE),
    ("there is no such object; it was destroyed", GONE),
    ("is of another kind", VALUE_OUT_OF_RANGE),
    ("private data", PRIVATE_DATA),
    ("READs and atomics at a time than the device", VALUE_OUT_OF_RANGE),
    ("is in use", CM_ADDRESS),
    ("is not an address of this host", CM_ADDRESS),
    ("belongs to no device", CM_ADDRESS),
    ("no route to", CM_ADDRESS),
    ("the address is neither IPv4 nor IPv6", CM_ADDRESS),
    ("no address is that long", CM_ADDRESS),
    ("takes no send work", WRONG_STATE),
    ("takes no receive work", WRONG_STATE),
    ("send queue is full", SEND_QUEUE_FULL),
    ("receive queue is full", RECEIVE_QUEUE_FULL),
    ("scatter/gather entries", TOO_MANY_PIECES),
    ("leads to no memory", LIST_LEADS_NOWHERE),
    ("sg_list is null", NULL),
    ("num_sge", TOO_MANY_PIECES),
    ("cannot take inline data", NOT_SUPPORTED),
    ("which cannot read a GPU's memory", NOT_SUPPORTED),
    ("inline data", INLINE_TOO_LONG),
    ("needs an address handle", TARGET_MISSING),
    ("XRC send needs", TARGET_MISSING),
    ("posted to its shared receive queue", NO_RECEIVE_QUEUE),
    ("an indirection table has no receive queue", VALUE_OUT_OF_RANGE),
    ("has no receive queue", NO_RECEIVE_QUEUE),
    ("longer than 2^31", MESSAGE_LENGTH),
    ("shorter than an Ethernet header", MESSAGE_LENGTH),
    ("queue pair cannot", NOT_SUPPORTED),
    ("send_ops_flags", NOT_SUPPORTED),
    ("no such opcode", NOT_SUPPORTED),
    ("null", NULL),
    ("remote write and remote atomic rights need local write", ACCESS_FLAGS),
    ("these rights cannot be granted", ACCESS_FLAGS),
    ("access flag", ACCESS_FLAGS),
    ("is not among its rights", ACCESS_FLAGS),
    ("a right that", ACCESS_FLAGS),
    ("nothing is mapped at", NOT_MAPPED),
    ("may not be written", NOT_MAPPED),
    ("may not be read", NOT_MAPPED),
    ("cannot be brought in", NOT_MAPPED),
    ("reach past the end of the address space", NOT_MAPPED),
    ("nothing to register", NOT_MAPPED),
    ("is more than the device", LIMIT),
    ("more than the device", LIMIT),
    ("no more may be", LIMIT),
    ("no more ", LIMIT),
    ("the device offers", LIMIT),
    ("out of memory", LIMIT),
    ("of device memory asked for", LIMIT),
    ("bytes is longer than", LIMIT),
    ("no such device memory", GONE),
    ("of device memory", VALUE_OUT_OF_RANGE),
    ("device memory cannot be aligned", VALUE_OUT_OF_RANGE),
    ("bits that are not known", UNKNOWN_BITS),
    ("comp_mask", UNKNOWN_BITS),
    ("no such flag", UNKNOWN_BITS),
    ("it may be ", VALUE_OUT_OF_RANGE),
    ("PATH_MTU is", VALUE_OUT_OF_RANGE),
    ("no such", VALUE_OUT_OF_RANGE),
    ("stands for multicast", VALUE_OUT_OF_RANGE),
    ("beyond the GID table", VALUE_OUT_OF_RANGE),
    ("one partition key", VALUE_OUT_OF_RANGE),
    ("one port", VALUE_OUT_OF_RANGE),
    ("the device has no port", VALUE_OUT_OF_RANGE),
    ("comp_vector", VALUE_OUT_OF_RANGE),
    ("max_wr is 0", VALUE_OUT_OF_RANGE),
    ("completions wait and would not fit", VALUE_OUT_OF_RANGE),
    ("receives are outstanding", VALUE_OUT_OF_RANGE),
    ("cannot be reached from above", VALUE_OUT_OF_RANGE),
];

/// What profiles of NICs say of what they refuse; the profile's name comes next.
const OF_PROFILES: &str = "the NIC's profile ";

/// Whether an errno is an answer that programs ask for: that it is not time yet (EINTR, EAGAIN, EALREADY and
/// EINPROGRESS), whether a socket is connected (EISCONN and ENOTCONN), and whether there is a call (EBADF).
pub(super) fn is_an_answer(function: &str, errno: i32, reason: &str) -> bool {
    match function {
        // Without a descriptor, programs ask whether there is such a call.
        "ibv_reg_dmabuf_mr" | "ibv_reg_mr_ex" if errno == 9 => reason.starts_with("no descriptor"),
        "rconnect" if errno == 106 => true,
        "rgetpeername" if errno == 107 => true,
        _ => matches!(errno, 4 | 11 | 114 | 115),
    }
}

/// "EINVAL", or "errno 200".
pub(super) fn errno_name(errno: i32) -> String {
    errno::name(errno).map_or_else(|| format!("errno {errno}"), String::from)
}

/// The rule that a refusal belongs to.
pub(super) fn rule(function: &str, errno: i32, reason: &str) -> Number {
    let name = errno_name(errno);
    if reason.contains(OF_PROFILES) {
        return CARD_REFUSES;
    }
    if name == "EBUSY" {
        return BUSY;
    }
    if reason.contains(" -> ") && reason.contains(" needs ") {
        return ATTRIBUTE_MISSING;
    }
    if let Some((_, rule)) = RULES_OF_REASONS.iter().find(|(words, _)| reason.contains(words)) {
        return *rule;
    }
    match name.as_str() {
        "ENOMEM" | "EMFILE" | "ENOSPC" => LIMIT,
        "EOPNOTSUPP" | "ENOSYS" => UNSUPPORTED,
        "EFAULT" if function.contains("reg_mr") => NOT_MAPPED,
        "EFAULT" => NULL,
        "EADDRINUSE" | "EADDRNOTAVAIL" | "ENODEV" | "ENETUNREACH" | "EHOSTUNREACH" | "EAFNOSUPPORT"
            if function.starts_with("rdma_") =>
        {
            CM_ADDRESS
        }
        "ENETUNREACH" | "EHOSTUNREACH" => NO_ROUTE,
        _ => REFUSED,
    }
}

/// What to do about reasons that say more than their rule: words of the reason, and the advice.
const ADVICE_ON_REASONS: &[(&str, &str)] = &[
    (
        "the id listens",
        "call rdma_accept with event->id of RDMA_CM_EVENT_CONNECT_REQUEST; the id that listens goes on to listen",
    ),
    (
        "the id has an event channel",
        "take RDMA_CM_EVENT_CONNECT_REQUEST with rdma_get_cm_event; rdma_get_request is for ids without a channel",
    ),
    (
        "the id has a queue pair, and is established",
        "leave rdma_establish out: RDMA_CM_EVENT_ESTABLISHED comes by itself where rdma_create_qp made the queue pair",
    ),
    (
        "of its own already",
        "call rdma_migrate_id with another channel, or leave the call out: the id waits for its own events already",
    ),
    ("the id has a queue pair already", "use the queue pair in id->qp, or destroy it with rdma_destroy_qp first"),
    (
        "the id has another completion queue",
        "give the queue pair and the shared receive queue of an id the same completion queues, or leave them out",
    ),
    (
        "the id has a shared receive queue already",
        "use the shared receive queue in id->srq, or destroy it with rdma_destroy_srq first",
    ),
    (
        "the id is for datagrams",
        "create the id with RDMA_PS_TCP for a connection, as the server does; or the queue pair with IBV_QPT_UD for \
         datagrams",
    ),
    (
        "the id is for connections",
        "create the id with RDMA_PS_UDP for datagrams; or the queue pair with IBV_QPT_RC for a connection",
    ),
    (
        "ZERO_BASED is not among its rights",
        "add IBV_ACCESS_ZERO_BASED to the access flags of ibv_reg_dm_mr; work requests then name offsets in the region",
    ),
    (
        "these rights cannot be granted",
        "take these out of the access flags: this kind of memory, or this device, does not have them",
    ),
    (
        "an access flag that is not known",
        "take flags out that verbs.h does not have; IBV_ACCESS_OPTIONAL_RANGE holds those that a device may ignore",
    ),
    (
        "of another context",
        "make completion queues, shared receive queue and protection domain with one ibv_context: with the connection \
         manager that is id->verbs, which is none that ibv_open_device gave",
    ),
    ("path_mtu is", "set path_mtu to a code as IBV_MTU_1024, at most active_mtu of ibv_query_port"),
    ("injected by line", "nothing: a failure script let the call fail, which the program is to live with"),
    (
        "no host of the network answers",
        "check the address, and that its host is up (ping): it did not answer when it was asked for its MAC address",
    ),
    ("sg_list is null", "let sg_list point to num_sge pieces, or set num_sge to 0 for a message without data"),
    (
        "leads to no memory",
        "set next of the last work request to NULL: clear each with memset, or = {0}, before it is filled",
    ),
    ("num_sge is -", "set num_sge to the number of pieces in sg_list; 0 for a message without data"),
    ("comp_vector", "give ibv_create_cq a comp_vector below num_comp_vectors of the ibv_context; 0 always works"),
    ("beyond the GID table", "ask for indices below gid_tbl_len of ibv_query_port"),
    ("empty entry of the GID table", "set grh.sgid_index to an entry that has a GID; ibv_query_gid shows them"),
    (
        "READs and atomics at a time than the device",
        "set initiator_depth to at most max_qp_init_rd_atom and responder_resources to at most max_qp_rd_atom of \
         ibv_query_device, or to RDMA_MAX_INIT_DEPTH and RDMA_MAX_RESP_RES",
    ),
    (
        "private data",
        "keep private_data_len at most as large as the message has room, and send the rest as the first message",
    ),
    ("which cannot read a GPU's memory", "send without IBV_SEND_INLINE: the NIC copies GPU memory through its driver"),
    ("there is nothing to register", "give a length of 1 or more"),
    (
        "the GPU's driver failed",
        "look the number up in cuda.h: the context of the memory must be alive, and the memory be there",
    ),
    ("no such device memory", "register device memory before ibv_free_dm, and with the ibv_dm that ibv_alloc_dm gave"),
    (
        "of device memory asked for",
        "ask for less: max_dm_size of ibv_query_device_ex is what all device memory has together",
    ),
    (
        "of device memory",
        "name bytes inside what ibv_alloc_dm was asked for; copies from and to device memory go in multiples of 4",
    ),
    ("device memory cannot be aligned", "lower log_align_req of ibv_alloc_dm_attr"),
    (
        "an indirection table has no receive queue",
        "leave max_recv_wr, max_recv_sge, recv_cq and srq out: the work queues of the table receive",
    ),
    ("bytes is longer than", "register the memory in parts of at most max_mr_size of ibv_query_device"),
    ("no route to", "use a destination that this host has a route to: `ip route get ADDRESS`"),
    (
        "neither IPv4 nor IPv6",
        "set sin_family to AF_INET or sin6_family to AF_INET6, and give a sockaddr of that family",
    ),
    (
        "a name is being looked up",
        "wait for RDMA_CM_EVENT_ADDRINFO_RESOLVED and fetch the answer with rdma_query_addrinfo before the next lookup",
    ),
    ("another thread is changing", "let one thread at a time register again, bind or deregister the same memory"),
    ("windows are bound to the region", "invalidate the windows with IBV_WR_LOCAL_INV, or call ibv_dealloc_mw, first"),
    ("registered over the device memory", "call ibv_dereg_mr for its regions before ibv_free_dm"),
    (
        "attached to a multicast group",
        "call ibv_detach_mcast, or rdma_leave_multicast, before the queue pair is destroyed",
    ),
    ("the queue pair has flows", "call ibv_destroy_flow before the queue pair is destroyed"),
    ("completion queues still report to it", "destroy the completion queues of the channel first"),
    (
        "no such",
        "use a value that the header names: one of another enumeration, or one that was never set, is the usual cause",
    ),
    (
        "is of another kind",
        "call the function that destroys this kind of object; a cast hid that the pointer is to something else",
    ),
    (
        "did not answer the disconnect request",
        "nothing on this side: the connection is over. At the peer, look at why it is gone, or does not take events",
    ),
    ("is in use", "choose another port, or 0 for a free one; or end the program that has this port"),
];

/// What an errno says where the system gave no other reason.
pub(super) fn meaning(errno: i32) -> Option<&'static str> {
    Some(match errno_name(errno).as_str() {
        "EPERM" | "EACCES" => "the process lacks a right",
        "EMFILE" => "the process has too many open files",
        "ENOMEM" => "there is no memory left, or a limit of the process is reached",
        "ENODEV" => "there is no such device",
        "EADDRINUSE" => "another program has the address or port",
        "EADDRNOTAVAIL" => "no interface of this host has the address",
        "ENETUNREACH" | "EHOSTUNREACH" => "there is no way to the address",
        "ECONNREFUSED" => "nobody listens there, or the peer refused",
        "ETIMEDOUT" => "the peer did not answer in time",
        _ => return None,
    })
}

/// What to do.
pub(super) fn advice(rule: Number, function: &str, errno: i32, reason: &str) -> String {
    if errno_name(errno) == "EMFILE" {
        return "raise the limit of open files (`ulimit -n`), or destroy channels and close devices that are not needed".into();
    }
    if let Some((_, said)) = reason.split_once(OF_PROFILES) {
        let profile = said.split(' ').next().unwrap_or_default();
        return format!(
            "ask ibv_query_device and ibv_query_port for limits, and have another way where a call is optional; `ubiverbs \
             run --nic show {profile}` prints what this card does not have, and where that is known from"
        );
    }
    if let Some((_, advice)) = ADVICE_ON_REASONS.iter().find(|(words, _)| reason.contains(words)) {
        return (*advice).into();
    }
    match rule {
        NOT_A_TRANSITION => "go step by step: RESET to INIT, to RTR, to RTS; and check what each call returns",
        ATTRIBUTE_MISSING => "set the attribute in ibv_qp_attr and its bit in attr_mask; ibv_modify_qp(3) lists them",
        ATTRIBUTE_UNWANTED => "take the bit out of attr_mask: that attribute belongs to another transition",
        VALUE_OUT_OF_RANGE => "give a value inside the range; ibv_query_device and ibv_query_port say what there is",
        WRONG_CURRENT_STATE => "ask for the state with ibv_query_qp, or leave IBV_QP_CUR_STATE out",
        NO_ROUTE => {
            "set is_global to 1, grh.dgid to the peer's GID and grh.sgid_index to an entry that ibv_query_gid shows; a \
             GID of another family or network leads nowhere"
        }
        WRONG_STATE => "move the queue pair on with ibv_modify_qp before work is posted",
        SEND_QUEUE_FULL | RECEIVE_QUEUE_FULL => "poll completions before more is posted, or create a larger queue",
        TOO_MANY_PIECES => "ask for more max_send_sge or max_recv_sge when the queue pair is created",
        INLINE_TOO_LONG => "ask for more max_inline_data in ibv_create_qp, and read back what was granted",
        NOT_SUPPORTED => "use an operation that this kind of queue pair has, and name it in send_ops_flags",
        TARGET_MISSING => "give datagrams an address handle, and connected queue pairs none",
        NO_RECEIVE_QUEUE => "post the receive to the shared receive queue (ibv_post_srq_recv)",
        MESSAGE_LENGTH => "cut the message into parts",
        BUSY => "destroy what uses it first: queue pairs before completion queues, everything before the domain",
        LIMIT => "ask for less (ibv_query_device says what the device has), or destroy what is not needed any more",
        ACCESS_FLAGS => "IBV_ACCESS_REMOTE_WRITE and IBV_ACCESS_REMOTE_ATOMIC need IBV_ACCESS_LOCAL_WRITE beside them",
        NULL => "check what the call before returned: an object that could not be made is NULL",
        NOT_MAPPED => {
            "register memory that is mapped from its first to its last byte; where the NIC is to write, the program \
             must be allowed to"
        }
        UNKNOWN_BITS => "initialize the structure with zeros, and set only bits that its manual page has",
        UNSUPPORTED => "ask ibv_query_device_ex what the device has before it is used",
        GONE => {
            "destroy an object once, and set the pointer to NULL then: the memory may belong to another object by now"
        }
        CM_STATE if matches!(function, "rdma_accept" | "rdma_reject") => {
            "answer event->id of RDMA_CM_EVENT_CONNECT_REQUEST, and once"
        }
        CM_STATE => {
            "wait for the event of the call before: ADDR_RESOLVED after rdma_resolve_addr, ROUTE_RESOLVED after \
             rdma_resolve_route, then rdma_create_qp and rdma_connect"
        }
        CM_ADDRESS => "use an address of an interface that `ubiverbs devices` lists, and a port that nobody listens at",
        _ => return format!("see {function}(3); UBIVERBS_LOG=1 says more"),
    }
    .into()
}
