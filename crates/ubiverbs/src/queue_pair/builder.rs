//! How a queue pair is to be.

use crate::address::DEFAULT_QKEY;
use crate::allocation::Allocation;
use crate::completion_queue::{CompletionQueue, Member};
use crate::domain::{GRANTABLE_ACCESS, ProtectionDomain};
use crate::ending::Ending;
use crate::queue_pair::{Core, PreparedQueuePair};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::table::Table;
use crate::transports::Transport;
use seam::{Argument, Error, QueuePairSpec};
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use transport::{Access, Capabilities, Modify, State};
use wire::{Mtu, Psn, Qkey, refuse_if};

/// How a queue pair is to be. Made by [`ProtectionDomain::queue_pair`]; what is not said is as most programs want it.
///
/// ```
/// # use std::time::Duration;
/// # use ubiverbs::{Mtu, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let prepared = pd
///     .queue_pair::<Reliable>(&cq)
///     .max_sends(256)
///     .max_receives(16)
///     .mtu(Mtu::B1024)
///     .timeout(Duration::from_millis(20))
///     .prepare()?;
/// assert_eq!(prepared.endpoint().mtu(), Mtu::B1024);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "call `prepare`"]
#[doc(alias = "ibv_qp_init_attr")]
pub struct QueuePairBuilder<T: Transport> {
    pd: ProtectionDomain,
    send_cq: CompletionQueue,
    receive_cq: CompletionQueue,
    shared: Option<SharedReceiveQueue>,
    capabilities: Capabilities,
    source: Option<IpAddr>,
    mtu: Option<Mtu>,
    qkey: Qkey,
    access: Access,
    /// Of the receiving end of an extended connection.
    xrc_domain: Option<u32>,
    pub(super) connection: Connection,
    /// The first argument that made no sense.
    refused: Option<Argument>,
    transport: PhantomData<T>,
}

/// What a connection is made with, encoded as the NIC wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connection {
    pub timeout: u8,
    pub retries: u8,
    pub not_ready_retries: u8,
    pub not_ready_delay: u8,
    pub max_reads: u8,
}

impl ProtectionDomain {
    /// A queue pair whose work completes in `cq`, about to be made. The transport is the type:
    /// [`Reliable`](crate::Reliable), [`Unreliable`](crate::Unreliable) or [`Datagram`](crate::Datagram).
    #[doc(alias = "ibv_create_qp")]
    pub fn queue_pair<T: Transport>(&self, cq: &CompletionQueue) -> QueuePairBuilder<T> {
        QueuePairBuilder::new(self, cq)
    }
}

impl<T: Transport> QueuePairBuilder<T> {
    pub(crate) fn new(pd: &ProtectionDomain, cq: &CompletionQueue) -> QueuePairBuilder<T> {
        // No more than the device has: it may be like a small card.
        let limits = pd.core().opened.limits();
        let (work, pieces) = (limits.max_work_requests.min(64), limits.max_pieces.min(4));
        let capabilities = Capabilities {
            max_send_wr: work,
            max_recv_wr: work,
            max_send_sge: pieces,
            max_recv_sge: pieces,
            max_inline_data: limits.max_inline.min(256),
        };
        let max_reads = limits.max_reads.min(16);
        QueuePairBuilder {
            pd: pd.clone(),
            send_cq: cq.clone(),
            receive_cq: cq.clone(),
            shared: None,
            capabilities,
            source: None,
            mtu: None,
            qkey: DEFAULT_QKEY,
            access: Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::FLUSH_GLOBAL
                | Access::FLUSH_PERSISTENT,
            xrc_domain: None,
            // 67 ms, asked again seven times; a peer that is not ready is asked for ever, after 10 us each time.
            connection: Connection { timeout: 14, retries: 7, not_ready_retries: 7, not_ready_delay: 1, max_reads },
            refused: None,
            transport: PhantomData,
        }
    }

    /// Remembers an argument that makes no sense, for [`prepare`](QueuePairBuilder::prepare).
    fn refuse(mut self, refused: Argument) -> QueuePairBuilder<T> {
        self.refused.get_or_insert(refused);
        self
    }

    /// Receives complete in another queue than sends.
    pub fn receive_cq(mut self, cq: &CompletionQueue) -> QueuePairBuilder<T> {
        self.receive_cq = cq.clone();
        self
    }

