//! Extended completion queues: completions are read field by field through functions of the queue.

use crate::boundary::data_path::{status, value};
use crate::boundary::object;
use crate::completion_queue::{
    CompletionQueue, CompletionQueueSpec, Cursor, QueuedCompletion, flags, immediate, opcode, service_level, tag_info,
    vendor_error,
};
use crate::context::Context;
use crate::cross_call_lock::CrossCallGuard;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, set_field};
use abi::{Handle, In, Out, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use profiles::Feature;
use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};
use trace::Call;

/// The fields a program may ask for: all that `verbs.h` has.
const KNOWN_WC_FLAGS: u32 = (abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK << 1) - 1;

pub(crate) extern "C" fn create_cq_ex(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_cq_init_attr_ex>,
) -> *mut ibv_cq_ex {
    object("ibv_create_cq_ex", || {
        let context = Context::working(context)?;
        context.opened.device().offers(Feature::CreateCqEx)?;
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
        refuse_if!(attributes.wc_flags & !u64::from(KNOWN_WC_FLAGS) != 0, Errno::INVALID);
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
        base.read_wc_flags = Some(read_wc_flags);
        let asked = attributes.wc_flags as u32;
        base.read_byte_len = choose(asked, abi::IBV_WC_EX_WITH_BYTE_LEN, read_byte_len, unasked::byte_len);
        base.read_imm_data = choose(asked, abi::IBV_WC_EX_WITH_IMM, read_imm_data, unasked::imm_data);
        base.read_qp_num = choose(asked, abi::IBV_WC_EX_WITH_QP_NUM, read_qp_num, unasked::qp_num);
        base.read_src_qp = choose(asked, abi::IBV_WC_EX_WITH_SRC_QP, read_src_qp, unasked::src_qp);
        base.read_slid = choose(asked, abi::IBV_WC_EX_WITH_SLID, read_slid, unasked::slid);
        base.read_sl = choose(asked, abi::IBV_WC_EX_WITH_SL, read_sl, unasked::sl);
        let flag = abi::IBV_WC_EX_WITH_DLID_PATH_BITS;
        base.read_dlid_path_bits = choose(asked, flag, read_dlid_path_bits, unasked::dlid_path_bits);
        let flag = abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
        base.read_completion_ts = choose(asked, flag, read_completion_ts, unasked::completion_ts);
        base.read_cvlan = choose(asked, abi::IBV_WC_EX_WITH_CVLAN, read_cvlan, unasked::cvlan);
        base.read_flow_tag = choose(asked, abi::IBV_WC_EX_WITH_FLOW_TAG, read_flow_tag, unasked::flow_tag);
        base.read_tm_info = Some(match asked & abi::IBV_WC_EX_WITH_TM_INFO {
            0 => unasked::tm_info,
            _ => read_tm_info,
        });
        let flag = abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
        base.read_completion_wallclock_ns =
            choose(asked, flag, read_completion_wallclock_ns, unasked::completion_wallclock_ns);
        Ok(queue.publish().cast())
    })
}

/// The function of a field: another one if the program did not ask for it, so that those that it asked for cost no more.
fn choose<T>(
    asked: u32,
    flag: u32,
    read: extern "C" fn(Handle<'_, ibv_cq_ex>) -> T,
    unasked: extern "C" fn(Handle<'_, ibv_cq_ex>) -> T,
) -> Option<unsafe extern "C" fn(Handle<'_, ibv_cq_ex>) -> T> {
    Some(if asked & flag == 0 { unasked } else { read })
}

/// Fields that the program did not ask for in `wc_flags`: they are read all the same, and a checker is notified. Other
/// NICs have no function for them.
mod unasked {
    use super::{CompletionQueue, Handle, Object, Out, ibv_cq_ex, ibv_wc_tm_info};
    use trace::Call;

    #[cold]
    fn tell(cq: Handle<'_, ibv_cq_ex>, function: &'static str, flag: &'static str) {
        if let Ok(queue) = CompletionQueue::of(cq.plain()) {
            queue.opened.nic.called(None, || Call::ReadUnasked { cq: queue.cq.id, function, flag });
        }
    }

    macro_rules! unasked {
        ($($name:ident -> $Type:ty = $read:ident, $flag:literal;)+) => {
            $(pub(super) extern "C" fn $name(cq: Handle<'_, ibv_cq_ex>) -> $Type {
                tell(cq, concat!("ibv_wc_", stringify!($read)), concat!("IBV_WC_EX_WITH_", $flag));
                super::$read(cq)
            })+
        };
    }

    unasked! {
        byte_len -> u32 = read_byte_len, "BYTE_LEN";
        imm_data -> u32 = read_imm_data, "IMM";
        qp_num -> u32 = read_qp_num, "QP_NUM";
        src_qp -> u32 = read_src_qp, "SRC_QP";
        slid -> u32 = read_slid, "SLID";
        sl -> u8 = read_sl, "SL";
        dlid_path_bits -> u8 = read_dlid_path_bits, "DLID_PATH_BITS";
        completion_ts -> u64 = read_completion_ts, "COMPLETION_TIMESTAMP";
        cvlan -> u16 = read_cvlan, "CVLAN";
        flow_tag -> u32 = read_flow_tag, "FLOW_TAG";
        completion_wallclock_ns -> u64 = read_completion_wallclock_ns, "COMPLETION_TIMESTAMP_WALLCLOCK";
    }

    pub(super) extern "C" fn tm_info(cq: Handle<'_, ibv_cq_ex>, info: Out<'_, ibv_wc_tm_info>) {
        tell(cq, "ibv_wc_read_tm_info", "IBV_WC_EX_WITH_TM_INFO");
        super::read_tm_info(cq, info);
    }
}

/// Moves on to the next completion.
///
/// # Safety
/// The calling thread holds the lock of the queue, or is the only one to poll it.
unsafe fn advance(cq: Handle<'_, ibv_cq_ex>) -> Result<(), Errno> {
    let queue = CompletionQueue::of(cq.plain())?;
    let mut next = None;
    let take = |completion: &transport::Completion, at| next = Some(QueuedCompletion { completion: *completion, at });
    match latch::sanitizer::is_present() {
        false => queue.opened.nic.poll(&queue.cq, 1, take),
        true => queue.opened.nic.poll_judged(&queue.cq, 1, take),
    };
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
        refuse_if!(attributes.as_ref().is_some_and(|attributes| attributes.comp_mask != 0), Errno::INVALID);
        let (guard, is_again) = match queue.single_threaded {
            true => (None, false),
            false => {
                let (guard, is_again) = queue.cursor.lock_again();
                (Some(guard), is_again)
            }
        };
        // SAFETY: taken above; a program that asked for a queue without a lock polls from one thread.
        if is_again || queue.single_threaded && unsafe { queue.cursor.get_locked() }.current.is_some() {
            out_of_order(queue, "ibv_start_poll");
        }
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
            let guard = (!queue.single_threaded).then(|| queue.cursor.resume());
            // SAFETY: a program ends a poll in the thread that called `ibv_start_poll`, which holds the lock.
            let ended = unsafe { queue.cursor.get_locked() }.current.take();
            if !guard.map_or(ended.is_some(), CrossCallGuard::unlock) {
                out_of_order(queue, "ibv_end_poll");
            }
        }
    });
}

/// Tells a checker that a poll was begun before the last one was ended, or ended without one.
#[cold]
fn out_of_order(queue: &CompletionQueue, function: &'static str) {
    queue.opened.nic.called(None, || Call::PollOutOfOrder { cq: queue.cq.id, function });
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
