//! Enhanced connection establishment: options that two devices of one vendor agree on. The options of this one say
//! which work a peer's queue pair understands that not every RoCE device does, so that a program can ask before it
//! sends: an unknown packet is a fatal error. They travel in the vendor's fields of REQ and REP, and change no packet.
//!
//! | bit | a queue pair that has it |
//! |---|---|
//! | 0 | executes FLUSH |
//! | 1 | executes ATOMIC WRITE |

use crate::boundary::status;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::query::VENDOR_NUMBER;
use crate::queue_pair::QueuePair;
use abi::{Handle, InOut, Out, ibv_ece, ibv_qp};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use transport::Kind;

const FLUSH_OPTION: u32 = 1 << 0;
const ATOMIC_WRITE: u32 = 1 << 1;

/// What a queue pair of this kind can do.
pub(crate) fn possible(kind: Kind) -> u32 {
    match kind {
        Kind::ReliableConnected | Kind::XrcInitiator | Kind::XrcTarget => FLUSH_OPTION | ATOMIC_WRITE,
        _ => 0,
    }
}

/// Takes of the options that a peer offers those the queue pair has too, and answers which.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_ece(qp: Handle<'_, ibv_qp>, ece: InOut<'_, ibv_ece>) -> c_int {
    status("ibv_set_ece", || {
        let pair = QueuePair::of(qp)?;
        let ece = ece.as_mut().ok_or_else(Errno::null)?;
        refuse_if!(ece.vendor_id == 0, Errno::unsupported("options of no vendor"));
        refuse_if!(ece.comp_mask != 0, Errno::invalid("comp_mask has bits that are not known"));
        refuse_if!(ece.vendor_id != VENDOR_NUMBER, Errno::invalid("options of another vendor"));
        ece.options &= possible(pair.qp.kind());
        pair.ece.store(ece.options, Ordering::Relaxed);
        Ok(())
    })
}

/// The options of a queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_query_ece(qp: Handle<'_, ibv_qp>, mut ece: Out<'_, ibv_ece>) -> c_int {
    status("ibv_query_ece", || {
        let options = QueuePair::of(qp)?.ece.load(Ordering::Relaxed);
        ece.write(ibv_ece { vendor_id: VENDOR_NUMBER, options, comp_mask: 0 }).ok_or_else(Errno::null)
    })
}
