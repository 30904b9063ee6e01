//! Devices: one per network interface that is up and has an address, or one per NIC that was asked for in place of
//! these. A device is at the same time its port 1, whose GID table follows the interface's addresses. Further ports, which
//! only NICs have that were asked for, are devices that belong to it: what depends on the port asks
//! [`at_port`](Device::at_port), and lists of devices have first ports only.

use crate::interfaces::{FIRST_NIC_NUMBER, Interface};
use latch::Rank;
use latch::plain::{Guard, Mutex, RwLock};
use profiles::{Family, Feature, Grant, Limit, Profile, Refusal};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLockReadGuard};
use transport::Counters;
use transport::packet_counters::ip_header;
use transport::weak::Weakness;
use wire::{Gid, Mtu, Opcode};

/// How many entries a GID table has. Always more than there are addresses: programs expect empty ones.
pub const GID_TABLE_LEN: usize = 64;

/// Entries of a GID table that moves come back to their places after so many moves.
const GID_PLACES: u32 = 8;

/// What is between the [`port_id`](Device::port_id)s of two ports of a device: more than there may be NICs.
const PORT_ID_STEP: u32 = 1000;

/// A device: an interface seen as an RDMA NIC.
#[derive(Debug)]
pub struct Device {
    name: String,
    guid: u64,
    number: u32,
    /// Which of the ports it is.
    port_number: u8,
    /// Its name among all ports.
    port_name: String,
    interface: (String, u32),
    port: RwLock<Port>,
    /// Which card it is like, if it is like one.
    profile: Option<&'static Profile>,
    /// The ports that belong to it, from 2 on; a further port has none.
    further: Vec<Arc<Device>>,
    /// What was counted by queue pairs that are gone, and by queue pair 1.
    counted: Mutex<Counters>,
    /// It has failed, or was unplugged, and never works again: what comes back is another device of the same name.
    failed: AtomicBool,
    /// It was unplugged.
    unplugged: AtomicBool,
}

/// The rate of a port unless something else is imposed: that of `transport::Limits`. There is no wire.
pub const LINE_RATE: LinkRate = LinkRate(1000);

/// What a port can carry, in units of 100 Mbit/s.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LinkRate(pub u32);

/// The wires of ports: what they carry, how many lanes they have (1: one, 2: four), and the speed of a lane, as ports
/// tell these.
const LINK_RATES: [(LinkRate, u8, u32); 10] = [
    (LinkRate(25), 1, 1),
    (LinkRate(100), 2, 1),
    (LinkRate(200), 2, 2),
    (LinkRate(250), 1, 32),
    (LinkRate(400), 2, 4),
    (LinkRate(500), 1, 64),
    (LinkRate(1000), 2, 32),
    (LinkRate(2000), 2, 64),
    (LinkRate(4000), 2, 128),
    (LinkRate(8000), 2, 256),
];

impl LinkRate {
    /// The width and the speed of the fastest wire that carries no more. The usual rate is that of four lanes of 25
    /// Gbit/s: a plausible wire. There is none.
    pub fn wire(self) -> (u8, u32) {
        let (_, width, speed) = self.nearest();
        (width, speed)
    }

    fn nearest(self) -> (LinkRate, u8, u32) {
        let [slowest, ..] = LINK_RATES;
        LINK_RATES.into_iter().rev().find(|(carries, ..)| *carries <= self).unwrap_or(slowest)
    }
}

/// That wire in the words of the kernel: `100 Gb/sec (4X EDR)`.
impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (LinkRate(carries), width, speed) = self.nearest();
        let (whole, half) = (carries / 10, if carries % 10 == 5 { ".5" } else { "" });
        let lanes = if width == 1 { 1 } else { 4 };
        let name = match speed {
            1 => "SDR",
            2 => "DDR",
            4 => "QDR",
            32 => "EDR",
            64 => "HDR",
            128 => "NDR",
            _ => "XDR",
        };
        write!(f, "{whole}{half} Gb/sec ({lanes}X {name})")
    }
}

