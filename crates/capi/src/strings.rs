//! Names for people: of completion statuses, events, port states, kinds of node and opcodes. They are those of the
//! original, letter by letter: programs print them, and people search for them.

use std::ffi::{CStr, c_char, c_int, c_uint};

const UNKNOWN_VALUE: &CStr = c"unknown";

fn name_at(texts: &[&'static CStr], index: usize) -> *const c_char {
    texts.get(index).copied().unwrap_or(UNKNOWN_VALUE).as_ptr()
}

/// By the numbers of `ibv_wc_status`.
const WC_STATUS_STRINGS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// By the numbers of `ibv_event_type`.
const EVENT_STRINGS: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

/// By the numbers of `ibv_port_state`.
const PORT_STATES: [&CStr; 6] = [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

/// By the numbers of `ibv_node_type`, from 1.
const NODE_TYPE_STRINGS: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// By the numbers of `ibv_wr_opcode`, in which 12 and 13 are free.
const WR_OPCODE_STRINGS: [Option<&CStr>; 16] = [
    Some(c"rdma-write"),
    Some(c"rdma-write-with-imm"),
    Some(c"send"),
    Some(c"send-with-imm"),
    Some(c"rdma-read"),
    Some(c"atomic-cmp-and-swp"),
    Some(c"atomic-fetch-and-add"),
    Some(c"local-inv"),
    Some(c"bind-mw"),
    Some(c"send-with-inv"),
    Some(c"tso"),
    Some(c"driver1"),
    None,
    None,
    Some(c"flush"),
    Some(c"atomic-write"),
];

/// The name of a completion status.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    name_at(&WC_STATUS_STRINGS, status as usize)
}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    name_at(&EVENT_STRINGS, event as usize)
}

/// The name of a port's state.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    name_at(&PORT_STATES, state as usize)
}

/// The name of a kind of node.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    name_at(&NODE_TYPE_STRINGS, usize::try_from(i64::from(node) - 1).unwrap_or(usize::MAX))
}

/// The name of an opcode, for drivers. The free numbers have none: a null pointer, as in the original.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wr_opcode_str(opcode: c_uint) -> *const c_char {
    WR_OPCODE_STRINGS
        .get(opcode as usize)
        .copied()
        .unwrap_or(Some(UNKNOWN_VALUE))
        .map_or(std::ptr::null(), CStr::as_ptr)
}
