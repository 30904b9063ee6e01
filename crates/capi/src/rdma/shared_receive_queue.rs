//! Shared receive queues of ids.

use super::id::ConnectionId;
use super::queue_pair::last_error;
use crate::boundary::{number, quietly};
use crate::errno::Errno;
use crate::shared_receive_queue::{create_srq_ex, ibv_destroy_srq};
use abi::{ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id};
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;

impl ConnectionId {
    unsafe fn create_srq(&self, attributes: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
        let c = self.as_c();
        let device = self.device()?;
        if !(*c).srq.is_null() {
            return Err(Errno::invalid("the id has a shared receive queue already"));
        }
        if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(Errno::invalid("comp_mask does not have the type"));
        }
        if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_PD == 0 || attributes.pd.is_null() {
            attributes.comp_mask |= abi::IBV_SRQ_INIT_ATTR_PD;
            attributes.pd = (*c).pd;
        }
        if attributes.srq_type == abi::IBV_SRQT_XRC {
            if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_XRCD == 0 || attributes.xrcd.is_null() {
                attributes.comp_mask |= abi::IBV_SRQ_INIT_ATTR_XRCD;
                attributes.xrcd = device.xrc_domain()?;
            }
            if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_CQ == 0 || attributes.cq.is_null() {
                self.make_cqs(0, attributes.attr.max_wr)?;
                attributes.comp_mask |= abi::IBV_SRQ_INIT_ATTR_CQ;
                attributes.cq = (*c).recv_cq;
            }
        }
        let srq = create_srq_ex((*c).verbs, attributes);
        if srq.is_null() {
            let error = last_error();
            self.destroy_cqs();
            return Err(error);
        }
        (*c).pd = attributes.pd;
        (*c).srq = srq;
        Ok(())
    }
}

/// A shared receive queue for an id; what is not given is the id's own.
#[unsafe(export_name = "ubiverbs_rdma_create_srq_ex")]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attributes: *mut ibv_srq_init_attr_ex) -> c_int {
    number("rdma_create_srq_ex", || {
        ConnectionId::of(id)?.create_srq(attributes.as_mut().ok_or_else(Errno::null)?)?;
        Ok(0)
    })
}

/// The plain form; the id says of which type.
#[unsafe(export_name = "ubiverbs_rdma_create_srq")]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attributes: *mut ibv_srq_init_attr,
) -> c_int {
    number("rdma_create_srq", || {
        let it = ConnectionId::of(id)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let is_xrc = (*id).qp_type == abi::IBV_QPT_XRC_RECV;
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: attributes.srq_context,
            attr: attributes.attr,
            comp_mask: abi::IBV_SRQ_INIT_ATTR_TYPE | abi::IBV_SRQ_INIT_ATTR_PD,
            srq_type: if is_xrc { abi::IBV_SRQT_XRC } else { abi::IBV_SRQT_BASIC },
            pd,
            // SAFETY: all zeros are null pointers and numbers.
            ..zeroed()
        };
        it.create_srq(&mut extended)?;
        attributes.attr = extended.attr;
        Ok(0)
    })
}

/// Destroys the shared receive queue of an id, and what was made for it.
#[unsafe(export_name = "ubiverbs_rdma_destroy_srq")]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    quietly("rdma_destroy_srq", || {
        let it = ConnectionId::of(id)?;
        if !(*id).srq.is_null() {
            let code = ibv_destroy_srq((*id).srq);
            if code != 0 {
                return Err(Errno(code));
            }
            (*id).srq = null_mut();
        }
        if (*id).qp.is_null() {
            it.destroy_cqs();
        }
        Ok(())
    });
}
