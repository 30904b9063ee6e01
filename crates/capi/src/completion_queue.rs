//! Completion queues: making, resizing and destroying them, polling and arming.

use crate::acknowledgements::Acknowledgements;
use crate::as_card;
use crate::boundary::{data_path, object, status};
use crate::completion_channel::Channel;
use crate::context::{COMPLETION_VECTORS, Context, OpenDevice};
use crate::cross_call_lock::CrossCallLock;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, Public, field, set_field};
use crate::use_count::UseCount;
use crate::wall_clock::WallClock;
use abi::{
    Handle, In, Owned, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_moderate_cq, ibv_modify_cq_attr, ibv_wc,
    ibv_wc_tm_info,
};
use hca::{AsyncEvent, Device, Moderation, Notify};
use profiles::{Feature, Grant, Limit};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use transport::{Cause, Completion, CompletionKind, Status};

/// A completion queue; every one is an extended one inside.
#[repr(C)]
pub struct CompletionQueue {
    pub(crate) base: Public<ibv_cq_ex>,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) cq: Arc<hca::CompletionQueue>,
    pub(crate) completion_events: Acknowledgements,
    pub(crate) async_events: Acknowledgements,
    pub(crate) users: UseCount,
    pub(crate) cursor: CrossCallLock<Cursor>,
    /// The program promised to poll from one thread at a time.
    pub(crate) single_threaded: bool,
}

/// A completion with its moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuedCompletion {
    pub completion: Completion,
    pub at: u64,
}

/// Where a program that reads completions one by one is.
#[derive(Debug, Default)]
pub struct Cursor {
    pub(crate) current: Option<QueuedCompletion>,
    /// Its time by the system's clock, once the program has asked.
    pub(crate) current_time: Option<u64>,
    pub(crate) wall_clock: WallClock,
}

/// Hardware rounds up, and programs that ask for one entry live off what it rounds up to.
fn rounded_up(entries: u32) -> u32 {
    match entries {
        1..hca::MAX_ENTRIES => (entries + 1).next_power_of_two().min(hca::MAX_ENTRIES),
        // Nonsense stays what it is, and is refused.
        _ => entries,
    }
}

/// How many entries a device grants.
fn granted(device: &Device, entries: u32) -> u32 {
    device.grant(Grant::Cqe, entries, Limit::MaxCqe, rounded_up(entries))
}

/// What a program asks for.
pub(crate) struct CompletionQueueSpec<'a> {
    pub entries: u32,
    pub cq_context: *mut c_void,
    pub channel: Handle<'a, ibv_comp_channel>,
    pub vector: u32,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for CompletionQueue {
    type C = ibv_cq;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        field!(self.base, handle) == self.cq.id
    }
}

impl CompletionQueue {
    /// A new queue, not yet shown to C.
    pub(crate) fn make(context: &Context, spec: &CompletionQueueSpec<'_>) -> Result<Box<CompletionQueue>, Errno> {
        if spec.vector >= COMPLETION_VECTORS as u32 {
            return Err(Errno::invalid(format_args!(
                "comp_vector is {}; it may be 0 to {} (num_comp_vectors - 1)",
                spec.vector,
                COMPLETION_VECTORS - 1
            )));
        }
        let channel = match spec.channel.is_null() {
            true => None,
            false => Some(Arc::clone(&Channel::of(spec.channel)?.channel)),
        };
        let opened = Arc::clone(&context.opened);
        opened.nic.profile_admits_cq(opened.device(), spec.entries)?;
        let cq = opened.nic.create_larger_cq(spec.entries, granted(opened.device(), spec.entries), channel)?;
        cq.belongs_to(opened.hca.device());
        let mut base = ibv_cq_ex::zeroed();
        base.context = context.as_c();
        base.channel = spec.channel.as_ptr();
        base.cq_context = spec.cq_context;
        base.handle = cq.id;
        base.cqe = cq.capacity() as c_int;
        base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        base.cond = libc::PTHREAD_COND_INITIALIZER;
        Ok(Box::new(CompletionQueue {
            base: Public::new(base),
            opened,
            cq,
            completion_events: Acknowledgements::default(),
            async_events: Acknowledgements::default(),
            users: UseCount::default(),
            cursor: CrossCallLock::new(Cursor::default()),
            single_threaded: false,
        }))
    }

