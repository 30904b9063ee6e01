//! Extended completion queues: completions are read field by field through functions of the queue.

use crate::boundary::data_path::{status, value};
use crate::boundary::object;
use crate::completion_queue::{
    CompletionQueue, CompletionQueueSpec, Cursor, QueuedCompletion, flags, immediate, opcode, service_level, tag_info,
    vendor_error,
};
use crate::context::Context;
use crate::errno::Errno;
use crate::object::{Object, set_field};
use abi::{Handle, In, Out, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};

/// The fields a program may ask for: all that `verbs.h` has.
const KNOWN_WC_FLAGS: u32 = (abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK << 1) - 1;

pub(crate) extern "C" fn create_cq_ex(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_cq_init_attr_ex>,
) -> *mut ibv_cq_ex {
    object("ibv_create_cq_ex", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        if attributes.comp_mask & !(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        let flags = match attributes.comp_mask & abi::IBV_CQ_INIT_ATTR_MASK_FLAGS {
            0 => 0,
            _ => attributes.flags,
        };
        if flags & !(abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno::INVALID);
        }
        if attributes.wc_flags & !u64::from(KNOWN_WC_FLAGS) != 0 {
            return Err(Errno::INVALID);
        }
        // SAFETY: a field of the attributes, which the manual page wants null or a channel.
        let channel = unsafe { Handle::new(attributes.channel) };
        let spec = CompletionQueueSpec {
            entries: attributes.cqe,
            cq_context: attributes.cq_context,
            channel,
            vector: attributes.comp_vector,
        };
        let mut queue = CompletionQueue::make(context, &spec)?;
        queue.single_threaded = flags & abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        let base = queue.base.get_mut();
        base.start_poll = Some(start_poll);
        base.next_poll = Some(next_poll);
        base.end_poll = Some(end_poll);
        base.read_opcode = Some(read_opcode);
        base.read_vendor_err = Some(read_vendor_err);
        base.read_byte_len = Some(read_byte_len);
        base.read_imm_data = Some(read_imm_data);
        base.read_qp_num = Some(read_qp_num);
        base.read_src_qp = Some(read_src_qp);
        base.read_wc_flags = Some(read_wc_flags);
        base.read_slid = Some(read_slid);
        base.read_sl = Some(read_sl);
        base.read_dlid_path_bits = Some(read_dlid_path_bits);
        base.read_completion_ts = Some(read_completion_ts);
        base.read_cvlan = Some(read_cvlan);
        base.read_flow_tag = Some(read_flow_tag);
        base.read_tm_info = Some(read_tm_info);
        base.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        Ok(queue.publish().cast())
    })
}

/// Moves on to the next completion.
///
/// # Safety
/// The calling thread holds the lock of the queue, or is the only one to poll it.
unsafe fn advance(cq: Handle<'_, ibv_cq_ex>) -> Result<(), Errno> {
    let queue = CompletionQueue::of(cq.plain())?;
    let mut next = None;
    queue.opened.nic.poll(&queue.cq, 1, |completion, at| next = Some(QueuedCompletion { completion: *completion, at }));
    let Some(entry) = next else {
        return Err(Errno::of(if queue.cq.has_overflowed() { libc::EOVERFLOW } else { libc::ENOENT }));
    };
    // SAFETY: the calling thread holds the lock, and has no other reference.
    let cursor = unsafe { queue.cursor.get_locked() };
    (cursor.current, cursor.current_time) = (Some(entry), None);
    set_field!(queue.base, status, entry.completion.status.code().into());
    set_field!(queue.base, wr_id, entry.completion.wr_id);
    Ok(())
}

extern "C" fn start_poll(cq: Handle<'_, ibv_cq_ex>, attributes: In<'_, ibv_poll_cq_attr>) -> c_int {
    status("ibv_start_poll", || {
        let queue = CompletionQueue::of(cq.plain())?;
        if attributes.as_ref().is_some_and(|attributes| attributes.comp_mask != 0) {
            return Err(Errno::INVALID);
        }
        let guard = (!queue.single_threaded).then(|| queue.cursor.lock());
        // A poll that finds nothing is over at once; the program does not end it.
        // SAFETY: taken above; a program that asked for a queue without a lock polls from one thread.
        unsafe { advance(cq) }?;
        if let Some(guard) = guard {
            guard.keep_locked();
        }
        Ok(())
    })
}

