//! The agents of a process: who hears what, and what is under way. See the crate's page for how it is driven.

mod segments;

use crate::agent::{Agent, Classes, Key, Refusal, Registration};
use crate::class;
use crate::path::{self, Lids};
use crate::rmpp::{self, Kind, Receiving, RmppHeader, Sending};
use crate::route::{Peer, Route};
use crate::send::{self, Outgoing, Send, SendError};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use trace::{DropReason, Time};
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Gid, refuse_if};

/// What is kept at most, whatever strangers send and programs ask for.
pub mod limits {
    /// Agents of an open port, as in the kernel.
    pub const MAX_AGENTS: usize = 32;
    /// Datagrams of a port that wait for an answer.
    pub const MAX_SENDS: usize = 1 << 16;
    /// Requests whose sender is remembered, for an answer that names no address.
    pub const MAX_REQUESTS: usize = 1024;
    /// Segmented messages that are being received.
    pub const MAX_MESSAGES: usize = 16;
}

/// An open port of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(u64);

/// Where agents get the upper halves of their transactions from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The first.
    pub first: u32,
    /// The last.
    pub last: u32,
    /// Where in between it begins.
    pub seed: u32,
}

/// A datagram to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// Where to.
    pub to: Route,
    /// Its bytes.
    pub bytes: [u8; MAD_LEN],
}

/// What a program receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The agent's number on the port.
    pub agent: u8,
    /// True if it is a datagram of the program itself that got no answer.
    pub timed_out: bool,
    /// Who sent it, or whom it was sent to.
    pub peer: Peer,
    /// The datagram, or the segments of a message put together; of one without answer, its header.
    pub bytes: Vec<u8>,
}

/// What became of a datagram that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handled {
    /// An agent has it.
    Taken,
    /// A request that no agent of this process wants: another process may, or the port answers.
    Unclaimed(Key),
    /// It goes no further.
    Dropped(DropReason),
}

#[derive(Debug)]
struct OpenPort {
    interface: u32,
    /// By number: the upper halves of their transactions.
    agents: BTreeMap<u8, u32>,
    sends: usize,
}

/// By transaction, and by a number of their own.
type SendKey = (u64, u64);

/// A segmented message: its agent, transaction and class, and who sends it.
type MessageKey = (u32, u64, u8, Gid);

/// See the module.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    next_agent: u32,
    next_number: u64,
    ports: BTreeMap<PortId, OpenPort>,
    agents: BTreeMap<u32, Agent>,
    classes: Classes,
    sends: BTreeMap<SendKey, Send>,
    deadlines: BTreeSet<(Time, SendKey)>,
    requests: VecDeque<(PortId, u64, u8, Route)>,
    messages: BTreeMap<MessageKey, Receiving>,
    /// Messages that are complete, with how many segments they had, and when: their last acknowledgement may get lost.
    complete: VecDeque<(MessageKey, u32, Time)>,
    lids: Lids,
    transmits: VecDeque<Transmit>,
    deliveries: VecDeque<(PortId, Delivery)>,
}

impl Manager {
    /// Without ports.
    pub fn new(config: Config) -> Manager {
        Manager {
            config,
            next_agent: config.seed,
            next_number: 0,
            ports: BTreeMap::new(),
            agents: BTreeMap::new(),
            classes: Classes::default(),
            sends: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            requests: VecDeque::new(),
            messages: BTreeMap::new(),
            complete: VecDeque::new(),
            lids: Lids::default(),
            transmits: VecDeque::new(),
            deliveries: VecDeque::new(),
        }
    }

    /// Opens the port of a device.
    pub fn open(&mut self, interface: u32) -> PortId {
        let port = PortId(self.number());
        self.ports.insert(port, OpenPort { interface, agents: BTreeMap::new(), sends: 0 });
        port
    }

    /// Closes it. Returns the classes that no agent of this process has any more.
    pub fn close(&mut self, port: PortId) -> Vec<Key> {
        let ids: Vec<u8> = self.ports.get(&port).map_or_else(Vec::new, |open| open.agents.keys().copied().collect());
        let left = ids.into_iter().filter_map(|id| self.unregister(port, id).ok().flatten()).collect();
        self.ports.remove(&port);
        self.requests.retain(|(of, ..)| *of != port);
        self.deliveries.retain(|(to, _)| *to != port);
        left
    }

