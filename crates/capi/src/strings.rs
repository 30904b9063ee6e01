//! Names for people: of completion statuses, events, port states and kinds of node.

use std::ffi::{CStr, c_char, c_int, c_uint};

fn name_at(texts: &[&'static CStr], index: usize) -> *const c_char {
    texts.get(index).copied().unwrap_or(c"unknown").as_ptr()
}

/// By the numbers of `ibv_wc_status`.
const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"work request flushed",
    c"memory window bind error",
    c"bad response",
    c"local access error",
    c"remote invalid request",
    c"remote access error",
    c"remote operation error",
    c"transport retries exceeded",
    c"RNR retries exceeded",
    c"local RDD violation",
    c"remote invalid RD request",
    c"remote aborted",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout",
    c"general error",
    c"tag matching error",
    c"tag matching rendezvous incomplete",
];

/// By the numbers of `ibv_event_type`.
const EVENTS: [&CStr; 21] = [
    c"CQ error",
    c"local work queue fatal error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration failed",
    c"device fatal error",
    c"port active",
    c"port error",
    c"LID changed",
    c"P_Key table changed",
    c"subnet manager changed",
    c"SRQ error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table changed",
    c"WQ fatal error",
    c"device speed changed",
];

/// By the numbers of `ibv_port_state`.
const PORT_STATES: [&CStr; 6] = [c"no change", c"down", c"init", c"armed", c"active", c"active, deferred"];

/// By the numbers of `ibv_node_type`, from 1.
const NODES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// The name of a completion status.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(status: c_uint) -> *const c_char {
    name_at(&STATUSES, status as usize)
}

/// The name of an event.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(event: c_uint) -> *const c_char {
    name_at(&EVENTS, event as usize)
}

/// The name of a port's state.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_port_state_str(state: c_uint) -> *const c_char {
    name_at(&PORT_STATES, state as usize)
}

/// The name of a kind of node.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_node_type_str(node: c_int) -> *const c_char {
    name_at(&NODES, usize::try_from(node - 1).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(string: *const c_char) -> &'static str {
        // SAFETY: all strings here are literals.
        unsafe { CStr::from_ptr(string) }.to_str().unwrap()
    }

    #[test]
    fn numbers_and_names_meet() {
        assert_eq!(text(ibv_wc_status_str(abi::IBV_WC_WR_FLUSH_ERR)), "work request flushed");
        assert_eq!(text(ibv_wc_status_str(abi::IBV_WC_TM_RNDV_INCOMPLETE)), "tag matching rendezvous incomplete");
        assert_eq!(text(ibv_event_type_str(abi::IBV_EVENT_WQ_FATAL)), "WQ fatal error");
        assert_eq!(text(ibv_event_type_str(abi::IBV_EVENT_DEVICE_SPEED_CHANGE)), "device speed changed");
        assert_eq!(text(ibv_event_type_str(abi::IBV_EVENT_QP_LAST_WQE_REACHED)), "last WQE reached");
        assert_eq!(text(ibv_port_state_str(abi::IBV_PORT_ACTIVE)), "active");
        assert_eq!(text(ibv_node_type_str(abi::IBV_NODE_CA as c_int)), "InfiniBand channel adapter");
    }

    #[test]
    fn what_has_no_name_is_unknown() {
        assert_eq!(text(ibv_wc_status_str(24)), "unknown");
        assert_eq!(text(ibv_event_type_str(u32::MAX)), "unknown");
        assert_eq!(text(ibv_node_type_str(-1)), "unknown");
        assert_eq!(text(ibv_node_type_str(c_int::MIN + 1)), "unknown");
    }
}