    /// Shows it to C, and to events that name it by number.
    pub(crate) fn publish(self: Box<CompletionQueue>) -> *mut ibv_cq {
        if let Some(channel) = self.channel() {
            channel.users().fetch_add(1, Ordering::AcqRel);
        }
        let (opened, id) = (Arc::clone(&self.opened), self.cq.id);
        let queue = self.into_c();
        // SAFETY: `ibv_destroy_cq` removes it.
        unsafe { opened.objects().cqs.insert(id, queue) };
        queue
    }

    /// The channel it reports to.
    fn channel(&self) -> Option<&Channel> {
        // SAFETY: null, or the channel it was made with, which is not destroyed while queues report to it.
        Channel::of(unsafe { Handle::new(field!(self.base, channel)) }).ok()
    }
}

/// A new completion queue.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_cq(
    context: Handle<'_, ibv_context>,
    entries: c_int,
    cq_context: *mut c_void,
    channel: Handle<'_, ibv_comp_channel>,
    vector: c_int,
) -> *mut ibv_cq {
    object("ibv_create_cq", || {
        let context = Context::working(context)?;
        let entries = u32::try_from(entries).map_err(|_| Errno::INVALID)?;
        let vector = u32::try_from(vector).map_err(|_| Errno::INVALID)?;
        Ok(CompletionQueue::make(context, &CompletionQueueSpec { entries, cq_context, channel, vector })?.publish())
    })
}

/// Changes how many completions it holds.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resize_cq(cq: Handle<'_, ibv_cq>, entries: c_int) -> c_int {
    status("ibv_resize_cq", || {
        let queue = CompletionQueue::by_handle(cq)?;
        let entries = u32::try_from(entries).map_err(|_| Errno::INVALID)?;
        let device = queue.opened.device();
        device.offers(Feature::ResizeCq)?;
        device.at_most(Limit::MaxCqe, entries.into())?;
        // What waits must fit what was asked for; then there is more.
        queue.cq.resize(entries)?;
        queue.opened.nic.resize_cq(&queue.cq, granted(device, entries))?;
        set_field!(queue.base, cqe, queue.cq.capacity() as c_int);
        Ok(())
    })
}

/// Destroys a completion queue that nothing completes into, once its events are acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_cq(cq: Owned<'_, ibv_cq>) -> c_int {
    status("ibv_destroy_cq", || {
        let queue = CompletionQueue::given_back(&cq)?;
        queue.users.require_zero()?;
        let id = queue.cq.id;
        queue.opened.objects().cqs.remove(id);
        if let Some(channel) = queue.cq.channel() {
            channel.purge(|event| *event == id);
        }
        queue.opened.hca.events().purge(|event| *event == AsyncEvent::CqError(id));
        let waits = |missing| queue.opened.tell_wait("cq", id.into(), missing);
        queue.completion_events.wait(waits);
        queue.async_events.wait(waits);
        if let Some(channel) = queue.channel() {
            channel.users().fetch_sub(1, Ordering::AcqRel);
        }
        queue.opened.nic.destroy_cq(&queue.cq);
        drop(CompletionQueue::from_c(cq)?);
        Ok(())
    })
}

/// Moves completions to the program; `write` writes each to its place. A sanitizer hears of them if it `JUDGED` what was
/// posted.
#[inline(always)]
fn poll_into<const JUDGED: bool>(
    cq: Handle<'_, ibv_cq>,
    room: c_int,
    out: *mut ibv_wc,
    mut write: impl FnMut(*mut ibv_wc, &Completion, &CompletionQueue),
) -> c_int {
    data_path::number("ibv_poll_cq", || {
        let queue = CompletionQueue::of(cq)?;
        let room = usize::try_from(room).map_err(|_| Errno::INVALID)?;
        refuse_if!(out.is_null() && room > 0, Errno::INVALID);
        let mut next = out;
        let take = |completion: &Completion, _| {
            write(next, completion, queue);
            next = next.wrapping_add(1);
        };
        let taken = match JUDGED {
            false => queue.opened.nic.poll(&queue.cq, room, take),
            true => queue.opened.nic.poll_judged(&queue.cq, room, take),
        };
        if taken == 0 && queue.cq.has_overflowed() {
            let why = "the completion queue has overflowed: completions are lost";
            return Err(Errno::of(libc::EOVERFLOW).because(why));
        }
        Ok(taken as c_int)
    })
}

