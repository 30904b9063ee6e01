//! Extended completion queues: completions are read field by field through functions of the queue.

use crate::boundary::{object, status, value};
use crate::completion_queue::{CompletionQueue, Wanted, flags, immediate, opcode, service_level, vendor_error};
use crate::context::Context;
use crate::errno::Errno;
use abi::{ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use std::ffi::{c_int, c_uint};
use std::time::{SystemTime, UNIX_EPOCH};
use transport::Completion;

/// A completion with its moment.
#[derive(Clone, Copy, Debug)]
struct Entry {
    completion: Completion,
    at: u64,
}

/// Where a program that reads completions one by one is.
#[derive(Debug, Default)]
pub struct Cursor {
    current: Option<Entry>,
}

/// The fields a program may ask for. What raw Ethernet and tag matching have is not among them.
const FIELDS: u32 = abi::IBV_WC_STANDARD_FLAGS
    | abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// All that `verbs.h` has.
const KNOWN_FIELDS: u32 = (abi::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK << 1) - 1;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    object("ibv_create_cq_ex", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        if attributes.comp_mask & !(abi::IBV_CQ_INIT_ATTR_MASK_FLAGS | abi::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno::INVALID);
        }
        let flags = match attributes.comp_mask & abi::IBV_CQ_INIT_ATTR_MASK_FLAGS {
            0 => 0,
            _ => attributes.flags,
        };
        if flags & !(abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED | abi::IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Errno::INVALID);
        }
        if attributes.wc_flags & !u64::from(KNOWN_FIELDS) != 0 {
            return Err(Errno::INVALID);
        }
        if attributes.wc_flags & !u64::from(FIELDS) != 0 {
            return Err(Errno::unsupported("wc_flags asks for what only raw Ethernet or tag matching has"));
        }
        let wanted = Wanted {
            entries: attributes.cqe,
            cq_context: attributes.cq_context,
            channel: attributes.channel,
            vector: attributes.comp_vector,
        };
        let mut queue = CompletionQueue::make(context, &wanted)?;
        queue.single_threaded = flags & abi::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
        let base = &mut queue.base;
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

/// Moves on to the next completion. The caller has its turn.
unsafe fn advance(cq: *mut ibv_cq_ex) -> Result<(), Errno> {
    let queue = CompletionQueue::of(cq.cast())?;
    let mut next = None;
    queue.shared.nic.poll(&queue.cq, 1, |completion, at| next = Some(Entry { completion: *completion, at }));
    let Some(entry) = next else {
        return Err(Errno(if queue.cq.has_overflowed() { libc::EOVERFLOW } else { libc::ENOENT }));
    };
    queue.cursor.mine().current = Some(entry);
    (*cq).status = entry.completion.status.code().into();
    (*cq).wr_id = entry.completion.wr_id;
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attributes: *mut ibv_poll_cq_attr) -> c_int {
    status("ibv_start_poll", || {
        let queue = CompletionQueue::of(cq.cast())?;
        if attributes.as_ref().is_some_and(|attributes| attributes.comp_mask != 0) {
            return Err(Errno::INVALID);
        }
        let turn = (!queue.single_threaded).then(|| queue.cursor.take());
        // A poll that finds nothing is over at once; the program does not end it.
        advance(cq)?;
        if let Some(turn) = turn {
            turn.keep();
        }
        Ok(())
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    status("ibv_next_poll", || advance(cq))
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    value("ibv_end_poll", (), || {
        if let Ok(queue) = CompletionQueue::of(cq.cast()) {
            let _turn = (!queue.single_threaded).then(|| queue.cursor.resume());
            queue.cursor.mine().current = None;
        }
    });
}

/// Something of the completion the program is at; nothing where it is at none.
unsafe fn read<T: Default>(cq: *mut ibv_cq_ex, f: impl FnOnce(&Entry) -> T) -> T {
    match CompletionQueue::of(cq.cast()).ok().and_then(|queue| queue.cursor.mine().current) {
        Some(entry) => f(&entry),
        None => T::default(),
    }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |entry| opcode(entry.completion.kind))
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |entry| vendor_error(&entry.completion))
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |entry| entry.completion.bytes)
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |entry| immediate(&entry.completion))
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |entry| entry.completion.qpn.value())
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |entry| entry.completion.src_qpn.map_or(0, wire::Qpn::value))
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    read(cq, |entry| flags(&entry.completion))
}

/// RoCE has no local addresses or path bits in its completions.
unsafe extern "C" fn read_slid(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    read(cq, |entry| service_level(&entry.completion))
}

unsafe extern "C" fn read_dlid_path_bits(_cq: *mut ibv_cq_ex) -> u8 {
    0
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    read(cq, |entry| entry.at)
}

unsafe extern "C" fn read_cvlan(_cq: *mut ibv_cq_ex) -> u16 {
    0
}

unsafe extern "C" fn read_flow_tag(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_tm_info(_cq: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    if let Some(info) = info.as_mut() {
        *info = ibv_wc_tm_info { tag: 0, priv_: 0 };
    }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    let Ok(queue) = CompletionQueue::of(cq.cast()) else { return 0 };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
    let age = |entry: &Entry| queue.shared.nic.now().as_nanos().saturating_sub(entry.at);
    read(cq, |entry| now.saturating_sub(age(entry)))
}
