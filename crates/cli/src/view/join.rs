//! Which packet that arrived is which that was sent. Sequence numbers say so; of a packet that was sent again, the order
//! of the others says which of the two it was, and times do.

use super::fill::unwrapped;
use std::collections::{BTreeMap, HashMap};
use web::timeline::{EventId, LaneId};
use wire::{Headers, Key, Operation, Psn, Qpn};

/// A packet or train at one side.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    event: EventId,
    time: i64,
    psn: Psn,
    packets: u32,
    dest: Qpn,
    /// Of datagrams: who sent it.
    source: Option<Qpn>,
    class: Class,
    ends_message: bool,
    takes_receive: bool,
    is_drop: bool,
}

/// Each has sequence numbers of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    Request,
    Answer,
    Control,
}

impl Packet {
    pub fn new(event: EventId, time: i64, headers: &Headers, packets: u32) -> Packet {
        let opcode = headers.bth.opcode;
        let operation = opcode.operation();
        let class = match operation {
            Operation::Cnp => Class::Control,
            _ if operation.is_response() => Class::Answer,
            _ => Class::Request,
        };
        Packet {
            event,
            time,
            psn: headers.bth.psn,
            packets: packets.max(1),
            dest: headers.bth.dest_qpn,
            source: headers.deth.map(|deth| deth.src_qpn),
            class,
            ends_message: opcode.ends(),
            takes_receive: operation == Operation::Send || opcode.has_immediate(),
            is_drop: false,
        }
    }
}

/// A packet at both sides.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    pub from: LaneId,
    pub to: LaneId,
    pub sent: EventId,
    pub sent_at: i64,
    pub received: EventId,
    pub received_at: i64,
    /// It was dropped there.
    pub is_drop: bool,
    /// It had arrived before.
    pub is_repeated: bool,
    pub is_answer: bool,
    pub ends_message: bool,
    pub takes_receive: bool,
}

/// What a direct operation touched.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub event: EventId,
    /// The process whose memory it is.
    pub process: u32,
    pub key: Key,
    pub address: u64,
    pub bytes: u64,
    pub write: bool,
}

/// What went from queue pair to queue pair.
#[derive(Default)]
pub struct Directions {
    sent: BTreeMap<LaneId, Vec<Packet>>,
    received: BTreeMap<LaneId, Vec<Packet>>,
    /// The peers that programs named.
    connected: HashMap<LaneId, Qpn>,
    moved: Vec<(Qpn, Move)>,
}

/// How much earlier than it was sent a packet may seem to arrive: senders look at the clock after they have sent.
const CLOCK_SLACK_NANOS: i64 = 5_000;

/// So many packets that were sent are looked at to find the one that arrived.
const MAX_CANDIDATES: usize = 64;

impl Directions {
    pub fn sent(&mut self, lane: LaneId, packet: Packet) {
        self.sent.entry(lane).or_default().push(packet);
    }

    pub fn received(&mut self, lane: LaneId, packet: Packet) {
        self.received.entry(lane).or_default().push(packet);
    }

    pub fn dropped(&mut self, lane: LaneId, packet: Packet) {
        self.received.entry(lane).or_default().push(Packet { is_drop: true, ..packet });
    }

    pub fn connects(&mut self, lane: LaneId, dest: Qpn) {
        self.connected.insert(lane, dest);
    }

    pub fn moved(&mut self, event: EventId, dest: Qpn, key: Key, address: u64, bytes: u64, write: bool) {
        self.moved.push((dest, Move { event, process: 0, key, address, bytes, write }));
    }

    /// Lanes and their peers, of which each names the other. `lanes` has the process and number of each.
    pub fn pairs(&self, lanes: &[(u32, u32)]) -> Vec<(LaneId, LaneId)> {
        let by_number = by_number(lanes);
        let mut pairs = Vec::new();
        for (lane, dest) in &self.connected {
            let number = lanes[lane.0 as usize].1;
            let named = by_number.get(&dest.value()).into_iter().flatten();
            let mut mutual = named.filter(|peer| self.connected.get(peer).is_some_and(|back| back.value() == number));
            if let (Some(peer), None) = (mutual.next(), mutual.next()) {
                pairs.push((*lane, *peer));
            }
        }
        pairs.sort();
        pairs
    }

