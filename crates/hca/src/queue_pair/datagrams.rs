//! Datagrams on links through shared memory. Where a fabric loses nothing, a sender whose receiver has no room is
//! stopped for a while; and so is one whose ring is full, or whose link is not up yet: what it posted stays in its
//! queue pair, and its program goes on. A peer that makes no room for so long is not waited for any more, and what is
//! sent to it is lost, as datagrams may be; a peer that has not answered for so long is reached over UDP.

use crate::ground::Ground;
use crate::ground::records::Records;
use crate::links::path::{Link, Path};
use crate::queue_pair::port::NicPort;
use crate::tuning::{DATAGRAM_LATENESS_MAX, DATAGRAM_WAIT_MAX, nanos};
use latch::Guard;
use link::shared::{Outbound, State, Unwritten, Writer};
use std::sync::Arc;
use trace::DropReason;
use transport::{Refusal, Time, Train};
use wire::Qpn;

/// What a queue pair of datagrams remembers of a ring that it found full, or not there yet, until it finds room.
#[derive(Debug, Default)]
pub(crate) struct HeldDatagram(Option<Full>);

#[derive(Debug)]
struct Full {
    link: Arc<Outbound>,
    since: Time,
    /// It is among the queue pairs that wait for room there.
    waits: bool,
    /// It has waited long enough.
    lost: bool,
}

/// Where the next datagram goes.
pub(crate) enum DatagramRoom<'a> {
    /// Into this ring, which has room for it as long as it is locked.
    Ring(Guard<'a, Writer>),
    /// Into no ring: the way is another, or there will be no ring.
    Elsewhere,
    /// Nowhere: its ring has been full for too long.
    Lost,
    /// It has to wait.
    Wait,
}

impl HeldDatagram {
    /// Looks for room for the next datagram, which goes this way, and keeps it: other queue pairs write to the same
    /// ring.
    #[inline]
    pub fn room<'a>(&mut self, nic: &Ground, qpn: Qpn, path: &'a Path, now: Time) -> DatagramRoom<'a> {
        let Link::Shared(link) = &path.link else { return DatagramRoom::Elsewhere };
        match room(nic, link) {
            Some(found) => {
                self.0 = None;
                found
            }
            None => self.wait(nic, qpn, link, now),
        }
    }

    #[cold]
    fn wait<'a>(&mut self, nic: &Ground, qpn: Qpn, link: &'a Arc<Outbound>, now: Time) -> DatagramRoom<'a> {
        let full = match self.0.take() {
            Some(full) if Arc::ptr_eq(&full.link, link) => full,
            _ => Full { link: Arc::clone(link), since: now, waits: false, lost: false },
        };
        let full = self.0.insert(full);
        full.time_has_come(now);
        if full.lost {
            return if link.state() == State::Connecting { DatagramRoom::Elsewhere } else { DatagramRoom::Lost };
        }
        if !full.waits {
            full.waits = true;
            nic.links.exchange.stall(link, qpn);
            // There may be room by now, and perhaps the reader did not see that this queue pair waits.
            return room(nic, link).unwrap_or(DatagramRoom::Wait);
        }
        DatagramRoom::Wait
    }

    /// It no longer waits.
    pub fn resumed(&mut self) {
        if let Some(full) = &mut self.0 {
            full.waits = false;
        }
    }

    /// What waits has waited long enough, if it has; also if nothing waits any more, because the way is another by now
    /// or the queue pair was reset.
    pub fn time_has_come(&mut self, now: Time) {
        if let Some(full) = &mut self.0 {
            full.time_has_come(now);
        }
    }

    /// When it will have waited long enough.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.0.as_ref().filter(|full| !full.lost).map(Full::deadline)
    }
}

impl Full {
    fn deadline(&self) -> Time {
        self.since.plus_nanos(nanos(DATAGRAM_WAIT_MAX))
    }

    /// It has waited long enough, unless this process was stopped at that moment: then the reader may have been, too.
    fn time_has_come(&mut self, now: Time) {
        let deadline = self.deadline();
        if !self.lost && now >= deadline {
            match now.since(deadline) > nanos(DATAGRAM_LATENESS_MAX) {
                true => self.since = now,
                false => self.lost = true,
            }
        }
    }
}

/// Where a datagram goes now: into the ring of this link, or elsewhere if there is none. None while the ring is full or
/// not there yet.
#[inline]
fn room<'a>(nic: &Ground, link: &'a Outbound) -> Option<DatagramRoom<'a>> {
    // The peer may go while this thread waits for the ring: then what was not read has been counted.
    let Some(mut writer) = link.writer().filter(|_| link.state() == State::Up) else {
        return (link.state() != State::Connecting).then_some(DatagramRoom::Elsewhere);
    };
    if writer.has_room() {
        return Some(DatagramRoom::Ring(writer));
    }
    if writer.is_broken() {
        nic.condemn(link);
    } else if !nic.progress.engine.is_leased() {
        // The engine does not look for room before the reader tells of it.
        writer.want_room();
        if writer.has_room() {
            return Some(DatagramRoom::Ring(writer));
        }
    }
    None
}

/// Writes a datagram into a ring with room.
pub(crate) fn write_datagram(
    records: &Records,
    mut writer: Guard<'_, Writer>,
    path: &Path,
    train: &Train<'_>,
    port: &mut NicPort<'_>,
) -> Result<(), Refusal> {
    let length = train.payload.len() as usize;
    let fill = |out: &mut [u8]| train.payload.copy(0, out, port);
    let addresses = (path.source, path.destination);
    writer.handle_as(path.handling());
    let pushed = writer.push(addresses, &train.headers, (train.count, train.mtu), length, fill);
    drop(writer);
    if let Link::Shared(link) = &path.link {
        link.ring(true);
    }
    match pushed {
        Ok(()) => Ok(()),
        Err(Unwritten::Payload(refusal)) => Err(refusal),
        Err(Unwritten::NoRecord) => {
            records.dropped(records.now(), None, Some(&train.headers), DropReason::BadLength);
            Ok(())
        }
    }
}
