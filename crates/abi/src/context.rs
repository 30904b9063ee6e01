//! The opened device and its two tables of operations, through which the inline functions of the header reach the
//! library. `verbs_context` grows upwards: a program finds an operation by its distance from the `ibv_context` at the
//! end, so newer operations come first.

use crate::*;
use libc::pthread_mutex_t;
use std::ffi::{c_int, c_uint, c_void};

/// What `ibv_context.abi_compat` holds to say that a `verbs_context` surrounds it.
pub const VERBS_ABI_IS_EXTENDED: usize = usize::MAX;

type Unused = Option<unsafe extern "C" fn() -> *mut c_void>;

mirror! {
    struct ibv_context_ops {
        _compat_query_device: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, Out<'_, ibv_device_attr>) -> c_int>,
        _compat_query_port: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, u8, *mut ibv_port_attr) -> c_int>,
        _compat_alloc_pd: Unused,
        _compat_dealloc_pd: Unused,
        _compat_reg_mr: Unused,
        _compat_rereg_mr: Unused,
        _compat_dereg_mr: Unused,
        alloc_mw: Option<unsafe extern "C" fn(Handle<'_, ibv_pd>, c_uint) -> *mut ibv_mw>,
        bind_mw: Option<unsafe extern "C" fn(Handle<'_, ibv_qp>, Handle<'_, ibv_mw>, In<'_, ibv_mw_bind>) -> c_int>,
        dealloc_mw: Option<unsafe extern "C" fn(Owned<'_, ibv_mw>) -> c_int>,
        _compat_create_cq: Unused,
        poll_cq: Option<unsafe extern "C" fn(Handle<'_, ibv_cq>, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(Handle<'_, ibv_cq>, c_int) -> c_int>,
        _compat_cq_event: Unused,
        _compat_resize_cq: Unused,
        _compat_destroy_cq: Unused,
        _compat_create_srq: Unused,
        _compat_modify_srq: Unused,
        _compat_query_srq: Unused,
        _compat_destroy_srq: Unused,
        post_srq_recv:
            Option<unsafe extern "C" fn(Handle<'_, ibv_srq>, In<'_, ibv_recv_wr>, Out<'_, *mut ibv_recv_wr>) -> c_int>,
        _compat_create_qp: Unused,
        _compat_query_qp: Unused,
        _compat_modify_qp: Unused,
        _compat_destroy_qp: Unused,
        post_send:
            Option<unsafe extern "C" fn(Handle<'_, ibv_qp>, In<'_, ibv_send_wr>, Out<'_, *mut ibv_send_wr>) -> c_int>,
        post_recv:
            Option<unsafe extern "C" fn(Handle<'_, ibv_qp>, In<'_, ibv_recv_wr>, Out<'_, *mut ibv_recv_wr>) -> c_int>,
        _compat_create_ah: Unused,
        _compat_destroy_ah: Unused,
        _compat_attach_mcast: Unused,
        _compat_detach_mcast: Unused,
        _compat_async_event: Unused,
    }
    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
    struct verbs_context {
        free_buf: Option<unsafe extern "C" fn(Owned<'_, ibv_buf>)>,
        alloc_buf: Option<unsafe extern "C" fn(Handle<'_, ibv_pd>, usize, Out<'_, *mut ibv_buf>) -> *mut c_void>,
        dm_export_dmabuf_fd: Option<unsafe extern "C" fn(Handle<'_, ibv_dm>) -> c_int>,
        reg_mr_ex: Option<unsafe extern "C" fn(Handle<'_, ibv_pd>, In<'_, ibv_mr_init_attr>) -> *mut ibv_mr>,
        dealloc_dmah: Option<unsafe extern "C" fn(Owned<'_, ibv_dmah>) -> c_int>,
        alloc_dmah:
            Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_dmah_init_attr>) -> *mut ibv_dmah>,
        query_port: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, u8, *mut ibv_port_attr, usize) -> c_int>,
        advise_mr: Option<unsafe extern "C" fn(Handle<'_, ibv_pd>, c_uint, u32, *mut ibv_sge, u32) -> c_int>,
        alloc_null_mr: Option<unsafe extern "C" fn(Handle<'_, ibv_pd>) -> *mut ibv_mr>,
        read_counters: Option<unsafe extern "C" fn(Handle<'_, ibv_counters>, *mut u64, u32, u32) -> c_int>,
        attach_counters_point_flow:
            Option<
                unsafe extern "C" fn(
                    Handle<'_, ibv_counters>,
                    In<'_, ibv_counter_attach_attr>,
                    Handle<'_, ibv_flow>,
                ) -> c_int,
            >,
        create_counters:
            Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_counters_init_attr>) -> *mut ibv_counters>,
        destroy_counters: Option<unsafe extern "C" fn(Owned<'_, ibv_counters>) -> c_int>,
        reg_dm_mr:
            Option<unsafe extern "C" fn(Handle<'_, ibv_pd>, Handle<'_, ibv_dm>, u64, usize, c_uint) -> *mut ibv_mr>,
        alloc_dm: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_alloc_dm_attr>) -> *mut ibv_dm>,
        free_dm: Option<unsafe extern "C" fn(Owned<'_, ibv_dm>) -> c_int>,
        modify_flow_action_esp:
            Option<unsafe extern "C" fn(*mut ibv_flow_action, *mut ibv_flow_action_esp_attr) -> c_int>,
        destroy_flow_action: Option<unsafe extern "C" fn(*mut ibv_flow_action) -> c_int>,
        create_flow_action_esp:
            Option<unsafe extern "C" fn(*mut ibv_context, *mut ibv_flow_action_esp_attr) -> *mut ibv_flow_action>,
        modify_qp_rate_limit: Option<unsafe extern "C" fn(Handle<'_, ibv_qp>, In<'_, ibv_qp_rate_limit_attr>) -> c_int>,
        alloc_parent_domain:
            Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_parent_domain_init_attr>) -> *mut ibv_pd>,
        dealloc_td: Option<unsafe extern "C" fn(Owned<'_, ibv_td>) -> c_int>,
        alloc_td: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_td_init_attr>) -> *mut ibv_td>,
        modify_cq: Option<unsafe extern "C" fn(Handle<'_, ibv_cq>, In<'_, ibv_modify_cq_attr>) -> c_int>,
        post_srq_ops:
            Option<unsafe extern "C" fn(Handle<'_, ibv_srq>, InOut<'_, ibv_ops_wr>, Out<'_, *mut ibv_ops_wr>) -> c_int>,
        destroy_rwq_ind_table: Option<unsafe extern "C" fn(Owned<'_, ibv_rwq_ind_table>) -> c_int>,
        create_rwq_ind_table: Option<
            unsafe extern "C" fn(
                Handle<'_, ibv_context>,
                In<'_, ibv_rwq_ind_table_init_attr>,
            ) -> *mut ibv_rwq_ind_table,
        >,
        destroy_wq: Option<unsafe extern "C" fn(Owned<'_, ibv_wq>) -> c_int>,
        modify_wq: Option<unsafe extern "C" fn(Handle<'_, ibv_wq>, In<'_, ibv_wq_attr>) -> c_int>,
        create_wq: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, InOut<'_, ibv_wq_init_attr>) -> *mut ibv_wq>,
        query_rt_values: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, InOut<'_, ibv_values_ex>) -> c_int>,
        create_cq_ex:
            Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_cq_init_attr_ex>) -> *mut ibv_cq_ex>,
        priv_: *mut c_void,
        query_device_ex: Option<
            unsafe extern "C" fn(
                Handle<'_, ibv_context>,
                In<'_, ibv_query_device_ex_input>, *mut ibv_device_attr_ex,
                usize,
            ) -> c_int,
        >,
        ibv_destroy_flow: Option<unsafe extern "C" fn(Owned<'_, ibv_flow>) -> c_int>,
        ABI_placeholder2: Unused,
        ibv_create_flow: Option<unsafe extern "C" fn(Handle<'_, ibv_qp>, In<'_, ibv_flow_attr>) -> *mut ibv_flow>,
        ABI_placeholder1: Unused,
        open_qp: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_qp_open_attr>) -> *mut ibv_qp>,
        create_qp_ex:
            Option<unsafe extern "C" fn(Handle<'_, ibv_context>, InOut<'_, ibv_qp_init_attr_ex>) -> *mut ibv_qp>,
        get_srq_num: Option<unsafe extern "C" fn(Handle<'_, ibv_srq>, Out<'_, u32>) -> c_int>,
        create_srq_ex:
            Option<unsafe extern "C" fn(Handle<'_, ibv_context>, InOut<'_, ibv_srq_init_attr_ex>) -> *mut ibv_srq>,
        open_xrcd: Option<unsafe extern "C" fn(Handle<'_, ibv_context>, In<'_, ibv_xrcd_init_attr>) -> *mut ibv_xrcd>,
        close_xrcd: Option<unsafe extern "C" fn(Owned<'_, ibv_xrcd>) -> c_int>,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }
}
