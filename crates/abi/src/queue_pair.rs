//! Queue pairs: attributes, creation, and the extended form whose work requests are built by calls.

use crate::{
    Handle, In, ibv_ah, ibv_ah_attr, ibv_context, ibv_cq, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_pd,
    ibv_rwq_ind_table, ibv_sge, ibv_srq, ibv_xrcd,
};
use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }
    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }
    struct ibv_rx_hash_conf {
        rx_hash_function: u8,
        rx_hash_key_len: u8,
        rx_hash_key: *mut u8,
        rx_hash_fields_mask: u64,
    }
    struct ibv_qp_init_attr_ex {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
        comp_mask: u32,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        create_flags: u32,
        max_tso_header: u16,
        rwq_ind_tbl: *mut ibv_rwq_ind_table,
        rx_hash_conf: ibv_rx_hash_conf,
        source_qpn: u32,
        send_ops_flags: u64,
    }
    struct ibv_qp_open_attr {
        comp_mask: u32,
        qp_num: u32,
        xrcd: *mut ibv_xrcd,
        qp_context: *mut c_void,
        qp_type: c_uint,
    }
    struct ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }
    struct ibv_qp_rate_limit_attr {
        rate_limit: u32,
        max_burst_sz: u32,
        typical_pkt_sz: u16,
        comp_mask: u32,
    }
    struct ibv_ece {
        vendor_id: u32,
        options: u32,
        comp_mask: u32,
    }
    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
    struct ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64, u64)>,
        wr_bind_mw:
            Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, Handle<'_, ibv_mw>, u32, In<'_, ibv_mw_bind_info>)>,
        wr_local_inv: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>)>,
        wr_send_imm: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, Handle<'_, ibv_ah>, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>)>,
        wr_complete: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>)>,
        wr_atomic_write: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64, In<'_, [u8; 8]>)>,
        wr_flush: Option<unsafe extern "C" fn(Handle<'_, ibv_qp_ex>, u32, u64, usize, u8, u8)>,
    }
}

impl ibv_qp_init_attr_ex {
    /// The plain attributes, with which the extended ones begin.
    pub fn plain(&self) -> ibv_qp_init_attr {
        ibv_qp_init_attr {
            qp_context: self.qp_context,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            srq: self.srq,
            cap: self.cap,
            qp_type: self.qp_type,
            sq_sig_all: self.sq_sig_all,
        }
    }
}

impl From<ibv_qp_init_attr> for ibv_qp_init_attr_ex {
    fn from(plain: ibv_qp_init_attr) -> Self {
        ibv_qp_init_attr_ex {
            qp_context: plain.qp_context,
            send_cq: plain.send_cq,
            recv_cq: plain.recv_cq,
            srq: plain.srq,
            cap: plain.cap,
            qp_type: plain.qp_type,
            sq_sig_all: plain.sq_sig_all,
            ..ibv_qp_init_attr_ex::zeroed()
        }
    }
}
