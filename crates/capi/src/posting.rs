//! Posting work: lists of C's work requests become slices of the transport's, a few at a time and without touching the heap.

use crate::address_handle::AddressHandle;
use crate::boundary::status;
use crate::errno::Errno;
use crate::memory_window;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;
use abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};
use hca::limits::MAX_SGE;
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::slice;
use transport::{Data, DatagramTarget, Kind, Operation, ReceiveRequest, Remote, SendFlags, SendRequest, Sge};
use wire::{Key, Qkey, Qpn, Srqn};

/// Requests handed over at once.
const BATCH: usize = 16;

// C's pieces are the transport's: they are not copied on the way.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
const _: () = assert!(offset_of!(Sge, address) == offset_of!(ibv_sge, addr));
const _: () = assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
const _: () = assert!(offset_of!(Sge, key) == offset_of!(ibv_sge, lkey));

/// No request.
const NOTHING: SendRequest<'static> = SendRequest {
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
    flags
}

/// The pieces of a request.
#[inline]
unsafe fn pieces<'a>(list: *mut ibv_sge, count: c_int) -> Result<&'a [Sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // They lie in memory as the transport has them: see above.
        Ok(count) if count <= MAX_SGE as usize && !list.is_null() => Ok(slice::from_raw_parts(list.cast(), count)),
        _ => Err(Errno::invalid("num_sge is negative, or more than the device takes, or sg_list is null")),
    }
}

pub(crate) fn piece(sge: &ibv_sge) -> Sge {
    Sge { address: sge.addr, length: sge.length, key: Key::new(sge.lkey) }
}

/// What a request does.
unsafe fn operation(wr: &ibv_send_wr) -> Result<Operation, Errno> {
    let remote = Remote { address: wr.wr.rdma.remote_addr, key: Key::new(wr.wr.rdma.rkey) };
    let atomic = wr.wr.atomic;
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
            let bind = wr.bind_mw.bind_mw;
            memory_window::bind(bind.mw, bind.rkey, &bind.bind_info)?
        }
        _ => return Err(Errno::invalid("no such opcode")),
    })
}

/// Where a datagram goes.
pub(crate) unsafe fn target(ah: *mut abi::ibv_ah, qpn: u32, qkey: u32) -> Result<DatagramTarget, Errno> {
    Ok(DatagramTarget { av: AddressHandle::of(ah)?.vector, qpn: Qpn::new(qpn), qkey: Qkey::new(qkey) })
}

/// Whether a request's inline data has to be put together first.
#[inline]
fn is_scattered(wr: &ibv_send_wr) -> bool {
    wr.send_flags & abi::IBV_SEND_INLINE != 0 && wr.num_sge > 1
}

/// The bytes of a piece of inline data: the program's own memory, key or no key.
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    match sge.length {
        0 => &[],
        length => slice::from_raw_parts(sge.address as *const u8, length as usize),
    }
}

/// A request as the transport has it, checked but for what the queue pair knows. Scattered inline data is put together in `gathered`.
#[inline]
unsafe fn request<'a>(
    kind: Kind,
    wr: &ibv_send_wr,
    gathered: Option<&'a mut Vec<u8>>,
) -> Result<SendRequest<'a>, Errno> {
    let list = pieces(wr.sg_list, wr.num_sge)?;
    let data = match wr.send_flags & abi::IBV_SEND_INLINE {
        0 => Data::Gather(list),
        _ => {
            let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
            if total > u64::from(hca::limits::MAX_INLINE) {
                return Err(Errno::invalid("more inline data than the device takes"));
            }
            match (list, gathered) {
                ([sge], _) => Data::Inline(bytes(sge)),
                ([_, ..], Some(gathered)) => {
                    list.iter().for_each(|sge| gathered.extend_from_slice(bytes(sge)));
                    Data::Inline(gathered)
                }
                _ => Data::Inline(&[]),
            }
        }
    };
    let operation = operation(wr)?;
    let stays = matches!(operation, Operation::LocalInvalidate { .. } | Operation::BindWindow(_));
    let ud = wr.wr.ud;
    Ok(SendRequest {
        wr_id: wr.wr_id,
        flags: flags(wr.send_flags),
        data,
        operation,
        target: match kind {
            Kind::UnreliableDatagram => Some(target(ud.ah, ud.remote_qpn, ud.remote_qkey)?),
            _ => None,
        },
        // What never leaves the NIC names no queue of the peer's.
        xrc_srq: (kind == Kind::XrcInitiator && !stays).then(|| Srqn::new(wr.qp_type.remote_srqn)),
    })
}