extern "C" fn next_poll(cq: Handle<'_, ibv_cq_ex>) -> c_int {
    // SAFETY: a program asks for the next completion in the thread that called `ibv_start_poll`, which holds the lock.
    status("ibv_next_poll", || unsafe { advance(cq) })
}

extern "C" fn end_poll(cq: Handle<'_, ibv_cq_ex>) {
    value("ibv_end_poll", (), || {
        if let Ok(queue) = CompletionQueue::of(cq.plain()) {
            let _guard = (!queue.single_threaded).then(|| queue.cursor.resume());
            // SAFETY: a program ends a poll in the thread that called `ibv_start_poll`, which holds the lock.
            unsafe { queue.cursor.get_locked() }.current = None;
        }
    });
}

/// Something of the completion the program is at; nothing where it is at none.
fn read<T: Default>(cq: Handle<'_, ibv_cq_ex>, f: impl FnOnce(&QueuedCompletion) -> T) -> T {
    let Ok(queue) = CompletionQueue::of(cq.plain()) else { return T::default() };
    // SAFETY: a program reads a completion in the thread that called `ibv_start_poll`, which holds the lock.
    match unsafe { queue.cursor.get_locked() }.current {
        Some(entry) => f(&entry),
        None => T::default(),
    }
}

extern "C" fn read_opcode(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| opcode(entry.completion.kind))
}

extern "C" fn read_vendor_err(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| vendor_error(&entry.completion))
}

extern "C" fn read_byte_len(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| entry.completion.bytes)
}

extern "C" fn read_imm_data(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| immediate(&entry.completion))
}

extern "C" fn read_qp_num(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| entry.completion.qpn.value())
}

extern "C" fn read_src_qp(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| entry.completion.src_qpn.map_or(0, wire::Qpn::value))
}

extern "C" fn read_wc_flags(cq: Handle<'_, ibv_cq_ex>) -> c_uint {
    read(cq, |entry| flags(&entry.completion))
}

/// RoCE has no local addresses or path bits in its completions.
extern "C" fn read_slid(_cq: Handle<'_, ibv_cq_ex>) -> u32 {
    0
}

extern "C" fn read_sl(cq: Handle<'_, ibv_cq_ex>) -> u8 {
    read(cq, |entry| service_level(&entry.completion))
}

extern "C" fn read_dlid_path_bits(_cq: Handle<'_, ibv_cq_ex>) -> u8 {
    0
}

extern "C" fn read_completion_ts(cq: Handle<'_, ibv_cq_ex>) -> u64 {
    read(cq, |entry| entry.at)
}

extern "C" fn read_cvlan(cq: Handle<'_, ibv_cq_ex>) -> u16 {
    read(cq, |entry| entry.completion.frame.vlan)
}

extern "C" fn read_flow_tag(cq: Handle<'_, ibv_cq_ex>) -> u32 {
    read(cq, |entry| entry.completion.frame.flow_tag)
}

extern "C" fn read_tm_info(cq: Handle<'_, ibv_cq_ex>, mut info: Out<'_, ibv_wc_tm_info>) {
    info.write(read(cq, |entry| Some(tag_info(&entry.completion))).unwrap_or(ibv_wc_tm_info { tag: 0, priv_: 0 }));
}

extern "C" fn read_completion_wallclock_ns(cq: Handle<'_, ibv_cq_ex>) -> u64 {
    let Ok(queue) = CompletionQueue::of(cq.plain()) else { return 0 };
    let system = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let nic = || queue.opened.nic.now().as_nanos();
    // SAFETY: a program reads a completion in the thread that called `ibv_start_poll`, which holds the lock.
    let Cursor { current, current_time, wall_clock } = unsafe { queue.cursor.get_locked() };
    let Some(entry) = current else { return 0 };
    *current_time.get_or_insert_with(|| wall_clock.time_of(entry.at, system, nic))
}