/// Writes all of a completion.
///
/// # Safety
/// `place` is valid for writes.
#[inline]
unsafe fn write_whole(place: *mut ibv_wc, completion: &Completion) {
    // SAFETY: the same contract.
    unsafe { place.write(work_completion(completion)) };
}

/// Moves completions to the program.
///
/// # Safety
/// `out` is null or has room for as many completions as `room` says.
pub(crate) unsafe extern "C" fn poll_cq(cq: Handle<'_, ibv_cq>, room: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: the NIC hands over `room` completions at most, so there is a place for each.
    poll_into::<false>(cq, room, out, |place, completion, _| unsafe { write_whole(place, completion) })
}

/// [`poll_cq`] on a device that is like a card which leaves fields of `ibv_wc` out.
///
/// # Safety
/// As for [`poll_cq`].
pub(crate) unsafe extern "C" fn poll_cq_as_card(cq: Handle<'_, ibv_cq>, room: c_int, out: *mut ibv_wc) -> c_int {
    let write = |place, completion: &Completion, queue: &CompletionQueue| {
        let card = queue.opened.device().profile().map(|profile| profile.completions).unwrap_or_default();
        // SAFETY: the NIC hands over `room` completions at most, so there is a place for each.
        unsafe { as_card::write(place, completion, &work_completion(completion), &card) };
    };
    match latch::sanitizer::is_present() {
        false => poll_into::<false>(cq, room, out, write),
        true => poll_into::<true>(cq, room, out, write),
    }
}

/// [`poll_cq`] in a program with a sanitizer, which must be told what is filled in.
///
/// # Safety
/// As for [`poll_cq`].
pub(crate) unsafe extern "C" fn poll_cq_told(cq: Handle<'_, ibv_cq>, room: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: the NIC hands over `room` completions at most, so there is a place for each.
    let taken = poll_into::<true>(cq, room, out, |place, completion, _| unsafe { write_whole(place, completion) });
    latch::sanitizer::initialised(out.cast(), usize::try_from(taken).unwrap_or(0) * size_of::<ibv_wc>());
    taken
}

/// Asks for an event at the next completion.
pub(crate) extern "C" fn req_notify_cq(cq: Handle<'_, ibv_cq>, solicited_only: c_int) -> c_int {
    data_path::status("ibv_req_notify_cq", || {
        let queue = CompletionQueue::of(cq)?;
        let notify = if solicited_only == 0 { Notify::Any } else { Notify::Solicited };
        queue.opened.nic.arm(&queue.cq, notify);
        Ok(())
    })
}

/// Moderates events: one for so many completions, or for what has come so long after the first.
pub(crate) extern "C" fn modify_cq(cq: Handle<'_, ibv_cq>, attributes: In<'_, ibv_modify_cq_attr>) -> c_int {
    status("ibv_modify_cq", || {
        let queue = CompletionQueue::by_handle(cq)?;
        queue.opened.device().offers(Feature::ModerateCq)?;
        let cq = &queue.cq;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        match attributes.attr_mask {
            0 => return Err(Errno::invalid("nothing to change")),
            abi::IBV_CQ_ATTR_MODERATE => {}
            _ => return Err(Errno::unsupported("only IBV_CQ_ATTR_MODERATE can be changed")),
        }
        let ibv_moderate_cq { cq_count, cq_period } = attributes.moderate;
        cq.moderate(Moderation { count: cq_count, period: cq_period });
        Ok(())
    })
}

/// The number of `ibv_wc_opcode`.
pub(crate) fn opcode(kind: CompletionKind) -> u32 {
    match kind {
        CompletionKind::Send => abi::IBV_WC_SEND,
        CompletionKind::Write => abi::IBV_WC_RDMA_WRITE,
        CompletionKind::Read => abi::IBV_WC_RDMA_READ,
        CompletionKind::CompareSwap => abi::IBV_WC_COMP_SWAP,
        CompletionKind::FetchAdd => abi::IBV_WC_FETCH_ADD,
        CompletionKind::AtomicWrite => abi::IBV_WC_ATOMIC_WRITE,
        CompletionKind::Flush => abi::IBV_WC_FLUSH,
        CompletionKind::Bind => abi::IBV_WC_BIND_MW,
        CompletionKind::LocalInvalidate => abi::IBV_WC_LOCAL_INV,
        CompletionKind::Receive => abi::IBV_WC_RECV,
        CompletionKind::ReceiveWriteImmediate => abi::IBV_WC_RECV_RDMA_WITH_IMM,
        CompletionKind::TagAdd => abi::IBV_WC_TM_ADD,
        CompletionKind::TagDelete => abi::IBV_WC_TM_DEL,
        CompletionKind::TagSynchronize => abi::IBV_WC_TM_SYNC,
        CompletionKind::TagUntagged => abi::IBV_WC_TM_NO_TAG,
        // Where tag matching is described a message that matches nothing is an IBV_WC_RECV; hardware says this, and
        // programs know it by the flags that it has not.
        CompletionKind::TagUnexpected
        | CompletionKind::TagMatch
        | CompletionKind::TagData
        | CompletionKind::TagMessage => abi::IBV_WC_TM_RECV,
    }
}