    /// Whether an agent of this process has the class.
    pub fn has_class(&self, key: Key) -> bool {
        self.classes.has(key)
    }

    /// Registers an agent; answers its number.
    pub fn register(&mut self, port: PortId, wanted: &Registration) -> Result<u8, Refusal> {
        let open = self.ports.get(&port).ok_or(Refusal::NoPort)?;
        let free = (0..limits::MAX_AGENTS as u8).find(|id| !open.agents.contains_key(id)).ok_or(Refusal::TooMany)?;
        wanted.check()?;
        let key = wanted.key(open.interface);
        refuse_if!(key.is_some_and(|key| !self.classes.are_free(key, wanted.methods)), Refusal::Taken);
        let agent = self.new_agent().ok_or(Refusal::TooMany)?;
        if let Some(key) = key {
            self.classes.insert(key, wanted.methods, agent);
        }
        self.agents.insert(agent, Agent { port, id: free, registration: *wanted });
        if let Some(open) = self.ports.get_mut(&port) {
            open.agents.insert(free, agent);
        }
        Ok(free)
    }

    /// Ends an agent, and what it has under way. Returns the class that no agent of this process has any more.
    pub fn unregister(&mut self, port: PortId, id: u8) -> Result<Option<Key>, SendError> {
        let open = self.ports.get_mut(&port).ok_or(SendError::NoAgent)?;
        let agent = open.agents.remove(&id).ok_or(SendError::NoAgent)?;
        let interface = open.interface;
        let under_way: Vec<SendKey> =
            self.sends.iter().filter(|(_, send)| send.agent == agent).map(|(key, _)| *key).collect();
        for key in under_way {
            self.forget(key);
        }
        self.messages.retain(|(of, ..), _| *of != agent);
        self.complete.retain(|((of, ..), ..)| *of != agent);
        let key = self.agents.remove(&agent).and_then(|agent| agent.registration.key(interface));
        Ok(key.filter(|key| self.classes.remove(*key, agent)))
    }

    /// Sends a datagram of an agent. `source` returns the address of the port from which another is reached.
    pub fn send(
        &mut self,
        now: Time,
        (port, id): (PortId, u8),
        out: &Outgoing<'_>,
        source: impl FnOnce(Gid) -> Option<Gid>,
    ) -> Result<(), SendError> {
        let open = self.ports.get(&port).ok_or(SendError::NoAgent)?;
        let agent = *open.agents.get(&id).ok_or(SendError::NoAgent)?;
        let Some(Agent { registration, .. }) = self.agents.get(&agent).copied() else { return Err(SendError::NoAgent) };
        let (mut header, _) = MadHeader::parse(out.bytes).map_err(|_| SendError::Length)?;
        let active = send::check(out.bytes, &header, registration.has_rmpp())?;
        refuse_if!(out.pkey_index != 0, SendError::Partition);
        let (class, is_response) = (header.management_class, header.is_response());
        let mut bytes = out.bytes.to_vec();
        if !active {
            bytes.resize(MAD_LEN, 0);
        }
        if !is_response {
            header.transaction_id = u64::from(agent) << 32 | header.transaction_id & 0xffff_ffff;
            // The common header alone: what the program wrote in its reserved field stays out.
            let _ = header.encode(&mut bytes);
        }
        let to = match out.to {
            Peer::Address(route) => route,
            Peer::Lid(lid) => match self.find_way(&header, port, lid, source)? {
                Some(route) => route,
                // A question that the port itself answers.
                None => return self.ask_for_path(port, id, &bytes),
            },
        };
        if self.is_duplicate(&header, is_response, &to) && !(registration.user_rmpp && rmpp::is_active(&bytes)) {
            return Err(SendError::Duplicate);
        }
        refuse_if!(open_sends(&self.ports, port) >= limits::MAX_SENDS, SendError::TooMany);
        let segments = active.then(|| Sending::new(class, out.bytes.len()));
        let (timeout_ms, retries_left) = (out.timeout_ms, out.retries);
        let mut send = Send {
            agent,
            class,
            is_response,
            bytes,
            to,
            peer: out.to,
            timeout_ms,
            retries_left,
            deadline: None,
            segments,
        };
        Manager::transmit(&mut self.transmits, &mut send);
        if timeout_ms != 0 || active {
            let key = (header.transaction_id, self.number());
            send.deadline = Some(send.deadline_from(now));
            self.deadlines.extend(send.deadline.map(|deadline| (deadline, key)));
            self.sends.insert(key, send);
            if let Some(open) = self.ports.get_mut(&port) {
                open.sends += 1;
            }
        }
        Ok(())
    }

