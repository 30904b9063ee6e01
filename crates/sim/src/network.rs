//! What lies between the hosts: routes, links, partitions, and everything that watches. A train enters, becomes packets
//! (or stays whole), meets the script and the link, and is planned for its arrival. What happens there is not decided
//! here.

use std::collections::{BTreeMap, HashMap, HashSet};
use trace::{DropReason, Event, Kind};
use transport::{AddressVector, Time, Train};
use wire::{Gid, Headers, Qpn};

use crate::agenda::Agenda;
use crate::capture::Capture;
use crate::frame::{self, Path};
use crate::host::HostId;
use crate::link::{Link, LinkConfig, LinkKind};
use crate::parcel::{self, Parcel, Parcels};
use crate::rng::Rng;
use crate::script::{Fate, Script, Sighting};

/// What the network did, in packets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Handed to a link.
    pub sent: u64,
    /// Handed to a queue pair.
    pub delivered: u64,
    /// Payload bytes handed to a link.
    pub payload_sent: u64,
    /// Arrived a second time by a fault of the network.
    pub duplicated: u64,
    /// Changed under way.
    pub corrupted: u64,
    /// Marked "congestion experienced".
    pub marked: u64,
    /// Went no further, by reason: by the network, or by a host before any queue pair saw it.
    pub dropped: BTreeMap<DropReason, u64>,
}

impl Counters {
    /// Dropped for this reason.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.dropped.get(&reason).copied().unwrap_or(0)
    }
}

/// What the agenda holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    /// At the switch in front of the host.
    Switch(u32),
    Arrival(u32),
    Service(HostId),
    Timer(HostId, u32),
}

/// A packet (or a train that stays whole) as it enters its link.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    /// Who, what, when.
    pub sighting: Sighting<'a>,
    /// The queue pair that sends it.
    pub qpn: Qpn,
    /// What will become of it.
    pub outcome: Outcome,
}

/// What becomes of a packet on its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It will arrive.
    Arrives {
        /// When.
        at: Time,
        /// When it arrives a second time, if it does.
        again: Option<Time>,
        /// With a bit flipped.
        corrupt: bool,
        /// With a congestion mark.
        marked: bool,
    },
    /// It will not.
    Lost(DropReason),
}

type Observer = Box<dyn FnMut(HostId, &Event)>;
type Watcher = Box<dyn FnMut(&Passing<'_>)>;

pub(crate) struct Network {
    pub(crate) now: Time,
    pub(crate) agenda: Agenda<Plan>,
    pub(crate) parcels: Parcels,
    pub(crate) counters: Counters,
    pub(crate) capture: Option<Capture>,
    pub(crate) script: Option<Script>,
    pub(crate) default_link: LinkConfig,
    pub(crate) partitions: HashSet<(HostId, HostId)>,
    pub(crate) routes: HashMap<Gid, HostId>,
    pub(crate) groups: HashMap<Gid, Vec<HostId>>,
    links: HashMap<(HostId, HostId), Link>,
    /// Ports of the switch that lead to a host, where they are narrower than all links to it.
    pub(crate) ports: HashMap<HostId, Link>,
    observers: Vec<Observer>,
    watchers: Vec<Watcher>,
    rng: Rng,
    seen: u64,
}

/// Who sends.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) host: HostId,
    pub(crate) gids: &'a [Gid],
    pub(crate) qpn: Qpn,
}

/// One packet, or one train that stays whole.
#[derive(Clone, Copy)]
struct Item<'a> {
    qpn: Qpn,
    headers: Headers,
    count: u32,
    payload: &'a [u8],
    wr_id: Option<u64>,
    retransmission: bool,
    /// If it stays whole.
    train: Option<&'a Train<'a>>,
}

impl Network {
    pub(crate) fn new(rng: Rng) -> Network {
        Network {
            now: Time::ZERO,
            agenda: Agenda::new(),
            parcels: Parcels::default(),
            counters: Counters::default(),
            capture: None,
            script: None,
            default_link: LinkConfig::default(),
            partitions: HashSet::new(),
            routes: HashMap::new(),
            groups: HashMap::new(),
            links: HashMap::new(),
            ports: HashMap::new(),
            observers: Vec::new(),
            watchers: Vec::new(),
            rng,
            seen: 0,
        }
    }