    /// Receives come from a queue that many queue pairs share.
    pub fn shared_receives(mut self, queue: &SharedReceiveQueue) -> QueuePairBuilder<T> {
        self.shared = Some(queue.clone());
        self
    }

    /// How many sends, writes, reads and atomic operations may be outstanding. 64 if not said, or what the device has.
    pub fn max_sends(mut self, count: u32) -> QueuePairBuilder<T> {
        self.capabilities.max_send_wr = count;
        self
    }

    /// How many receives may be outstanding. 64 if not said.
    pub fn max_receives(mut self, count: u32) -> QueuePairBuilder<T> {
        self.capabilities.max_recv_wr = count;
        self
    }

    /// How many buffers one operation may gather or scatter. 4 if not said.
    #[track_caller]
    pub fn max_pieces(mut self, count: u32) -> QueuePairBuilder<T> {
        if count == 0 {
            return self.refuse(Argument::refuse("max_pieces", count, "an operation has one buffer at least"));
        }
        self.capabilities.max_send_sge = count;
        self.capabilities.max_recv_sge = count;
        self
    }

    /// How many bytes `send_inline` may take. 256 if not said, or what the device has.
    pub fn max_inline(mut self, bytes: u32) -> QueuePairBuilder<T> {
        self.capabilities.max_inline_data = bytes;
        self
    }

    /// Which of the device's addresses it has. The first IPv4 address if not said.
    pub fn source(mut self, address: IpAddr) -> QueuePairBuilder<T> {
        self.source = Some(address);
        self
    }

    /// The most payload of its packets. What the port carries if not said; a connection uses the smaller of both ends.
    pub fn mtu(mut self, mtu: Mtu) -> QueuePairBuilder<T> {
        self.mtu = Some(mtu);
        self
    }

    /// The key that datagrams to it must show.
    pub fn qkey(mut self, qkey: Qkey) -> QueuePairBuilder<T> {
        self.qkey = qkey;
        self
    }

    /// What the peer may do at all; memory says what it may do with it. Everything if not said.
    #[track_caller]
    pub fn peer_access(mut self, access: Access) -> QueuePairBuilder<T> {
        let beyond = access.difference(GRANTABLE_ACCESS);
        if !beyond.is_empty() {
            let allowed = "peers can be given REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC and FLUSH_*, and no other bits";
            return self.refuse(Argument::refuse("peer_access", beyond.bits(), allowed));
        }
        self.access = access;
        self
    }

    /// How long an answer may take before the packet is sent again: rounded up to 4.096 microseconds times a power of
    /// two, and at most two hours. 67 ms if not said.
    #[track_caller]
    pub fn timeout(mut self, timeout: Duration) -> QueuePairBuilder<T> {
        let fits = |code: &u8| u128::from(4096u64 << code) >= timeout.as_nanos();
        match (1..=31).find(fits) {
            Some(code) if !timeout.is_zero() => self.connection.timeout = code,
            _ => {
                let allowed = "in microseconds, more than 0 and at most 8796093022, which is two hours";
                return self.refuse(Argument::refuse("timeout", timeout.as_micros(), allowed));
            }
        }
        self
    }

    /// How often a packet without answer is sent again before the connection fails: up to 7. 7 if not said.
    #[track_caller]
    pub fn retries(mut self, count: u8) -> QueuePairBuilder<T> {
        if count > 7 {
            return self.refuse(Argument::refuse("retries", count, "0 to 7 are possible"));
        }
        self.connection.retries = count;
        self
    }

    /// How often a peer without a receive is asked again: up to 6, or 7 for ever. For ever if not said.
    #[track_caller]
    pub fn not_ready_retries(mut self, count: u8) -> QueuePairBuilder<T> {
        if count > 7 {
            return self.refuse(Argument::refuse("not_ready_retries", count, "0 to 6 are possible, and 7 for ever"));
        }
        self.connection.not_ready_retries = count;
        self
    }

    /// It is the receiving end of an extended connection, in this domain.
    pub(crate) fn in_xrc_domain(mut self, number: u32) -> QueuePairBuilder<T> {
        self.xrc_domain = Some(number);
        self
    }