    /// Sends a datagram, or the segments that may be sent.
    fn transmit(transmits: &mut VecDeque<Transmit>, send: &mut Send) {
        let Send { class, bytes, to, segments, .. } = send;
        match segments {
            None => {
                if let Some(bytes) = bytes.first_chunk() {
                    transmits.push_back(Transmit { to: *to, bytes: *bytes });
                }
            }
            Some(segments) => {
                while let Some(number) = segments.poll_segment() {
                    transmits.push_back(Transmit { to: *to, bytes: segments.segment(*class, bytes, number) });
                }
            }
        }
    }

    /// The way to a LID, and the way back for an answer without any address; none for a question to subnet
    /// administration.
    fn find_way(
        &self,
        header: &MadHeader,
        port: PortId,
        lid: u16,
        source: impl FnOnce(Gid) -> Option<Gid>,
    ) -> Result<Option<Route>, SendError> {
        let (class, transaction) = (header.management_class, header.transaction_id);
        if lid == 0 && header.is_response() {
            let asked =
                |(of, id, asked, _): &&(PortId, u64, u8, Route)| (*of, *id, *asked) == (port, transaction, class);
            return self.requests.iter().rev().find(asked).map(|(.., route)| Some(*route)).ok_or(SendError::NoRoute);
        }
        // Whatever LID a program takes for the administrator's.
        if class == MadHeader::CLASS_SUBNET_ADMINISTRATION && !header.is_response() {
            return Ok(None);
        }
        let remote = self.lids.gid(lid).ok_or(SendError::NoRoute)?;
        let local = source(remote).ok_or(SendError::NoRoute)?;
        let qpn = wire::Qpn::GSI;
        Ok(Some(Route { local, remote, qpn, traffic_class: 0, hop_limit: 64, flow_label: 0 }))
    }

    /// Answers a question of a program to subnet administration.
    fn ask_for_path(&mut self, port: PortId, id: u8, bytes: &[u8]) -> Result<(), SendError> {
        let question = bytes.first_chunk::<MAD_LEN>().ok_or(SendError::Length)?;
        let answer = path::answer(&mut self.lids, question).ok_or(SendError::NoRoute)?;
        let delivery = Delivery { agent: id, timed_out: false, peer: Peer::Lid(0), bytes: answer.to_vec() };
        self.deliveries.push_back((port, delivery));
        Ok(())
    }

    fn is_duplicate(&self, header: &MadHeader, is_response: bool, to: &Route) -> bool {
        let transaction = header.transaction_id;
        self.sends.range((transaction, 0)..=(transaction, u64::MAX)).any(|(_, send)| {
            send.class == header.management_class
                && send.is_response == is_response
                && (!is_response || send.to.remote == to.remote)
        })
    }

    /// Takes a datagram that arrived for the port of a device.
    pub fn handle(&mut self, now: Time, interface: u32, route: &Route, bytes: &[u8]) -> Handled {
        let malformed = Handled::Dropped(DropReason::NotManagement);
        let Ok((header, _)) = MadHeader::parse(bytes) else { return malformed };
        if bytes.len() != MAD_LEN
            || header.base_version != MadHeader::BASE_VERSION
            || class::is_subnet_management(header.management_class)
        {
            return malformed;
        }
        let (class, unknown) = (header.management_class, Handled::Dropped(DropReason::CmUnknown));
        let (agent, solicited) = if header.is_response() {
            (header.agent(), true)
        } else {
            if header.class_version >= class::CLASS_VERSION_END {
                return malformed;
            }
            let key = Key { interface, class, version: header.class_version, oui: class::oui(class, bytes) };
            match self.classes.find(key, header.method) {
                Some(agent) => (agent, false),
                None => return Handled::Unclaimed(key),
            }
        };
        let Some(Agent { port, id, registration }) = self.agents.get(&agent).copied() else { return unknown };
        if self.ports.get(&port).is_none_or(|open| open.interface != interface) {
            return unknown;
        }
        let segment = if registration.has_rmpp() && class::has_rmpp(class) { RmppHeader::parse(bytes) } else { None };
        match segment {
            Some(segment) if segment.kind == Kind::Data => {
                return self.take_segment(now, (agent, port, id), route, &header, &segment, bytes);
            }
            Some(segment) => return self.take_acknowledgement(now, route, &header, &segment),
            None => {}
        }
        match solicited {
            true => self.take_response((port, id), route, &header, bytes.to_vec()),
            false => {
                self.take_request((port, id), route, &header, bytes.to_vec());
                Handled::Taken
            }
        }
    }

