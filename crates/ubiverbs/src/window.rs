//! Memory windows: keys that open a part of a shared region, with fewer rights, and are cheap to give and to take away.

use crate::buffer::SharedRegion;
use crate::domain::{ProtectionDomain, grantable};
use crate::operation::{Operation, Outcome, sealed};
use crate::queue_pair::{Batch, Core, QueuePair, Work};
use crate::remote::RemoteSlice;
use crate::table::Held;
use crate::transports::Connected;
use seam::{Error, Failed};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use transport::{Access, Bind, PostError, SendFlags, SendRequest};
use wire::{Key, refuse_if};

/// The type of a window: [`Type1`] or [`Type2`].
pub trait WindowType: private::WindowType {}

mod private {
    pub trait WindowType: Send + Sync + 'static {
        const IS_TYPE_2: bool;
    }
}

/// Reached through any queue pair of the protection domain, until it is unbound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "IBV_MW_TYPE_1")]
pub enum Type1 {}

/// Reached through the queue pair alone that bound it, until that, or its peer by
/// [`send_invalidate`](QueuePair::send_invalidate), invalidates it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "IBV_MW_TYPE_2")]
pub enum Type2 {}

impl private::WindowType for Type1 {
    const IS_TYPE_2: bool = false;
}

impl private::WindowType for Type2 {
    const IS_TYPE_2: bool = true;
}

impl WindowType for Type1 {}
impl WindowType for Type2 {}

/// A memory window that is bound to nothing. Made by [`ProtectionDomain::window`].
///
/// Registering memory is dear, binding a window is not: it is work for the send queue, in order with what comes before
/// and after. So a server registers its memory once and opens the part that a client may reach, with the rights it may
/// have, for as long as that needs.
///
/// ```
/// # use ubiverbs::{Access, Reliable, Type2};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [server, client] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// // Peers reach the memory through windows only.
/// let memory = pd.share(1 << 20, Access::MW_BIND)?;
/// let window = pd.window::<Type2>()?;
/// let bound = server.bind(window, &memory.part(4096..8192)?, Access::REMOTE_WRITE)?.wait()?;
/// let there = bound.remote_slice(); // for the client
///
/// // The client writes, and gives the key back with its last word: it opens nothing any more.
/// let told = server.recv(pd.allocate(16)?)?;
/// client.write_inline(b"into the window", there)?.wait()?;
/// client.send_invalidate(pd.register(b"done".to_vec())?, there.key())?.wait()?;
/// let message = told.wait()?;
/// assert_eq!(message.invalidated(), Some(there.key()));
/// let window = bound.invalidated(there.key()).expect("by the client");
/// assert!(client.write_inline(b"too late", there)?.wait().is_err());
/// # drop(window);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[doc(alias = "ibv_mw")]
pub struct Window<W: WindowType> {
    context: Arc<dyn seam::Context>,
    domain: transport::ProtectionDomain,
    /// The present one; all that it ever has differ in the lowest byte only.
    key: Key,
    kind: PhantomData<W>,
}

/// A memory window that is bound to a part of a region, which it keeps. Dropping it takes it away from peers.
pub struct BoundWindow<W: WindowType> {
    window: Window<W>,
    region: Box<SharedRegion>,
}

impl ProtectionDomain {
    /// A memory window, bound to nothing: `pd.window::<Type2>()`.
    ///
    /// # Errors
    /// [`Error::Create`] if there are too many.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window<W: WindowType>(&self) -> Result<Window<W>, Error> {
        let context = Arc::clone(&self.core().opened);
        let key = context.allocate_window(self.id, W::IS_TYPE_2)?;
        Ok(Window { context, domain: self.id, key, kind: PhantomData })
    }
}

impl<W: WindowType> Drop for Window<W> {
    fn drop(&mut self) {
        // By any key that it ever had. What was bound is closed, and nobody is in it, when this returns.
        let _ = self.context.free_window(self.key);
    }
}

