//! Ports in use by the ids of one process. The driver sees to it that a port belongs to one process of the host at a
//! time; which ids of the process share it, by different addresses or because all of them said that they may, is known
//! here.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use wire::cm::PortSpace;

use super::address::is_anywhere;
use super::{IdError, IdKey};

/// The ports of a process, and which ids have them.
#[derive(Debug, Default)]
pub(super) struct Claims {
    held: BTreeMap<(PortSpace, u16), Vec<Claim>>,
}

/// What an id wants of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    /// The id.
    pub key: IdKey,
    /// All addresses, or one.
    pub address: IpAddr,
    /// An IPv6 wildcard that leaves IPv4 alone.
    pub only_its_family: bool,
    /// Others may have it too, as long as only one listens.
    pub reuse: bool,
    pub listening: bool,
}

impl Claim {
    /// Whether the two cannot have a port both.
    fn conflicts(&self, other: &Claim) -> bool {
        if self.key == other.key || self.reuse && other.reuse && !(self.listening && other.listening) {
            return false;
        }
        let wide = |claim: &Claim| claim.address.is_unspecified();
        let same_family = self.address.is_ipv4() == other.address.is_ipv4();
        if same_family {
            return wide(self) || wide(other) || self.address == other.address;
        }
        // A wildcard of IPv6 is one of IPv4 too, unless it says otherwise.
        let covers = |claim: &Claim| wide(claim) && claim.address.is_ipv6() && !claim.only_its_family;
        covers(self) || covers(other)
    }

    /// Why a claim cannot have a port that these have, if it cannot.
    fn refused_by(&self, users: &[Claim], port: u16) -> Result<(), IdError> {
        let Some(user) = users.iter().find(|user| self.conflicts(user)) else { return Ok(()) };
        let anywhere = is_anywhere(self.address) || is_anywhere(user.address);
        Err(IdError::InUse { address: SocketAddr::new(self.address, port), anywhere })
    }
}

impl Claims {
    /// Takes a port for an id, any free one for 0, and returns which. `take` gets it for the process, where it does not
    /// have it yet.
    pub fn bind<E: From<IdError>>(
        &mut self,
        space: PortSpace,
        port: u16,
        claim: Claim,
        take: impl FnOnce(PortSpace, SocketAddr) -> Result<u16, E>,
    ) -> Result<u16, E> {
        let port = match self.held.get(&(space, port)) {
            Some(users) => claim.refused_by(users, port).map(|()| port)?,
            None => take(space, SocketAddr::new(claim.address, port))?,
        };
        self.held.entry((space, port)).or_default().push(claim);
        Ok(port)
    }

    /// An id is about to listen.
    pub fn listen(&mut self, space: PortSpace, port: u16, key: IdKey) -> Result<(), IdError> {
        let Some(users) = self.held.get_mut(&(space, port)) else { return Ok(()) };
        let Some(claim) = users.iter().find(|user| user.key == key) else { return Ok(()) };
        Claim { listening: true, ..*claim }.refused_by(users, port)?;
        self.set_listening(space, port, key, true);
        Ok(())
    }

    /// An id listens, or listens no more and keeps its port.
    pub fn set_listening(&mut self, space: PortSpace, port: u16, key: IdKey, listening: bool) {
        let users = self.held.get_mut(&(space, port)).into_iter().flatten();
        users.filter(|user| user.key == key).for_each(|user| user.listening = listening);
    }

    /// An id has gone. True if nobody has the port any more.
    pub fn release(&mut self, space: PortSpace, port: u16, key: IdKey) -> bool {
        let Some(users) = self.held.get_mut(&(space, port)) else { return false };
        users.retain(|user| user.key != key);
        let free = users.is_empty();
        if free {
            self.held.remove(&(space, port));
        }
        free
    }

    /// How many ids have a port.
    pub fn count(&self) -> usize {
        self.held.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 7471;

    fn claim(key: u64, address: &str) -> Claim {
        let key = IdKey(key);
        Claim { key, address: address.parse().unwrap(), only_its_family: false, reuse: false, listening: false }
    }

    fn bind(claims: &mut Claims, space: PortSpace, claim: Claim) -> Result<u16, IdError> {
        claims.bind(space, PORT, claim, |_, address| Ok(address.port()))
    }

    /// Whether a wildcard or a loopback address is why the port cannot be had.
    fn refused_anywhere(answer: Result<u16, IdError>) -> bool {
        match answer {
            Err(IdError::InUse { anywhere, .. }) => anywhere,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_share_a_port_and_wildcards_do_not() {
        let mut claims = Claims::default();
        let tcp = PortSpace::Tcp;
        assert_eq!(claims.bind(tcp, 0, claim(1, "127.0.0.1"), |_, _| Ok::<_, IdError>(PORT)), Ok(PORT));
        let taken_already = |_, _| -> Result<u16, IdError> { panic!("the process has the port") };
        assert_eq!(claims.bind(tcp, PORT, claim(2, "127.0.0.2"), taken_already), Ok(PORT));
        assert_eq!(bind(&mut claims, tcp, claim(3, "::1")), Ok(PORT));
        for taken in ["127.0.0.1", "0.0.0.0", "::"] {
            assert!(refused_anywhere(bind(&mut claims, tcp, claim(4, taken))), "{taken}");
        }
        for key in 1..=3 {
            assert_eq!(claims.release(tcp, PORT, IdKey(key)), key == 3);
        }
        let only = Claim { only_its_family: true, ..claim(5, "::") };
        bind(&mut claims, tcp, only).unwrap();
        bind(&mut claims, tcp, claim(6, "0.0.0.0")).unwrap();
    }

    /// The kernel's distinction: a wildcard, or a loopback address, makes the port not available to the other.
    #[test]
    fn one_address_is_in_use_and_a_wildcards_port_is_not_available() {
        let mut claims = Claims::default();
        bind(&mut claims, PortSpace::Tcp, claim(1, "192.0.2.1")).unwrap();
        for (address, anywhere) in [("192.0.2.1", false), ("0.0.0.0", true), ("::", true)] {
            assert_eq!(refused_anywhere(bind(&mut claims, PortSpace::Tcp, claim(2, address))), anywhere, "{address}");
        }
        bind(&mut claims, PortSpace::Udp, claim(3, "0.0.0.0")).unwrap();
        assert!(refused_anywhere(bind(&mut claims, PortSpace::Udp, claim(2, "192.0.2.1"))));
    }

    #[test]
    fn those_who_may_share_listen_one_at_a_time() {
        let mut claims = Claims::default();
        let udp = PortSpace::Udp;
        let shared = |key| Claim { reuse: true, ..claim(key, "0.0.0.0") };
        bind(&mut claims, udp, shared(1)).unwrap();
        bind(&mut claims, udp, shared(2)).unwrap();
        assert!(refused_anywhere(bind(&mut claims, udp, claim(3, "0.0.0.0"))));
        claims.listen(udp, PORT, IdKey(1)).unwrap();
        assert!(refused_anywhere(claims.listen(udp, PORT, IdKey(2)).map(|()| PORT)));
        claims.release(udp, PORT, IdKey(1));
        claims.listen(udp, PORT, IdKey(2)).unwrap();
    }
}
