//! Whether there are devices, the loopback's among them, and whether packets of other hosts would arrive: who has the
//! port, which address families there are, and how much the kernel buffers.

use super::Finding;
use crate::exit::Failure;
use hca::{Nic, Reach};
use std::error::Error;
use std::fs;
use std::io;
use std::path::Path;
use wire::ROCE_PORT;

const LO_UP_COMMAND: &str = "ip link set lo up";

/// What Linux grants unless the administrator said less, and what our bursts are made for.
const STOCK_BUFFER_BYTES: u64 = 212_992;

pub fn check() -> Vec<Finding> {
    let nic = match Nic::of_process() {
        Ok(nic) => nic,
        Err(error) => {
            let fix = fix_of(&error);
            return vec![Finding::failure("network", Failure::Nic(error).told(), fix)];
        }
    };
    let devices = nic.devices();
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    let on_loopback = devices.iter().any(|device| device.interface_name() == "lo");
    let mut findings = vec![if names.is_empty() {
        Finding::failure("devices", "none: no network interface is up and has an address", LO_UP_COMMAND)
    } else if !on_loopback {
        let what = format!("{}, but not ubi_lo: programs that use 127.0.0.1 would fail", names.join(", "));
        Finding::failure("devices", what, LO_UP_COMMAND)
    } else {
        Finding::ok("devices", names.join(", "))
    }];
    findings.extend(reach(&nic.reach()));
    findings.push(buffers(|name| fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?.trim().parse().ok()));
    findings
}

/// What to do about a NIC that cannot be attached.
fn fix_of(error: &(dyn Error + 'static)) -> String {
    let mut cause = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            Some(libc::EMFILE) => return "ulimit -n 1024".to_owned(),
            Some(libc::ENFILE) => return "sysctl -w fs.file-max=1000000".to_owned(),
            Some(libc::EAGAIN) => return "ulimit -u unlimited, or raise pids.max of the container".to_owned(),
            Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => {
                return "allow it in the sandbox or the container (docker run --security-opt seccomp=unconfined)"
                    .to_owned();
            }
            _ => cause = error.source(),
        }
    }
    format!("{LO_UP_COMMAND}; then look again")
}

/// How packets of other hosts would come.
fn reach(ways: &[Reach; 2]) -> Vec<Finding> {
    const CHECK: &str = "UDP port";
    let families = ["IPv4", "IPv6"];
    let mut findings = Vec::new();
    let taken: Vec<&str> =
        families.into_iter().zip(ways).filter(|(_, way)| **way == Reach::Taken).map(|(family, _)| family).collect();
    if !taken.is_empty() {
        let (holder, fix) = holder();
        let what =
            format!("other hosts cannot reach programs here: {ROCE_PORT} ({}) is held by {holder}", taken.join(", "));
        findings.push(Finding::failure(CHECK, what, fix));
    }
    for (family, way) in families.into_iter().zip(ways) {
        match way {
            Reach::Refused(error) => {
                let what = format!("other hosts cannot reach programs here: {error}");
                findings.push(Finding::failure(CHECK, what, "allow UDP sockets in the sandbox or the container"));
            }
            Reach::NoFamily => {
                let what = format!("the system has no {family}: programs that use its addresses would fail");
                let fix = "boot without ipv6.disable=1, or use addresses of the other family";
                findings.push(Finding::warning(CHECK, what, fix));
            }
            Reach::Direct | Reach::Forwarded { .. } | Reach::Taken => {}
        }
    }
    if findings.is_empty() {
        let forwarded = ways.iter().find_map(|way| match way {
            Reach::Forwarded { uid } => Some(format!("{ROCE_PORT} is held by ubiverbs of user {uid}, which forwards")),
            _ => None,
        });
        findings.push(Finding::ok(CHECK, forwarded.unwrap_or(format!("{ROCE_PORT} can be used"))));
    }
    findings
}

/// A socket of the port.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Socket {
    uid: u32,
    inode: u64,
}