    pub(crate) fn observe(&mut self, observer: Observer) {
        self.observers.push(observer);
    }

    pub(crate) fn watch(&mut self, watcher: Watcher) {
        self.watchers.push(watcher);
    }

    pub(crate) fn observed(&self) -> bool {
        !self.observers.is_empty()
    }

    pub(crate) fn emit(&mut self, host: HostId, event: &Event) {
        for observer in &mut self.observers {
            observer(host, event);
        }
    }

    pub(crate) fn link(&mut self, from: HostId, to: HostId) -> &mut Link {
        let default = self.default_link;
        self.links.entry((from, to)).or_insert_with(|| Link::new(default))
    }

    /// Counts and reports a packet that went no further.
    pub(crate) fn drop_packet(
        &mut self,
        host: HostId,
        qpn: Option<Qpn>,
        headers: Option<Headers>,
        count: u32,
        reason: DropReason,
    ) {
        *self.counters.dropped.entry(reason).or_default() += u64::from(count);
        let event = Event { at: self.now.as_nanos(), qpn, kind: Kind::PacketDropped { headers, reason } };
        self.emit(host, &event);
    }

    /// Sends a train whose payload has been gathered.
    pub(crate) fn send(&mut self, sender: Sender<'_>, train: &Train<'_>, payload: &[u8]) {
        let destination = train.to.dgid;
        // The receiver that notifies the sender of a datagram knows its address and not which of the own ones it had
        // written to.
        let own = |gid: &&Gid| gid.to_ip().is_ipv4() == destination.to_ip().is_ipv4();
        let chosen = sender.gids.get(usize::from(train.to.sgid_index)).filter(own);
        let Some(&source) = chosen.or(sender.gids.iter().find(own)).or(sender.gids.first()) else { return };
        if let Some(&to) = self.routes.get(&destination) {
            self.send_to(to, source, sender, train, payload);
        } else if let Some(members) = self.groups.get(&destination).cloned() {
            for to in members {
                self.send_to(to, source, sender, train, payload);
            }
        } else {
            self.drop_packet(sender.host, Some(sender.qpn), Some(train.headers), train.count, DropReason::NoRoute);
        }
    }

    fn send_to(&mut self, to: HostId, source: Gid, sender: Sender<'_>, train: &Train<'_>, payload: &[u8]) {
        let remote = train.headers.bth.dest_qpn;
        let path = Path::new(sender.host, to, source, train.to, sender.qpn, remote);
        let whole = Item {
            qpn: sender.qpn,
            headers: train.headers,
            count: train.count,
            payload,
            wr_id: train.wr_id,
            retransmission: train.retransmission,
            train: Some(train),
        };
        match self.link(sender.host, to).config.kind {
            LinkKind::Whole => self.launch(&path, &whole),
            LinkKind::Datagram => {
                for index in 0..train.count {
                    let (from, length) = train.slice(index);
                    let payload = &payload[from as usize..(from + length) as usize];
                    self.launch(&path, &Item { headers: train.packet(index), count: 1, payload, train: None, ..whole });
                }
            }
        }
    }

    /// Sends one packet that no queue pair of the simulation made.
    pub(crate) fn send_packet(
        &mut self,
        from: HostId,
        source: Gid,
        to: &AddressVector,
        headers: &Headers,
        payload: &[u8],
    ) {
        let qpn = headers.deth.map_or(Qpn::GSI, |deth| deth.src_qpn);
        let Some(&host) = self.routes.get(&to.dgid) else {
            return self.drop_packet(from, Some(qpn), Some(*headers), 1, DropReason::NoRoute);
        };
        let path = Path::new(from, host, source, to, qpn, headers.bth.dest_qpn);
        let item = Item { qpn, headers: *headers, count: 1, payload, wr_id: None, retransmission: false, train: None };
        self.launch(&path, &item);
    }

