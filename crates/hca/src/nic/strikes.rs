//! Strikes of failure scripts on ports, devices, the network and the process, carried out. What begins is held broken
//! until its end; several failures, also of several scripts, may hold the same thing. A port is up again when the last
//! of those has ended that took it down.

use super::Nic;
use crate::cm::{EventKind, connection_of};
use crate::ground::nic_links::BlackHole;
use crate::objects::context::AsyncEvent;
use crate::objects::device::{Device, Imposed, LinkRate};
use crate::scripts::Struck;
use ::host::process_stop;
use failures::{Action, DeviceView, Direction, Moment, Phase, Place, Scene};
use latch::Rank;
use latch::plain::Mutex;
use link::faults::{Chance, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use wire::Gid;

/// What is held broken.
#[derive(Debug)]
pub(crate) struct Broken(Mutex<Vec<Held>>);

impl Default for Broken {
    fn default() -> Broken {
        Broken(Mutex::new(Rank::Broken, Vec::new()))
    }
}

/// One thing that began and has not ended.
#[derive(Clone, Debug)]
struct Held {
    /// The number of the script, and the line.
    by: (u32, usize),
    action: Action,
    /// The devices, and the address that was in their GID tables where it strikes.
    devices: Vec<(Arc<Device>, Option<Gid>)>,
    /// Between which addresses, for what happens in the network; `None` is any.
    between: Vec<BlackHole>,
}

impl Nic {
    /// Carries out a strike of this kind: `None` if it is of another. Returns what was struck, or why nothing was.
    ///
    /// It takes locks, calls the kernel and may ask for the address of a name: not for a thread that holds a lock or
    /// moves data.
    pub(crate) fn carry_out(self: &Arc<Nic>, struck: &Struck) -> Option<Result<String, String>> {
        let strike = &struck.strike;
        let by = (struck.number, strike.line());
        let place = &strike.failure.place;
        let ports = || match (struck.about.device, struck.about.port) {
            // What the moment was about.
            (Some(index), port) => {
                let is_it = |device: &Arc<Device>| {
                    self.index_of(device) == index && port.is_none_or(|port| port == device.port_number())
                };
                self.port_devices().into_iter().filter(is_it).collect()
            }
            _ => self.struck_ports(place),
        };
        // Those that have such a port.
        let devices = || {
            let struck = ports();
            let is_struck = |device: &Arc<Device>| struck.iter().any(|port| device.has_port(port));
            self.devices().into_iter().filter(is_struck).collect()
        };
        let action = strike.action;
        Some(match action {
            Action::PortDown
            | Action::LinkSpeed { .. }
            | Action::GidRemove { .. }
            | Action::GidChange { .. }
            | Action::LidChange { .. }
            | Action::PkeyChange { .. } => match strike.phase {
                Phase::Begin => self.hold_ports(by, action, ports()),
                Phase::End => self.let_ports_go(by),
            },
            Action::PortUp => self.raise_ports(&ports()),
            Action::SmChange => self.tell_ports(&ports(), AsyncEvent::SmChange),
            Action::ClientReregister => self.tell_ports(&ports(), AsyncEvent::ClientReregister),
            Action::DeviceFatal | Action::DeviceRemove => match strike.phase {
                Phase::Begin => self.end_devices(by, action, devices()),
                Phase::End => self.replace_devices(by),
            },
            Action::Stop if strike.phase == Phase::Begin => stop(strike.failure.when.lasts),
            Action::Stop => Ok("the process goes on".into()),
            Action::Continue => signal(libc::SIGCONT),
            Action::Kill { signal: number } => signal(number),
            Action::CmEvent { event, status } if action.hook().is_none() => self.tell_ids(place, event, status),
            // What arrives meets it, as what happens to it in the network.
            _ if action.is_of_network() || matches!(action, Action::Slow { .. }) => match strike.phase {
                Phase::Begin => self.hold_network(by, action, place),
                Phase::End => self.let_network_go(by),
            },
            _ => return None,
        })
    }

    /// All ports that a place fits.
    fn struck_ports(&self, place: &Place) -> Vec<Arc<Device>> {
        let fits = |device: &Arc<Device>| {
            place.port.is_none_or(|port| port == device.port_number())
                && place.fits_device(DeviceView { name: device.name(), index: self.index_of(device) })
        };
        self.port_devices().into_iter().filter(fits).collect()
    }

    fn index_of(&self, device: &Device) -> u32 {
        self.ground.host.device_index(device.number())
    }

    fn hold_ports(&self, by: (u32, usize), action: Action, devices: Vec<Arc<Device>>) -> Result<String, String> {
        let index = match action {
            Action::GidRemove { index } | Action::GidChange { index, .. } => u8::try_from(index).ok(),
            _ => None,
        };
        let before = |device: Arc<Device>| {
            let gid = index.and_then(|index| device.port().gid(index));
            (device, gid)
        };
        let mut devices: Vec<_> = devices.into_iter().map(before).collect();
        if matches!(action, Action::GidRemove { .. }) {
            devices.retain(|(_, gid)| gid.is_some());
        }
        let named = named_ports(devices.iter().map(|(device, _)| device))?;
        let held = Held { by, action, devices: devices.clone(), between: Vec::new() };
        self.background.broken.0.lock().push(held);
        devices.iter().for_each(|(device, _)| self.impose_all(device));
        Ok(named)
    }

    fn let_ports_go(&self, by: (u32, usize)) -> Result<String, String> {
        let ended = self.ended(by);
        let devices: Vec<_> = ended.into_iter().flat_map(|held| held.devices).map(|(device, _)| device).collect();
        devices.iter().for_each(|device| self.impose_all(device));
        named_ports(&devices)
    }

    /// Forgets what a failure held.
    fn ended(&self, by: (u32, usize)) -> Vec<Held> {
        self.background.broken.0.lock().extract_if(.., |held| held.by == by).collect()
    }

    /// A port is broken in all the ways that failures hold it.
    fn impose_all(&self, device: &Arc<Device>) {
        let mut imposed = Imposed::default();
        for Held { action, devices, .. } in &*self.background.broken.0.lock() {
            let Some((_, gid)) = devices.iter().find(|(struck, _)| Arc::ptr_eq(struck, device)) else { continue };
            match *action {
                Action::PortDown => imposed.down = true,
                Action::LinkSpeed { speed } => imposed.rate = Some(rate_of(speed)),
                Action::LidChange { lid } => imposed.lid = lid,
                Action::PkeyChange { pkey, .. } => imposed.pkey = Some(pkey),
                Action::GidRemove { .. } => imposed.removed.extend(*gid),
                Action::GidChange { index, gid: other } => {
                    imposed.removed.extend(gid.filter(|gid| gid.octets() != other));
                    imposed.added.extend(u8::try_from(index).ok().map(|index| (index, Gid::new(other))));
                }
                _ => {}
            }
        }
        // What one failure removes and a later one puts there is there.
        let Imposed { removed, added, .. } = &mut imposed;
        removed.retain(|gid| !added.iter().any(|(_, added)| added == gid));
        self.impose(device, imposed);
    }

    /// Whatever took them down, the ports are up.
    fn raise_ports(&self, devices: &[Arc<Device>]) -> Result<String, String> {
        for held in &mut *self.background.broken.0.lock() {
            if held.action == Action::PortDown {
                held.devices.retain(|(device, _)| !devices.iter().any(|other| Arc::ptr_eq(device, other)));
            }
        }
        devices.iter().for_each(|device| self.impose_all(device));
        named_ports(devices)
    }

    fn tell_ports(&self, devices: &[Arc<Device>], event: fn(u8) -> AsyncEvent) -> Result<String, String> {
        // Nothing but an event: RoCE has no subnet manager.
        devices.iter().for_each(|device| self.raise(device, event(device.port_number())));
        named_ports(devices)
    }

    fn end_devices(&self, by: (u32, usize), action: Action, devices: Vec<Arc<Device>>) -> Result<String, String> {
        let devices: Vec<_> = devices.into_iter().filter(|device| !device.has_failed()).collect();
        let named = named(&devices)?;
        for device in &devices {
            match action {
                Action::DeviceRemove => self.unplug(device),
                _ => self.fail_device(device),
            }
        }
        let devices = devices.into_iter().map(|device| (device, None)).collect();
        self.background.broken.0.lock().push(Held { by, action, devices, between: Vec::new() });
        Ok(named)
    }

    fn replace_devices(&self, by: (u32, usize)) -> Result<String, String> {
        let devices: Vec<_> =
            self.ended(by).into_iter().flat_map(|held| held.devices).map(|(device, _)| device).collect();
        for device in &devices {
            self.plug_in(device).map_err(|error| format!("cannot list the network interfaces: {error}"))?;
        }
        named(&devices)
    }

    fn hold_network(&self, by: (u32, usize), action: Action, place: &Place) -> Result<String, String> {
        let ours = match &place.device {
            Some(_) => addresses(&self.struck_ports(place)),
            None => vec![None],
        };
        let theirs = match &place.to {
            Some(to) => self.addresses_of(to)?,
            None => vec![None],
        };
        let pair = |from: &Option<IpAddr>, to: &Option<IpAddr>| BlackHole { from: *from, to: *to };
        let between: Vec<_> = ours.iter().flat_map(|from| theirs.iter().map(|to| pair(from, to))).collect();
        if between.is_empty() {
            return Err("no device of this process is meant".into());
        }
        let said = place.to.as_ref().map_or_else(|| "the network".into(), |to| format!("the network to {to}"));
        self.background.broken.0.lock().push(Held { by, action, devices: Vec::new(), between });
        self.break_network();
        Ok(said)
    }

    fn let_network_go(&self, by: (u32, usize)) -> Result<String, String> {
        self.ended(by);
        self.break_network();
        Ok("the network".into())
    }

    /// The network is broken in all the ways that failures hold it.
    fn break_network(&self) {
        let (mut rules, mut holes) = (Vec::new(), Vec::new());
        for Held { action, between, .. } in &*self.background.broken.0.lock() {
            for &BlackHole { from, to } in between {
                // What arrives comes from there.
                let rule = Rule { from: to, to: from, ..Rule::default() };
                rules.extend(rule_of(*action, rule));
                if let Action::BlackHole { direction: Direction::Out | Direction::Both } = action {
                    holes.push(BlackHole { from, to });
                }
            }
        }
        self.set_network_faults(&rules, FAULT_SEED);
        self.set_black_holes(&holes);
    }

    /// The addresses of a host that is named: a device of this host, an address, or a name that the system knows.
    fn addresses_of(&self, name: &str) -> Result<Vec<Option<IpAddr>>, String> {
        if let Ok(address) = name.parse() {
            return Ok(vec![Some(address)]);
        }
        if let Some(device) = self.devices().into_iter().find(|device| device.name() == name) {
            return Ok(addresses(&device.ports().cloned().collect::<Vec<_>>()));
        }
        let unknown =
            |error: io::Error| format!("{name:?} is no device, no address, and no host that is known: {error}");
        let found: BTreeSet<_> = (name, 0).to_socket_addrs().map_err(unknown)?.map(|address| address.ip()).collect();
        Ok(found.into_iter().map(Some).collect())
    }

    /// Tells ids of an event that comes by itself.
    fn tell_ids(&self, place: &Place, event: u32, status: i32) -> Result<String, String> {
        let kind = match event {
            10 => EventKind::Disconnected,
            11 => EventKind::DeviceRemoval,
            14 => EventKind::AddressChange,
            15 => EventKind::TimewaitExit,
            other => return Err(format!("event {other} does not come by itself")),
        };
        let told = self.cm.tell_ids(
            self,
            |record, device| {
                let port = Some(record.local.map_or(1, |local| local.port));
                let device = device.map(|device| DeviceView { name: device.name(), index: self.index_of(device) });
                let connection = Some(connection_of(record));
                place.fits(&Scene { device, port, connection, ..Scene::default() })
            },
            (kind, status),
        );
        match told {
            0 => Err("no id of this process is meant".into()),
            1 => Ok("1 id".into()),
            told => Ok(format!("{told} ids")),
        }
    }
}

/// Where chance begins for packets: the script's own chance decides when, this one which packets.
const FAULT_SEED: u64 = 1;

/// How long a packet is held back that others overtake, or that passes twice.
const REORDER_HOLD: Duration = Duration::from_millis(1);

/// What happens to packets that arrive; none if an action does not strike these.
fn rule_of(action: Action, rule: Rule) -> Option<Rule> {
    let rule = Rule { hold: REORDER_HOLD, ..rule };
    Some(match action {
        Action::Loss { chance } => Rule { drop: Chance::of(chance.0), ..rule },
        Action::Latency { by, jitter } => {
            let (least, most) = (Duration::from_nanos(by), Duration::from_nanos(by.saturating_add(jitter)));
            Rule { delay: (least, most), ..rule }
        }
        Action::RateLimit { speed } => Rule { rate: Some(speed), ..rule },
        Action::Reorder { chance } => Rule { reorder: Chance::of(chance.0), ..rule },
        Action::Duplicate { chance } => Rule { dup: Chance::of(chance.0), ..rule },
        Action::Damage { chance } => Rule { corrupt: Chance::of(chance.0), ..rule },
        Action::BlackHole { direction: Direction::In | Direction::Both } => Rule { partition: true, ..rule },
        Action::Slow { share } => Rule { share: Some(share.0), ..rule },
        _ => return None,
    })
}

/// What a port says that carries so many bits in a second.
fn rate_of(speed: u64) -> LinkRate {
    LinkRate(u32::try_from(speed / 100_000_000).unwrap_or(u32::MAX))
}

/// The addresses of ports.
fn addresses(devices: &[Arc<Device>]) -> Vec<Option<IpAddr>> {
    let of =
        |device: &Arc<Device>| device.port().gids.iter().flatten().map(|gid| Some(gid.to_ip())).collect::<Vec<_>>();
    devices.iter().flat_map(of).collect()
}

/// The devices that were struck, in words.
fn named<'a>(devices: impl IntoIterator<Item = &'a Arc<Device>>) -> Result<String, String> {
    let names: Vec<&str> = devices.into_iter().map(|device| device.name()).collect();
    if names.is_empty() { Err("no device of this process is meant".into()) } else { Ok(names.join(", ")) }
}

