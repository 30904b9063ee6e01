//! The queue pair of a connection with its buffers, and the protocol on it.

use crate::error::Error;
use hca::cm::Id;
use hca::{
    Buffer, CompletionChannel, CompletionQueue, Context, Joins, Landing, Nic, OwnCalls, Qp, ReservedBuffer,
    ReservedNumber, limits,
};
use rsocket::{ConnectionData, ControlWork, Local, Run, Sizes, Span, Stream};
use std::sync::Arc;
use transport::{
    Access, Capabilities, Completion, Data, Kind, Limits, Modify, Operation, ProtectionDomain, Queue, QueuePairConfig,
    ReceiveRequest, Remote, SendFlags, SendRequest, Sge, State, Status,
};
use wire::{Pkey, Qpn};

/// Bytes that control messages and I/O mappings take inline.
const CONTROL_INLINE: u32 = 24;
/// Completions that are taken at a time.
const COMPLETIONS_PER_POLL: usize = 16;
/// What receives are called.
const RECEIVE_WR_ID_BIT: u64 = 1 << 63;

/// The nearest sizes that the protocol and the NIC allow.
pub(crate) fn fitted(sizes: Sizes) -> Sizes {
    let most = |limit: u32| u16::try_from(limit).unwrap_or(u16::MAX);
    Sizes { inline: sizes.inline.min(most(limits::MAX_INLINE)), ..sizes.fitted(most(limits::MAX_WR)) }
}

/// What an endpoint will be: its number, keys and addresses are reserved, so that a peer can be told of them, and no
/// memory is taken.
#[derive(Debug)]
pub(crate) struct Plan {
    pub sizes: Sizes,
    domain: Domain,
    number: ReservedNumber,
    receive: ReservedBuffer,
    targets: ReservedBuffer,
}

impl Plan {
    /// Of these sizes, on an opened device.
    pub fn new(nic: &Arc<Nic>, context: &Arc<Context>, sizes: Sizes) -> Result<Plan, Error> {
        let sizes = fitted(sizes);
        let domain = Domain { number: context.new_domain(), context: Arc::clone(context) };
        let number = ReservedNumber::new(nic)?;
        let receive = ReservedBuffer::new(nic, domain.number)?;
        let targets = ReservedBuffer::new(nic, domain.number)?;
        Ok(Plan { sizes, domain, number, receive, targets })
    }

    fn local(&self) -> Local {
        let span = |buffer: &ReservedBuffer| Span { address: buffer.address(), key: buffer.key() };
        Local { receive: span(&self.receive), targets: span(&self.targets) }
    }

    /// What the peer must be told.
    pub fn connection_data(&self) -> [u8; ConnectionData::LENGTH] {
        Stream::connection_data_of(&self.sizes, &self.local()).to_bytes()
    }

    /// The number that its queue pair will have.
    pub fn qpn(&self) -> Qpn {
        self.number.qpn()
    }
}

/// A protection domain, until this is dropped.
#[derive(Debug)]
pub(crate) struct Domain {
    pub number: ProtectionDomain,
    context: Arc<Context>,
}

impl Drop for Domain {
    fn drop(&mut self) {
        self.context.free_domain(self.number);
    }
}

/// What work is done with: the parts that a caller may use while the socket is not locked.
#[derive(Debug)]
pub(crate) struct Parts {
    pub nic: Arc<Nic>,
    pub qp: Arc<Qp>,
    pub cq: Arc<CompletionQueue>,
    pub send: Buffer,
    pub receive: Buffer,
    pub targets: Buffer,
    pub domain: Domain,
}

impl Drop for Parts {
    fn drop(&mut self) {
        let _own = OwnCalls::told_by(self.nic.tracing());
        self.nic.destroy_qp(&self.qp);
    }
}

/// One end of a connection, or of one that is to be.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub parts: Arc<Parts>,
    pub protocol: Stream,
    /// How the first work failed that was not flushed.
    pub failure: Option<Status>,
    /// Receives that have completed and were not posted anew.
    missing_receives: u16,
}

