//! A network of one's own for a test program: ports and names that nobody else on the machine uses. And a small runner
//! for such programs, because the namespace has to be entered before there is a second thread.

#![allow(dead_code)] // not every program uses all of it

pub mod processes;

use link::udp::{Cargo, Route, Sender};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use wire::{Headers, Opcode, Packet, Psn, Qpn};

/// What a test program may do.
#[derive(Clone, Copy, Debug)]
pub struct Rights {
    /// It can become another user.
    pub users: bool,
}

/// Enters a network namespace with only a loopback device. Where that is forbidden the tests run in the namespace they
/// are in, and say so.
pub fn enter() -> Rights {
    // SAFETY: no memory is involved.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    // SAFETY: changes namespaces of this thread, which is the only one.
    if uid == 0 && unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        loopback_up().expect("the loopback device of a new namespace");
        return Rights { users: true };
    }
    // SAFETY: as above.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } == 0 {
        let _ = fs::write("/proc/self/setgroups", "deny");
        let _ = fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"));
        let _ = fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"));
        loopback_up().expect("the loopback device of a new namespace");
        println!("not root: everything runs as user {uid}");
        return Rights { users: false };
    }
    println!("no network namespace ({}): other programs on port 4791 may disturb", io::Error::last_os_error());
    Rights { users: uid == 0 }
}

fn loopback_up() -> io::Result<()> {
    // SAFETY: a socket of our own, and a request that is live and initialised.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        let answer = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw mut request);
        let error = io::Error::last_os_error();
        libc::close(socket);
        if answer == 0 { Ok(()) } else { Err(error) }
    }
}

/// Runs tests one after the other; arguments are filters on their names.
pub fn run(tests: &[(&str, fn(Rights))]) -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let rights = enter();
    let mut failed = 0;
    for (name, test) in tests {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        let ok = catch_unwind(AssertUnwindSafe(|| test(rights))).is_ok();
        println!("test {name} ... {} ({} ms)", if ok { "ok" } else { "FAILED" }, start.elapsed().as_millis());
        failed += u32::from(!ok);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Looks until it is so.
#[track_caller]
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The loopback address of a family.
pub fn loopback(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
}

/// Packets that are alike.
pub struct Parcel<'a> {
    pub opcode: Opcode,
    pub to: Qpn,
    pub psn: u32,
    pub payload: &'a [u8],
    pub count: u32,
}

impl Cargo for Parcel<'_> {
    type Error = Infallible;

    fn count(&self) -> u32 {
        self.count
    }

    fn packet(&self, index: u32) -> (Headers, usize) {
        let mut headers = Headers::new(self.opcode, self.to, Psn::new(self.psn + index));
        headers.bth.pad = Packet::pad(self.payload.len());
        if self.opcode == Opcode::UdSendOnly {
            headers.deth = Some(wire::Deth { qkey: wire::Qkey::GSI, src_qpn: Qpn::GSI });
        }
        (headers, self.payload.len())
    }

    fn payload(&mut self, _: u32, out: &mut [u8]) -> Result<(), Infallible> {
        out.copy_from_slice(self.payload);
        Ok(())
    }
}

/// Sends over loopback.
pub fn send(sender: &mut Sender, parcel: &mut Parcel<'_>, v6: bool) {
    send_to(sender, parcel, loopback(v6));
}

/// Sends to any address of this host.
pub fn send_to(sender: &mut Sender, parcel: &mut Parcel<'_>, destination: IpAddr) {
    let source = loopback(destination.is_ipv6());
    let route = Route { source, destination, scope: 0, traffic_class: 0, hop_limit: 64 };
    sender.send(&route, parcel, false).unwrap();
}
