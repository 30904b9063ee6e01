//! Two hosts and a cable for one round. A namespace has no name: a process holds it, which ends when its standard input
//! does, and that ends with this program however it ends; then the kernel takes the namespace and the cable away.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process;

/// The device at both ends.
const DEVICE: &str = "veth0";

/// A namespace.
pub struct Host {
    holder: Child,
    number: u8,
}

/// Two of them, joined.
pub struct Network {
    pub hosts: [Host; 2],
}

impl Host {
    fn new(number: u8) -> Result<Host, String> {
        let mut command = Command::new("unshare");
        // It ends when nobody can write to it any more. Ctrl-C is for us.
        command.args(["--net", "setpriv", "--pdeathsig", "KILL", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = command.spawn().map_err(|e| format!("unshare did not start: {e}"))?;
        let host = Host { holder, number };
        // It is in its namespace when that is another than ours.
        let ours = std::fs::read_link("/proc/self/ns/net").map_err(|e| format!("no namespace: {e}"))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while std::fs::read_link(format!("/proc/{}/ns/net", host.holder.id())).is_ok_and(|theirs| theirs == ours) {
            if Instant::now() > deadline {
                return Err("a network namespace takes too long".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(host)
    }

    /// What comes before a program so that it runs in this namespace.
    pub fn prefix(&self) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/proc/{}/ns/net", self.holder.id())]
    }

    fn run(&self, line: &str) -> Result<String, String> {
        let prefix = self.prefix();
        process::output(Command::new(&prefix[0]).args(&prefix[1..]).args(line.split_whitespace()))
    }

    /// Its address.
    pub fn address(&self, v6: bool) -> String {
        if v6 { format!("fd77::{}", self.number) } else { format!("10.77.0.{}", self.number) }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

impl Network {
    /// A cable that carries packets of up to `mtu` bytes.
    pub fn new(mtu: u32) -> Result<Network, String> {
        let hosts = [Host::new(1)?, Host::new(2)?];
        let other = hosts[1].holder.id();
        hosts[0]
            .run(&format!("ip link add {DEVICE} mtu {mtu} type veth peer name {DEVICE} mtu {mtu} netns {other}"))?;
        for host in &hosts {
            host.run("ip link set lo up")?;
            // Addresses are given by hand: those the kernel makes are not usable for a second or two.
            host.run(&format!("ip link set {DEVICE} addrgenmode none"))?;
            host.run(&format!("ip link set {DEVICE} up"))?;
            host.run(&format!("ip addr add {}/24 dev {DEVICE}", host.address(false)))?;
            host.run(&format!("ip addr add {}/64 dev {DEVICE} nodad", host.address(true)))?;
        }
        // The kernel takes its time to see that a cable has two ends.
        let deadline = Instant::now() + Duration::from_secs(10);
        for host in &hosts {
            while !host.run(&format!("ip -o link show {DEVICE}"))?.contains("state UP") {
                if Instant::now() > deadline {
                    return Err("the cable between two namespaces does not come up".into());
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Network { hosts })
    }
}