    /// The lane that a packet of this lane is for.
    fn target(
        &self,
        from: LaneId,
        dest: Qpn,
        lanes: &[(u32, u32)],
        by_number: &HashMap<u32, Vec<LaneId>>,
    ) -> Option<LaneId> {
        let number = lanes[from.0 as usize].1;
        let candidates = by_number.get(&dest.value())?;
        match candidates[..] {
            [only] => Some(only),
            // Hosts may have the same numbers: then the peer must name this one.
            _ => candidates
                .iter()
                .copied()
                .find(|peer| self.connected.get(peer).is_some_and(|back| back.value() == number)),
        }
    }

    /// What was sent to queue pairs that are recorded.
    pub fn sent_to(&self, lanes: &[(u32, u32)]) -> Vec<(EventId, LaneId)> {
        let by_number = by_number(lanes);
        let mut all = Vec::new();
        for (lane, packets) in &self.sent {
            for packet in packets {
                if let Some(to) = self.target(*lane, packet.dest, lanes, &by_number) {
                    all.push((packet.event, to));
                }
            }
        }
        all
    }

    /// Direct operations on memory of processes that are recorded.
    pub fn moves(&self, lanes: &[(u32, u32)]) -> Vec<Move> {
        let by_number = by_number(lanes);
        let whose = |dest: &Qpn| Some(lanes[by_number.get(&dest.value())?.first()?.0 as usize].0);
        self.moved.iter().filter_map(|(dest, moved)| Some(Move { process: whose(dest)?, ..*moved })).collect()
    }

    /// The packets that are known at both sides, where clocks are set by these `offsets` of processes. With `sure`, only
    /// those that were sent once and arrived once.
    pub fn links(&self, lanes: &[(u32, u32)], offsets: &[i64], sure: bool) -> Vec<Link> {
        let by_number = by_number(lanes);
        let offset = |lane: LaneId| offsets.get(lanes[lane.0 as usize].0 as usize).copied().unwrap_or(0);
        // Where each went, and by whom what arrived was sent.
        let mut directions: BTreeMap<(LaneId, LaneId, Class), (Vec<Packet>, Vec<Packet>)> = BTreeMap::new();
        for (lane, packets) in &self.sent {
            for packet in packets {
                if let Some(to) = self.target(*lane, packet.dest, lanes, &by_number) {
                    directions.entry((*lane, to, packet.class)).or_default().0.push(*packet);
                }
            }
        }
        for (lane, packets) in &self.received {
            let named = self.connected.get(lane).copied();
            for packet in packets {
                let Some(source) = packet.source.or(named) else { continue };
                if let Some(from) = self.target(*lane, source, lanes, &by_number) {
                    directions.entry((from, *lane, packet.class)).or_default().1.push(*packet);
                }
            }
        }
        let mut links = Vec::new();
        for ((from, to, class), (sent, received)) in directions {
            if class != Class::Control {
                join(from, to, &sent, &received, [offset(from), offset(to)], sure, &mut links);
            }
        }
        links
    }
}

fn by_number(lanes: &[(u32, u32)]) -> HashMap<u32, Vec<LaneId>> {
    let mut by_number: HashMap<u32, Vec<LaneId>> = HashMap::new();
    for (place, (_, number)) in lanes.iter().enumerate() {
        by_number.entry(*number).or_default().push(LaneId(place as u32));
    }
    by_number
}