/// What is broken about a port on purpose, whatever its interface is like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Imposed {
    /// Nothing is sent or received.
    pub down: bool,
    /// It says that it carries so much.
    pub rate: Option<LinkRate>,
    /// It says that it has this local identifier, which ports of RoCE do not have.
    pub lid: u16,
    /// It says that this is its partition key.
    pub pkey: Option<u16>,
    /// Addresses of the interface that the GID table does not have.
    pub removed: Vec<Gid>,
    /// Addresses that the GID table has beside those of the interface, and where.
    pub added: Vec<(u8, Gid)>,
}

/// What can change about a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// The interface is up.
    pub active: bool,
    /// The interface's MTU in bytes.
    pub interface_mtu: u32,
    /// The GID table; an address keeps its index as long as it exists.
    pub gids: Vec<Option<Gid>>,
    /// What it can carry.
    pub rate: LinkRate,
    /// Whether packets are neither sent nor received, because it was broken on purpose.
    pub is_cut: bool,
    /// Which entries say that they are of RoCE version 1: none, unless the device is like a card that has some.
    v1: Vec<usize>,
    /// Which card the device is like.
    profile: Option<&'static Profile>,
    /// Where addresses stand that the card has elsewhere.
    dense: Vec<Option<Gid>>,
    /// How often its entries have moved.
    moves: u32,
    /// What its interface is like: whether it is up, and its addresses.
    interface: (bool, Vec<Gid>),
    imposed: Imposed,
    /// Where addresses stood that were imposed to be removed: they come back there.
    places: Vec<(usize, Gid)>,
}

/// What changed when a device took note of its interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Up or down.
    pub state: Option<bool>,
    /// An address came or went.
    pub gids: bool,
    /// It carries more or less than before.
    pub rate: bool,
    /// It has another local identifier.
    pub lid: bool,
    /// It has another partition key.
    pub pkey: bool,
    /// Its packets are cut off from now on, or not any more.
    pub cut: bool,
}

impl Device {
    /// The device of an interface, with all its ports.
    pub fn of(interface: &Interface) -> Device {
        let numbers = (2..).take(interface.further_ports.len());
        let further = numbers.map(|number| Arc::new(Device::with_port(interface, number, Vec::new()))).collect();
        Device::with_port(interface, 1, further)
    }

    fn with_port(interface: &Interface, port_number: u8, further: Vec<Arc<Device>>) -> Device {
        let name = interface.device.clone();
        let device = Device {
            port_name: if port_number == 1 { name.clone() } else { format!("{name}/{port_number}") },
            name,
            guid: guid(interface),
            number: interface.number,
            port_number,
            profile: interface.profile,
            further,
            interface: (interface.name.clone(), interface.index),
            port: RwLock::new(
                Rank::Port,
                Port {
                    active: false,
                    interface_mtu: 0,
                    gids: vec![None; GID_TABLE_LEN],
                    v1: Vec::new(),
                    profile: interface.profile,
                    dense: vec![None; if interface.profile.is_some() { GID_TABLE_LEN } else { 0 }],
                    moves: 0,
                    rate: LINE_RATE,
                    is_cut: false,
                    interface: (false, Vec::new()),
                    imposed: Imposed::default(),
                    places: Vec::new(),
                },
            ),
            counted: Mutex::new(Rank::PortCounters, Counters::default()),
            failed: AtomicBool::new(false),
            unplugged: AtomicBool::new(false),
        };
        device.follow(Some(interface));
        device
    }