/// Posts the request at the front of a list; where to go on.
#[inline]
unsafe fn post_one(
    pair: &QueuePair,
    wr: *mut ibv_send_wr,
    bad: &mut *mut ibv_send_wr,
) -> Result<*mut ibv_send_wr, Errno> {
    *bad = wr;
    let mut gathered = Vec::new();
    let request = request(pair.qp.kind(), &*wr, Some(&mut gathered))?;
    pair.qp.post_send(&pair.shared.nic, slice::from_ref(&request)).map_err(|(_, error)| error)?;
    Ok((*wr).next)
}

/// Posts the first requests of a list together; where to go on.
unsafe fn post_some(
    pair: &QueuePair,
    first: *mut ibv_send_wr,
    bad: &mut *mut ibv_send_wr,
) -> Result<*mut ibv_send_wr, Errno> {
    let mut requests = [NOTHING; BATCH];
    let (mut count, mut next, mut wrong) = (0, first, None);
    while let (Some(wr), Some(place)) = (next.as_ref(), requests.get_mut(count))
        && !is_scattered(wr)
    {
        match request(pair.qp.kind(), wr, None) {
            Ok(request) => *place = request,
            Err(error) => {
                wrong = Some(error);
                break;
            }
        }
        count += 1;
        next = wr.next;
    }
    if let Err((index, error)) = pair.qp.post_send(&pair.shared.nic, &requests[..count]) {
        *bad = (0..index).fold(first, |wr, _| (*wr).next);
        return Err(error.into());
    }
    match wrong {
        Some(error) => {
            *bad = next;
            Err(error)
        }
        None => Ok(next),
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad_list: *mut *mut ibv_send_wr,
) -> c_int {
    status("ibv_post_send", || {
        let mut bad = list;
        let posted = QueuePair::of(qp).and_then(|pair| {
            let mut next = list;
            while let Some(wr) = next.as_ref() {
                next = match wr.next.is_null() || is_scattered(wr) {
                    true => post_one(pair, next, &mut bad)?,
                    false => post_some(pair, next, &mut bad)?,
                };
            }
            Ok(())
        });
        if posted.is_err() && !bad_list.is_null() {
            bad_list.write(bad);
        }
        posted
    })
}

/// Posts receives one by one through `post`.
unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    bad_list: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&ReceiveRequest<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut next = list;
    while let Some(wr) = next.as_ref() {
        let posted = pieces(wr.sg_list, wr.num_sge).and_then(|sges| post(&ReceiveRequest { wr_id: wr.wr_id, sges }));
        if let Err(error) = posted {
            if !bad_list.is_null() {
                bad_list.write(next);
            }
            return Err(error);
        }
        next = wr.next;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad_list: *mut *mut ibv_recv_wr,
) -> c_int {
    status("ibv_post_recv", || {
        let pair = QueuePair::of(qp)?;
        post_receives(list, bad_list, |request| {
            let posted = pair.qp.post_receive(&pair.shared.nic, slice::from_ref(request));
            posted.map_err(|(_, error)| error.into())
        })
    })
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad_list: *mut *mut ibv_recv_wr,
) -> c_int {
    status("ibv_post_srq_recv", || {
        let queue = SharedReceiveQueue::of(srq)?;
        post_receives(list, bad_list, |request| Ok(queue.queue.post(request)?))
    })
}
