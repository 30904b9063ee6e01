//! Names become addresses in a thread of their own: the system's resolver waits for others, and an executor must not.

use latch::lock;
use seam::environment;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// What an address may be given as: everything that the standard library's [`ToSocketAddrs`] takes. A name is looked up
/// in a thread of its own, so no executor waits for the system's resolver.
pub trait ToAddresses: sealed::Given {}

pub(crate) mod sealed {
    /// What was given.
    pub trait Given {
        /// Addresses, or a name.
        fn given(&self) -> super::Given;
    }
}

/// Addresses, or a name.
#[derive(Debug)]
pub enum Given {
    /// Addresses.
    Addresses(Vec<SocketAddr>),
    /// A name and a port, which must be looked up.
    Name(String, u16),
    /// Something that is neither.
    Wrong(&'static str),
}

/// The addresses that something means.
pub(crate) fn addresses(of: &(impl ToAddresses + ?Sized)) -> Lookup {
    match of.given() {
        Given::Addresses(addresses) => Lookup::known(Ok(addresses)),
        Given::Wrong(why) => Lookup::known(Err(io::Error::new(io::ErrorKind::InvalidInput, why))),
        Given::Name(name, port) => Lookup::start(name, port),
    }
}

/// A name that is being looked up. Dropping it is fine: the thread ends by itself.
#[derive(Debug)]
pub(crate) struct Lookup {
    answer: Arc<Mutex<LookupAnswer>>,
}

#[derive(Debug, Default)]
struct LookupAnswer {
    found: Option<io::Result<Vec<SocketAddr>>>,
    waiting: Option<Waker>,
}

impl Lookup {
    fn known(found: io::Result<Vec<SocketAddr>>) -> Lookup {
        Lookup { answer: Arc::new(Mutex::new(LookupAnswer { found: Some(found), waiting: None })) }
    }

    fn start(name: String, port: u16) -> Lookup {
        if let Some(environment) = environment::current() {
            return Lookup::known(environment.look_up(&name, port));
        }
        let answer: Arc<Mutex<LookupAnswer>> = Arc::default();
        let asked = Arc::clone(&answer);
        let thread = hca::spawn("ubiverbs-lookup", move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
            let mut answer = lock(&asked);
            answer.found = Some(found);
            let waiting = answer.waiting.take();
            drop(answer);
            waiting.into_iter().for_each(seam::wake);
        });
        if let Err(error) = thread {
            lock(&answer).found = Some(Err(error));
        }
        Lookup { answer }
    }
}

impl Future for Lookup {
    type Output = io::Result<Vec<SocketAddr>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = lock(&self.answer);
        match answer.found.take() {
            Some(found) => Poll::Ready(found),
            None => {
                answer.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// A host with a port, as a name or as an address.
fn host(host: &str, port: u16) -> Given {
    match host.parse::<IpAddr>() {
        Ok(address) => Given::Addresses(vec![SocketAddr::new(address, port)]),
        Err(_) => Given::Name(host.to_owned(), port),
    }
}

macro_rules! addresses_as_they_are {
    ($($kind:ty),*) => {$(
        impl ToAddresses for $kind {}

        impl sealed::Given for $kind {
            fn given(&self) -> Given {
                Given::Addresses(vec![SocketAddr::from(*self)])
            }
        }
    )*};
}

addresses_as_they_are!(SocketAddr, SocketAddrV4, SocketAddrV6, (IpAddr, u16), (Ipv4Addr, u16), (Ipv6Addr, u16));

impl ToAddresses for [SocketAddr] {}

impl sealed::Given for [SocketAddr] {
    fn given(&self) -> Given {
        Given::Addresses(self.to_vec())
    }
}

impl ToAddresses for str {}

impl sealed::Given for str {
    fn given(&self) -> Given {
        if let Ok(address) = self.parse::<SocketAddr>() {
            return Given::Addresses(vec![address]);
        }
        let Some((name, port)) = self.rsplit_once(':') else {
            return Given::Wrong("an address is HOST:PORT, and this has no port");
        };
        match port.parse() {
            Ok(port) => host(name, port),
            Err(_) => Given::Wrong("an address is HOST:PORT, and this port is no number up to 65535"),
        }
    }
}

impl ToAddresses for String {}

impl sealed::Given for String {
    fn given(&self) -> Given {
        self.as_str().given()
    }
}

impl ToAddresses for (&str, u16) {}

impl sealed::Given for (&str, u16) {
    fn given(&self) -> Given {
        host(self.0, self.1)
    }
}

impl ToAddresses for (String, u16) {}

impl sealed::Given for (String, u16) {
    fn given(&self) -> Given {
        host(&self.0, self.1)
    }
}

impl<T: ToAddresses + ?Sized> ToAddresses for &T {}

impl<T: ToAddresses + ?Sized> sealed::Given for &T {
    fn given(&self) -> Given {
        (**self).given()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(of: impl ToAddresses) -> io::Result<Vec<SocketAddr>> {
        crate::block_on(addresses(&of))
    }

    #[test]
    fn whatever_the_standard_library_takes_is_an_address() {
        let here = SocketAddr::from(([127, 0, 0, 1], 80));
        let text = String::from("127.0.0.1:80");
        assert_eq!(found("127.0.0.1:80").unwrap(), [here]);
        assert_eq!(found(&text).unwrap(), [here]);
        assert_eq!(found(("127.0.0.1", 80)).unwrap(), [here]);
        assert_eq!(found((String::from("127.0.0.1"), 80)).unwrap(), [here]);
        assert_eq!(found((Ipv4Addr::LOCALHOST, 80)).unwrap(), [here]);
        assert_eq!(found(here).unwrap(), [here]);
        assert_eq!(found(&[here, here][..]).unwrap(), [here, here]);
        assert_eq!(found("[::1]:80").unwrap(), [SocketAddr::from((Ipv6Addr::LOCALHOST, 80))]);
        assert_eq!(found(("::1", 80)).unwrap(), [SocketAddr::from((Ipv6Addr::LOCALHOST, 80))]);
    }

    #[test]
    fn a_name_is_looked_up_and_a_wrong_one_is_an_error() {
        assert!(found("localhost:80").unwrap().iter().all(|address| address.ip().is_loopback()));
        assert_eq!(found("127.0.0.1").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(found("localhost:65536").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(found("no such name.invalid:80").is_err());
        // Nobody waits for this one.
        drop(addresses("localhost:80"));
    }
}
