//! Two hosts and a cable: two network namespaces joined by a pair of virtual Ethernet devices. A namespace has no name:
//! a process holds it, which ends when its test does, however that ends; then the kernel takes the namespace and the
//! cable away. Nothing is left to clean up.

use crate::actor::{self, Actor, Outcome};
use crate::wait_until;
use std::ffi::OsStr;
use std::io::Read;
use std::net::IpAddr;
use std::process::Command;

/// The name of the device at both ends.
pub const DEVICE: &str = "veth0";

/// A host: a network namespace.
#[derive(Debug)]
pub struct Host {
    holder: Actor,
    /// Its addresses: IPv4, IPv6, IPv6 that is valid on this cable only.
    pub v4: IpAddr,
    pub v6: IpAddr,
    pub link_local: IpAddr,
}

/// Two hosts, joined.
#[derive(Debug)]
pub struct Network {
    pub left: Host,
    pub right: Host,
}

/// Holds the namespace it was started in until nobody wants it any more.
pub fn hold(_: &[String]) -> Outcome {
    actor::say("held", "");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

impl Host {
    /// A host without any cable.
    pub fn alone() -> Host {
        let host = Host::new(1);
        host.run("ip link set lo up");
        host
    }

    fn new(number: u8) -> Host {
        let mut command = Command::new("unshare");
        command.arg("--net").arg(actor::program()).args(["role", "hold"]);
        let mut holder = Actor::start(&format!("holder {number}"), &mut command);
        holder.hear("held");
        let v4 = [10, 77, 0, number].into();
        let v6 = [0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number)].into();
        let link_local = [0xfe80, 0, 0, 0, 0, 0, 0, u16::from(number)].into();
        Host { holder, v4, v6, link_local }
    }

    /// A program in this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id())).arg(program);
        command
    }

    /// Runs a program in this host, which must succeed. Answers what it printed.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let output = self.command(words.next().unwrap_or_default()).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {} {said}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A process that plays a role in this host.
    pub fn start(&self, role: &str, arguments: &[String]) -> Actor {
        self.start_with(role, arguments, &[])
    }

    /// A process that plays a role in this host, with variables in its environment.
    pub fn start_with(&self, role: &str, arguments: &[String], variables: &[(&str, &str)]) -> Actor {
        let mut command = self.command(actor::program());
        command.args(["role", role]).args(arguments).env_remove("UBIVERBS_FAULTS").envs(variables.iter().copied());
        Actor::start(role, &mut command)
    }

    fn addresses(&self) -> [IpAddr; 3] {
        [self.v4, self.v6, self.link_local]
    }

    /// The names of the registry that processes of this host hold now.
    pub fn names(&self) -> Vec<String> {
        let table = self.run("cat /proc/net/unix");
        let name = |line: &str| {
            line.split_whitespace().last().filter(|name| name.starts_with("@ubiverbs/")).map(str::to_owned)
        };
        let mut names: Vec<String> = table.lines().filter_map(name).collect();
        names.sort();
        names.dedup();
        names
    }
}

impl Network {
    /// A cable that carries IP packets of up to `mtu` bytes.
    pub fn new(mtu: u32) -> Network {
        let network = Network { left: Host::new(1), right: Host::new(2) };
        let Network { left, right } = &network;
        let other = right.holder.id();
        left.run(&format!("ip link add {DEVICE} mtu {mtu} type veth peer name {DEVICE} mtu {mtu} netns {other}"));
        for host in [left, right] {
            host.run("ip link set lo up");
            // Addresses are given by hand: those the kernel makes are not usable for a second or two.
            host.run(&format!("ip link set {DEVICE} addrgenmode none"));
            host.run(&format!("ip link set {DEVICE} up"));
            for address in host.addresses() {
                host.add_address(address);
            }
        }
        // The kernel takes its time to see that a cable has two ends.
        for host in [left, right] {
            wait_until("the link is up", || host.run(&format!("ip -o link show {DEVICE}")).contains("state UP"));
        }
        network
    }
}

impl Host {
    /// Gives the device another address.
    pub fn add_address(&self, address: IpAddr) {
        self.run(&match address {
            IpAddr::V4(address) => format!("ip addr add {address}/24 dev {DEVICE}"),
            IpAddr::V6(address) => format!("ip addr add {address}/64 dev {DEVICE} nodad"),
        });
    }
}
