//! Posting work: lists of C's work requests become slices of the transport's, a few at a time and without touching the
//! heap.

use crate::address_handle::AddressHandle;
use crate::boundary::data_path::status;
use crate::errno::{Errno, refuse_if};
use crate::memory_window::{self, MemoryWindow};
use crate::object::{Object, field, set_field};
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;
use abi::{Handle, In, Out, ibv_mw, ibv_mw_bind, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};
use hca::limits::MAX_SGE;
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::slice;
use transport::{
    Data, DatagramTarget, Kind, Operation, PostError, ReceiveRequest, Remote, SendFlags, SendRequest, Sge,
};
use wire::{Key, Qkey, Qpn, Srqn};

/// Requests handed over at once.
const POST_BATCH: usize = 16;

// C's scatter/gather entries are the transport's: they are not copied on the way.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
const _: () = assert!(offset_of!(Sge, address) == offset_of!(ibv_sge, addr));
const _: () = assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
const _: () = assert!(offset_of!(Sge, key) == offset_of!(ibv_sge, lkey));

/// No request.
const EMPTY_REQUEST: SendRequest<'static> = SendRequest {
    wr_id: 0,
    operation: Operation::Send { immediate: None },
    flags: SendFlags::empty(),
    data: Data::Gather(&[]),
    target: None,
    xrc_srq: None,
};

/// The flags of a send, as the transport has them.
pub(crate) fn flags(bits: c_uint) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::FENCE, bits & abi::IBV_SEND_FENCE != 0);
    flags.set(SendFlags::SIGNALED, bits & abi::IBV_SEND_SIGNALED != 0);
    flags.set(SendFlags::SOLICITED, bits & abi::IBV_SEND_SOLICITED != 0);
    flags.set(SendFlags::CHECKSUMS, bits & abi::IBV_SEND_IP_CSUM != 0);
    flags
}

/// The scatter/gather entries of a request.
///
/// # Safety
/// `list` is null or has `count` entries.
#[inline]
pub(crate) unsafe fn sges_of<'a>(list: *mut ibv_sge, count: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE as usize && !list.is_null() => {
            // SAFETY: not null, so of that many entries, which lie in memory as the transport has them: see above.
            Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
        }
        Err(_) => Err(Errno::invalid(format_args!("num_sge is {count}, and a list has no fewer than 0 pieces"))),
        Ok(_) if list.is_null() => {
            Err(Errno::invalid(format_args!("sg_list is null, and num_sge is {count}, so it must have pieces")))
        }
        Ok(_) => Err(Errno::invalid(format_args!("num_sge is {count}, and the device takes {MAX_SGE} at most"))),
    }
}

pub(crate) fn sge_from_c(sge: &ibv_sge) -> Sge {
    Sge { address: sge.addr, length: sge.length, key: Key::new(sge.lkey) }
}

/// What a request does.
fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    // SAFETY: both members of the union are numbers, for which any bits will do.
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    let remote = Remote { address: rdma.remote_addr, key: Key::new(rdma.rkey) };
    let word = Remote { address: atomic.remote_addr, key: Key::new(atomic.rkey) };
    let immediate = Some(u32::from_be(wr.imm_data));
    Ok(match wr.opcode {
        abi::IBV_WR_SEND => Operation::Send { immediate: None },
        abi::IBV_WR_SEND_WITH_IMM => Operation::Send { immediate },
        abi::IBV_WR_SEND_WITH_INV => Operation::SendInvalidate { key: Key::new(wr.imm_data) },
        abi::IBV_WR_RDMA_WRITE => Operation::Write { remote, immediate: None },
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => Operation::Write { remote, immediate },
        abi::IBV_WR_RDMA_READ => Operation::Read { remote },
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => {
            Operation::CompareSwap { remote: word, compare: atomic.compare_add, swap: atomic.swap }
        }
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::FetchAdd { remote: word, add: atomic.compare_add },
        abi::IBV_WR_ATOMIC_WRITE => Operation::AtomicWrite { remote },
        abi::IBV_WR_LOCAL_INV => Operation::LocalInvalidate { key: Key::new(wr.imm_data) },
        abi::IBV_WR_BIND_MW => {
            // SAFETY: the member that the opcode says, whose window the manual page wants null or one of this library.
            let (bind, window) = unsafe { (wr.bind_mw.bind_mw, Handle::new(wr.bind_mw.bind_mw.mw)) };
            memory_window::bind(window, bind.rkey, &bind.bind_info)?
        }
        _ => return Err(Errno::invalid("no such opcode")),
    })
}

