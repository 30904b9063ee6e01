//! What releases after 44 added: structures that the installed header may not have yet. The tests compare them with the
//! newest release's header.

use crate::ibv_context;
use std::ffi::{c_int, c_uint, c_void};

mirror! {
    struct ibv_dmah {
        context: *mut ibv_context,
    }
    struct ibv_dmah_init_attr {
        comp_mask: u32,
        cpu_id: u32,
        ph: u8,
        tph_mem_type: u8,
    }
    struct ibv_mr_init_attr {
        length: usize,
        access: c_int,
        comp_mask: u64,
        iova: u64,
        addr: *mut c_void,
        fd: c_int,
        fd_offset: u64,
        dmah: *mut ibv_dmah,
        buf: *mut ibv_buf,
    }
    struct ibv_comp_cntr_caps {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }
    struct ibv_comp_cntr {
        context: *mut ibv_context,
        handle: u32,
    }
    struct ibv_comp_cntr_init_attr {
        comp_mask: u32,
        type_: c_uint,
        flags: u32,
    }
    struct ibv_qp_attach_comp_cntr_attr {
        comp_mask: u32,
        op_mask: u32,
    }
}

/// A buffer that the library allocated. The header declares it, and says nothing of what is in it.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)]
pub struct ibv_buf {
    opaque: [u8; 0],
}

impl ibv_buf {
    /// The only one there is.
    pub const fn zeroed() -> ibv_buf {
        ibv_buf { opaque: [] }
    }
}

numbers! { LATER_NUMBERS:
    IBV_ODP_SUPPORT_FLUSH = 1 << 6;
    IBV_ODP_SUPPORT_ATOMIC_WRITE = 1 << 7;
    IBV_EVENT_DEVICE_SPEED_CHANGE = 20;
    IBV_WC_FLUSH = 8;
    IBV_WR_FLUSH = 14;
    IBV_QP_EX_WITH_FLUSH = 1 << 11;
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8;
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9;
    IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS = 1;
    IBV_QUERY_QP_DATA_IN_ORDER_DEVICE_ONLY = 2;
    IBV_QUERY_QP_DATA_IN_ORDER_WHOLE_MSG = 1;
    IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES = 2;
    IBV_REG_MR_MASK_IOVA = 1;
    IBV_REG_MR_MASK_ADDR = 2;
    IBV_REG_MR_MASK_FD = 4;
    IBV_REG_MR_MASK_FD_OFFSET = 8;
    IBV_REG_MR_MASK_DMAH = 16;
    IBV_REG_MR_MASK_BUF = 32;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 4;
    IBV_TPH_MEM_TYPE_VM = 0;
    IBV_TPH_MEM_TYPE_PM = 1;
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1;
    IBV_DMAH_INIT_ATTR_MASK_PH = 2;
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 4;
    IBV_COMP_CNTR_TYPE_WRS = 0;
    IBV_COMP_CNTR_TYPE_BYTES = 1;
    IBV_QP_ATTACH_COMP_CNTR_OP_SEND = 1;
    IBV_QP_ATTACH_COMP_CNTR_OP_RECV = 2;
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ = 4;
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ = 8;
    IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE = 16;
    IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE = 32;
    RDMA_CM_EVENT_ADDRINFO_RESOLVED = 16;
    RDMA_CM_EVENT_ADDRINFO_ERROR = 17;
    RDMA_CM_EVENT_USER = 18;
    RDMA_CM_EVENT_INTERNAL = 19;
    RAI_SA = 0x10;
    RAI_DNS = 0x20;
}