impl Endpoint {
    /// A queue pair in INIT with all its receives posted, as planned.
    pub fn new(nic: &Arc<Nic>, plan: Plan, channel: &Arc<CompletionChannel>) -> Result<Endpoint, Error> {
        let _own = OwnCalls::told_by(nic.tracing());
        let local = plan.local();
        let Plan { sizes, domain, number, receive, targets } = plan;
        let context = &domain.context;
        let send = Buffer::allocate(nic, sizes.send_buffer as usize, domain.number, Access::empty())?;
        let receive = receive.allocate(sizes.receive_buffer as usize, Access::REMOTE_WRITE)?;
        let targets = targets.allocate(Stream::target_list_length(&sizes), Access::REMOTE_WRITE)?;
        let (send_queue, receive_queue) = (u32::from(sizes.send_queue), u32::from(sizes.receive_queue));
        let cq = nic.create_cq(send_queue + receive_queue, Some(Arc::clone(channel)))?;
        let config = QueuePairConfig {
            qpn: Qpn::default(),
            kind: Kind::ReliableConnected,
            pd: domain.number,
            capabilities: Capabilities {
                max_send_wr: send_queue,
                max_recv_wr: receive_queue,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: CONTROL_INLINE.max(sizes.inline.into()),
            },
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: context.device().port().mtu(),
        };
        let joins = Joins {
            context: Arc::clone(context),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            xrc_domain: None,
        };
        let qp = nic.create_reserved_qp(number, config, joins)?;
        let protocol = Stream::new(sizes, local);
        let parts = Arc::new(Parts { nic: Arc::clone(nic), qp, cq, send, receive, targets, domain });
        let mut endpoint = Endpoint { parts, protocol, failure: None, missing_receives: sizes.receive_queue };
        let init = Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_WRITE),
            ..Modify::default()
        };
        endpoint.parts.qp.modify(nic, &init)?;
        endpoint.post_receives();
        Ok(endpoint)
    }

    /// Makes the queue pair ready for its connection.
    pub fn make_ready(&self, id: &Id) -> Result<(), Error> {
        let _own = OwnCalls::told_by(self.parts.nic.tracing());
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            let mut modify = id.modify_for(state)?;
            if state == State::Init {
                modify.access = Some(Access::REMOTE_WRITE);
            }
            self.parts.qp.modify_at_once(&self.parts.nic, &modify)?;
        }
        Ok(())
    }

    /// The connection has ended: what is posted is flushed.
    pub fn stop(&self) {
        let modify = Modify { state: Some(State::Error), ..Modify::default() };
        let _own = OwnCalls::told_by(self.parts.nic.tracing());
        let _ = self.parts.qp.modify(&self.parts.nic, &modify);
    }

    /// Takes what has completed, says what it means, and posts what is due. Returns whether anything had.
    /// Where there is nothing, and `drives`, it looks for packets first.
    pub fn progress(&mut self, drives: bool) -> bool {
        let any = self.take_all(drives, None);
        self.post_due_after(any);
        any
    }

    /// Makes progress for a program that has read everything and has room for more: what the peer writes meanwhile goes
    /// there at once, if it can. Returns also how many bytes did; the program has them.
    pub fn progress_into(&mut self, room: &mut [u8]) -> (bool, usize) {
        let Some(run) = self.protocol.next_run() else { return (self.progress(true), 0) };
        let (receive, length) = (&self.parts.receive, room.len().min(run.length as usize));
        let address = receive.address() + u64::from(run.offset);
        let mut landing = Landing::new(receive.key(), address, &mut room[..length]);
        let any = self.take_all(true, Some(&mut landing));
        let (filled, complete) = (landing.filled(), self.protocol.unread());
        if filled > complete {
            // A part of a message: the rest will be written behind it.
            let _ = self.parts.receive.write(run.offset as usize + complete, &room[complete..filled]);
        }
        let landed = filled.min(complete);
        if landed > 0 {
            self.protocol.consume(landed);
        }
        self.post_due_after(any);
        (any, landed)
    }

    /// Takes what has completed. Returns whether anything had.
    fn take_all(&mut self, drives: bool, mut landing: Option<&mut Landing<'_>>) -> bool {
        let Endpoint { parts, protocol, failure, missing_receives } = self;
        let _own = OwnCalls::told_by(parts.nic.tracing());
        let mut any = false;
        loop {
            let take = |completion: &Completion, _| take(parts, protocol, failure, missing_receives, completion);
            let taken = match &mut landing {
                Some(landing) => parts.nic.poll_into(&parts.cq, COMPLETIONS_PER_POLL, landing, take),
                None if drives => parts.nic.poll(&parts.cq, COMPLETIONS_PER_POLL, take),
                None => parts.cq.poll(COMPLETIONS_PER_POLL, take),
            };
            if taken > 0 && !drives {
                parts.nic.has_taken();
            }
            any |= taken > 0;
            if taken == 0 && parts.cq.has_overflowed() && !protocol.has_failed() {
                // Nothing completes any more.
                protocol.handle_failure();
                return true;
            }
            if taken < COMPLETIONS_PER_POLL {
                return any;
            }
        }
    }

    fn post_due_after(&mut self, any: bool) {
        if any || self.missing_receives >= self.receive_batch() {
            self.post_due();
        }
    }

    /// Posts receives and messages that are due.
    pub fn post_due(&mut self) {
        if self.missing_receives >= self.receive_batch() {
            self.post_receives();
        }
        while let Some(work) = self.protocol.poll_control() {
            self.post_control(&work);
        }
    }

    fn receive_batch(&self) -> u16 {
        (self.protocol.sizes().receive_queue / 8).max(1)
    }

    /// Whether bytes of a program may be lent to the queue pair: there is room, and they are read soon.
    pub fn may_lend(&self) -> bool {
        self.protocol.can_send() && self.parts.qp.is_in_shared_memory()
    }

    fn post_receives(&mut self) {
        let _own = OwnCalls::told_by(self.parts.nic.tracing());
        let request = ReceiveRequest { wr_id: RECEIVE_WR_ID_BIT, sges: &[] };
        let requests = [request; 64];
        while self.missing_receives > 0 {
            let some = requests.len().min(self.missing_receives.into());
            if self.parts.qp.post_receive(&self.parts.nic, &requests[..some]).is_err() {
                // In error, it takes none.
                return;
            }
            self.missing_receives -= some as u16;
        }
    }

    fn post_control(&mut self, work: &ControlWork) {
        let (wr_id, remote, immediate, bytes): (u64, Span, Option<u32>, &[u8]) = match work {
            ControlWork::Message { immediate } => ((*immediate).into(), Span::default(), Some(*immediate), &[]),
            ControlWork::Target { bytes, remote, immediate } => ((*immediate).into(), *remote, Some(*immediate), bytes),
            ControlWork::KeepAlive { wr_id } => (*wr_id, Span::default(), None, &[]),
        };
        if !self.parts.write(wr_id, remote, immediate, Data::Inline(bytes)) {
            self.protocol.handle_sent(wr_id, false);
        }
    }
}