/// Where a datagram goes.
pub(crate) fn target(ah: Handle<'_, abi::ibv_ah>, qpn: u32, qkey: u32) -> Result<DatagramTarget, Errno> {
    refuse_if!(ah.as_ptr().is_null(), Errno::invalid("a datagram needs an address handle, and the one given is null"));
    Ok(DatagramTarget { av: AddressHandle::of(ah)?.vector, qpn: Qpn::new(qpn), qkey: Qkey::new(qkey) })
}

/// Whether a request's inline data has to be put together first.
#[inline]
fn is_scattered_inline(wr: &ibv_send_wr) -> bool {
    wr.send_flags & abi::IBV_SEND_INLINE != 0 && wr.num_sge > 1
}

/// The bytes of an entry of inline data: the program's own memory, key or no key.
///
/// # Safety
/// There are as many bytes at that address as it says, until the request is posted.
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    match sge.length {
        0 => &[],
        // SAFETY: that many bytes of the program's.
        length => unsafe { slice::from_raw_parts(sge.address as *const u8, length as usize) },
    }
}

/// A request as the transport has it, checked but for what the queue pair knows. Scattered inline data is put together
/// in `inline_buffer`.
#[inline]
fn request<'a>(
    kind: Kind,
    wr: &'a ibv_send_wr,
    inline_buffer: Option<&'a mut Vec<u8>>,
) -> Result<SendRequest<'a>, Errno> {
    // SAFETY: `ibv_post_send` demands a list of `num_sge` entries.
    let list = unsafe { sges_of(wr.sg_list, wr.num_sge) }?;
    let data = match wr.send_flags & abi::IBV_SEND_INLINE {
        0 => Data::Gather(list),
        _ => {
            let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
            if total > u64::from(hca::limits::MAX_INLINE) {
                return Err(Errno::invalid("more inline data than the device takes"));
            }
            if list.iter().any(|sge| memory::is_in_gpu_region(sge.address, sge.length.into())) {
                return Err(Errno::invalid("inline data is read by the processor, which cannot read a GPU's memory"));
            }
            match (list, inline_buffer) {
                // SAFETY: `ibv_post_send` demands that inline data is the program's own memory.
                ([sge], _) => Data::Inline(unsafe { bytes(sge) }),
                ([_, ..], Some(inline_buffer)) => {
                    // SAFETY: as above.
                    list.iter().for_each(|sge| inline_buffer.extend_from_slice(unsafe { bytes(sge) }));
                    Data::Inline(inline_buffer)
                }
                _ => Data::Inline(&[]),
            }
        }
    };
    let operation = operation(wr)?;
    let is_local = matches!(operation, Operation::LocalInvalidate { .. } | Operation::BindWindow(_));
    // SAFETY: a number and a pointer, for which any bits will do until the pointer is followed.
    let ud = unsafe { wr.wr.ud };
    Ok(SendRequest {
        wr_id: wr.wr_id,
        flags: flags(wr.send_flags),
        data,
        operation,
        target: match kind {
            // Of other operations the union has an address of the peer's in its place; the queue pair takes them, and fails.
            Kind::UnreliableDatagram if matches!(operation, Operation::Send { .. }) => {
                // SAFETY: requests of datagrams have an address handle, or null.
                let ah = unsafe { Handle::new(ud.ah) };
                Some(target(ah, ud.remote_qpn, ud.remote_qkey)?)
            }
            _ => None,
        },
        // What never leaves the NIC names no queue of the peer's.
        xrc_srq: (kind == Kind::XrcInitiator && !is_local).then(|| Srqn::new(wr.qp_type.remote_srqn)),
    })
}

/// A list of work requests of C's.
trait Listed: Sized {
    /// Where the list goes on, as C has it.
    fn next(&self) -> *mut Self;

