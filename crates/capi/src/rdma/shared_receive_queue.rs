//! Shared receive queues of ids.

use super::id::ConnectionId;
use super::queue_pair::last_error;
use crate::boundary::{inner_failure, unreported, zero};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, field, set_field};
use crate::shared_receive_queue::{create_srq_ex, ibv_destroy_srq};
use abi::{Handle, InOut, Owned, ibv_pd, ibv_srq_init_attr, ibv_srq_init_attr_ex, rdma_cm_id};
use std::ffi::c_int;
use std::ptr::null_mut;

impl ConnectionId {
    fn create_srq(&self, attributes: &mut ibv_srq_init_attr_ex) -> Result<(), Errno> {
        let device = self.device()?;
        refuse_if!(!field!(self.base, srq).is_null(), Errno::invalid("the id has a shared receive queue already"));
        if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_TYPE == 0 {
            return Err(Errno::invalid("comp_mask does not have the type"));
        }
        if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_PD == 0 || attributes.pd.is_null() {
            attributes.comp_mask |= abi::IBV_SRQ_INIT_ATTR_PD;
            attributes.pd = field!(self.base, pd);
        }
        if attributes.srq_type == abi::IBV_SRQT_XRC {
            if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_XRCD == 0 || attributes.xrcd.is_null() {
                attributes.comp_mask |= abi::IBV_SRQ_INIT_ATTR_XRCD;
                attributes.xrcd = device.xrc_domain()?;
            }
            if attributes.comp_mask & abi::IBV_SRQ_INIT_ATTR_CQ == 0 || attributes.cq.is_null() {
                self.make_cqs(0, attributes.attr.max_wr)?;
                attributes.comp_mask |= abi::IBV_SRQ_INIT_ATTR_CQ;
                attributes.cq = field!(self.base, recv_cq);
            }
        }
        let srq = create_srq_ex(self.verbs(), (&mut *attributes).into());
        if srq.is_null() {
            let error = last_error();
            self.destroy_cqs();
            return Err(error);
        }
        set_field!(self.base, pd, attributes.pd);
        set_field!(self.base, srq, srq);
        Ok(())
    }
}

/// A shared receive queue for an id; what is not given is the id's own.
#[unsafe(export_name = "ubiverbs_rdma_create_srq_ex")]
pub extern "C" fn rdma_create_srq_ex(id: Handle<'_, rdma_cm_id>, attributes: InOut<'_, ibv_srq_init_attr_ex>) -> c_int {
    zero("rdma_create_srq_ex", || ConnectionId::of(id)?.create_srq(attributes.as_mut().ok_or_else(Errno::null)?))
}

/// The plain form; the id says of which type.
#[unsafe(export_name = "ubiverbs_rdma_create_srq")]
pub extern "C" fn rdma_create_srq(
    id: Handle<'_, rdma_cm_id>,
    pd: Handle<'_, ibv_pd>,
    attributes: InOut<'_, ibv_srq_init_attr>,
) -> c_int {
    zero("rdma_create_srq", || {
        let it = ConnectionId::of(id)?;
        let attributes = attributes.as_mut().ok_or_else(Errno::null)?;
        let is_xrc = field!(it.base, qp_type) == abi::IBV_QPT_XRC_RECV;
        let mut extended = ibv_srq_init_attr_ex {
            srq_context: attributes.srq_context,
            attr: attributes.attr,
            comp_mask: abi::IBV_SRQ_INIT_ATTR_TYPE | abi::IBV_SRQ_INIT_ATTR_PD,
            srq_type: if is_xrc { abi::IBV_SRQT_XRC } else { abi::IBV_SRQT_BASIC },
            pd: pd.as_ptr(),
            ..ibv_srq_init_attr_ex::zeroed()
        };
        it.create_srq(&mut extended)?;
        attributes.attr = extended.attr;
        Ok(())
    })
}

/// Destroys the shared receive queue of an id, and what was made for it.
#[unsafe(export_name = "ubiverbs_rdma_destroy_srq")]
pub extern "C" fn rdma_destroy_srq(id: Handle<'_, rdma_cm_id>) {
    unreported("rdma_destroy_srq", || {
        let it = ConnectionId::of(id)?;
        if !field!(it.base, srq).is_null() {
            // SAFETY: the shared receive queue of the id, which the program gives up.
            let code = ibv_destroy_srq(unsafe { Owned::new(field!(it.base, srq)) });
            refuse_if!(code != 0, inner_failure(code));
            set_field!(it.base, srq, null_mut());
        }
        if it.qp().is_null() {
            it.destroy_cqs();
        }
        Ok(())
    });
}
