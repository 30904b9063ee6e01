//! What the program calls, told to the trace. Off, each call costs one relaxed load.

use crate::ground::records::Records;
use crate::objects::completion_queue::{CompletionChannel, CompletionQueue};
use crate::objects::context::{AsyncEvent, Context};
use crate::record::tracing::Tracing;
use std::cell::Cell;
use std::fmt::Display;
use std::marker::PhantomData;
use std::sync::Arc;
use trace::{Call, Event, Kind, Piece, Pieces, Text};
use transport::{
    AddressVector, Completion, Data, Modify, Operation, QueuePairConfig, ReceiveRequest, SendFlags, SendRequest, Sge,
    Time,
};
use wire::access::Bind;
use wire::{Gid, Key, Qpn, Srqn};

impl Records {
    /// Tells the trace what the program called, if a sink listens; `call` is asked only then.
    #[inline]
    pub fn called(&self, qpn: Option<Qpn>, call: impl FnOnce() -> Call) {
        if self.trace.is_on() {
            self.tell_call(self.now(), qpn, call());
        }
    }

    /// Tells the trace that a call was refused.
    pub fn refused(&self, function: &'static str, errno: i32, reason: impl Display) {
        self.called(None, || Call::Refused { function, errno, reason: Text::of(reason) });
    }

    #[cold]
    fn tell_call(&self, now: Time, qpn: Option<Qpn>, call: Call) {
        if OWN_CALLS.get() == 0 {
            self.trace.record(&event(now, qpn, call));
        }
    }

    /// A work request of a list is about to be posted to the send queue of this queue pair, whose latch the caller has.
    #[cold]
    pub(crate) fn tell_send(&self, now: Time, qpn: Qpn, index: usize, request: &SendRequest<'_>) {
        #[cfg(feature = "capture")]
        if index == 0
            && OWN_CALLS.get() == 0
            && let Some((place, caller)) = self.trace.posting_stack()
        {
            self.trace.record(&event(now, None, Call::PostedFrom { place, caller }));
        }
        if let Operation::BindWindow(bind) = request.operation {
            let (Bind { window, region, address, length, access, .. }, new_key) = (bind, bind.bound_key());
            let call = Call::BindWindow { window, new_key, region, address, length, access };
            self.tell_call(now, Some(qpn), call);
        }
        self.tell_call(now, Some(qpn), send(index, request));
    }

    /// A work request of a list is about to be posted to the receive queue of this queue pair, whose latch the caller
    /// has; or it was posted to a shared one.
    #[cold]
    pub(crate) fn tell_receive(
        &self,
        now: Time,
        qpn: Option<Qpn>,
        srq: Option<Srqn>,
        index: usize,
        request: &ReceiveRequest<'_>,
    ) {
        let pieces = pieces(request.sges);
        self.tell_call(now, qpn, Call::PostReceive { wr_id: request.wr_id, srq, index: index as u32, pieces });
    }

    /// The program gets a completion.
    pub(crate) fn tell_polled(&self, cq: &CompletionQueue, completion: &Completion) {
        let call = Call::Polled { cq: cq.id, wr_id: completion.wr_id, status: completion.status.name() };
        self.tell_call(self.now(), Some(completion.qpn), call);
    }

    /// The program has polled.
    pub(crate) fn tell_poll(&self, cq: &CompletionQueue, room: usize, got: usize) {
        // A recording has each completion that was taken.
        if (got == 0 || self.trace.is_watched()) && cq.tells_poll(got > 0, self.trace.poll_round()) {
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            self.tell_call(self.now(), None, Call::Poll { cq: cq.id, room: count(room), got: count(got) });
        }
    }

    /// The program is about to sleep until this channel has an event.
    pub(crate) fn waits_for_event(&self, channel: &CompletionChannel) {
        self.called(None, || Call::WaitCqEvent { channel: channel.number() });
    }

    /// The program takes an event of a completion channel: this completion queue has something.
    pub fn took_event(&self, channel: &CompletionChannel, cq: u32) {
        self.called(None, || Call::GetCqEvent { channel: channel.number(), cq });
    }

    /// The program takes an asynchronous event.
    pub fn took_async_event(&self, event: AsyncEvent) {
        self.called(None, || {
            let (event, about) = event.told();
            Call::GetAsyncEvent { event, about }
        });
    }
}

thread_local! {
    /// How many times over this thread is in calls that the library makes for itself.
    static OWN_CALLS: Cell<u32> = const { Cell::new(0) };
}

/// What the calling thread calls is the library's own doing, until this is dropped: the trace is not told of the calls,
/// and no program is blamed for them.
#[derive(Debug)]
#[must_use]
pub struct OwnCalls {
    /// The count is the thread's own.
    _thread: PhantomData<*const ()>,
}

impl OwnCalls {
    /// From now on.
    pub fn begin() -> OwnCalls {
        OWN_CALLS.set(OWN_CALLS.get() + 1);
        OwnCalls { _thread: PhantomData }
    }

    /// From now on, where a sink listens: otherwise there is nothing to keep quiet about.
    #[inline]
    pub fn told_by(tracing: &Tracing) -> Option<OwnCalls> {
        tracing.is_on().then(OwnCalls::begin)
    }
}

impl Drop for OwnCalls {
    fn drop(&mut self) {
        OWN_CALLS.set(OWN_CALLS.get() - 1);
    }
}

/// The event of a call of this thread.
pub(crate) fn event(now: Time, qpn: Option<Qpn>, call: Call) -> Event {
    Event { at: now.as_nanos(), qpn, kind: Kind::Called { thread: ::host::thread::number(), call } }
}