    fn take_request(&mut self, (port, agent): (PortId, u8), route: &Route, header: &MadHeader, bytes: Vec<u8>) {
        if self.requests.len() >= limits::MAX_REQUESTS {
            self.requests.pop_front();
        }
        self.requests.push_back((port, header.transaction_id, header.management_class, *route));
        self.deliveries.push_back((port, Delivery { agent, timed_out: false, peer: Peer::Address(*route), bytes }));
    }

    fn take_response(
        &mut self,
        (port, agent): (PortId, u8),
        route: &Route,
        header: &MadHeader,
        bytes: Vec<u8>,
    ) -> Handled {
        let Some(key) = self.find_send(route, header, false) else {
            return Handled::Dropped(DropReason::CmUnknown);
        };
        let lid = self.sends.get(&key).map(|send| send.peer);
        self.forget(key);
        // One that was sent to a LID is from that LID; programs compare nothing, but print it.
        let peer = match lid {
            Some(Peer::Lid(lid)) => Peer::Lid(lid),
            _ => Peer::Address(*route),
        };
        self.deliveries.push_back((port, Delivery { agent, timed_out: false, peer, bytes }));
        Handled::Taken
    }

    /// What a response answers: a request in the same transaction and class to the address that it comes from.
    fn find_send(&self, route: &Route, header: &MadHeader, is_response: bool) -> Option<SendKey> {
        let transaction = header.transaction_id;
        let mut found = self.sends.range((transaction, 0)..=(transaction, u64::MAX));
        let fits = |send: &Send| {
            send.class == header.management_class && send.is_response == is_response && send.to.remote == route.remote
        };
        found.find(|(_, send)| fits(send)).map(|(key, _)| *key)
    }

    /// The next deadline.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Sends again what has got no answer, or tells its program.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((deadline, key)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.remove(&(deadline, key));
            let Some(send) = self.sends.get_mut(&key) else { continue };
            if send.retries_left > 0 {
                send.retries_left -= 1;
                if let Some(segments) = &mut send.segments {
                    segments.rewind();
                }
                Manager::transmit(&mut self.transmits, send);
                let next = send.deadline_from(now);
                send.deadline = Some(next);
                self.deadlines.insert((next, key));
                continue;
            }
            let header = send.bytes.get(..MadHeader::LEN).unwrap_or_default().to_vec();
            let (peer, agent) = (send.peer, send.agent);
            self.forget(key);
            if let Some(Agent { port, id, .. }) = self.agents.get(&agent) {
                let delivery = Delivery { agent: *id, timed_out: true, peer, bytes: header };
                self.deliveries.push_back((*port, delivery));
            }
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next thing that a program is to receive.
    pub fn poll_delivery(&mut self) -> Option<(PortId, Delivery)> {
        self.deliveries.pop_front()
    }

    fn forget(&mut self, key: SendKey) {
        let Some(send) = self.sends.remove(&key) else { return };
        if let Some(deadline) = send.deadline {
            self.deadlines.remove(&(deadline, key));
        }
        let port = self.agents.get(&send.agent).map(|agent| agent.port);
        if let Some(open) = port.and_then(|port| self.ports.get_mut(&port)) {
            open.sends = open.sends.saturating_sub(1);
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// A number that no agent has: the next one after the last that was given out.
    fn new_agent(&mut self) -> Option<u32> {
        let Config { first, last, .. } = self.config;
        for _ in 0..=self.agents.len() {
            self.next_agent = match self.next_agent {
                next if next < first || next >= last => first,
                next => next + 1,
            };
            if !self.agents.contains_key(&self.next_agent) {
                return Some(self.next_agent);
            }
        }
        None
    }
}

fn open_sends(ports: &BTreeMap<PortId, OpenPort>, port: PortId) -> usize {
    ports.get(&port).map_or(0, |open| open.sends)
}
