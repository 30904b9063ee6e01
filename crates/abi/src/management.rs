//! The structures of `umad.h`. Where C has a union without a name, the field here has the name of its first member.

use std::ffi::{c_char, c_int, c_uint};

/// The longest name of a device, with its zero.
pub const UMAD_CA_NAME_LEN: usize = 20;
/// Ports that a device may have, with port 0.
pub const UMAD_CA_MAX_PORTS: usize = 10;

mirror! {
    struct ib_mad_addr {
        qpn: u32,
        qkey: u32,
        lid: u16,
        sl: u8,
        path_bits: u8,
        grh_present: u8,
        gid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
        gid: [u8; 16],
        flow_label: u32,
        pkey_index: u16,
        reserved: [u8; 6],
    }
    struct ib_user_mad {
        agent_id: u32,
        status: u32,
        timeout_ms: u32,
        retries: u32,
        length: u32,
        addr: ib_mad_addr,
        data: [u8; 0],
    }
    struct umad_port {
        ca_name: [c_char; UMAD_CA_NAME_LEN],
        portnum: c_int,
        base_lid: c_uint,
        lmc: c_uint,
        sm_lid: c_uint,
        sm_sl: c_uint,
        state: c_uint,
        phys_state: c_uint,
        rate: c_uint,
        capmask: u32,
        gid_prefix: u64,
        port_guid: u64,
        pkeys_size: c_uint,
        pkeys: *mut u16,
        link_layer: [c_char; UMAD_CA_NAME_LEN],
    }
    struct umad_ca {
        ca_name: [c_char; UMAD_CA_NAME_LEN],
        node_type: c_uint,
        numports: c_int,
        fw_ver: [c_char; 20],
        ca_type: [c_char; 40],
        hw_ver: [c_char; 20],
        node_guid: u64,
        system_guid: u64,
        ports: [*mut umad_port; UMAD_CA_MAX_PORTS],
    }
    struct umad_device_node {
        next: *mut umad_device_node,
        ca_name: *const c_char,
    }
    struct umad_reg_attr {
        mgmt_class: u8,
        mgmt_class_version: u8,
        flags: u32,
        method_mask: [u64; 2],
        oui: u32,
        rmpp_version: u8,
    }
}

/// A pair of devices for subnet and general management, of releases after 44.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)]
pub struct umad_ca_pair {
    pub smi_name: [c_char; UMAD_CA_NAME_LEN],
    pub smi_preferred_port: u32,
    pub gsi_name: [c_char; UMAD_CA_NAME_LEN],
    pub gsi_preferred_port: u32,
}

numbers! { MANAGEMENT_NUMBERS:
    UMAD_USER_RMPP = 1;
    UMAD_CA_MAX_AGENTS = 32;
    UMAD_CLASS_SUBN_LID_ROUTED = 0x01;
    UMAD_CLASS_SUBN_DIRECTED_ROUTE = 0x81;
    UMAD_CLASS_SUBN_ADM = 0x03;
    UMAD_CLASS_PERF_MGMT = 0x04;
    UMAD_CLASS_BM = 0x05;
    UMAD_CLASS_DEVICE_MGMT = 0x06;
    UMAD_CLASS_CM = 0x07;
    UMAD_CLASS_SNMP = 0x08;
    UMAD_CLASS_DEVICE_ADM = 0x10;
    UMAD_CLASS_BOOT_MGMT = 0x11;
    UMAD_CLASS_BIS = 0x12;
    UMAD_CLASS_CONG_MGMT = 0x21;
    UMAD_CLASS_VENDOR_RANGE1_START = 0x09;
    UMAD_CLASS_VENDOR_RANGE1_END = 0x0f;
    UMAD_CLASS_VENDOR_RANGE2_START = 0x30;
    UMAD_CLASS_VENDOR_RANGE2_END = 0x4f;
    UMAD_CLASS_APPLICATION_START = 0x10;
    UMAD_CLASS_APPLICATION_END = 0x2f;
    UMAD_STATUS_BUSY = 0x0001;
    UMAD_STATUS_REDIRECT = 0x0002;
}