/// Joins both sides of what went from one queue pair to another.
fn join(
    from: LaneId,
    to: LaneId,
    sent: &[Packet],
    received: &[Packet],
    [sender, receiver]: [i64; 2],
    sure: bool,
    links: &mut Vec<Link>,
) {
    let Some(first) = sent.first() else { return };
    // By their first sequence number, and among those in the order in which they were sent.
    let mut starts: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
    let (mut last, mut longest) = (i64::from(first.psn.value()), 1);
    for (place, packet) in sent.iter().enumerate() {
        last = unwrapped(last, packet.psn);
        longest = longest.max(i64::from(packet.packets));
        starts.entry(last).or_default().push(place);
    }
    let mut arrivals = vec![0_u32; sent.len()];
    // The place of the last, in the order of sending, that has come.
    let mut newest = 0;
    let mut last = i64::from(first.psn.value());
    for packet in received {
        let psn = unwrapped(last, packet.psn);
        last = psn;
        let time = packet.time.saturating_add(receiver);
        let covering = starts.range(psn.saturating_sub(longest - 1)..=psn).rev().flat_map(|(start, places)| {
            places.iter().rev().filter(move |place| start + i64::from(sent[**place].packets) > psn)
        });
        let candidates: Vec<usize> = covering.copied().take(MAX_CANDIDATES).collect();
        if sure && candidates.len() != 1 {
            continue;
        }
        let was_sent =
            |place: &&usize| sent[**place].time.saturating_add(sender) <= time.saturating_add(CLOCK_SLACK_NANOS);
        // Mostly packets arrive in the order in which they were sent, so it is the first of those behind the last that
        // came; one that was overtaken came, most likely, as the last that had been sent by then.
        let in_order = candidates.iter().filter(was_sent).filter(|place| **place >= newest).min();
        let Some(place) = in_order
            .or_else(|| candidates.iter().filter(was_sent).max_by_key(|place| sent[**place].time))
            .or_else(|| candidates.iter().min_by_key(|place| sent[**place].time))
        else {
            continue;
        };
        newest = newest.max(*place);
        let one = &sent[*place];
        // A train may arrive in parts; what arrives again is more than was sent.
        let is_repeated = !packet.is_drop && arrivals[*place] >= one.packets;
        if !packet.is_drop {
            arrivals[*place] += packet.packets;
        }
        if sure && is_repeated {
            continue;
        }
        links.push(Link {
            from,
            to,
            sent: one.event,
            sent_at: one.time,
            received: packet.event,
            received_at: packet.time,
            is_drop: packet.is_drop,
            is_repeated,
            is_answer: packet.class == Class::Answer,
            ends_message: packet.ends_message,
            takes_receive: packet.takes_receive && packet.ends_message,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::Opcode;

    fn packet(event: u32, time: i64, psn: u32) -> Packet {
        Packet::new(EventId(event), time, &Headers::new(Opcode::RcSendOnly, Qpn::new(2), Psn::new(psn)), 1)
    }

    fn joined(sent: &[(i64, u32)], received: &[(i64, u32)]) -> Vec<(u32, bool)> {
        let side = |packets: &[(i64, u32)]| -> Vec<Packet> {
            let numbered = packets.iter().zip(0..);
            numbered.map(|((time, psn), event)| packet(event, *time, *psn)).collect()
        };
        let mut links = Vec::new();
        join(LaneId(0), LaneId(1), &side(sent), &side(received), [0, 0], false, &mut links);
        links.iter().map(|link| (link.sent.0, link.is_repeated)).collect()
    }

    #[test]
    fn a_packet_that_was_sent_again_is_told_from_the_first_by_the_order() {
        // The first 5 was lost: 6 had come before the 5 that came.
        let sent = [(0, 5), (10, 6), (1_000, 5), (1_010, 6)];
        assert_eq!(joined(&sent, &[(50, 6), (1_050, 5), (1_060, 6)]), [(1, false), (2, false), (3, false)]);
        // It was late: it came when it had been sent again.
        assert_eq!(joined(&sent, &[(1_050, 5), (1_051, 6), (1_060, 5)]), [(0, false), (1, false), (2, false)]);
    }

    #[test]
    fn numbers_begin_anew_and_duplicates_are_seen() {
        let sent = [(0, 0xff_ffff), (10, 0), (20, 1)];
        assert_eq!(
            joined(&sent, &[(5, 0xff_ffff), (15, 0), (16, 0), (25, 1)]),
            [(0, false), (1, false), (1, true), (2, false)]
        );
    }
}