    /// The program's name for it.
    fn name(&self) -> u64;

    /// The request after this one. While a checker or another sink listens, one that is not there is an error.
    #[inline]
    fn following(&self) -> Result<Option<&Self>, Errno> {
        let next = self.next();
        refuse_if!(!next.is_null() && hca::is_watched() && !is_there(next), leads_nowhere(self.name(), next.addr()));
        // SAFETY: the list that the program posts ends with a null, and its requests stay until the call returns.
        Ok(unsafe { next.as_ref() })
    }
}

/// Whether the program has memory where a request is said to be.
#[cold]
fn is_there<T>(request: *const T) -> bool {
    const REQUEST_MAX: usize = 256;
    const { assert!(size_of::<T>() <= REQUEST_MAX) };
    let mut bytes = [0; REQUEST_MAX];
    let size = size_of::<T>();
    memory::peek(&[(request.addr() as u64, size)], &mut bytes[..size])
}

#[cold]
fn leads_nowhere(name: u64, next: usize) -> Errno {
    Errno::invalid(format_args!("next of the work request with wr_id {name:#x} is {next:#x}, which leads to no memory"))
}

impl Listed for ibv_send_wr {
    #[inline]
    fn next(&self) -> *mut ibv_send_wr {
        self.next
    }

    fn name(&self) -> u64 {
        self.wr_id
    }
}

impl Listed for ibv_recv_wr {
    #[inline]
    fn next(&self) -> *mut ibv_recv_wr {
        self.next
    }

    fn name(&self) -> u64 {
        self.wr_id
    }
}

/// Posts requests, of whose list so many were posted before, and has a sanitizer judge them if there is one.
#[inline]
fn post_sends(pair: &QueuePair, requests: &[SendRequest<'_>], posted: usize) -> Result<(), (usize, PostError)> {
    let post = || pair.qp.post_more_sends(&pair.opened.nic, requests, posted);
    match latch::sanitizer::is_present() {
        false => post(),
        true => pair.opened.nic.post_judged_sends(&pair.qp, requests, post),
    }
}

/// Posts the request at the front of the rest of a list, of which so many were posted; where to go on. If it fails,
/// `bad` is the request that was wrong.
#[inline]
fn post_one<'a>(
    pair: &QueuePair,
    wr: &'a ibv_send_wr,
    posted: &mut usize,
    bad: &mut *const ibv_send_wr,
) -> Result<Option<&'a ibv_send_wr>, Errno> {
    *bad = wr;
    let mut inline_buffer = Vec::new();
    let request = request(pair.qp.kind(), wr, Some(&mut inline_buffer))?;
    post_sends(pair, slice::from_ref(&request), *posted).map_err(|(_, error)| error)?;
    *posted += 1;
    wr.following()
}

/// Posts the first requests of the rest together; where to go on. If it fails, `bad` is the request that was wrong.
fn post_some<'a>(
    pair: &QueuePair,
    first: &'a ibv_send_wr,
    posted: &mut usize,
    bad: &mut *const ibv_send_wr,
) -> Result<Option<&'a ibv_send_wr>, Errno> {
    let mut requests = [EMPTY_REQUEST; POST_BATCH];
    let (mut count, mut next, mut wrong) = (0, Some(first), None);
    while let (Some(wr), Some(place)) = (next, requests.get_mut(count))
        && !is_scattered_inline(wr)
    {
        match request(pair.qp.kind(), wr, None) {
            Ok(request) => *place = request,
            Err(error) => {
                wrong = Some((wr, error));
                break;
            }
        }
        count += 1;
        next = match wr.following() {
            Ok(next) => next,
            Err(error) => {
                wrong = Some((wr, error));
                break;
            }
        };
    }
    if let Err((index, error)) = post_sends(pair, &requests[..count], *posted) {
        *bad = (0..index).try_fold(first, |wr, _| wr.following().ok()?).unwrap_or(first);
        return Err(error.into());
    }
    *posted += count;
    match wrong {
        Some((wr, error)) => {
            *bad = wr;
            Err(error)
        }
        None => Ok(next),
    }
}

