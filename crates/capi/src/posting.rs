//! Posting work: lists of C's work requests become slices of the transport's, a few at a time and without touching the heap.

use crate::address_handle::AddressHandle;
use crate::boundary::status;
use crate::errno::Errno;
use crate::memory_window;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;
use abi::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq};
use hca::limits::MAX_SGE;
use std::array;
use std::ffi::{c_int, c_uint};
use std::ops::Range;
use std::slice;
use transport::{Data, DatagramTarget, Kind, Operation, ReceiveRequest, Remote, SendFlags, SendRequest, Sge};
use wire::{Key, Qkey, Qpn, Srqn};

/// Requests handed over at once, and the pieces they may have together; the second is never less than one request may have.
const BATCH: usize = 16;
const PIECES: usize = 64;
const _: () = assert!(PIECES >= MAX_SGE as usize);

/// The flags of a send, as the transport has them.
pub(crate) fn flags(bits: c_uint) -> SendFlags {
    let mut flags = SendFlags::empty();
    flags.set(SendFlags::FENCE, bits & abi::IBV_SEND_FENCE != 0);
    flags.set(SendFlags::SIGNALED, bits & abi::IBV_SEND_SIGNALED != 0);
    flags.set(SendFlags::SOLICITED, bits & abi::IBV_SEND_SOLICITED != 0);
    flags
}

/// Where a prepared request has its bytes.
#[derive(Clone)]
enum Bytes {
    /// In these pieces.
    Pieces(Range<usize>),
    /// In the program's memory, to be copied now.
    One(*const u8, usize),
    /// Gathered from several places of the program's memory.
    Gathered(Range<usize>),
}

/// A request that is checked, but for what the queue pair knows.
#[derive(Clone)]
struct Prepared {
    wr_id: u64,
    operation: Operation,
    flags: SendFlags,
    bytes: Bytes,
    target: Option<DatagramTarget>,
    xrc_srq: Option<Srqn>,
}

/// The pieces of a request.
unsafe fn pieces<'a>(list: *mut ibv_sge, count: c_int) -> Result<&'a [ibv_sge], Errno> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if count <= MAX_SGE as usize && !list.is_null() => Ok(slice::from_raw_parts(list, count)),
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

/// Requests being prepared.
struct Preparation<const R: usize, const S: usize> {
    requests: [Option<Prepared>; R],
    count: usize,
    sges: [Sge; S],
    used: usize,
    gathered: Vec<u8>,
}

impl<const R: usize, const S: usize> Preparation<R, S> {
    fn new() -> Preparation<R, S> {
        Preparation {
            requests: [const { None }; R],
            count: 0,
            sges: [Sge::default(); S],
            used: 0,
            gathered: Vec::new(),
        }
    }

    /// Adds a request; false if there is no more room.
    unsafe fn add(&mut self, kind: Kind, wr: &ibv_send_wr) -> Result<bool, Errno> {
        let list = pieces(wr.sg_list, wr.num_sge)?;
        if self.count == R || self.used + list.len() > S {
            return Ok(false);
        }
        let operation = operation(wr)?;
        let stays = matches!(operation, Operation::LocalInvalidate { .. } | Operation::BindWindow(_));
        let ud = wr.wr.ud;
        let prepared = Prepared {
            wr_id: wr.wr_id,
            flags: flags(wr.send_flags),
            bytes: match wr.send_flags & abi::IBV_SEND_INLINE {
                0 => self.gather(list),
                _ => self.copy(list)?,
            },
            operation,
            target: match kind {
                Kind::UnreliableDatagram => Some(target(ud.ah, ud.remote_qpn, ud.remote_qkey)?),
                _ => None,
            },
            // What never leaves the NIC names no queue of the peer's.
            xrc_srq: (kind == Kind::XrcInitiator && !stays).then(|| Srqn::new(wr.qp_type.remote_srqn)),
        };
        self.requests[self.count] = Some(prepared);
        self.count += 1;
        Ok(true)
    }

    fn gather(&mut self, list: &[ibv_sge]) -> Bytes {
        let begin = self.used;
        for sge in list {
            self.sges[self.used] = piece(sge);
            self.used += 1;
        }
        Bytes::Pieces(begin..self.used)
    }

    /// Inline data: the program's own memory, key or no key.
    unsafe fn copy(&mut self, list: &[ibv_sge]) -> Result<Bytes, Errno> {
        let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        if total > u64::from(hca::limits::MAX_INLINE) {
            return Err(Errno::invalid("more inline data than the device takes"));
        }
        if let [sge] = list {
            return Ok(Bytes::One(sge.addr as *const u8, sge.length as usize));
        }
        let begin = self.gathered.len();
        for sge in list.iter().filter(|sge| sge.length > 0) {
            self.gathered.extend_from_slice(slice::from_raw_parts(sge.addr as *const u8, sge.length as usize));
        }
        Ok(Bytes::Gathered(begin..self.gathered.len()))
    }

    /// Hands them over; the index of the one that was refused.
    unsafe fn post(&self, pair: &QueuePair) -> Result<(), (usize, Errno)> {
        let requests: [SendRequest<'_>; R] = array::from_fn(|index| match &self.requests[index] {
            Some(prepared) => SendRequest {
                wr_id: prepared.wr_id,
                operation: prepared.operation,
                flags: prepared.flags,
                data: match &prepared.bytes {
                    Bytes::Pieces(range) => Data::Gather(&self.sges[range.clone()]),
                    Bytes::One(_, 0) => Data::Inline(&[]),
                    Bytes::One(address, length) => Data::Inline(slice::from_raw_parts(*address, *length)),
                    Bytes::Gathered(range) => Data::Inline(&self.gathered[range.clone()]),
                },
                target: prepared.target,
                xrc_srq: prepared.xrc_srq,
            },
            None => SendRequest {
                wr_id: 0,
                operation: Operation::default(),
                flags: SendFlags::empty(),
                data: Data::Gather(&[]),
                target: None,
                xrc_srq: None,
            },
        });
        let posted = pair.qp.post_send(&pair.shared.nic, &requests[..self.count]);
        posted.map_err(|(index, error)| (index, error.into()))
    }
}

/// Posts the first requests of a list; where to go on.
unsafe fn post_some<const R: usize, const S: usize>(
    pair: &QueuePair,
    first: *mut ibv_send_wr,
    bad: &mut *mut ibv_send_wr,
) -> Result<*mut ibv_send_wr, Errno> {
    let mut preparation = Preparation::<R, S>::new();
    let mut next = first;
    let mut wrong = None;
    while let Some(wr) = next.as_ref() {
        match preparation.add(pair.qp.kind(), wr) {
            Ok(true) => next = wr.next,
            Ok(false) => break,
            Err(error) => {
                wrong = Some(error);
                break;
            }
        }
    }
    if let Err((index, error)) = preparation.post(pair) {
        *bad = (0..index).fold(first, |wr, _| (*wr).next);
        return Err(error);
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
                next = match wr.next.is_null() {
                    true => post_some::<1, { MAX_SGE as usize }>(pair, next, &mut bad)?,
                    false => post_some::<BATCH, PIECES>(pair, next, &mut bad)?,
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
        let posted = pieces(wr.sg_list, wr.num_sge).and_then(|list| {
            let mut sges = [Sge::default(); MAX_SGE as usize];
            for (to, from) in sges.iter_mut().zip(list) {
                *to = piece(from);
            }
            post(&ReceiveRequest { wr_id: wr.wr_id, sges: &sges[..list.len()] })
        });
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
