//! Ports in use by this process. The host's registry gives a port to one process; which of its ids share it, by
//! different addresses or because all of them said that they may, is known here.

use super::error::CmError;
use super::route::is_anywhere;
use ::host::ports::{Port, PortError, Ports};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use wire::cm::PortSpace;

#[derive(Debug, Default)]
pub(crate) struct Bindings {
    held: HashMap<(PortSpace, u16), Holding>,
}

#[derive(Debug)]
struct Holding {
    /// Ours as long as it is here.
    _port: Port,
    users: Vec<Claim>,
}

/// What an id wants of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    /// The id.
    pub key: u64,
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
    fn refused_by(&self, users: &[Claim], port: u16) -> Result<(), CmError> {
        let Some(user) = users.iter().find(|user| self.conflicts(user)) else { return Ok(()) };
        let anywhere = is_anywhere(self.address) || is_anywhere(user.address);
        Err(CmError::InUse { address: SocketAddr::new(self.address, port), anywhere })
    }
}

impl Bindings {
    /// Takes a port for an id, any free one for 0. Answers which.
    pub fn bind(&mut self, ports: &Ports, space: PortSpace, port: u16, claim: Claim) -> Result<u16, CmError> {
        if let Some(holding) = self.held.get_mut(&(space, port)) {
            claim.refused_by(&holding.users, port)?;
            holding.users.push(claim);
            return Ok(port);
        }
        let taken = ports.bind(space, port).map_err(|error| match error {
            // Which addresses another process has there is not known here.
            PortError::InUse { port, .. } => {
                CmError::InUse { address: SocketAddr::new(claim.address, port), anywhere: is_anywhere(claim.address) }
            }
            error => error.into(),
        })?;
        let number = taken.number();
        self.held.insert((space, number), Holding { _port: taken, users: vec![claim] });
        Ok(number)
    }

    /// An id is about to listen.
    pub fn listen(&mut self, space: PortSpace, port: u16, key: u64) -> Result<(), CmError> {
        let Some(holding) = self.held.get_mut(&(space, port)) else { return Ok(()) };
        let Some(at) = holding.users.iter().position(|user| user.key == key) else { return Ok(()) };
        let Some(claim) = holding.users.get(at).map(|claim| Claim { listening: true, ..*claim }) else { return Ok(()) };
        claim.refused_by(&holding.users, port)?;
        if let Some(user) = holding.users.get_mut(at) {
            *user = claim;
        }
        Ok(())
    }

    /// An id has gone.
    pub fn release(&mut self, space: PortSpace, port: u16, key: u64) {
        let Some(holding) = self.held.get_mut(&(space, port)) else { return };
        holding.users.retain(|user| user.key != key);
        if holding.users.is_empty() {
            self.held.remove(&(space, port));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::host::slots::Slots;

    fn claim(key: u64, address: &str) -> Claim {
        Claim { key, address: address.parse().unwrap(), only_its_family: false, reuse: false, listening: false }
    }

    #[test]
    fn addresses_share_a_port_and_wildcards_do_not() {
        let ports = Ports::new(&Slots::open().unwrap());
        let mut bindings = Bindings::default();
        let port = bindings.bind(&ports, PortSpace::Tcp, 0, claim(1, "127.0.0.1")).unwrap();
        assert_eq!(bindings.bind(&ports, PortSpace::Tcp, port, claim(2, "127.0.0.2")).unwrap(), port);
        assert_eq!(bindings.bind(&ports, PortSpace::Tcp, port, claim(3, "::1")).unwrap(), port);
        for taken in ["127.0.0.1", "0.0.0.0", "::"] {
            let answer = bindings.bind(&ports, PortSpace::Tcp, port, claim(4, taken));
            assert_eq!(answer.unwrap_err().errno(), libc::EADDRNOTAVAIL, "{taken}");
        }
        for key in 1..=3 {
            bindings.release(PortSpace::Tcp, port, key);
        }
        let only = Claim { only_its_family: true, ..claim(5, "::") };
        bindings.bind(&ports, PortSpace::Tcp, port, only).unwrap();
        bindings.bind(&ports, PortSpace::Tcp, port, claim(6, "0.0.0.0")).unwrap();
    }

    /// The kernel's distinction: a wildcard, or a loopback address, makes the port not available to the other.
    #[test]
    fn one_address_is_in_use_and_a_wildcards_port_is_not_available() {
        let slots = Slots::open().unwrap();
        let (ports, others) = (Ports::new(&slots), Ports::new(&Slots::open().unwrap()));
        let mut bindings = Bindings::default();
        let port = bindings.bind(&ports, PortSpace::Tcp, 0, claim(1, "192.0.2.1")).unwrap();
        let errno = |bindings: &mut Bindings, ports: &Ports, port, address| {
            bindings.bind(ports, PortSpace::Tcp, port, claim(2, address)).unwrap_err().errno()
        };
        assert_eq!(errno(&mut bindings, &ports, port, "192.0.2.1"), libc::EADDRINUSE);
        assert_eq!(errno(&mut bindings, &ports, port, "0.0.0.0"), libc::EADDRNOTAVAIL);
        assert_eq!(errno(&mut bindings, &ports, port, "::"), libc::EADDRNOTAVAIL);
        // Of another process.
        let mut elsewhere = Bindings::default();
        assert_eq!(errno(&mut elsewhere, &others, port, "192.0.2.1"), libc::EADDRINUSE);
        assert_eq!(errno(&mut elsewhere, &others, port, "0.0.0.0"), libc::EADDRNOTAVAIL);
        assert_eq!(errno(&mut elsewhere, &others, port, "127.0.0.1"), libc::EADDRNOTAVAIL);
        let wide = bindings.bind(&ports, PortSpace::Tcp, 0, claim(3, "0.0.0.0")).unwrap();
        assert_eq!(errno(&mut bindings, &ports, wide, "192.0.2.1"), libc::EADDRNOTAVAIL);
    }

    #[test]
    fn those_who_may_share_listen_one_at_a_time() {
        let ports = Ports::new(&Slots::open().unwrap());
        let mut bindings = Bindings::default();
        let shared = |key| Claim { reuse: true, ..claim(key, "0.0.0.0") };
        let port = bindings.bind(&ports, PortSpace::Udp, 0, shared(1)).unwrap();
        bindings.bind(&ports, PortSpace::Udp, port, shared(2)).unwrap();
        assert!(bindings.bind(&ports, PortSpace::Udp, port, claim(3, "0.0.0.0")).is_err());
        bindings.listen(PortSpace::Udp, port, 1).unwrap();
        assert_eq!(bindings.listen(PortSpace::Udp, port, 2).unwrap_err().errno(), libc::EADDRNOTAVAIL);
        bindings.release(PortSpace::Udp, port, 1);
        bindings.listen(PortSpace::Udp, port, 2).unwrap();
    }
}
