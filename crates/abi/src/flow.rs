//! Work queues, flow steering and counters: what raw Ethernet needs. Flow specifications are read byte by byte
//! (`wire::flow`), so they are not here.

use crate::{Handle, In, Out, ibv_context, ibv_cq, ibv_pd, ibv_recv_wr};
use libc::{pthread_cond_t, pthread_mutex_t, timespec};
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: c_uint,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }
    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: c_uint,
        curr_wq_state: c_uint,
        flags: u32,
        flags_mask: u32,
    }
    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: c_uint,
        wq_type: c_uint,
        post_recv:
            Option<unsafe extern "C" fn(Handle<'_, ibv_wq>, In<'_, ibv_recv_wr>, Out<'_, *mut ibv_recv_wr>) -> c_int>,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }
    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }
    struct ibv_flow_attr {
        comp_mask: u32,
        type_: c_uint,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }
    struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }
    struct ibv_flow_action {
        context: *mut ibv_context,
    }
    struct ibv_flow_action_esp_attr {
        esp_attr: *mut c_void,
        keymat_proto: c_uint,
        keymat_len: u16,
        keymat_ptr: *mut c_void,
        replay_proto: c_uint,
        replay_len: u16,
        replay_ptr: *mut c_void,
        esp_encap: *mut c_void,
        comp_mask: u32,
        esn: u32,
    }
    struct ibv_counters_init_attr {
        comp_mask: u32,
    }
    struct ibv_counters {
        context: *mut ibv_context,
    }
    struct ibv_counter_attach_attr {
        counter_desc: c_uint,
        index: u32,
        comp_mask: u32,
    }
    struct ibv_values_ex {
        comp_mask: u32,
        raw_clock: timespec,
    }
}