    /// `ubi_` and the interface's name, or the NIC's number.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An EUI-64 from the hardware address, or from machine and name where there is none.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Which card it is like: none if it is like no other.
    pub fn profile(&self) -> Option<&'static Profile> {
        self.profile
    }

    /// How weak the order is in which its queue pairs do things, by its profile.
    pub(crate) fn weakness(&self) -> Option<Weakness> {
        let order = &self.profile?.order;
        let late = order.late_completions
            || order.late_unsignaled
            || order.gathers_late
            || order.any_across_pairs
            || order.spurious_events;
        let weakness = Weakness {
            any_placement: order.any_placement,
            scribbles: order.scribbles,
            tears_reads: order.any_placement,
            spurious_events: order.spurious_events,
            late,
            ..Weakness::all(order.seed.unwrap_or(transport::weak::DEFAULT_SEED))
        };
        (weakness.any_placement || weakness.late).then_some(weakness)
    }

    /// Whether it has a feature: a card that it is like may not.
    pub fn offers(&self, feature: Feature) -> Result<(), Refusal> {
        self.profile.map_or(Ok(()), |profile| profile.offers(feature))
    }

    /// A limit of the card that it is like, or else the usual one.
    pub fn limit(&self, limit: Limit, usual: u64) -> u64 {
        self.profile.and_then(|profile| profile.limit(limit)).unwrap_or(usual)
    }

    /// Whether so much is within a limit of the card that it is like.
    pub fn at_most(&self, limit: Limit, asked: u64) -> Result<(), Refusal> {
        self.profile.map_or(Ok(()), |profile| profile.at_most(limit, asked))
    }

    /// How much is granted where so much is asked for, up to `most`: as the card does that it is like, or `usual`.
    pub fn grant(&self, grant: Grant, asked: u32, most: Limit, usual: u32) -> u32 {
        let granted = self.profile.and_then(|profile| {
            let most = profile.limit(most).unwrap_or(u32::MAX.into());
            profile.grant(grant, asked.into(), most)
        });
        granted.and_then(|granted| u32::try_from(granted).ok()).unwrap_or(usual)
    }

    /// A number that no other device has: that of its interface, or one that no interface has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Which of its device's ports it is, from 1.
    pub fn port_number(&self) -> u8 {
        self.port_number
    }

    /// What counts and captures call it: the device's name for port 1, and `ubi_0/2` for port 2 of `ubi_0`.
    pub fn port_name(&self) -> &str {
        &self.port_name
    }

    /// A number that no other port of any device has: that of the device for port 1.
    pub(crate) fn port_id(&self) -> u32 {
        // A NIC has 1 to 4 ports, and there are fewer NICs than that between two ports of one.
        self.number + (u32::from(self.port_number) - 1) * PORT_ID_STEP
    }

    /// How many ports it has.
    pub fn port_count(&self) -> u8 {
        // At most 4.
        self.further.len() as u8 + 1
    }

    /// Its ports, itself first.
    pub fn ports(self: &Arc<Device>) -> impl Iterator<Item = &Arc<Device>> {
        std::iter::once(self).chain(&self.further)
    }

    /// Its port of that number.
    pub fn at_port(self: &Arc<Device>, number: u8) -> Option<&Arc<Device>> {
        self.ports().nth(usize::from(number.checked_sub(1)?))
    }

    /// Whether that is one of its ports.
    pub(crate) fn has_port(self: &Arc<Device>, port: &Arc<Device>) -> bool {
        self.ports().any(|own| Arc::ptr_eq(own, port))
    }

    /// The number of its interface, by which packets come and go. Several devices may be of one.
    pub fn interface_index(&self) -> u32 {
        self.interface.1
    }

    /// The name of its interface.
    pub fn interface_name(&self) -> &str {
        &self.interface.0
    }

    /// Whether it is the loopback as an interface, and no NIC in its place.
    pub fn is_loopback(&self) -> bool {
        self.interface.0 == "lo" && self.nic_position().is_none()
    }

    /// Which of the NICs it is, if NICs take the place of the host's interfaces; all are of one interface then.
    pub fn nic_position(&self) -> Option<usize> {
        self.number.checked_sub(FIRST_NIC_NUMBER).map(|position| position as usize)
    }

    /// What was counted by queue pairs of this process that are gone, and by queue pair 1.
    pub(crate) fn counted(&self) -> Counters {
        *self.counted.lock()
    }

    /// Keeps what a queue pair has counted that goes.
    pub(crate) fn count(&self, counters: Counters) {
        *self.counted.lock() += counters;
    }

    /// A management datagram of queue pair 1 was sent to that address, or has come from there.
    pub(crate) fn count_mad(&self, peer: Gid, opcode: Opcode, payload: usize, sent: bool) {
        let mut counted = self.counted.lock();
        let count = if sent {
            transport::packet_counters::Traffic::sent
        } else {
            transport::packet_counters::Traffic::received
        };
        count(&mut counted.traffic, opcode, 1, payload as u32, ip_header(peer));
    }

    /// Its port as it is now.
    pub fn port(&self) -> Guard<RwLockReadGuard<'_, Port>> {
        self.port.read()
    }

    /// Whether it has failed for good: calls return `EIO`, and a device of the same name may take its place.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Whether it was unplugged: lists do not have it.
    pub(crate) fn is_unplugged(&self) -> bool {
        self.unplugged.load(Ordering::Acquire)
    }

    /// It fails for good, and may be unplugged.
    pub(crate) fn fail(&self, unplugged: bool) {
        self.failed.store(true, Ordering::Release);
        self.unplugged.fetch_or(unplugged, Ordering::AcqRel);
        self.impose(Imposed { down: true, ..Imposed::default() });
        self.further.iter().for_each(|port| port.fail(unplugged));
    }

    /// Takes note of what its interface is now; `None` if it has gone.
    pub fn follow(&self, interface: Option<&Interface>) -> Change {
        let mut port = self.port.write();
        if let Some(interface) = interface {
            port.interface_mtu = interface.mtu;
        }
        port.interface = (
            interface.is_some_and(|interface| interface.running),
            interface.map(|interface| gids(interface, self.port_number)).unwrap_or_default(),
        );
        port.update()
    }

    /// Changes what is broken on purpose.
    pub(crate) fn impose(&self, imposed: Imposed) -> Change {
        let mut port = self.port.write();
        let before = std::mem::replace(&mut port.imposed, imposed);
        let (lid, pkey) = (before.lid != port.imposed.lid, before.pkey != port.imposed.pkey);
        Change { lid, pkey, ..port.update() }
    }
}

