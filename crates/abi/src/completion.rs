//! Completion channels and queues, work completions, asynchronous events.

use crate::{Handle, In, Out, ibv_context, ibv_pd, ibv_qp, ibv_srq, ibv_wq};
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }
    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }
    struct ibv_wc_tm_info {
        tag: u64,
        priv_: u32,
    }
    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: u32,
        wr_id: u64,
        start_poll: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>, In<'_, ibv_poll_cq_attr>) -> c_int>,
        next_poll: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>)>,
        read_opcode: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_vendor_err: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_sl: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u32>,
        read_tm_info: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>, Out<'_, ibv_wc_tm_info>)>,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> u64>,
    }
    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }
    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }
    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
    struct ibv_wc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }
    struct ibv_async_event {
        element: ibv_async_event_element,
        event_type: c_uint,
    }
}

/// Whom an asynchronous event is about.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_event_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub wq: *mut ibv_wq,
    pub port_num: c_int,
}
