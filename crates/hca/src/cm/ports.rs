//! Ports of the host that this process has for its ids: the host's registry gives a port to one process.

use super::error::CmError;
use ::cm::IdError;
use ::cm::id::address::is_anywhere;
use ::host::ports::{Port, PortError, Ports};
use std::collections::HashMap;
use std::net::SocketAddr;
use wire::cm::PortSpace;

/// Ours as long as they are in here.
pub(super) type HeldPorts = HashMap<(PortSpace, u16), Port>;

/// Takes a port for this process, any free one for 0, and returns which.
pub(super) fn take(ports: &Ports, held: &mut HeldPorts, space: PortSpace, address: SocketAddr) -> Result<u16, CmError> {
    let taken = ports.bind(space, address.port()).map_err(|error| match error {
        // Which addresses another process has there is not known here.
        PortError::InUse { port, .. } => {
            let address = SocketAddr::new(address.ip(), port);
            CmError::Id(IdError::InUse { address, anywhere: is_anywhere(address.ip()) })
        }
        error => error.into(),
    })?;
    let number = taken.number();
    held.insert((space, number), taken);
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::host::slots::Slots;

    /// The kernel's distinction: a wildcard, or a loopback address, makes the port not available to the other.
    #[test]
    fn a_port_of_another_process_is_in_use_or_not_available() {
        let (ports, others) = (Ports::new(&Slots::open().unwrap()), Ports::new(&Slots::open().unwrap()));
        let (mut held, mut elsewhere) = (HeldPorts::new(), HeldPorts::new());
        let port = take(&ports, &mut held, PortSpace::Tcp, "192.0.2.1:0".parse().unwrap()).unwrap();
        for (address, errno) in [
            ("192.0.2.1", libc::EADDRINUSE),
            ("0.0.0.0", libc::EADDRNOTAVAIL),
            ("127.0.0.1", libc::EADDRNOTAVAIL),
            ("::", libc::EADDRNOTAVAIL),
        ] {
            let address = SocketAddr::new(address.parse().unwrap(), port);
            let refused = take(&others, &mut elsewhere, PortSpace::Tcp, address).unwrap_err();
            assert_eq!(refused.errno(), errno, "{address}");
        }
    }
}