impl Device {
    /// The entries of its GID table move, if those of the card do that it is like. Returns what changed.
    pub(crate) fn move_gids(&self) -> Change {
        if self.profile.is_none_or(|profile| profile.addresses.moves.is_none()) {
            return Change::default();
        }
        let mut port = self.port.write();
        port.moves = port.moves.wrapping_add(1);
        Change { gids: true, ..port.update() }
    }
}

impl Port {
    /// What is broken on purpose.
    pub fn imposed(&self) -> &Imposed {
        &self.imposed
    }

    /// Is what its interface is like, but for what is imposed. Returns what changed.
    fn update(&mut self) -> Change {
        let Port { active, gids, rate, is_cut, interface: (running, addresses), imposed, places, .. } = self;
        let gids = if self.profile.is_some() { &mut self.dense } else { gids };
        let Imposed { down, rate: imposed_rate, removed, added, .. } = &*imposed;
        let mut change = Change { cut: *is_cut != *down, ..Change::default() };
        *is_cut = *down;
        let is_active = *running && !down;
        if *active != is_active {
            *active = is_active;
            change.state = Some(is_active);
        }
        let now_rate = imposed_rate.unwrap_or(LINE_RATE);
        change.rate = std::mem::replace(rate, now_rate) != now_rate;
        let of_interface = || addresses.iter().filter(|gid| !removed.contains(gid));
        for (index, entry) in gids.iter_mut().enumerate() {
            let leaves = entry.filter(|gid| removed.contains(gid)).map(|gid| (index, gid));
            places.extend(leaves.filter(|place| !places.contains(place)));
            let placed = added.iter().find(|(place, _)| usize::from(*place) == index).map(|(_, gid)| *gid);
            let wanted = placed.or(entry.filter(|gid| of_interface().any(|own| own == gid)));
            if *entry != wanted {
                *entry = wanted;
                change.gids = true;
            }
        }
        places.retain(|(index, gid)| {
            let comes_back = gids.get(*index) == Some(&None) && of_interface().any(|own| own == gid);
            if comes_back {
                gids.iter_mut().filter(|entry| **entry == Some(*gid)).for_each(|entry| *entry = None);
                gids.iter_mut().skip(*index).take(1).for_each(|entry| *entry = Some(*gid));
                change.gids = true;
            }
            !comes_back && addresses.contains(gid)
        });
        for gid in of_interface() {
            if gids.contains(&Some(*gid)) {
                continue;
            }
            // The last entry stays empty.
            if let Some(free) = gids.iter_mut().take(GID_TABLE_LEN - 1).find(|entry| entry.is_none()) {
                *free = Some(*gid);
                change.gids = true;
            }
        }
        if let Some(profile) = self.profile {
            (self.gids, self.v1) = laid_out(profile, &self.dense, self.moves);
        }
        change
    }