/// The sockets in one of the kernel's tables that are bound to the port.
fn sockets(table: &str) -> Vec<Socket> {
    let socket = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let port = fields.get(1)?.rsplit_once(':')?.1;
        let (uid, inode) = (fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?);
        (u16::from_str_radix(port, 16) == Ok(ROCE_PORT)).then_some(Socket { uid, inode })
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// What holds the port, and the command that ends that.
fn holder() -> (String, String) {
    let tables = ["/proc/self/net/udp", "/proc/self/net/udp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let held: Vec<Socket> = tables.iter().flat_map(|table| sockets(table)).collect();
    let names: Vec<String> = held.iter().map(|socket| format!("socket:[{}]", socket.inode)).collect();
    let mut processes: Vec<u32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != std::process::id() && has(*pid, &names))
        .collect();
    processes.sort_unstable();
    if let Some(pid) = processes.first() {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = trace::printable(name.trim());
        return (format!("{name} (process {pid}), which does not share it"), format!("kill {pid}"));
    }
    if Path::new("/sys/module/rdma_rxe").exists() {
        let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        // Devices made of an interface say which.
        let soft = devices.filter(|device| device.path().join("parent").exists());
        let delete: String =
            soft.map(|device| format!("rdma link delete {}; ", device.file_name().display())).collect();
        return ("the kernel's Soft-RoCE (rdma_rxe)".to_owned(), format!("{delete}modprobe -r rdma_rxe"));
    }
    match held.iter().find(|socket| socket.uid != 0 && socket.uid != rustix::process::getuid().as_raw()) {
        Some(Socket { uid, .. }) => (
            format!("a process of user {uid}, which does not share it"),
            format!("end that process; root sees it with: ss -lunp 'sport = :{ROCE_PORT}'"),
        ),
        None => (
            "the kernel (a tunnel, for example), or by a process that only root can see".to_owned(),
            format!("look as root: ss -lunp 'sport = :{ROCE_PORT}'; ip -d link show | grep -w {ROCE_PORT}"),
        ),
    }
}

/// Whether the process has one of these files open. What we may not look at has none.
fn has(pid: u32, names: &[String]) -> bool {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|link| names.iter().any(|name| link == Path::new(name)))
}

/// What the kernel keeps for us until we look.
fn buffers(setting: impl Fn(&str) -> Option<u64>) -> Finding {
    let small: Vec<(&str, u64)> = ["rmem_max", "wmem_max"]
        .into_iter()
        .filter_map(|name| Some((name, setting(name)?)))
        .filter(|(_, size)| *size < STOCK_BUFFER_BYTES)
        .collect();
    if small.is_empty() {
        return Finding::ok("buffers", "socket buffers may be as large as needed");
    }
    let sizes: Vec<String> = small.iter().map(|(name, size)| format!("net.core.{name} is {size}")).collect();
    let fixes: Vec<String> = small.iter().map(|(name, _)| format!("net.core.{name}={STOCK_BUFFER_BYTES}")).collect();
    let what = format!("{}: packets that come in bursts are lost and sent again, which is slow", sizes.join(", "));
    Finding::warning("buffers", what, format!("sysctl -w {}", fixes.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const TABLE: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  117: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 4242 2 0000000000000000 0
  201: 0100007F:0277 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 17 2 0000000000000000 0
  nonsense
";

    #[test]
    fn sockets_of_the_port_are_found() {
        assert_eq!(sockets(TABLE), [Socket { uid: 1000, inode: 4242 }]);
    }

    #[test]
    fn a_user_that_forwards_is_no_obstacle_and_a_missing_family_is_one_for_its_addresses() {
        let levels = |ways| reach(&ways).iter().map(|finding| finding.level).collect::<Vec<_>>();
        assert_eq!(levels([Reach::Direct, Reach::Direct]), [Level::Ok]);
        assert_eq!(levels([Reach::Forwarded { uid: 5 }, Reach::Forwarded { uid: 5 }]), [Level::Ok]);
        assert_eq!(levels([Reach::Direct, Reach::NoFamily]), [Level::Warning]);
        assert_eq!(levels([Reach::Refused("no".to_owned()), Reach::Direct]), [Level::Failure]);
        assert_eq!(levels([Reach::Taken, Reach::Taken]), [Level::Failure]);
    }

    #[test]
    fn small_buffers_are_named() {
        let finding = buffers(|name| Some(if name == "rmem_max" { 4096 } else { STOCK_BUFFER_BYTES }));
        assert_eq!(finding.level, Level::Warning);
        assert_eq!(finding.fix.unwrap(), "sysctl -w net.core.rmem_max=212992");
        assert_eq!(buffers(|_| None).level, Level::Ok);
    }
}