    fn launch(&mut self, path: &Path, item: &Item<'_>) {
        let sighting = self.sight(path, item);
        let fate = self.script.as_mut().map_or(Fate::Pass, |script| script(&sighting));
        self.counters.sent += u64::from(item.count);
        self.counters.payload_sent += item.payload.len() as u64;
        let bytes = match item.train {
            None => frame::length(path, &item.headers, item.payload),
            Some(_) => item.headers.len() + item.payload.len(),
        };
        let outcome = self.decide(path, bytes as u64, fate);
        for watcher in &mut self.watchers {
            watcher(&Passing { sighting, qpn: item.qpn, outcome });
        }
        self.note(path, item, outcome);
        match outcome {
            Outcome::Lost(reason) => {
                self.drop_packet(path.from, Some(item.qpn), Some(item.headers), item.count, reason);
            }
            Outcome::Arrives { .. } => self.post(path, item, bytes as u64, outcome, fate),
        }
    }

    /// What script and link make of a packet.
    fn decide(&mut self, path: &Path, bytes: u64, fate: Fate) -> Outcome {
        if self.partitions.contains(&(path.from, path.to)) {
            return Outcome::Lost(DropReason::Partitioned);
        }
        let default = self.default_link;
        let link = self.links.entry((path.from, path.to)).or_insert_with(|| Link::new(default));
        let passage = link.pass(self.now, bytes, &mut self.rng);
        let at = match (passage.arrival, fate) {
            (_, Fate::Drop) => return Outcome::Lost(DropReason::RandomLoss),
            (None, _) if passage.overflow => return Outcome::Lost(DropReason::Overflow),
            (None, _) => return Outcome::Lost(DropReason::RandomLoss),
            (Some(arrival), Fate::Delay(nanos)) => arrival.plus_nanos(nanos),
            (Some(arrival), _) => arrival,
        };
        Outcome::Arrives {
            at,
            again: passage.again.or((fate == Fate::Duplicate).then_some(at)),
            corrupt: passage.corrupt || fate == Fate::Corrupt,
            marked: passage.marked || fate == Fate::Mark,
        }
    }

    /// Puts a packet on its way.
    fn post(&mut self, path: &Path, item: &Item<'_>, bytes: u64, outcome: Outcome, fate: Fate) {
        let Outcome::Arrives { at, again, corrupt, marked } = outcome else { return };
        let count = u64::from(item.count);
        self.counters.marked += if marked { count } else { 0 };
        self.counters.corrupted += if corrupt { count } else { 0 };
        self.counters.duplicated += if again.is_some() { count } else { 0 };
        let mut buffer = self.parcels.buffer();
        let train = match item.train {
            // A ring in memory does not flip bits; a test that asks for it anyway sees what a datagram link shows.
            Some(_) if corrupt => {
                self.parcels.recycle(buffer);
                return self.drop_packet(path.to, None, None, item.count, DropReason::BadIcrc);
            }
            Some(_) => {
                buffer.extend_from_slice(item.payload);
                Some(parcel::Train { headers: item.headers, count: item.count, marked })
            }
            None => {
                if frame::encode(path, &item.headers, item.payload, marked, &mut buffer).is_err() {
                    // Only headers that contradict their opcode do not encode, and a queue pair does not make such.
                    self.parcels.recycle(buffer);
                    return self.drop_packet(path.from, Some(item.qpn), None, 1, DropReason::Malformed);
                }
                if corrupt {
                    // Anywhere in the datagram, by chance; by the script where it cannot go unnoticed.
                    let span = if fate == Fate::Corrupt { 4 } else { buffer.len() - wire::Ethernet::LEN };
                    self.flip(&mut buffer, span);
                }
                None
            }
        };
        if train.is_some() {
            let copies = 1 + u64::from(again.is_some());
            self.link(path.from, path.to).in_ring += bytes * copies;
        }
        let parcel = Parcel { path: *path, bytes: buffer, train };
        let copy = again.map(|again| (again, parcel.clone()));
        // A ring in memory passes no switch.
        let switched = parcel.train.is_none() && self.ports.contains_key(&path.to);
        let plan = if switched { Plan::Switch } else { Plan::Arrival };
        let number = self.parcels.put(parcel);
        self.agenda.plan(at, plan(number));
        if let Some((again, copy)) = copy {
            let number = self.parcels.put(copy);
            self.agenda.plan(again, plan(number));
        }
    }