    /// Whether entry `index` of the GID table says that it is of RoCE version 1.
    pub fn is_v1(&self, index: u32) -> bool {
        self.v1.contains(&(index as usize))
    }

    /// The largest path MTU its packets fit with all headers: IP 40, UDP 8, BTH 12, XRCETH 4, AtomicETH 28, ICRC 4.
    pub fn mtu(&self) -> Mtu {
        let of_card = self.profile.and_then(|profile| profile.limit(Limit::MaxMtu)).unwrap_or(u64::MAX);
        let room = u64::from(self.interface_mtu.saturating_sub(96)).min(of_card);
        Mtu::ALL.into_iter().rev().find(|mtu| u64::from(mtu.bytes()) <= room).unwrap_or(Mtu::B256)
    }

    /// Entry `index` of the GID table, if it is not empty.
    pub fn gid(&self, index: u8) -> Option<Gid> {
        self.gids.get(usize::from(index)).copied().flatten()
    }
}

/// GIDs of a port of an interface. IPv6 first where it is global, since programs take entry 0 for a default; link-local last.
fn gids(interface: &Interface, port: u8) -> Vec<Gid> {
    let rank = |address: &IpAddr| match address {
        IpAddr::V4(_) => 1,
        IpAddr::V6(address) if is_link_local(address) => 2,
        IpAddr::V6(_) => 0,
    };
    let mut addresses = match port {
        1 => interface.addresses.clone(),
        further => interface.further_ports.iter().skip(usize::from(further) - 2).take(1).copied().collect(),
    };
    addresses.sort_by_key(rank);
    let families = interface.profile.map_or(&[][..], |profile| &profile.addresses.families);
    let place = |address: &IpAddr| families.iter().position(|known| *known == family(address));
    if addresses.iter().any(|address| place(address).is_some()) {
        addresses.retain(|address| place(address).is_some());
        addresses.sort_by_key(place);
    }
    addresses
        .into_iter()
        .map(|address| match address {
            IpAddr::V4(address) => Gid::from_ipv4(address),
            IpAddr::V6(address) => Gid::from_ipv6(address),
        })
        .collect()
}

fn family(address: &IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::Ipv4,
        IpAddr::V6(address) if is_link_local(address) => Family::LinkLocal,
        IpAddr::V6(_) => Family::Ipv6,
    }
}

/// The GID table of a card: where its addresses stand, and which entries are of RoCE version 1.
fn laid_out(profile: &Profile, dense: &[Option<Gid>], moves: u32) -> (Vec<Option<Gid>>, Vec<usize>) {
    let length = profile.limit(Limit::GidEntries).unwrap_or(GID_TABLE_LEN as u64) as usize;
    let (mut gids, mut v1) = (vec![None; (moves % GID_PLACES) as usize], Vec::new());
    // As before, an address that goes leaves its place empty.
    let last = dense.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    for gid in &dense[..last] {
        if profile.addresses.sparse {
            gids.push(None);
        }
        if profile.addresses.roce_v1 {
            v1.extend(gid.map(|_| gids.len()));
            gids.push(*gid);
        }
        gids.push(*gid);
    }
    gids.resize(length, None);
    v1.retain(|index| *index < length);
    (gids, v1)
}

fn is_link_local(address: &Ipv6Addr) -> bool {
    address.segments()[0] & 0xffc0 == 0xfe80
}

fn guid(interface: &Interface) -> u64 {
    let [a, b, c, d, e, f] = interface.mac;
    if interface.mac != [0; 6] {
        return u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    }
    // No hardware address: the machine's own number and the device's name, mixed. The "local" bit says that no registry
    // assigned it.
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let mix = machine
        .trim()
        .bytes()
        .chain(interface.device.trim_start_matches("ubi_").bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    mix | 0x0200_0000_0000_0000
}
