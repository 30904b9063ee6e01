//! Hosts for programs to run on: network namespaces without names, each held by a process that ends when we do. One has
//! only its loopback; two are joined by cables, one that carries what Ethernet usually does and one that carries large
//! frames. Who is not root has the machine's own loopback and nothing else.

use crate::stage::PROGRAM_TIMEOUT;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A host.
#[derive(Debug)]
pub struct Host {
    /// Holds the namespace: it waits for the end of its input. None for the machine's own.
    holder: Option<Child>,
    /// The address that programs on the other host connect to.
    pub address: &'static str,
}

/// A cable between two hosts: the interface's name at both ends, what it carries, and the network's first three bytes
/// of addresses.
struct Cable {
    interface: &'static str,
    mtu: u32,
    v4: &'static str,
    v6: &'static str,
}

const CABLES: [Cable; 2] = [
    Cable { interface: "veth0", mtu: 1500, v4: "10.77.0", v6: "fd77:" },
    Cable { interface: "veth1", mtu: 9000, v4: "10.78.0", v6: "fd78:" },
];

/// Who holds a namespace. It is made in another, where a new one gets a table of TCP sockets of its own, if the kernel
/// can: to look for one in that of the whole machine takes a millisecond, and we look often.
const HOLDER: &str = "echo 1024 > /proc/sys/net/ipv4/tcp_child_ehash_entries; exec unshare --net cat";

impl Host {
    /// A host with a loopback.
    pub fn alone() -> Result<Host, String> {
        if !crate::is_root() {
            return Ok(Host { holder: None, address: "127.0.0.1" });
        }
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", HOLDER]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = command.spawn().map_err(|e| format!("unshare did not start: {e}"))?;
        let id = holder.id();
        let host = Host { holder: Some(holder), address: "127.0.0.1" };
        wait("a network namespace", || {
            fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "cat")
        })?;
        host.ip("link set lo up")?;
        Ok(host)
    }

    /// Two hosts, joined.
    pub fn joined() -> Result<[Host; 2], String> {
        let mut hosts = [Host::alone()?, Host::alone()?];
        let [left, right] = &mut hosts;
        (left.address, right.address) = ("10.77.0.1", "10.77.0.2");
        let other = right.holder.as_ref().map_or(0, Child::id);
        for Cable { interface, mtu, v4, v6 } in &CABLES {
            left.ip(&format!(
                "link add {interface} mtu {mtu} type veth peer name {interface} mtu {mtu} netns {other}"
            ))?;
            for (host, number) in [(&*left, 1), (&*right, 2)] {
                // No address but those we give: the kernel's own come late, and would have numbers in the table.
                host.ip(&format!("link set {interface} addrgenmode none"))?;
                host.ip(&format!("addr add {v4}.{number}/24 dev {interface}"))?;
                host.ip(&format!("addr add {v6}:{number}/64 dev {interface} nodad"))?;
                host.ip(&format!("link set {interface} up"))?;
            }
        }
        for host in &hosts {
            for Cable { interface, .. } in &CABLES {
                wait("a cable", || {
                    host.ip(&format!("-o link show {interface}")).is_ok_and(|it| it.contains("state UP"))
                })?;
            }
        }
        Ok(hosts)
    }

    fn namespace(&self) -> Option<String> {
        self.holder.as_ref().map(|holder| format!("/proc/{}/ns/net", holder.id()))
    }

    /// A program on this host, as that user if one is named.
    pub fn command(&self, user: Option<u32>, program: &Path) -> Command {
        let mut words = Vec::new();
        if let Some(namespace) = self.namespace() {
            words.extend(["nsenter".into(), format!("--net={namespace}")]);
        }
        if let Some(user) = user {
            words.extend([
                "setpriv".into(),
                format!("--reuid={user}"),
                format!("--regid={user}"),
                "--clear-groups".into(),
            ]);
        }
        let mut words = words.into_iter();
        let Some(first) = words.next() else { return Command::new(program) };
        let mut command = Command::new(first);
        command.args(words).arg(program);
        command
    }

    /// Runs `ip`, which must succeed.
    pub fn ip(&self, line: &str) -> Result<String, String> {
        let output = self.command(None, Path::new("ip")).args(line.split_whitespace()).output();
        let output = output.map_err(|e| format!("ip did not start: {e}"))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            let _ = holder.kill().and_then(|()| holder.wait());
        }
    }
}

/// Whether a program on the process's host listens on that port: by TCP, or with our connection manager.
pub fn listens(process: u32, port: u16) -> io::Result<bool> {
    let mut listens = false;
    for table in ["tcp", "tcp6"] {
        let table = fs::read_to_string(format!("/proc/{process}/net/{table}"))?;
        // Number, local address, remote address, state: `0A` listens.
        listens |= table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let local = words.next().and_then(|address| address.rsplit(':').next());
            local.and_then(|port| u16::from_str_radix(port, 16).ok()) == Some(port) && words.nth(1) == Some("0A")
        });
    }
    // One of datagrams is bound.
    for table in ["udp", "udp6"] {
        let table = fs::read_to_string(format!("/proc/{process}/net/{table}"))?;
        listens |= table.lines().any(|line| {
            let local = line.split_whitespace().nth(1).and_then(|address| address.rsplit(':').next());
            local.and_then(|port| u16::from_str_radix(port, 16).ok()) == Some(port)
        });
    }
    // A port of the connection manager is a name.
    let names = fs::read(format!("/proc/{process}/net/unix"))?;
    let named = |line: &str| {
        let name = line.split_whitespace().last()?.strip_prefix("@ubiverbs/cm/")?;
        let (_, number) = name.split_once('/')?;
        number.parse::<u16>().ok()
    };
    Ok(listens || String::from_utf8_lossy(&names).lines().filter_map(named).any(|number| number == port))
}

/// Looks until it is so.
pub fn wait(what: &str, is_so: impl FnMut() -> bool) -> Result<(), String> {
    wait_for(PROGRAM_TIMEOUT, what, is_so)
}

/// Looks until it is so, for so long.
pub fn wait_for(limit: Duration, what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let begin = Instant::now();
    while !is_so() {
        let time = begin.elapsed();
        if time > limit {
            return Err(format!("{what}: not within {limit:?}"));
        }
        // Often at first, as most things are so soon; to look takes a processor that others wait for.
        std::thread::sleep((time / 4).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
    Ok(())
}

/// Between one look and the next.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