    /// Makes it. From here on receives can be posted; sends must wait until it is connected.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first number that makes no sense, with the place where it was given:
    ///
    /// ```
    /// # use ubiverbs::{Error, Reliable};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// let error = pd.queue_pair::<Reliable>(&cq).retries(9).prepare().unwrap_err();
    /// assert!(error.to_string().starts_with("retries(9) makes no sense: 0 to 7 are possible"));
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "ibv_create_qp")]
    pub fn prepare(&self) -> Result<PreparedQueuePair<T>, Error> {
        self.refused.map_or(Ok(()), Err)?;
        let capabilities = self.capabilities;
        if capabilities.max_send_wr == 0 && capabilities.max_recv_wr == 0 && self.shared.is_none() {
            return Err(Error::NoWork);
        }
        let context = self.pd.core();
        for cq in [&self.send_cq, &self.receive_cq] {
            refuse_if!(!Arc::ptr_eq(&cq.core.context, context), Error::OtherDevice { what: "completion queue" });
        }
        if self.shared.as_ref().is_some_and(|shared| shared.domain() != self.pd.id) {
            return Err(Error::OtherProtectionDomain { what: "shared receive queue" });
        }
        let (sgid_index, gid) = context.source(self.source)?;
        let port_mtu = context.opened.port().mtu;
        let mtu = self.mtu.unwrap_or(port_mtu);
        refuse_if!(mtu > port_mtu, transport::ModifyError::MtuTooLarge { mtu, max: port_mtu }.into());
        let sends = T::KIND.has_send_queue();
        let mut capabilities = self.capabilities;
        if T::KIND.is_reliable() {
            // An atomic write brings its eight bytes along.
            capabilities.max_inline_data = capabilities.max_inline_data.max(8);
        }
        if T::KIND.is_xrc() {
            (capabilities.max_recv_wr, capabilities.max_recv_sge) = (0, 0);
        }
        if !sends {
            (capabilities.max_send_wr, capabilities.max_send_sge, capabilities.max_inline_data) = (0, 0, 0);
        }
        let spec = QueuePairSpec {
            kind: T::KIND,
            domain: self.pd.id,
            capabilities,
            xrc_domain: self.xrc_domain,
            shared: self.shared.as_ref().map(SharedReceiveQueue::backend),
            send_cq: &self.send_cq.core.queue,
            receive_cq: &self.receive_cq.core.queue,
        };
        let words = match T::KIND.is_reliable() && sends {
            true => {
                let length = self.capabilities.max_send_wr.max(1) as usize * 8;
                Some(Allocation::owned(&context.opened, self.pd.id, length)?)
            }
            false => None,
        };
        let pair: Arc<dyn seam::QueuePair> = context.opened.create_queue_pair(&spec)?.into();
        let ending = Arc::new(Ending::new(Arc::downgrade(&pair), pair.qpn()));
        let send = Table::of_sends(words);
        let own = || Table::of_receives(self.capabilities.max_recv_wr);
        let receive = self.shared.as_ref().map_or_else(own, |shared| Arc::clone(shared.table()));
        send.ends_with(&ending);
        if self.shared.is_none() {
            receive.ends_with(&ending);
        }
        send.reported_by(&self.send_cq.core);
        receive.reported_by(&self.receive_cq.core);
        let sends = self.capabilities.max_send_wr;
        let receives = self.shared.as_ref().map_or(self.capabilities.max_recv_wr, |shared| shared.capacity().min(16));
        let member = |work| {
            let ending = Arc::clone(&ending);
            Member { send: Arc::clone(&send), receive: Arc::clone(&receive), work, ending }
        };
        if self.send_cq == self.receive_cq {
            self.send_cq.core.join(pair.qpn(), member(sends.saturating_add(receives)));
        } else {
            self.send_cq.core.join(pair.qpn(), member(sends));
            self.receive_cq.core.join(pair.qpn(), member(receives));
        }
        let core = Core {
            pair,
            ending,
            context: Arc::clone(context),
            domain: self.pd.id,
            send,
            receive,
            shared: self.shared.clone(),
            send_cq: self.send_cq.clone(),
            receive_cq: self.receive_cq.clone(),
            qkey: self.qkey,
            spare: Mutex::default(),
        };
        // From here on, dropping the core undoes it all.
        let prepared = PreparedQueuePair::new(core, self.connection, sgid_index, gid, mtu, random_psn());
        let connected = T::KIND.is_connected();
        prepared.to_init(&Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: connected.then_some(self.access),
            qkey: (!connected).then_some(self.qkey),
            ..Modify::default()
        })?;
        Ok(prepared)
    }
}

/// Somewhere new each time, so that packets of an earlier connection between the same numbers are not taken for ours.
pub(super) fn random_psn() -> Psn {
    Psn::new(RandomState::new().hash_one(0) as u32)
}
