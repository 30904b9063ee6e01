//! Datagrams on links through shared memory. Where a fabric loses nothing, a sender whose receiver has no room is stopped for a while; and so is one
//! whose ring is full: what it posted stays in its queue pair, and its program goes on. A peer that makes no room for so long is not waited
//! for any more, and what is sent to it is lost, as datagrams may be.

use crate::host::Host;
use crate::nic::Nic;
use crate::path::{Link, Path};
use link::shared::Outbound;
use std::sync::Arc;
use transport::{Refusal, Time, Train};
use wire::Qpn;

/// How long, in nanoseconds, a ring may stay full. A reader that runs makes room in microseconds; one that has to wait for a processor of a busy
/// machine, in tens of milliseconds.
const LONGEST_WAIT: u64 = 250_000_000;

/// What a queue pair of datagrams remembers of a ring that it found full, until it finds room again.
#[derive(Debug, Default)]
pub(crate) struct Held(Option<Full>);

#[derive(Debug)]
struct Full {
    link: Arc<Outbound>,
    since: Time,
    /// It is among those who wait for room there.
    waits: bool,
    /// It has waited long enough.
    lost: bool,
}

impl Held {
    /// Whether the next datagram, which goes this way, has to wait.
    #[inline]
    pub fn holds_back(&mut self, nic: &Nic, qpn: Qpn, path: &Path, now: Time) -> bool {
        let Link::Shared(link) = &path.link else { return false };
        if has_room(nic, link) {
            self.0 = None;
            return false;
        }
        self.wait(nic, qpn, link, now)
    }

    #[cold]
    fn wait(&mut self, nic: &Nic, qpn: Qpn, link: &Arc<Outbound>, now: Time) -> bool {
        let full = match self.0.take() {
            Some(full) if Arc::ptr_eq(&full.link, link) => full,
            _ => Full { link: Arc::clone(link), since: now, waits: false, lost: false },
        };
        let full = self.0.insert(full);
        full.lost |= now.since(full.since) >= LONGEST_WAIT;
        if full.lost {
            return false;
        }
        if !full.waits {
            full.waits = true;
            nic.exchange.stall(link, qpn);
            // There may be room meanwhile, and perhaps nobody saw us waiting.
            return !has_room(nic, link);
        }
        true
    }

    /// It no longer waits.
    pub fn resumed(&mut self) {
        if let Some(full) = &mut self.0 {
            full.waits = false;
        }
    }

    /// When it will have waited long enough.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        self.0.as_ref().filter(|full| !full.lost).map(|full| full.since.plus_nanos(LONGEST_WAIT))
    }
}

/// Whether a datagram can be written, or need not be: there is another way, or none, where a link is not up.
#[inline]
fn has_room(nic: &Nic, link: &Outbound) -> bool {
    let Some(mut writer) = link.writer() else { return true };
    if writer.has_room() {
        return true;
    }
    if writer.is_broken() {
        link.condemn();
    } else if !nic.engine().is_leased() {
        // Nobody looks for room before being told of it.
        writer.want_room();
        return writer.has_room();
    }
    false
}

/// Sends a datagram, which is lost if the ring is full.
pub(crate) fn send_datagram(
    link: &Outbound,
    path: &Path,
    train: &Train<'_>,
    host: &mut Host<'_>,
) -> Result<(), Refusal> {
    let Some(mut writer) = link.writer() else { return Ok(()) };
    if !writer.has_room() {
        return Ok(());
    }
    let length = train.payload.len() as usize;
    let fill = |out: &mut [u8]| train.payload.copy(0, out, host);
    let addresses = (path.source, path.destination);
    let pushed = writer.push(addresses, &train.headers, (train.count, train.mtu), length, fill);
    drop(writer);
    link.ring(true);
    pushed
}
