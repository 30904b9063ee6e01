//! WRITEs, READs and atomics without a packet, between processes of one user: the posting thread moves the bytes itself, where
//! the peer's process lets it (`link::shared::direct`). Here is when a request goes that way, and what queue pairs of
//! this process tell their peers. What they are told of regions is in `links::region_publisher`.
//!
//! Nothing may be under way before such a request. A program that always has some under way, as those do that measure
//! bandwidth, would never come to that point: so after [`REQUESTS_BEFORE_HOLDING`] requests in a row that only waited
//! for others, the next are held back in the queue until those are done.

use crate::ground::Ground;
use crate::links::path::Link;
use crate::queue_pair::port::{GpuTrains, NicPort, known_key};
use crate::queue_pair::{Inner, Qp};
use crate::tuning::{KERNEL_COPY_MAX_BYTES, MAPPED_COPY_MAX_BYTES, REQUESTS_BEFORE_HOLDING};
use link::shared::direct::{DirectAccess, Moved, PeerAccesses, PeerMemory, PublishedQueuePair};
use memory::Guard;
use transport::{Data, Kind, MayPlace, Operation, Placement, SendRequest, Time};
use wire::access::{Access, Atomic, Range};
use wire::{Gid, Qpn};

/// What a queue pair remembers of its way to the peer's memory.
#[derive(Debug, Default)]
pub(super) struct DirectWay {
    /// The last request that was carried out directly was by a mapping of the peer's memory.
    stores: bool,
    /// So many requests in a row were sent as packets only because others were under way.
    behind: u32,
    /// So often requests were held back, and went as packets all the same.
    vain_holds: u32,
}

/// So often requests are held back in vain by a queue pair.
const MAX_VAIN_HOLDS: u32 = 8;

/// Whether it is an operation that has this way at all.
#[inline]
fn is_plain(request: &SendRequest<'_>) -> bool {
    use Operation::{CompareSwap, FetchAdd, Read, Write};
    matches!(request.operation, Write { immediate: None, .. } | Read { .. } | CompareSwap { .. } | FetchAdd { .. })
}

fn wanted(from: Qpn, address: Gid, placement: &Placement) -> DirectAccess {
    let &Placement { to, remote, access, length, .. } = placement;
    let range = Range { key: remote.key, address: remote.address, length: length.into() };
    DirectAccess { from, address, to, range, access }
}

/// The memory of the peer's process, if this queue pair may reach it now. Who looks at packets has to see them.
#[inline]
fn peer_of<'a>(nic: &Ground, link: &'a Link) -> Option<&'a PeerMemory> {
    let Link::Shared(link) = link else { return None };
    let peer = link.peer_memory()?;
    let seen =
        nic.records.capture.is_some() || nic.records.trace.is_watched() || nic.links.registry.rings_meet_faults();
    (!seen).then_some(peer)
}