impl<W: WindowType> BoundWindow<W> {
    /// What a peer uses to reach it.
    pub fn remote_slice(&self) -> RemoteSlice {
        let there = self.region.remote_slice();
        RemoteSlice::new(there.address(), there.len(), self.window.key)
    }

    /// The part of the region that it opens.
    pub fn region(&self) -> &SharedRegion {
        &self.region
    }
}

impl BoundWindow<Type2> {
    /// The window, to be bound again, if a peer has invalidated it: what the message that did so
    /// [says](crate::Received::invalidated).
    ///
    /// # Errors
    /// Gives it back if that is another's key.
    pub fn invalidated(self, key: Key) -> Result<Window<Type2>, BoundWindow<Type2>> {
        if key == self.window.key { Ok(self.window) } else { Err(self) }
    }
}

/// What hands a work request on.
type Post<'a> = &'a mut dyn FnMut(&SendRequest<'_>) -> Result<(), PostError>;

impl Core {
    fn bind<W: WindowType>(
        &self,
        window: Window<W>,
        region: &SharedRegion,
        rights: Access,
        flags: SendFlags,
        post: Post<'_>,
    ) -> Result<Operation<BoundWindow<W>>, Failed<Window<W>>> {
        let there = region.remote_slice();
        if let Err(error) = self.check_bind(&window, region, rights) {
            return Err(Failed { error, buffer: window });
        }
        let bind = Bind {
            window: window.key,
            new_key: window.key.next(),
            region: there.key(),
            address: there.address(),
            length: there.len(),
            access: rights,
        };
        let held = BoundWindow { window, region: Box::new(region.clone()) };
        self.with_value(Work::bind(bind), flags, held, post)
            .map_err(|(error, held)| Failed { error, buffer: held.window })
    }

    fn check_bind<W: WindowType>(
        &self,
        window: &Window<W>,
        region: &SharedRegion,
        rights: Access,
    ) -> Result<(), Error> {
        let other = |what| Error::OtherProtectionDomain { what };
        grantable(rights)?;
        refuse_if!(rights.is_empty(), Error::NoRights);
        refuse_if!(rights.contains(Access::MW_BIND), Error::Rights { bits: rights.bits() });
        let domain = self.pd().id;
        refuse_if!(window.domain != domain, other("window"));
        let (allocation, ..) = region.place();
        refuse_if!(allocation.registration().domain() != domain, other("region"));
        if region.is_revoked() { Err(Error::Revoked) } else { Ok(()) }
    }

    fn unbind<W: WindowType>(
        &self,
        work: Work,
        bound: BoundWindow<W>,
        flags: SendFlags,
        post: Post<'_>,
    ) -> Result<Operation<Window<W>>, Failed<BoundWindow<W>>> {
        if bound.window.domain != self.pd().id {
            return Err(Failed { error: Error::OtherProtectionDomain { what: "window" }, buffer: bound });
        }
        self.with_value(work, flags, bound, post).map_err(|(error, buffer)| Failed { error, buffer })
    }
}

fn unbound(bound: &BoundWindow<Type1>) -> Bind {
    let key = bound.window.key;
    Bind { window: key, new_key: key.next(), region: Key::new(0), address: 0, length: 0, access: Access::empty() }
}

impl<T: Connected> QueuePair<T> {
    /// Binds a window to a region, or a part of one, with these rights for peers. The region must have been shared with
    /// [`Access::MW_BIND`]; which other rights it gives makes no difference. Work that was posted later finds it bound.
    ///
    /// ```
    /// # use ubiverbs::{Access, Reliable, Type1};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [server, client] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// let memory = pd.share(4096, Access::MW_BIND)?;
    /// let bound = server.bind(pd.window::<Type1>()?, &memory, Access::REMOTE_READ)?.wait()?;
    /// client.read(pd.allocate(8)?, bound.remote_slice().slice(0..8)?)?.wait()?;
    /// let window = server.unbind(bound)?.wait()?;
    /// # drop(window);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "IBV_WR_BIND_MW")]
    pub fn bind<W: WindowType>(
        &self,
        window: Window<W>,
        region: &SharedRegion,
        rights: Access,
    ) -> Result<Operation<BoundWindow<W>>, Failed<Window<W>>> {
        let core = self.core();
        core.bind(window, region, rights, SendFlags::empty(), &mut |request| core.post_now(request))
    }

    /// Takes a window of type 1 away from peers: when this is done, nobody reaches anything through it.
    #[doc(alias = "ibv_bind_mw")]
    pub fn unbind(&self, window: BoundWindow<Type1>) -> Result<Operation<Window<Type1>>, Failed<BoundWindow<Type1>>> {
        let (core, work) = (self.core(), Work::bind(unbound(&window)));
        core.unbind(work, window, SendFlags::empty(), &mut |request| core.post_now(request))
    }

    /// Takes a window of type 2 away from the peer: when this is done, nobody reaches anything through it. Only the
    /// queue pair that bound it can.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn invalidate(
        &self,
        window: BoundWindow<Type2>,
    ) -> Result<Operation<Window<Type2>>, Failed<BoundWindow<Type2>>> {
        let (core, work) = (self.core(), Work::invalidate(window.window.key));
        core.unbind(work, window, SendFlags::empty(), &mut |request| core.post_now(request))
    }
}

