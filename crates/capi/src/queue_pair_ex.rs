//! Extended queue pairs: work requests are built by calls between `ibv_wr_start` and `ibv_wr_complete`, and posted
//! together.

use crate::boundary::data_path::{status, value};
use crate::errno::{Errno, refuse_if};
use crate::memory_window;
use crate::object::{Object, field};
use crate::posting::{self, sge_from_c};
use crate::queue_pair::QueuePair;
use crate::work_builder::{Builder, BuiltData, BuiltRequest};
use abi::{Handle, In, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_qp_ex, ibv_sge};
use std::ffi::{c_int, c_void};
use std::slice;
use transport::{Data, Kind, Operation, Remote, SendRequest};
use wire::{Key, Placement, Selectivity, Srqn};

/// The operations that can be built.
const RC_OPERATIONS: u32 = abi::IBV_QP_EX_WITH_RDMA_WRITE
    | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | abi::IBV_QP_EX_WITH_SEND
    | abi::IBV_QP_EX_WITH_SEND_WITH_IMM
    | abi::IBV_QP_EX_WITH_RDMA_READ
    | abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | abi::IBV_QP_EX_WITH_LOCAL_INV
    | abi::IBV_QP_EX_WITH_BIND_MW
    | abi::IBV_QP_EX_WITH_SEND_WITH_INV
    | abi::IBV_QP_EX_WITH_ATOMIC_WRITE
    | abi::IBV_QP_EX_WITH_FLUSH;
const UC_OPERATIONS: u32 = abi::IBV_QP_EX_WITH_RDMA_WRITE
    | abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | abi::IBV_QP_EX_WITH_SEND
    | abi::IBV_QP_EX_WITH_SEND_WITH_IMM
    | abi::IBV_QP_EX_WITH_SEND_WITH_INV
    | abi::IBV_QP_EX_WITH_LOCAL_INV
    | abi::IBV_QP_EX_WITH_BIND_MW;
const UD_OPERATIONS: u32 = abi::IBV_QP_EX_WITH_SEND | abi::IBV_QP_EX_WITH_SEND_WITH_IMM;

/// Whether a queue pair of that kind can do these operations.
pub(crate) fn check(kind: Kind, operations: u64) -> Result<(), Errno> {
    let supported = match kind {
        Kind::ReliableConnected | Kind::XrcInitiator => RC_OPERATIONS,
        Kind::UnreliableConnected => UC_OPERATIONS,
        Kind::UnreliableDatagram => UD_OPERATIONS,
        Kind::RawPacket => abi::IBV_QP_EX_WITH_SEND,
        _ => 0,
    };
    if operations & !u64::from(supported) == 0 {
        Ok(())
    } else {
        Err(Errno::unsupported("send_ops_flags asks for what this kind of queue pair cannot do"))
    }
}

/// Gives the queue pair its functions.
pub(crate) fn fill(base: &mut ibv_qp_ex) {
    base.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    base.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    base.wr_bind_mw = Some(wr_bind_mw);
    base.wr_local_inv = Some(wr_local_inv);
    base.wr_rdma_read = Some(wr_rdma_read);
    base.wr_rdma_write = Some(wr_rdma_write);
    base.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    base.wr_send = Some(wr_send);
    base.wr_send_imm = Some(wr_send_imm);
    base.wr_send_inv = Some(wr_send_inv);
    base.wr_send_tso = Some(wr_send_tso);
    base.wr_set_ud_addr = Some(wr_set_ud_addr);
    base.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    base.wr_set_inline_data = Some(wr_set_inline_data);
    base.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    base.wr_set_sge = Some(wr_set_sge);
    base.wr_set_sge_list = Some(wr_set_sge_list);
    base.wr_start = Some(wr_start);
    base.wr_complete = Some(wr_complete);
    base.wr_abort = Some(wr_abort);
    base.wr_atomic_write = Some(wr_atomic_write);
    base.wr_flush = Some(wr_flush);
}

/// The extended form of a queue pair that was made as one; null for others.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_qp_to_qp_ex(qp: Handle<'_, ibv_qp>) -> *mut ibv_qp_ex {
    value("ibv_qp_to_qp_ex", std::ptr::null_mut(), || match QueuePair::of(qp) {
        Ok(pair) if pair.operations.is_some() => qp.as_ptr().cast(),
        _ => std::ptr::null_mut(),
    })
}

