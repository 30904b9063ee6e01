//! The transports, as types: what a queue pair can do is decided when the program is compiled.

use transport::Kind;

/// What kind of service a queue pair gives.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no transport of queue pairs",
    label = "not a transport",
    note = "there are `Reliable`, `Unreliable` and `Datagram`"
)]
pub trait Transport: sealed::Transport {
    /// The kind, as a value.
    const KIND: Kind;
}

/// A transport whose queue pairs have one peer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no peer to be connected to",
    label = "not a transport of connections",
    note = "`Reliable` and `Unreliable` queue pairs are connected; a `Datagram` queue pair is started with `activate` and sends to an address"
)]
pub trait Connected: Transport {}

mod sealed {
    #[diagnostic::on_unimplemented(
        message = "`{Self}` is no transport of queue pairs",
        label = "not a transport",
        note = "there are `Reliable`, `Unreliable` and `Datagram`; other crates cannot add any"
    )]
    pub trait Transport: Send + Sync + 'static {}
}

/// One peer; everything arrives, once and in order. SEND, WRITE, READ and atomic operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "IBV_QPT_RC")]
pub enum Reliable {}

/// One peer; a message may be lost, and then is lost as a whole. SEND and WRITE.
///
/// ```compile_fail,E0599
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let [qp, _peer] = ubiverbs::connected_pair::<ubiverbs::Unreliable>(&pd, &cq)?;
/// # let there = ubiverbs::RemoteSlice::new(0, 8, ubiverbs::Key::new(0));
/// qp.read(pd.allocate(8)?, there)?; // error: only reliable queue pairs can read
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "IBV_QPT_UC")]
pub enum Unreliable {}

/// Any peer; each message fits one packet and may be lost. SEND to an address.
///
/// ```compile_fail,E0599
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// let qp = pd.queue_pair::<ubiverbs::Datagram>(&cq).prepare()?.activate()?;
/// # let there = ubiverbs::RemoteSlice::new(0, 8, ubiverbs::Key::new(0));
/// qp.read(pd.allocate(8)?, there)?; // error: only reliable queue pairs can read
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "IBV_QPT_UD")]
pub enum Datagram {}

/// The sending end of an extended reliable connection, of which programs see a [`XrcSender`](crate::XrcSender).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XrcSend {}

/// The receiving end, of which programs see a [`XrcTarget`](crate::XrcTarget).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XrcReceive {}

impl sealed::Transport for XrcSend {}
impl sealed::Transport for XrcReceive {}

impl Transport for XrcSend {
    const KIND: Kind = Kind::XrcInitiator;
}

impl Transport for XrcReceive {
    const KIND: Kind = Kind::XrcTarget;
}

impl sealed::Transport for Reliable {}
impl sealed::Transport for Unreliable {}
impl sealed::Transport for Datagram {}

impl Transport for Reliable {
    const KIND: Kind = Kind::ReliableConnected;
}

impl Transport for Unreliable {
    const KIND: Kind = Kind::UnreliableConnected;
}

impl Transport for Datagram {
    const KIND: Kind = Kind::UnreliableDatagram;
}

impl Connected for Reliable {}
impl Connected for Unreliable {}
