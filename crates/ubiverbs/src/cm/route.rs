//! The way to a peer, found but not gone yet.

use super::connection::Connection;
use super::handshake::Handshake;
use super::hub::{Hub, Party};
use super::pending::Pending;
use super::{ConnectError, EventKind};
use crate::device::Context;
use crate::lookup::{self, Lookup, ToAddresses};
use crate::transports::{Connected, Reliable, Transport};
use seam::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, ToSocketAddrs};

/// The way to a peer: which device of this host, from which address. Nothing has been asked of the peer yet. Made by
/// [`resolve`](super::resolve).
///
/// A program that brings its own queue pair or protection domain opens the device here; they must be of this device.
#[must_use = "connect it"]
pub struct Route<T: Transport> {
    pub(super) party: Party,
    transport: PhantomData<T>,
}

impl<T: Transport> Route<T> {
    pub(super) async fn find(source: Option<SocketAddr>, to: SocketAddr) -> Result<Route<T>, Error> {
        let party = Hub::ours()?.party(T::KIND)?;
        party.id.resolve_address(source, to)?;
        party.expect(EventKind::AddressResolved).await?;
        party.id.resolve_route()?;
        party.expect(EventKind::RouteResolved).await?;
        Ok(Route { party, transport: PhantomData })
    }

    /// Our address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.party.local_addr()
    }

    /// The peer's address and port.
    pub fn peer_addr(&self) -> SocketAddr {
        self.party.peer_addr()
    }

    /// The device, opened.
    pub fn context(&self) -> Result<Context, Error> {
        self.party.context()
    }
}

impl<T: Connected> Route<T> {
    /// Asks the peer for a connection, as [`Handshake`] says.
    #[doc(alias = "rdma_connect")]
    pub fn connect(self) -> Handshake<T> {
        Handshake::active(self.party)
    }
}

impl<T: Transport> fmt::Debug for Route<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({} -> {})", self.local_addr(), self.peer_addr())
    }
}

/// The addresses that a name means; the system may ask others for it, and the call waits.
pub(super) fn addresses(name: impl ToSocketAddrs) -> Result<Vec<SocketAddr>, ConnectError> {
    let found = name.to_socket_addrs().map_err(|source| ConnectError::Name { source })?;
    Ok(found.collect())
}

/// Why nothing worked out before anything was tried.
pub(super) fn nothing_tried() -> Error {
    ConnectError::Name { source: io::ErrorKind::NotFound.into() }.into()
}

/// The first of some addresses with which something works out; or why it did not with the last.
async fn first<R, F: Future<Output = Result<R, Error>>>(
    addresses: Lookup,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<R, Error> {
    let mut last = nothing_tried();
    for address in addresses.await.map_err(|source| ConnectError::Name { source })? {
        match attempt(address).await {
            Ok(result) => return Ok(result),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Finds the way to a peer, for a reliable connection. [`resolve_as`] is for other transports.
///
/// Nothing is asked of the peer. If a name is given, it is looked up in a thread of its own: neither the call nor an
/// executor waits for that.
///
/// ```
/// use ubiverbs::cm;
///
/// let route = cm::resolve("127.0.0.1:7471").wait()?;
/// assert_eq!(route.context()?.name(), "ubi_lo");
/// // Nobody listens there:
/// let error = route.connect().wait().unwrap_err();
/// assert!(error.to_string().contains("nobody listens at 127.0.0.1:7471"));
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// # Cancel safety
/// Dropping it gives up. Nothing has been asked of the peer, so nothing is lost.
#[doc(alias = "rdma_resolve_addr")]
#[doc(alias = "rdma_resolve_route")]
#[doc(alias = "rdma_getaddrinfo")]
pub fn resolve(to: impl ToAddresses) -> Pending<Route<Reliable>> {
    resolve_as(to)
}

/// Finds the way to a peer, for any transport.
///
/// # Cancel safety
/// As [`resolve`].
pub fn resolve_as<T: Transport>(to: impl ToAddresses) -> Pending<Route<T>> {
    let addresses = lookup::addresses(&to);
    Pending::start(async move { first(addresses, |to| Route::find(None, to)).await })
}

/// Finds the way to a peer from an address of this host; port 0 is any.
///
/// # Cancel safety
/// As [`resolve`].
pub fn resolve_from<T: Transport>(source: SocketAddr, to: SocketAddr) -> Pending<Route<T>> {
    Pending::start(Route::find(Some(source), to))
}

/// Connects to a peer, reliably, with a queue pair of the usual kind: [`resolve`] and [`Route::connect`] in one. Of
/// several addresses of a name, the first that accepts.
///
/// # Cancel safety
/// Dropping it gives the attempt up, and the peer is notified. A connection that stood already is ended by that: await
/// `&mut connecting` to wait longer.
#[doc(alias = "rdma_create_ep")]
pub fn connect(to: impl ToAddresses) -> Pending<Connection<Reliable>> {
    let addresses = lookup::addresses(&to);
    Pending::start(async move {
        first(addresses, |to| async move { Route::find(None, to).await?.connect().run().await }).await
    })
}