impl<T: Connected> Batch<'_, T> {
    /// As [`QueuePair::bind`]; together with the SEND that tells the peer of it, say.
    pub fn bind<W: WindowType>(
        &mut self,
        window: Window<W>,
        region: &SharedRegion,
        rights: Access,
    ) -> Result<Operation<BoundWindow<W>>, Failed<Window<W>>> {
        self.with_core(|core, flags, post| core.bind(window, region, rights, flags, post))
    }

    /// As [`QueuePair::invalidate`].
    pub fn invalidate(
        &mut self,
        window: BoundWindow<Type2>,
    ) -> Result<Operation<Window<Type2>>, Failed<BoundWindow<Type2>>> {
        let work = Work::invalidate(window.window.key);
        self.with_core(|core, flags, post| core.unbind(work, window, flags, post))
    }
}

/// What was put aside for this work.
fn put_aside<V: Any>(held: Held) -> Option<V> {
    let Held::Value(value) = held else { return None };
    value.downcast().ok().map(|value| *value)
}

impl<W: WindowType> Outcome for BoundWindow<W> {}

impl<W: WindowType> sealed::Outcome for BoundWindow<W> {
    type Buffer = Window<W>;

    fn succeeded(_: &transport::Completion, held: Held, _: u64) -> Option<BoundWindow<W>> {
        let mut bound: BoundWindow<W> = put_aside(held)?;
        bound.window.key = bound.window.key.next();
        Some(bound)
    }

    fn failed(held: Held) -> Option<Window<W>> {
        put_aside(held).map(|bound: BoundWindow<W>| bound.window)
    }
}

impl<W: WindowType> Outcome for Window<W> {}

impl<W: WindowType> sealed::Outcome for Window<W> {
    type Buffer = BoundWindow<W>;

    fn succeeded(_: &transport::Completion, held: Held, _: u64) -> Option<Window<W>> {
        let mut bound: BoundWindow<W> = put_aside(held)?;
        if !W::IS_TYPE_2 {
            // It was bound to nothing, under another key.
            bound.window.key = bound.window.key.next();
        }
        Some(bound.window)
    }

    fn failed(held: Held) -> Option<BoundWindow<W>> {
        put_aside(held)
    }
}

impl<W: WindowType> fmt::Debug for Window<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window(type {}, {})", 1 + u8::from(W::IS_TYPE_2), self.key)
    }
}

impl<W: WindowType> fmt::Debug for BoundWindow<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoundWindow({:?} over {:?})", self.window, self.region)
    }
}