    /// A frame reaches the switch in front of its host, and waits there for the port.
    pub(crate) fn pass_switch(&mut self, number: u32) {
        let Some(mut parcel) = self.parcels.take(number) else { return };
        let to = parcel.path.to;
        let Some(port) = self.ports.get_mut(&to) else { return };
        let passage = port.pass(self.now, parcel.bytes.len() as u64, &mut self.rng);
        let Some(at) = passage.arrival else {
            let headers = frame::decode(&parcel.bytes).ok().map(|understood| understood.packet.headers);
            self.parcels.recycle(parcel.bytes);
            let reason = if passage.overflow { DropReason::Overflow } else { DropReason::RandomLoss };
            return self.drop_packet(to, None, headers, 1, reason);
        };
        self.counters.marked += u64::from(passage.marked && frame::mark(&mut parcel.bytes));
        let number = self.parcels.put(parcel);
        self.agenda.plan(at, Plan::Arrival(number));
    }

    fn sight<'a>(&mut self, path: &Path, item: &'a Item<'_>) -> Sighting<'a> {
        let nth = self.seen;
        self.seen += 1;
        Sighting {
            at: self.now,
            from: path.from,
            to: path.to,
            nth,
            headers: &item.headers,
            payload: item.payload,
            count: item.count,
            wr_id: item.wr_id,
            retransmission: item.retransmission,
        }
    }

    /// Flips one bit among the last `span` bytes.
    fn flip(&mut self, bytes: &mut [u8], span: usize) {
        let start = bytes.len().saturating_sub(span);
        let bit = self.rng.below(8 * (bytes.len() - start) as u64) as usize;
        if let Some(byte) = bytes.get_mut(start + bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Writes packets to the capture, also those that get lost.
    fn note(&mut self, path: &Path, item: &Item<'_>, outcome: Outcome) {
        let Some(capture) = &mut self.capture else { return };
        let mut comment = format!("QP {}", item.qpn);
        if let Some(wr_id) = item.wr_id {
            comment.push_str(&format!(": work request {wr_id}"));
        }
        if item.retransmission {
            comment.push_str(", sent again");
        }
        let marked = matches!(outcome, Outcome::Arrives { marked: true, .. });
        match outcome {
            Outcome::Lost(reason) => comment.push_str(&format!(", dropped: {reason}")),
            Outcome::Arrives { corrupt: true, .. } => comment.push_str(", damaged under way"),
            Outcome::Arrives { again: Some(_), .. } => comment.push_str(", arrives twice"),
            Outcome::Arrives { .. } => {}
        }
        let mut buffer = self.parcels.buffer();
        for index in 0..item.count {
            let (headers, payload) = match item.train {
                None => (item.headers, item.payload),
                Some(train) => {
                    let (from, length) = train.slice(index);
                    (train.packet(index), &item.payload[from as usize..(from + length) as usize])
                }
            };
            if frame::encode(path, &headers, payload, marked, &mut buffer).is_ok() {
                capture.frame(path.from, self.now, &buffer, &comment);
            }
        }
        self.parcels.recycle(buffer);
    }

    /// Plans the arrival of a frame that no queue pair sent.
    pub(crate) fn inject(&mut self, path: Path, bytes: Vec<u8>) {
        if let Some(capture) = &mut self.capture {
            capture.frame(path.from, self.now, &bytes, "injected");
        }
        self.arrive_now(Parcel { path, bytes, train: None });
    }

    /// Plans the arrival of something that is already there.
    pub(crate) fn arrive_now(&mut self, parcel: Parcel) {
        let number = self.parcels.put(parcel);
        self.agenda.plan(self.now, Plan::Arrival(number));
    }

    /// The outer headers of a packet that no queue pair sent.
    pub(crate) fn injected_path(&self, source: Gid, destination: Gid, to: HostId) -> Path {
        let from = self.routes.get(&source).copied().unwrap_or(to);
        let av = AddressVector { dgid: destination, ..AddressVector::default() };
        Path::new(from, to, source, &av, Qpn::GSI, Qpn::GSI)
    }
}