fn pieces(sges: &[Sge]) -> Pieces {
    sges.iter().map(|sge| Piece { address: sge.address, length: sge.length, key: sge.key }).collect()
}

fn send(index: usize, request: &SendRequest<'_>) -> Call {
    let remote = match request.operation {
        Operation::Write { remote, .. }
        | Operation::Read { remote }
        | Operation::CompareSwap { remote, .. }
        | Operation::FetchAdd { remote, .. }
        | Operation::AtomicWrite { remote }
        | Operation::Flush { remote, .. } => Some(remote),
        _ => None,
    };
    let (inline, pieces) = match request.data {
        Data::Gather(sges) => (false, pieces(sges)),
        Data::Inline(bytes) => {
            let address = bytes.as_ptr().addr() as u64;
            let piece = Piece { address, length: bytes.len() as u32, key: Key::new(0) };
            (true, std::iter::once(piece).filter(|piece| piece.length > 0).collect())
        }
    };
    Call::PostSend {
        wr_id: request.wr_id,
        opcode: request.operation.name(),
        index: index as u32,
        signaled: request.flags.contains(SendFlags::SIGNALED),
        inline,
        fence: request.flags.contains(SendFlags::FENCE),
        solicited: request.flags.contains(SendFlags::SOLICITED),
        pieces,
        remote_address: remote.map(|remote| remote.address),
        remote_key: remote.map(|remote| remote.key),
        remote_qpn: request.target.map(|target| target.qpn),
        remote_qkey: request.target.map(|target| target.qkey),
        remote_gid: request.target.map(|target| target.av.dgid.octets()),
    }
}

/// The call that made this queue pair.
pub(crate) fn create_qp(
    config: &QueuePairConfig,
    context: &Context,
    [send_cq, receive_cq]: [Option<&Arc<CompletionQueue>>; 2],
) -> Call {
    let capabilities = config.capabilities;
    Call::CreateQp {
        kind: config.kind.name(),
        context: context.number(),
        pd: config.pd.0,
        send_cq: send_cq.map(|cq| cq.id),
        receive_cq: receive_cq.map(|cq| cq.id),
        srq: config.srq,
        max_send_wr: capabilities.max_send_wr,
        max_recv_wr: capabilities.max_recv_wr,
        max_send_sge: capabilities.max_send_sge,
        max_recv_sge: capabilities.max_recv_sge,
        max_inline_data: capabilities.max_inline_data,
        signals_all: config.signal_all,
    }
}

/// The call that changes a queue pair so.
pub(crate) fn modify_qp(modify: &Modify) -> Call {
    Call::ModifyQp {
        state: modify.state.map(|state| state.name()),
        pkey_index: modify.pkey_index.map(u32::from),
        port: modify.port,
        access: modify.access,
        qkey: modify.qkey,
        path_mtu: modify.path_mtu.map(|mtu| mtu.bytes()),
        dest_qpn: modify.dest_qpn,
        rq_psn: modify.rq_psn.map(|psn| psn.value()),
        sq_psn: modify.sq_psn.map(|psn| psn.value()),
        max_rd_atomic: modify.max_rd_atomic.map(u32::from),
        max_dest_rd_atomic: modify.max_dest_rd_atomic.map(u32::from),
        min_rnr_timer: modify.min_rnr_timer,
        timeout: modify.timeout,
        retry_cnt: modify.retry_cnt,
        rnr_retry: modify.rnr_retry,
        dgid: modify.av.as_ref().map(|av| av.dgid.octets()),
        sgid_index: modify.av.as_ref().map(|av| av.sgid_index),
    }
}

/// The way that packets go from now on.
pub(crate) fn path(source: Option<Gid>, av: &AddressVector) -> Call {
    Call::Path { sgid: source.map(Gid::octets), dgid: av.dgid.octets(), hop_limit: av.hop_limit }
}

impl AsyncEvent {
    /// Its name, as verbs spell it, and the number of what it is about.
    fn told(self) -> (&'static str, u64) {
        match self {
            AsyncEvent::Qp(qpn, event) => (event.name(), qpn.value().into()),
            AsyncEvent::CqError(id) => ("IBV_EVENT_CQ_ERR", id.into()),
            AsyncEvent::SrqLimit(srq) => ("IBV_EVENT_SRQ_LIMIT_REACHED", srq.value().into()),
            AsyncEvent::SrqError(srq) => ("IBV_EVENT_SRQ_ERR", srq.value().into()),
            AsyncEvent::PortActive(port) => ("IBV_EVENT_PORT_ACTIVE", port.into()),
            AsyncEvent::PortError(port) => ("IBV_EVENT_PORT_ERR", port.into()),
            AsyncEvent::GidChange(port) => ("IBV_EVENT_GID_CHANGE", port.into()),
            AsyncEvent::LidChange(port) => ("IBV_EVENT_LID_CHANGE", port.into()),
            AsyncEvent::PkeyChange(port) => ("IBV_EVENT_PKEY_CHANGE", port.into()),
            AsyncEvent::SmChange(port) => ("IBV_EVENT_SM_CHANGE", port.into()),
            AsyncEvent::ClientReregister(port) => ("IBV_EVENT_CLIENT_REREGISTER", port.into()),
            AsyncEvent::SpeedChange(port) => ("IBV_EVENT_DEVICE_SPEED_CHANGE", port.into()),
            AsyncEvent::DeviceFatal => ("IBV_EVENT_DEVICE_FATAL", 1),
        }
    }
}