/// What a completion carries beside its status.
pub(crate) fn flags(completion: &Completion) -> u32 {
    let mut flags = 0;
    if completion.grh {
        flags |= abi::IBV_WC_GRH;
    }
    if completion.immediate.is_some() {
        flags |= abi::IBV_WC_WITH_IMM;
    }
    if completion.invalidated.is_some() {
        flags |= abi::IBV_WC_WITH_INV;
    }
    if completion.frame.checksums_are_right {
        flags |= abi::IBV_WC_IP_CSUM_OK;
    }
    flags | tag_flags(completion)
}

/// What tag matching has to say of a completion.
#[inline]
fn tag_flags(completion: &Completion) -> u32 {
    let flags = match completion.kind {
        CompletionKind::TagMatch => abi::IBV_WC_TM_MATCH,
        CompletionKind::TagData => abi::IBV_WC_TM_DATA_VALID,
        CompletionKind::TagMessage => abi::IBV_WC_TM_MATCH | abi::IBV_WC_TM_DATA_VALID,
        _ => 0,
    };
    match completion.cause {
        Some(Cause::OutOfStep) => flags | abi::IBV_WC_TM_SYNC_REQ,
        _ => flags,
    }
}

/// The tag and the sender's word of a message that matched, told with the match.
pub(crate) fn tag_info(completion: &Completion) -> ibv_wc_tm_info {
    match completion.cause {
        Some(Cause::Matched(header)) => ibv_wc_tm_info { tag: header.tag, priv_: header.app_ctx },
        _ => ibv_wc_tm_info { tag: 0, priv_: 0 },
    }
}

/// The immediate, most significant byte first, or the key that was invalidated.
pub(crate) fn immediate(completion: &Completion) -> u32 {
    let key = completion.invalidated.map_or(0, wire::Key::value);
    completion.immediate.map_or(key, u32::to_be)
}

/// RoCE has no service levels. For datagrams hardware says here what kind of packet it was, and UCX looks for the
/// sender's address by it: bit 3 stands for UDP, below it 1 is IPv6 and 2 is IPv4.
pub(crate) fn service_level(completion: &Completion) -> u8 {
    match (completion.grh, completion.over_ipv4) {
        (false, _) => 0,
        (true, false) => 8 | 1,
        (true, true) => 8 | 2,
    }
}

/// Why, as the number of the rule that explains it: `ubiverbs explain` has its page. Zero is none.
#[inline]
pub(crate) fn vendor_error(completion: &Completion) -> u32 {
    if completion.status == Status::Success {
        return 0;
    }
    // The first card's, whatever the device: a lock is held, under which no queue pair may be looked for.
    let card = hca::environment::profile_of(0);
    let of_card = card.and_then(|profile| profile.vendor_error(completion.status.code().into()));
    if of_card.is_none() && card.is_some_and(|profile| profile.completions.no_vendor_errors) {
        return 0;
    }
    of_card.unwrap_or_else(|| rule_of(completion))
}

#[cold]
fn rule_of(completion: &Completion) -> u32 {
    let failure = completion.failure();
    // A script that makes a completion fail says what hardware would say.
    if let Some(trace::Failure::Injected { vendor, .. }) = failure {
        return vendor;
    }
    checks::rule_of_completion(failure.as_ref(), completion.status.name()).map_or(0, |rule| rule.0.into())
}

fn work_completion(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status.code().into(),
        opcode: opcode(completion.kind),
        vendor_err: vendor_error(completion),
        byte_len: completion.bytes,
        imm_data: immediate(completion),
        qp_num: completion.qpn.value(),
        src_qp: completion.src_qpn.map_or(0, wire::Qpn::value),
        wc_flags: flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: service_level(completion),
        dlid_path_bits: 0,
    }
}
