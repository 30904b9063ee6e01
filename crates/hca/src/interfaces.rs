//! The network interfaces of this network namespace, as the kernel tells them: names, states, MTUs and addresses; or
//! the [`Nics`] that were asked for in their place. A snapshot; a caller that wants to follow changes listens to
//! [`Changes`] and takes another.

use ::host::descriptor::{Descriptor, above_standard};
use profiles::Profile;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::str::FromStr;

/// One network interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number in this namespace.
    pub index: u32,
    /// The name of its device.
    pub device: String,
    /// The number of its device: that of the interface, unless [`Nics`] share the interface.
    pub number: u32,
    /// Its hardware address; zero for `lo`.
    pub mac: [u8; 6],
    /// It is up and has a carrier.
    pub running: bool,
    /// Largest IP packet.
    pub mtu: u32,
    /// Its addresses, in the kernel's order.
    pub addresses: Vec<IpAddr>,
    /// Which card it is like, if it is like one.
    pub profile: Option<&'static Profile>,
    /// The addresses of the further ports of its device, from port 2 on: none, unless [`Nics`] have several ports.
    pub further_ports: Vec<IpAddr>,
}

/// NICs in place of the host's interfaces: each of their ports is the loopback with an address of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nics {
    /// How many.
    pub count: u8,
    /// How many ports each has.
    pub ports: u8,
    /// Each is behind a PCI switch of its own, as in a server with as many GPUs; otherwise all are behind one.
    pub own_switches: bool,
}

/// The most of them.
pub const MAX_NICS: u8 = 64;

/// The most ports of one.
pub const MAX_NIC_PORTS: u8 = 4;

/// The numbers of their devices begin here: no interface has one of these.
pub(crate) const FIRST_NIC_NUMBER: u32 = 1_000_000;

impl FromStr for Nics {
    type Err = String;

    fn from_str(text: &str) -> Result<Nics, String> {
        if text == "hgx" {
            return Ok(Nics { count: 8, ports: 1, own_switches: true });
        }
        let (count, ports) = text.split_once('x').unwrap_or((text, "1"));
        let within = |text: &str, max| text.parse().ok().filter(|number| (1..=max).contains(number));
        let (Some(count), Some(ports)) = (within(count, MAX_NICS), within(ports, MAX_NIC_PORTS)) else {
            return Err(format!("there are 1 to {MAX_NICS} NICs of 1 to {MAX_NIC_PORTS} ports each (4, 2x2), or hgx"));
        };
        Ok(Nics { count, ports, own_switches: false })
    }
}

impl Nics {
    /// The first port of `ubi_0` has 127.0.0.1, its next port or `ubi_1` has 127.0.0.2, and so on: the whole of 127/8 is
    /// the host's.
    fn on(self, loopback: &Interface) -> Vec<Interface> {
        let mut free = (u32::from(Ipv4Addr::LOCALHOST)..).map(|address| IpAddr::from(Ipv4Addr::from(address)));
        (0..self.count)
            .map(|position| Interface {
                device: format!("ubi_{position}"),
                number: FIRST_NIC_NUMBER + u32::from(position),
                addresses: free.by_ref().take(1).collect(),
                further_ports: free.by_ref().take(usize::from(self.ports) - 1).collect(),
                ..loopback.clone()
            })
            .collect()
    }
}

/// The interfaces that devices are made of: all, by number, or those of the NICs in their place. `card_of` says which card
/// the one of that place is like; interfaces of the host are all like the first.
pub fn of_devices(nics: Option<Nics>, card_of: fn(usize) -> Option<&'static Profile>) -> io::Result<Vec<Interface>> {
    let all = interfaces()?;
    let mut devices = match nics {
        None => all,
        Some(nics) => {
            let loopback = all.iter().find(|interface| interface.addresses.contains(&Ipv4Addr::LOCALHOST.into()));
            loopback.map(|loopback| nics.on(loopback)).unwrap_or_default()
        }
    };
    // The loopback has no number: those of others stay when one comes.
    let mut next = 0_usize;
    for (position, device) in devices.iter_mut().enumerate() {
        device.profile = card_of(if nics.is_some() { position } else { 0 });
        let number = match nics {
            Some(_) => position.to_string(),
            None if device.name == "lo" => "lo".into(),
            // No device is made of it.
            None if !device.running || device.addresses.is_empty() => continue,
            None => {
                next += 1;
                (next - 1).to_string()
            }
        };
        if let Some(name) = device.profile.and_then(|profile| profile.device_name.as_deref()) {
            device.device = name.replace("{n}", &number);
        }
    }
    Ok(devices)
}

