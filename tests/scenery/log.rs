//! What an onlooker saw: every packet as it entered its link, and every event of every host. Scenarios ask it what went over the wire and why a
//! packet went no further.

use sim::{HostId, Outcome, Shared, Sim};
use trace::{DropReason, Event, Kind};
use transport::{State, Time};
use wire::{Headers, Opcode, Psn, Qpn, Syndrome};

/// A packet, or a train that stayed whole, as it entered its link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// When.
    pub at: Time,
    /// Who sent it.
    pub from: HostId,
    /// The queue pair that sent it.
    pub qpn: Qpn,
    /// Its headers.
    pub headers: Headers,
    /// Bytes of payload.
    pub bytes: usize,
    /// How many packets it stands for.
    pub count: u32,
    /// Whether it was sent before.
    pub again: bool,
    /// Whether the link lost it.
    pub lost: bool,
}

impl Seen {
    /// Its opcode.
    pub fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }

    /// Its (first) sequence number.
    pub fn psn(&self) -> Psn {
        self.headers.bth.psn
    }

    /// What it acknowledges or refuses with, if it does.
    pub fn syndrome(&self) -> Option<Syndrome> {
        self.headers.aeth.map(|aeth| aeth.syndrome)
    }
}

/// The onlooker's notes.
#[derive(Clone, Debug)]
pub struct Log {
    packets: Shared<Vec<Seen>>,
    events: Shared<Vec<(HostId, Event)>>,
}

impl Log {
    /// Notes everything that happens in `sim` from now on.
    pub fn of(sim: &mut Sim) -> Log {
        let log = Log { packets: Shared::new(Vec::new()), events: Shared::new(Vec::new()) };
        let packets = log.packets.clone();
        sim.watch(move |passing| {
            let sighting = &passing.sighting;
            packets.borrow_mut().push(Seen {
                at: sighting.at,
                from: sighting.from,
                qpn: passing.qpn,
                headers: *sighting.headers,
                bytes: sighting.payload.len(),
                count: sighting.count,
                again: sighting.retransmission,
                lost: matches!(passing.outcome, Outcome::Lost(_)),
            });
        });
        let events = log.events.clone();
        sim.observe(move |host, event| events.borrow_mut().push((host, *event)));
        log
    }

    /// The packets since the last time they were asked for.
    pub fn packets(&self) -> Vec<Seen> {
        std::mem::take(&mut self.packets.borrow_mut())
    }

    /// The opcodes a host sent since packets were last asked for.
    pub fn opcodes(&self, from: HostId) -> Vec<Opcode> {
        self.packets().iter().filter(|seen| seen.from == from).map(Seen::opcode).collect()
    }

    /// The events since the last time any were asked for.
    pub fn events(&self) -> Vec<(HostId, Event)> {
        std::mem::take(&mut self.events.borrow_mut())
    }

    /// Why a host dropped packets, in order, since events were last asked for.
    pub fn drops(&self, host: HostId) -> Vec<DropReason> {
        let drop_of = |(at, event): (HostId, Event)| match event.kind {
            Kind::PacketDropped { reason, .. } if at == host => Some(reason),
            _ => None,
        };
        self.events().into_iter().filter_map(drop_of).collect()
    }

    /// The states a queue pair entered, in order, since events were last asked for.
    pub fn states(&self, qpn: Qpn) -> Vec<State> {
        let state_of = |(_, event): (HostId, Event)| match event.kind {
            Kind::StateChanged { to, .. } if event.qpn == Some(qpn) => {
                State::ALL.into_iter().find(|state| state.name() == to)
            }
            _ => None,
        };
        self.events().into_iter().filter_map(state_of).collect()
    }

    /// Forgets what was noted so far.
    pub fn clear(&self) {
        self.packets.borrow_mut().clear();
        self.events.borrow_mut().clear();
    }
}