/// Does something to the requests being built; the first error is kept for the end.
fn with(qp: Handle<'_, ibv_qp_ex>, f: impl FnOnce(&QueuePair, &mut Builder) -> Result<(), Errno>) {
    value("ibv_wr_*", (), || {
        let Ok(pair) = QueuePair::of(qp.plain()) else { return };
        // SAFETY: a program builds requests in the thread that called `ibv_wr_start`, which holds the lock, and what is
        // done with the builder has no other way to it.
        let builder = unsafe { pair.builder.get_locked() };
        if let Err(error) = f(pair, builder) {
            builder.first_error.get_or_insert(error);
        }
    });
}

/// Begins a request.
fn begin(qp: Handle<'_, ibv_qp_ex>, needed: u32, operation: impl FnOnce() -> Result<Operation, Errno>) {
    with(qp, |pair, builder| {
        if pair.operations.is_none_or(|operations| operations & u64::from(needed) == 0) {
            return Err(Errno::invalid("the queue pair was not created for this operation (send_ops_flags)"));
        }
        let operation = operation()?;
        let (wr_id, flags) = (field!(pair.base, wr_id), posting::flags(field!(pair.base, wr_flags)));
        let data = BuiltData::Gather(builder.sges.len()..builder.sges.len());
        builder.requests.push(BuiltRequest { wr_id, operation, flags, data, target: None, xrc_srq: None });
        Ok(())
    });
}

fn remote(rkey: u32, address: u64) -> Remote {
    Remote { address, key: Key::new(rkey) }
}

extern "C" fn wr_atomic_cmp_swp(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64, compare: u64, swap: u64) {
    let operation = Operation::CompareSwap { remote: remote(rkey, address), compare, swap };
    begin(qp, abi::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, || Ok(operation));
}

extern "C" fn wr_atomic_fetch_add(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64, add: u64) {
    let operation = Operation::FetchAdd { remote: remote(rkey, address), add };
    begin(qp, abi::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, || Ok(operation));
}

extern "C" fn wr_bind_mw(qp: Handle<'_, ibv_qp_ex>, mw: Handle<'_, ibv_mw>, rkey: u32, info: In<'_, ibv_mw_bind_info>) {
    begin(qp, abi::IBV_QP_EX_WITH_BIND_MW, || memory_window::bind(mw, rkey, info.as_ref().ok_or_else(Errno::null)?));
}

extern "C" fn wr_local_inv(qp: Handle<'_, ibv_qp_ex>, rkey: u32) {
    begin(qp, abi::IBV_QP_EX_WITH_LOCAL_INV, || Ok(Operation::LocalInvalidate { key: Key::new(rkey) }));
}

extern "C" fn wr_rdma_read(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64) {
    begin(qp, abi::IBV_QP_EX_WITH_RDMA_READ, || Ok(Operation::Read { remote: remote(rkey, address) }));
}

extern "C" fn wr_rdma_write(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64) {
    let operation = Operation::Write { remote: remote(rkey, address), immediate: None };
    begin(qp, abi::IBV_QP_EX_WITH_RDMA_WRITE, || Ok(operation));
}

extern "C" fn wr_rdma_write_imm(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64, immediate: u32) {
    let operation = Operation::Write { remote: remote(rkey, address), immediate: Some(u32::from_be(immediate)) };
    begin(qp, abi::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, || Ok(operation));
}

extern "C" fn wr_send(qp: Handle<'_, ibv_qp_ex>) {
    begin(qp, abi::IBV_QP_EX_WITH_SEND, || Ok(Operation::Send { immediate: None }));
}

extern "C" fn wr_send_imm(qp: Handle<'_, ibv_qp_ex>, immediate: u32) {
    let operation = Operation::Send { immediate: Some(u32::from_be(immediate)) };
    begin(qp, abi::IBV_QP_EX_WITH_SEND_WITH_IMM, || Ok(operation));
}