pub(crate) extern "C" fn post_send(
    qp: Handle<'_, ibv_qp>,
    list: In<'_, ibv_send_wr>,
    mut bad_list: Out<'_, *mut ibv_send_wr>,
) -> c_int {
    status("ibv_post_send", || {
        let mut bad = list.as_ptr();
        let posted = QueuePair::of(qp).and_then(|pair| {
            let (mut next, mut posted) = (list.as_ref(), 0);
            while let Some(wr) = next {
                next = match wr.next.is_null() || is_scattered_inline(wr) {
                    true => post_one(pair, wr, &mut posted, &mut bad)?,
                    false => post_some(pair, wr, &mut posted, &mut bad)?,
                };
            }
            Ok(())
        });
        if posted.is_err() {
            bad_list.write(bad.cast_mut());
        }
        posted
    })
}

/// Posts receives one by one through `post`, which is told the place of each in the list.
pub(crate) fn post_receives(
    list: In<'_, ibv_recv_wr>,
    mut bad_list: Out<'_, *mut ibv_recv_wr>,
    mut post: impl FnMut(&ReceiveRequest<'_>, usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut next, mut index) = (list.as_ref(), 0);
    while let Some(wr) = next {
        // SAFETY: `ibv_post_recv` demands a list of `num_sge` entries.
        let sges = unsafe { sges_of(wr.sg_list, wr.num_sge) };
        let posted = sges.and_then(|sges| post(&ReceiveRequest { wr_id: wr.wr_id, sges }, index));
        if let Err(error) = posted {
            bad_list.write(std::ptr::from_ref(wr).cast_mut());
            return Err(error);
        }
        next = match wr.following() {
            Ok(next) => next,
            Err(error) => {
                bad_list.write(std::ptr::from_ref(wr).cast_mut());
                return Err(error);
            }
        };
        index += 1;
    }
    Ok(())
}

pub(crate) extern "C" fn post_recv(
    qp: Handle<'_, ibv_qp>,
    list: In<'_, ibv_recv_wr>,
    bad_list: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    status("ibv_post_recv", || {
        let pair = QueuePair::of(qp)?;
        post_receives(list, bad_list, |request, index| {
            let nic = &pair.opened.nic;
            let post = || pair.qp.post_more_receives(nic, slice::from_ref(request), index);
            let posted = match latch::sanitizer::is_present() {
                false => post(),
                true => nic.post_judged_receive(&pair.qp, request, post),
            };
            posted.map_err(|(_, error)| error.into())
        })
    })
}

pub(crate) extern "C" fn post_srq_recv(
    srq: Handle<'_, ibv_srq>,
    list: In<'_, ibv_recv_wr>,
    bad_list: Out<'_, *mut ibv_recv_wr>,
) -> c_int {
    status("ibv_post_srq_recv", || {
        let queue = SharedReceiveQueue::of(srq)?;
        post_receives(list, bad_list, |request, index| {
            let nic = &queue.opened.nic;
            let post = || nic.post_shared(&queue.queue, request, index);
            Ok(match latch::sanitizer::is_present() {
                false => post(),
                true => nic.post_judged_shared(&queue.queue, request, post),
            }?)
        })
    })
}

/// Binds a window of type 1. Its new key is known at once.
pub(crate) extern "C" fn bind_mw(qp: Handle<'_, ibv_qp>, mw: Handle<'_, ibv_mw>, how: In<'_, ibv_mw_bind>) -> c_int {
    status("ibv_bind_mw", || {
        let pair = QueuePair::of(qp)?;
        let how = how.as_ref().ok_or_else(Errno::null)?;
        let window = MemoryWindow::of(mw)?;
        let new_key = memory::Key::new(field!(window.base, rkey)).next();
        let request = SendRequest {
            wr_id: how.wr_id,
            operation: memory_window::bind(mw, new_key.value(), &how.bind_info)?,
            flags: flags(how.send_flags),
            data: Data::Gather(&[]),
            target: None,
            xrc_srq: None,
        };
        pair.qp.post_send(&pair.opened.nic, &[request]).map_err(|(_, error)| error)?;
        set_field!(window.base, rkey, new_key.value());
        Ok(())
    })
}
