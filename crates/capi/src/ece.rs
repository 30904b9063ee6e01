//! Enhanced connection establishment: options that two devices of one vendor agree on. This one has none, and does not
//! pretend: a device that says that it can must name a vendor, and the peer's device would have to know that vendor's
//! options. `EOPNOTSUPP` is what the manual page has for that and what every driver but one answers; librdmacm and
//! programs go on without options then, and would take no other error so.

use crate::boundary::status;
use crate::errno::Errno;
use crate::object::Object;
use crate::queue_pair::QueuePair;
use abi::{Handle, In, Out, ibv_ece, ibv_qp};
use std::ffi::c_int;

const NO_OPTIONS: &str = "the device has no options to agree on";

/// Would take of the options that a peer offers those it knows.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(qp: Handle<'_, ibv_qp>, ece: In<'_, ibv_ece>) -> c_int {
    status("ibv_set_ece", || {
        QueuePair::of(qp)?;
        if ece.as_ref().ok_or_else(Errno::null)?.comp_mask != 0 {
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        Err(Errno::unsupported(NO_OPTIONS))
    })
}

/// The options of a queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(qp: Handle<'_, ibv_qp>, mut ece: Out<'_, ibv_ece>) -> c_int {
    status("ibv_query_ece", || {
        QueuePair::of(qp)?;
        ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 }).ok_or_else(Errno::null)?;
        Err(Errno::unsupported(NO_OPTIONS))
    })
}