extern "C" fn wr_send_inv(qp: Handle<'_, ibv_qp_ex>, rkey: u32) {
    begin(qp, abi::IBV_QP_EX_WITH_SEND_WITH_INV, || Ok(Operation::SendInvalidate { key: Key::new(rkey) }));
}

extern "C" fn wr_send_tso(qp: Handle<'_, ibv_qp_ex>, _header: *mut c_void, _size: u16, _mss: u16) {
    begin(qp, abi::IBV_QP_EX_WITH_TSO, || Err(Errno::INVALID));
}

extern "C" fn wr_atomic_write(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64, word: In<'_, [u8; 8]>) {
    begin(qp, abi::IBV_QP_EX_WITH_ATOMIC_WRITE, || Ok(Operation::AtomicWrite { remote: remote(rkey, address) }));
    with(qp, |pair, builder| {
        let word = word.as_ref().ok_or(Errno::INVALID)?;
        let word = ibv_data_buf { addr: word.as_ptr().cast_mut().cast(), length: word.len() };
        // SAFETY: that many bytes of the program's.
        unsafe { inline(pair, builder, &[word]) }
    });
}

extern "C" fn wr_flush(qp: Handle<'_, ibv_qp_ex>, rkey: u32, address: u64, length: usize, kind: u8, level: u8) {
    begin(qp, abi::IBV_QP_EX_WITH_FLUSH, || {
        // Bit 0 asks for global visibility, bit 1 for persistence; level 0 is a range and 1 the whole region.
        let mut placement = Placement::empty();
        placement.set(Placement::GLOBAL, kind & 1 != 0);
        placement.set(Placement::PERSISTENT, kind & 2 != 0);
        let selectivity = if level == 0 { Selectivity::Range } else { Selectivity::Region };
        let length = u32::try_from(length).map_err(|_| Errno::INVALID)?;
        Ok(Operation::Flush { remote: remote(rkey, address), length, placement, selectivity })
    });
}

extern "C" fn wr_set_ud_addr(qp: Handle<'_, ibv_qp_ex>, ah: Handle<'_, ibv_ah>, qpn: u32, qkey: u32) {
    with(qp, |_, builder| {
        builder.last()?.target = Some(posting::target(ah, qpn, qkey)?);
        Ok(())
    });
}

extern "C" fn wr_set_xrc_srqn(qp: Handle<'_, ibv_qp_ex>, srqn: u32) {
    with(qp, |_, builder| {
        builder.last()?.xrc_srq = Some(Srqn::new(srqn));
        Ok(())
    });
}

/// Copies inline data for the request being built.
///
/// # Safety
/// Each of the buffers is null or has as many bytes as it says.
unsafe fn inline(pair: &QueuePair, builder: &mut Builder, buffers: &[ibv_data_buf]) -> Result<(), Errno> {
    let begin = builder.inline.len();
    let total = buffers.iter().try_fold(0usize, |sum, buffer| sum.checked_add(buffer.length));
    if total.is_none_or(|total| total > pair.init.cap.max_inline_data as usize) {
        return Err(Errno::invalid("more inline data than the queue pair takes"));
    }
    for buffer in buffers.iter().filter(|buffer| buffer.length > 0) {
        refuse_if!(buffer.addr.is_null(), Errno::INVALID);
        if memory::is_in_gpu_region(buffer.addr.addr() as u64, buffer.length as u64) {
            return Err(Errno::invalid("inline data is read by the processor, which cannot read a GPU's memory"));
        }
        // SAFETY: not null, so of that length.
        let bytes = unsafe { slice::from_raw_parts(buffer.addr.cast(), buffer.length) };
        builder.inline.extend_from_slice(bytes);
    }
    let end = builder.inline.len();
    builder.last()?.data = BuiltData::Inline(begin..end);
    Ok(())
}

/// # Safety
/// `addr` is null or has `length` bytes.
unsafe extern "C" fn wr_set_inline_data(qp: Handle<'_, ibv_qp_ex>, addr: *mut c_void, length: usize) {
    // SAFETY: null, or of that length.
    with(qp, |pair, builder| unsafe { inline(pair, builder, &[ibv_data_buf { addr, length }]) });
}

