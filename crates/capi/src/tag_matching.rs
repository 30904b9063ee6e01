//! Operations on the tagged buffers of a shared receive queue: `ibv_post_srq_ops`.

use crate::boundary::data_path::status;
use crate::errno::Errno;
use crate::object::Object;
use crate::posting::sges_of;
use crate::shared_receive_queue::SharedReceiveQueue;
use abi::{Handle, InOut, Out, ibv_ops_wr, ibv_srq};
use std::ffi::{c_int, c_uint};
use transport::{TagOperation, TagRequest};

/// Carries out one operation.
fn run(queue: &SharedReceiveQueue, wr: &mut ibv_ops_wr) -> Result<(), Errno> {
    let flags = wr.flags as c_uint;
    if flags & !(abi::IBV_OPS_SIGNALED | abi::IBV_OPS_TM_SYNC) != 0 {
        return Err(Errno::invalid("no such flag of an operation"));
    }
    let operation = match wr.opcode {
        abi::IBV_WR_TAG_ADD => {
            // SAFETY: `ibv_post_srq_ops` demands a list of `num_sge` entries.
            let sges = unsafe { sges_of(wr.tm.sg_list, wr.tm.num_sge) }?;
            TagOperation::Add { wr_id: wr.tm.recv_wr_id, tag: wr.tm.tag, mask: wr.tm.mask, sges }
        }
        abi::IBV_WR_TAG_DEL => TagOperation::Delete { handle: wr.tm.handle },
        abi::IBV_WR_TAG_SYNC => TagOperation::Synchronize,
        _ => return Err(Errno::invalid("no such operation on tags")),
    };
    let request = TagRequest {
        wr_id: wr.wr_id,
        operation,
        signaled: flags & abi::IBV_OPS_SIGNALED != 0,
        handled: (flags & abi::IBV_OPS_TM_SYNC != 0).then_some(wr.tm.unexpected_cnt),
    };
    let at = queue.opened.nic.now().as_nanos();
    if let Some(handle) = queue.queue.run_tag_request(&request, at)? {
        wr.tm.handle = handle;
    }
    Ok(())
}

pub(crate) extern "C" fn post_srq_ops(
    srq: Handle<'_, ibv_srq>,
    list: InOut<'_, ibv_ops_wr>,
    mut bad_list: Out<'_, *mut ibv_ops_wr>,
) -> c_int {
    status("ibv_post_srq_ops", || {
        let queue = SharedReceiveQueue::of(srq);
        let mut next = list.as_mut();
        if let (Err(error), Some(first)) = (&queue, &mut next) {
            bad_list.write(&raw mut **first);
            return Err(*error);
        }
        let queue = queue?;
        if !queue.queue.matches_tags() && next.is_none() {
            return Err(Errno::invalid("this shared receive queue matches no tags"));
        }
        while let Some(wr) = next {
            if let Err(error) = run(queue, wr) {
                bad_list.write(wr);
                return Err(error);
            }
            // SAFETY: the list that the program posts ends with a null, and its requests stay until the call returns.
            next = unsafe { wr.next.as_mut() };
        }
        Ok(())
    })
}
