//! Three hosts at one switch: the victims' host, another host with a peer of theirs, and the stranger's. Each is a
//! network namespace without a name: a process holds it, and when that ends the kernel takes the namespace away.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::actor::{Actor, Outcome};

/// The device of each host.
const DEVICE: &str = "veth0";

/// A user of a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum User {
    /// Owns what is attacked.
    Victim,
    /// Talks to the victim, and is no enemy.
    Neighbour,
    /// The enemy on the same host, without any rights.
    Attacker,
    /// May do everything to its host's network: the enemy on another host.
    Root,
}

impl User {
    /// Its number.
    pub fn id(self) -> u32 {
        match self {
            User::Victim => 41_001,
            User::Neighbour => 41_002,
            User::Attacker => 41_003,
            User::Root => 0,
        }
    }
}

/// A host.
pub struct Host {
    holder: Actor,
    /// Its address.
    pub address: Ipv4Addr,
}

/// The hosts and the switch between them.
pub struct Network {
    _switch: Host,
    /// Where the victims are, and the attacker.
    pub home: Host,
    /// Where a peer of theirs is.
    pub away: Host,
    /// Where the stranger is.
    pub strange: Host,
}

impl Host {
    fn new(number: u8) -> Outcome<Host> {
        let mut command = Command::new("unshare");
        command.args(["--net", "setpriv", "--pdeathsig", "KILL"]).arg(std::env::current_exe()?).args(["role", "hold"]);
        let mut holder = Actor::start("holder", &mut command)?;
        holder.hear("held")?;
        Ok(Host { holder, address: Ipv4Addr::new(10, 77, 0, number) })
    }

    fn inside(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.holder.id()));
        command
    }

    /// Runs a program in this host as root, which must succeed. Answers what it printed.
    pub fn run(&self, line: &str) -> Outcome<String> {
        let output = self.inside().args(line.split_whitespace()).output()?;
        if !output.status.success() {
            return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A process of this user that plays a role in this host.
    pub fn start(&self, user: User, role: &str, arguments: &[String]) -> Outcome<Actor> {
        self.start_with(user, role, arguments, &[])
    }

    /// A process of this user that plays a role, with variables in its environment.
    pub fn start_with(
        &self,
        user: User,
        role: &str,
        arguments: &[String],
        variables: &[(&str, &str)],
    ) -> Outcome<Actor> {
        self.start_program(&std::env::current_exe()?, user, role, arguments, variables)
    }

    /// A process that runs a copy of this program.
    pub fn start_program(
        &self,
        program: &Path,
        user: User,
        role: &str,
        arguments: &[String],
        variables: &[(&str, &str)],
    ) -> Outcome<Actor> {
        let words: Vec<&str> = ["role", role].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        self.start_command(program, user, role, &words, variables)
    }

    /// A process of this user in this host; `name` is what it is called here.
    pub fn start_command(
        &self,
        program: &Path,
        user: User,
        name: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Outcome<Actor> {
        let mut command = self.inside();
        if user != User::Root {
            let id = user.id();
            command.args(["setpriv", &format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"]);
        }
        command.args(["setpriv", "--pdeathsig", "KILL"]).arg(program).args(arguments);
        for name in ["UBIVERBS_FAULTS", "UBIVERBS_LINK", "UBIVERBS_LOG", "UBIVERBS_PCAP", "UBIVERBS_SECRET"] {
            command.env_remove(name);
        }
        command.envs(variables.iter().copied());
        Actor::start(&format!("{name} of {user:?} at {}", self.address), &mut command)
    }

    /// The names of the registry that processes of this host hold now, without the `@`.
    pub fn names(&self) -> Outcome<Vec<String>> {
        let table = self.run("cat /proc/net/unix")?;
        let name = |line: &str| line.split_whitespace().last()?.strip_prefix('@').map(str::to_owned);
        let mut names: Vec<String> =
            table.lines().filter_map(name).filter(|name| name.starts_with("ubiverbs/")).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

impl Network {
    /// Makes the hosts and joins them.
    pub fn new() -> Outcome<Network> {
        let switch = Host::new(0)?;
        switch.run("ip link add switch type bridge")?;
        switch.run("ip link set switch up")?;
        let [home, away, strange] = [Host::new(1)?, Host::new(2)?, Host::new(3)?];
        for (port, host) in [&home, &away, &strange].into_iter().enumerate() {
            let holder = host.holder.id();
            switch.run(&format!("ip link add port{port} type veth peer name {DEVICE} netns {holder}"))?;
            switch.run(&format!("ip link set port{port} master switch up"))?;
            host.run("ip link set lo up")?;
            // Addresses are given by hand: those the kernel makes are not usable for a second or two.
            host.run(&format!("ip link set {DEVICE} addrgenmode none"))?;
            host.run(&format!("ip link set {DEVICE} up"))?;
            host.run(&format!("ip addr add {}/24 dev {DEVICE}", host.address))?;
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        for host in [&home, &away, &strange] {
            while !host.run(&format!("ip -o link show {DEVICE}"))?.contains("state UP") {
                if Instant::now() > deadline {
                    return Err("the switch does not come up".into());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Network { _switch: switch, home, away, strange })
    }
}