/// # Safety
/// `list` is null or has `count` buffers, each null or of the length it says.
unsafe extern "C" fn wr_set_inline_data_list(qp: Handle<'_, ibv_qp_ex>, count: usize, list: *const ibv_data_buf) {
    with(qp, |pair, builder| {
        let list = match count {
            0 => &[],
            _ if list.is_null() => return Err(Errno::INVALID),
            // SAFETY: not null, so of that many buffers.
            _ => unsafe { slice::from_raw_parts(list, count) },
        };
        // SAFETY: each is null or of its length.
        unsafe { inline(pair, builder, list) }
    });
}

/// Sets the scatter/gather entries of the request being built.
fn gather(builder: &mut Builder, list: &[ibv_sge]) -> Result<(), Errno> {
    let begin = builder.sges.len();
    builder.sges.extend(list.iter().map(sge_from_c));
    let end = builder.sges.len();
    builder.last()?.data = BuiltData::Gather(begin..end);
    Ok(())
}

extern "C" fn wr_set_sge(qp: Handle<'_, ibv_qp_ex>, lkey: u32, addr: u64, length: u32) {
    with(qp, |_, builder| gather(builder, &[ibv_sge { addr, length, lkey }]));
}

/// # Safety
/// `list` is null or has `count` entries.
unsafe extern "C" fn wr_set_sge_list(qp: Handle<'_, ibv_qp_ex>, count: usize, list: *const ibv_sge) {
    with(qp, |pair, builder| match count {
        0 => gather(builder, &[]),
        _ if list.is_null() || count > pair.init.cap.max_send_sge as usize => Err(Errno::INVALID),
        // SAFETY: not null, so of that many entries.
        _ => gather(builder, unsafe { slice::from_raw_parts(list, count) }),
    });
}

extern "C" fn wr_start(qp: Handle<'_, ibv_qp_ex>) {
    value("ibv_wr_start", (), || {
        if let Ok(pair) = QueuePair::of(qp.plain()) {
            let guard = pair.builder.lock();
            // SAFETY: taken above.
            unsafe { pair.builder.get_locked() }.clear();
            guard.keep_locked();
        }
    });
}

extern "C" fn wr_complete(qp: Handle<'_, ibv_qp_ex>) -> c_int {
    status("ibv_wr_complete", || {
        let pair = QueuePair::of(qp.plain())?;
        let _guard = pair.builder.resume();
        // SAFETY: a program completes requests in the thread that called `ibv_wr_start`, which holds the lock.
        post(pair, unsafe { pair.builder.get_locked() })
    })
}

extern "C" fn wr_abort(qp: Handle<'_, ibv_qp_ex>) {
    value("ibv_wr_abort", (), || {
        if let Ok(pair) = QueuePair::of(qp.plain()) {
            drop(pair.builder.resume());
        }
    });
}

/// Posts what was built, all of it or nothing: what a request may be was checked while it was built, and all must find
/// room.
fn post(pair: &QueuePair, builder: &Builder) -> Result<(), Errno> {
    if let Some(first_error) = builder.first_error {
        return Err(first_error);
    }
    let request = |built: &BuiltRequest| -> SendRequest<'_> {
        SendRequest {
            wr_id: built.wr_id,
            operation: built.operation,
            flags: built.flags,
            data: match &built.data {
                BuiltData::Gather(range) => Data::Gather(&builder.sges[range.clone()]),
                BuiltData::Inline(range) => Data::Inline(&builder.inline[range.clone()]),
            },
            target: built.target,
            xrc_srq: built.xrc_srq,
        }
    };
    let post = |requests: &[SendRequest<'_>]| {
        let post = || pair.qp.post_send_all(&pair.opened.nic, requests);
        match latch::sanitizer::is_present() {
            false => post(),
            true => pair.opened.nic.post_judged_sends(&pair.qp, requests, post),
        }
    };
    let refused = |(_, error): (usize, transport::PostError)| Errno::from(error);
    match builder.requests.as_slice() {
        [] => Ok(()),
        [one] => post(&[request(one)]).map_err(refused),
        several => {
            let requests: Vec<SendRequest<'_>> = several.iter().map(request).collect();
            post(&requests).map_err(refused)
        }
    }
}