/// All interfaces, by number.
fn interfaces() -> io::Result<Vec<Interface>> {
    let mut found: BTreeMap<u32, Interface> = BTreeMap::new();
    // First: where there is no descriptor left, no answer is better than one with wrong MTUs.
    let socket = any_socket()?;
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is a place for the pointer that the call stores.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: the list came from `getifaddrs`, is not freed yet, and its entries are valid until then.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: names in the list are strings that end with a zero.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: as above; the call only reads the name.
        let index = unsafe { libc::if_nametoindex(entry.ifa_name) };
        if index == 0 {
            continue;
        }
        let interface = found.entry(index).or_insert_with(|| {
            let name = name.to_string_lossy().into_owned();
            Interface { device: format!("ubi_{name}"), number: index, name, index, ..Interface::default() }
        });
        interface.running = is_running(entry.ifa_flags as libc::c_int);
        if entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an address in the list is of the family it names, and at least as large as that family's structure.
        unsafe {
            match libc::c_int::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    interface.addresses.push(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into());
                }
                libc::AF_INET6 => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    interface.addresses.push(Ipv6Addr::from(address.sin6_addr.s6_addr).into());
                }
                libc::AF_PACKET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_ll>();
                    interface.mac.copy_from_slice(&address.sll_addr[..6]);
                }
                _ => {}
            }
        }
    }
    // SAFETY: the list came from `getifaddrs` and nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    for interface in found.values_mut() {
        interface.mtu = mtu(&socket, &interface.name).unwrap_or(1500);
    }
    Ok(found.into_values().collect())
}

/// Up and with a carrier. The kernel sets `IFF_RUNNING` from a work queue, on a busy machine a second after an interface
/// got its carrier, and tells of a change only then; kernel RDMA drivers look at the carrier itself, and so does this.
fn is_running(flags: libc::c_int) -> bool {
    flags & libc::IFF_UP != 0 && flags & (libc::IFF_LOWER_UP | libc::IFF_RUNNING) != 0
}

/// A socket to ask the kernel through.
fn any_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain call; the descriptor it returns is owned from here on.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 { Err(io::Error::last_os_error()) } else { above_standard(OwnedFd::from_raw_fd(fd)) }
    }
}

fn mtu(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    // SAFETY: `ifreq` is plain data, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(libc::IFNAMSIZ - 1)) {
        *to = from as libc::c_char;
    }
    // SAFETY: `request` is a live `ifreq` with a name that ends with a zero; on success the kernel has set the MTU
    // member.
    unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(u32::try_from(request.ifr_ifru.ifru_mtu).unwrap_or(1500))
    }
}

/// Tells when interfaces or addresses have changed: readable then.
#[derive(Debug)]
pub struct Changes {
    socket: Descriptor,
}

impl Changes {
    /// Listens from now on.
    pub fn listen() -> io::Result<Changes> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain calls on a descriptor owned from here on; the address is a live structure of the size given.
        unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            let socket = Descriptor::keep(OwnedFd::from_raw_fd(fd));
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as _;
            address.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR) as u32;
            let size = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            if libc::bind(socket.raw(), (&raw const address).cast(), size) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Changes { socket })
        }
    }

    /// Whether anything has changed since the last call. What exactly, the next snapshot says.
    pub fn any(&self) -> bool {
        let _shield = ::host::thread::Shield::up();
        let mut buffer = [0u8; 8192];
        let mut any = false;
        loop {
            // SAFETY: the buffer is live and of the length given.
            let answer =
                unsafe { libc::recv(self.socket.raw(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
            if answer < 0 {
                // More was said than the socket could hold: something has changed, whatever it was.
                return any || io::Error::last_os_error().raw_os_error() == Some(libc::ENOBUFS);
            }
            any = true;
        }
    }

    /// The descriptor to wait for.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nics_are_a_number_or_a_server() {
        assert_eq!("4".parse(), Ok(Nics { count: 4, ports: 1, own_switches: false }));
        assert_eq!("2x4".parse(), Ok(Nics { count: 2, ports: 4, own_switches: false }));
        assert_eq!("hgx".parse(), Ok(Nics { count: 8, ports: 1, own_switches: true }));
        for wrong in ["", "0", "65", "-1", "many", "2x", "2x0", "2x5", "x2", "2x2x2", "hgxx2"] {
            let refused = wrong.parse::<Nics>().unwrap_err();
            assert_eq!(refused, "there are 1 to 64 NICs of 1 to 4 ports each (4, 2x2), or hgx", "{wrong}");
        }
    }

    #[test]
    fn each_nic_has_a_name_a_number_and_an_address_of_its_own() {
        let nics = of_devices(Some(Nics { count: 3, ports: 1, own_switches: false }), |_| None).unwrap();
        let facts: Vec<_> = nics.iter().map(|nic| (nic.device.as_str(), nic.number, nic.addresses.clone())).collect();
        let address = |last| vec![IpAddr::from([127, 0, 0, last])];
        let expected = [("ubi_0", 1_000_000, 1), ("ubi_1", 1_000_001, 2), ("ubi_2", 1_000_002, 3)];
        assert_eq!(facts, expected.map(|(name, number, last)| (name, number, address(last))));
        assert!(nics.iter().all(|nic| nic.name == "lo" && nic.index == nics[0].index && nic.mtu > 0));
        assert!(nics.iter().all(|nic| nic.further_ports.is_empty()));
    }

    #[test]
    fn each_port_of_a_nic_has_an_address_of_its_own() {
        let nics = of_devices(Some(Nics { count: 64, ports: 4, own_switches: false }), |_| None).unwrap();
        let address = |nic: usize, port: usize| nics[nic].addresses.iter().chain(&nics[nic].further_ports).nth(port);
        let loopback = |c, d| IpAddr::from([127, 0, c, d]);
        assert_eq!(address(0, 3), Some(&loopback(0, 4)));
        assert_eq!(address(1, 1), Some(&loopback(0, 6)));
        assert_eq!((address(63, 3), address(63, 4)), (Some(&loopback(1, 0)), None));
    }
}
