//! Enhanced connection establishment: options that two devices of one vendor agree on. This one has none, and so agrees to none.

use crate::boundary::status;
use crate::errno::Errno;
use crate::queue_pair::QueuePair;
use abi::{ibv_ece, ibv_qp};
use std::ffi::c_int;

/// No vendor, no options.
const NONE: ibv_ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };

/// Takes of the options that a peer offers those it knows, which are none, and says so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status("ibv_set_ece", || {
        QueuePair::of(qp)?;
        let ece = ece.as_mut().ok_or_else(Errno::null)?;
        if ece.comp_mask != 0 {
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        *ece = NONE;
        Ok(())
    })
}

/// The options of a queue pair.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status("ibv_query_ece", || {
        QueuePair::of(qp)?;
        *ece.as_mut().ok_or_else(Errno::null)? = NONE;
        Ok(())
    })
}