/// The ports that were struck, in words.
fn named_ports<'a>(ports: impl IntoIterator<Item = &'a Arc<Device>>) -> Result<String, String> {
    let mut by_number: BTreeMap<u8, Vec<&Arc<Device>>> = BTreeMap::new();
    ports.into_iter().for_each(|port| by_number.entry(port.port_number()).or_default().push(port));
    let words = by_number.into_iter().map(|(number, devices)| Ok(format!("port {number} of {}", named(devices)?)));
    let words = words.collect::<Result<Vec<String>, String>>()?;
    if words.is_empty() { Err("no device of this process is meant".into()) } else { Ok(words.join(", ")) }
}

/// Has scripts that want to hear of copies from and to GPU memory be asked before each.
pub(crate) fn watch_gpu_copies() {
    memory::fail_gpu_copies_if(|| {
        let Some(nic) = Nic::present() else { return false };
        let ground = &nic.ground;
        ground.scripts.wants_gpu_copies() && ground.take_hold(&Moment::GpuCopy(Scene::default())).is_some()
    });
}

/// Stops the process, for a while if it is to go on by itself.
fn stop(lasts: Option<u64>) -> Result<String, String> {
    let Some(nanos) = lasts else { return signal(libc::SIGSTOP) };
    let stopped = move || {
        if let Err(error) = process_stop::stop(Duration::from_nanos(nanos)) {
            crate::environment::say(format_args!("a failure script cannot stop the process: {error}"));
        }
    };
    match ::host::thread::spawn("ubiverbs-stop", stopped) {
        Ok(_) => Ok("the process".into()),
        Err(error) => Err(format!("there is no thread to stop the process: {error}")),
    }
}

fn signal(number: i32) -> Result<String, String> {
    // SAFETY: plain call, to this process.
    match unsafe { libc::kill(libc::getpid(), number) } {
        0 => Ok("the process".into()),
        _ => Err(format!("signal {number} cannot be sent: {}", io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests;