impl Qp {
    /// Carries out as many of these requests, from the first on, as it may without the peer's process, and returns how
    /// many: what was posted before is done, and the peer says yes. What it does not carry out is as it was.
    ///
    /// Several only where that takes no system call: else a list travels faster through the ring. For the same reason,
    /// of a program that posts one request after the other and does not look for completions in between, only the first
    /// is carried out by a system call.
    #[inline]
    pub(super) fn place_first(&self, nic: &Ground, inner: &mut Inner, requests: &[SendRequest<'_>]) -> usize {
        if !requests.first().is_some_and(is_plain) {
            inner.direct.behind = 0;
            return 0;
        }
        self.place_some_of(nic, inner, requests)
    }

    fn place_some_of(&self, nic: &Ground, inner: &mut Inner, requests: &[SendRequest<'_>]) -> usize {
        let Some(cq) = self.send_cq.as_ref() else { return 0 };
        let Inner { path, pair, windows, weak, direct, .. } = &mut *inner;
        let Some(peer) = peer_of(nic, &path.link) else { return 0 };
        let traces = nic.records.trace.is_on();
        let mut accesses: Option<PeerAccesses<'_>> = None;
        let mut port = NicPort {
            nic,
            windows,
            weak: weak.as_deref_mut(),
            xrc_domain: self.xrc_domain,
            landing: None,
            gpu: GpuTrains::None,
        };
        let mut placed = 0;
        for request in requests.iter().take_while(|request| is_plain(request)) {
            let placement = match pair.may_place(request, MAPPED_COPY_MAX_BYTES) {
                MayPlace::Now(placement) => placement,
                MayPlace::Never => break,
                MayPlace::AfterOthers(placement) => {
                    direct.behind += requests.len() as u32;
                    if !pair.holds_back() && direct.behind >= REQUESTS_BEFORE_HOLDING {
                        direct.behind = 0;
                        let may_store = || peer.may_store(&wanted(self.qpn, path.source, &placement));
                        pair.hold_back(direct.vain_holds < MAX_VAIN_HOLDS && may_store());
                    }
                    break;
                }
            };
            let may_call =
                placement.length <= KERNEL_COPY_MAX_BYTES && (direct.stores || requests.len() == 1 && cq.was_polled());
            let accesses = accesses.get_or_insert_with(|| peer.begin());
            let Some(moved) = self.carry_out(nic, accesses, path.source, request, &placement, may_call) else { break };
            (direct.stores, direct.behind) = (moved == Moved::ByMapping, 0);
            let now = if traces { nic.now() } else { Time::ZERO };
            if traces {
                nic.records.tell_send(now, self.qpn, placed, request);
            }
            pair.placed(now, request, &placement, &mut port);
            if traces {
                self.tell_moved(nic, now, request, &placement, moved);
            }
            placed += 1;
            if !direct.stores {
                break;
            }
        }
        drop(accesses);
        if placed > 0 {
            cq.was_served();
            if inner.pair.may_complete() {
                self.complete_all(nic, inner, nic.now(), None);
            }
        }
        placed
    }

    /// Carries out what is held back in the queue, if nothing is under way any more, and lets go of what it may not.
    /// Returns whether there may be completions.
    pub(super) fn place_held(&self, nic: &Ground, inner: &mut Inner, now: Time) -> bool {
        let Inner { path, pair, direct, .. } = &mut *inner;
        let traces = nic.records.trace.is_on();
        let (mut placed, mut refused) = (0, false);
        let mut accesses = peer_of(nic, &path.link).map(PeerMemory::begin);
        let holds = loop {
            let Some((request, may)) = pair.next_held(MAPPED_COPY_MAX_BYTES) else { break false };
            let placement = match may {
                MayPlace::Now(placement) => placement,
                MayPlace::AfterOthers(_) => break true,
                MayPlace::Never => break false,
            };
            let moved = accesses
                .as_mut()
                .and_then(|accesses| self.carry_out(nic, accesses, path.source, &request, &placement, false));
            let Some(moved) = moved else {
                refused = placed == 0;
                break false;
            };
            if traces {
                self.tell_moved(nic, now, &request, &placement, moved);
            }
            (direct.stores, direct.behind) = (moved == Moved::ByMapping, 0);
            pair.placed_held(&placement);
            placed += 1;
        };
        drop(accesses);
        if !holds {
            pair.hold_back(false);
            direct.vain_holds += u32::from(refused);
        }
        placed > 0
    }

    /// Moves the bytes of a request, if the peer says yes.
    #[inline]
    fn carry_out(
        &self,
        nic: &Ground,
        accesses: &mut PeerAccesses<'_>,
        address: Gid,
        request: &SendRequest<'_>,
        placement: &Placement,
        may_call: bool,
    ) -> Option<Moved> {
        let &Placement { subject, access, length, .. } = placement;
        let wanted = wanted(self.qpn, address, placement);
        let writes = access == Access::REMOTE_WRITE;
        let length = length as usize;
        if access == Access::REMOTE_ATOMIC {
            let operation = match request.operation {
                Operation::FetchAdd { add, .. } => Atomic::FetchAdd { add },
                Operation::CompareSwap { compare, swap, .. } => Atomic::CompareSwap { compare, swap },
                _ => return None,
            };
            let Data::Gather(&[sge]) = request.data else { return None };
            let local = Range { key: known_key(subject, sge.key), address: sge.address, length: length as u64 };
            let bytes = nic.memory.lend_briefly(subject, local, Access::LOCAL_WRITE).ok()?;
            let before = if bytes.may_vanish() { return None } else { accesses.atomic(&wanted, operation)? };
            // SAFETY: the guard lends as many bytes, to be written.
            unsafe { Guard::as_ptr(&bytes).cast::<u64>().write_unaligned(before) };
            return Some(Moved::ByMapping);
        }
        match request.data {
            // SAFETY: the bytes are there for the whole of this call.
            Data::Inline(bytes) if writes => unsafe {
                accesses.write(&wanted, bytes.as_ptr(), bytes.len(), (may_call, false))
            },
            Data::Gather(&[sge]) => {
                let local = Range { key: known_key(subject, sge.key), address: sge.address, length: sge.length.into() };
                let right = if writes { Access::empty() } else { Access::LOCAL_WRITE };
                let bytes = nic.memory.lend_briefly(subject, local, right).ok()?;
                let how = (may_call, bytes.may_vanish());
                // SAFETY: the guard lends as many bytes, with the right to write where it reads; for a system call
                // only, if they may vanish.
                unsafe {
                    match writes {
                        true => accesses.write(&wanted, Guard::as_ptr(&bytes), length, how),
                        false => accesses.read(&wanted, Guard::as_ptr(&bytes), length, how),
                    }
                }
            }
            _ => None,
        }
    }

    #[cold]
    fn tell_moved(&self, nic: &Ground, now: Time, request: &SendRequest<'_>, placement: &Placement, moved: Moved) {
        let by = if moved == Moved::ByMapping { "mapping" } else { "system_call" };
        let (wr_id, opcode, bytes) = (request.wr_id, request.operation.name(), u64::from(placement.length));
        let (dest_qpn, key, address) = (placement.to, placement.remote.key, placement.remote.address);
        let kind = trace::Kind::MovedDirectly { wr_id, opcode, dest_qpn, key, address, bytes, by };
        nic.records.trace.record(&trace::Event { at: now.as_nanos(), qpn: Some(self.qpn), kind });
    }

    /// Whether the peer's process lets this one reach its memory at present. Which requests go that way is another
    /// question.
    pub fn places_directly(&self) -> bool {
        matches!(&self.inner.lock().path.link, Link::Shared(link) if link.peer_memory().is_some())
    }

    /// Whether the last request that was carried out directly was by a mapping of the peer's memory, without a system
    /// call.
    pub fn stores_directly(&self) -> bool {
        self.inner.lock().direct.stores
    }

    /// Tells the peer whether this queue pair takes requests without this process, after it was changed. Completions
    /// are counted by packets, so one that counts takes none.
    pub(super) fn publish(&self, nic: &Ground, inner: &mut Inner) {
        self.withdraw(nic, inner);
        let (Some(published), Link::Shared(_)) = (&nic.links.published, &inner.path.link) else { return };
        let attributes = inner.pair.attributes();
        // In RTR once the first packet has come, of which the program is told.
        let takes = self.kind == Kind::ReliableConnected && inner.pair.takes_requests();
        let mut access =
            attributes.access.intersection(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if attributes.max_dest_rd_atomic == 0 {
            access.remove(Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        }
        if !takes || access.is_empty() || inner.counters.is_some() || inner.weak.is_some() {
            return;
        }
        let facts = PublishedQueuePair {
            peer: attributes.dest_qpn,
            address: attributes.av.dgid,
            domain: inner.pair.domain(),
            access,
        };
        published.publish_queue_pair(self.qpn, &facts);
        inner.published = true;
    }

    /// Tells the peer that it does not; afterwards nothing is under way.
    pub(super) fn withdraw(&self, nic: &Ground, inner: &mut Inner) {
        if std::mem::take(&mut inner.published)
            && let Some(published) = &nic.links.published
        {
            published.withdraw_queue_pair(self.qpn);
        }
    }

    /// Withdraws it if it has stopped by itself, before its program can know.
    #[inline]
    pub(super) fn withdraw_if_stopped(&self, nic: &Ground, inner: &mut Inner) {
        if inner.published && !inner.pair.takes_requests() {
            self.withdraw(nic, inner);
        }
    }
}