impl Parts {
    /// Where runs of the send buffer are.
    pub fn pieces(&self, runs: &[Run; 2]) -> [Sge; 2] {
        runs.map(|run| Sge {
            address: self.send.address() + u64::from(run.offset),
            length: run.length,
            key: self.send.key(),
        })
    }

    /// Posts an RDMA WRITE. False if the queue pair takes none.
    pub fn write(&self, wr_id: u64, to: Span, immediate: Option<u32>, data: Data<'_>) -> bool {
        let remote = Remote { address: to.address, key: to.key };
        let request = SendRequest {
            wr_id,
            operation: Operation::Write { remote, immediate },
            flags: SendFlags::SIGNALED,
            data,
            target: None,
            xrc_srq: None,
        };
        let _own = OwnCalls::told_by(self.nic.tracing());
        self.qp.post_send(&self.nic, &[request]).is_ok()
    }
}

/// Takes a completion. Queue pairs are locked meanwhile: it looks at memory, and calls nothing else of the NIC.
fn take(
    parts: &Parts,
    protocol: &mut Stream,
    failure: &mut Option<Status>,
    missing_receives: &mut u16,
    completion: &Completion,
) {
    let succeeded = completion.status == Status::Success;
    if !succeeded && completion.status != Status::WorkRequestFlushed {
        failure.get_or_insert(completion.status);
    }
    if completion.queue == Queue::Send {
        return protocol.handle_sent(completion.wr_id, succeeded);
    }
    if !succeeded {
        return;
    }
    *missing_receives += 1;
    let Some(immediate) = completion.immediate else { return protocol.handle_failure() };
    // The peer has written it before its immediate came.
    let mut list = [0; 2 * rsocket::Target::LENGTH];
    if completion.bytes > 0 && immediate >> 31 != 0 && parts.targets.read(0, &mut list).is_err() {
        return protocol.handle_failure();
    }
    // A peer that breaks the rules has no connection any more: the state says so.
    let _ = protocol.handle_received(immediate, completion.bytes, &list);
}
