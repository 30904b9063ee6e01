//! Segmented messages of agents: segments that arrive are put together, and those under way go on when the peer has
//! some.

use super::{Handled, Manager, PortId, Transmit, limits};
use crate::rmpp::{self, Kind, Received, Receiving, RmppHeader};
use crate::route::Route;
use trace::{DropReason, Time};
use wire::mad::MadHeader;

impl Manager {
    /// Takes a segment of a message for an agent.
    pub(super) fn take_segment(
        &mut self,
        now: Time,
        (agent, port, id): (u32, PortId, u8),
        route: &Route,
        header: &MadHeader,
        segment: &RmppHeader,
        bytes: &[u8],
    ) -> Handled {
        let class = header.management_class;
        let key = (agent, header.transaction_id, class, route.remote);
        self.complete.retain(|(.., when)| now.since(*when) <= rmpp::PATIENCE_NANOS);
        if let Some((_, segments, _)) = self.complete.iter().find(|(known, ..)| *known == key) {
            let bytes = rmpp::acknowledgement(bytes, *segments, *segments);
            self.transmits.push_back(Transmit { to: *route, bytes });
            return Handled::Taken;
        }
        if header.is_response() && self.find_send(route, header, false).is_none() {
            return Handled::Dropped(DropReason::CmUnknown);
        }
        if !self.messages.contains_key(&key) {
            self.messages.retain(|_, message| !message.is_stale(now));
            if segment.segment != 1 || self.messages.len() >= limits::MAX_MESSAGES {
                return Handled::Dropped(DropReason::CmCrowded);
            }
        }
        let message = self.messages.entry(key).or_insert_with(|| Receiving::new(now));
        let (received, acknowledgement) = message.take(now, class, segment, bytes);
        if let Some((last, window)) = acknowledgement {
            let bytes = rmpp::acknowledgement(bytes, last, window);
            self.transmits.push_back(Transmit { to: *route, bytes });
        }
        match received {
            Received::Part => Handled::Taken,
            Received::Nonsense => Handled::Dropped(DropReason::NotManagement),
            Received::Message(message) => {
                self.messages.remove(&key);
                if self.complete.len() >= limits::MAX_MESSAGES {
                    self.complete.pop_front();
                }
                self.complete.push_back((key, segment.segment, now));
                match header.is_response() {
                    true => self.take_response((port, id), route, header, message),
                    false => {
                        self.take_request((port, id), route, header, message);
                        Handled::Taken
                    }
                }
            }
        }
    }

    /// Takes what a peer says of the segments that it got.
    pub(super) fn take_acknowledgement(
        &mut self,
        now: Time,
        route: &Route,
        header: &MadHeader,
        segment: &RmppHeader,
    ) -> Handled {
        let unknown = Handled::Dropped(DropReason::CmUnknown);
        // Its method is that of the segments, turned round.
        let Some(key) = self.find_send(route, header, !header.is_response()) else { return unknown };
        let Some(send) = self.sends.get_mut(&key) else { return unknown };
        let Some(segments) = &mut send.segments else { return unknown };
        if segment.kind != Kind::Ack {
            self.forget(key);
            return Handled::Taken;
        }
        if !segments.acknowledge(segment.segment, segment.length) {
            return Handled::Dropped(DropReason::NotManagement);
        }
        if segments.is_complete() && (send.is_response || send.timeout_ms == 0) {
            self.forget(key);
            return Handled::Taken;
        }
        Manager::transmit(&mut self.transmits, send);
        let (old, new) = (send.deadline, send.deadline_from(now));
        send.deadline = Some(new);
        if let Some(old) = old {
            self.deadlines.remove(&(old, key));
        }
        self.deadlines.insert((new, key));
        Handled::Taken
    }
}
