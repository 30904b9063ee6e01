//! WRITEs and READs without a packet, between processes of one user: the posting thread moves the bytes itself, where
//! the peer's process lets it (`link::shared::direct`). Here is when a request goes that way, and what queue pairs of
//! this process tell their peers. What they are told of regions is in `links::region_publisher`.

use crate::ground::Ground;
use crate::links::path::Link;
use crate::queue_pair::port::known_key;
use crate::queue_pair::{Inner, Qp};
use crate::tuning::{KERNEL_COPY_MAX_BYTES, MAPPED_COPY_MAX_BYTES};
use link::shared::direct::{DirectAccess, Moved, PublishedQueuePair};
use memory::Guard;
use transport::{Data, Kind, Operation, Placement, SendRequest, State};
use wire::access::{Access, Range};

/// Whether a request is for memory of the peer that this process can map.
#[inline]
fn stores(inner: &Inner, request: &SendRequest<'_>) -> bool {
    let (Operation::Write { remote, immediate: None } | Operation::Read { remote }) = request.operation else {
        return false;
    };
    let Link::Shared(link) = &inner.path.link else { return false };
    link.peer_memory().is_some_and(|peer| peer.can_map(remote.key))
}

impl Qp {
    /// Carries out as many of these requests, from the first on, as it may without the peer's process, and returns how
    /// many. Several only where that takes no system call: else a list travels faster through the ring.
    #[inline]
    pub(super) fn place_first(&self, nic: &Ground, inner: &mut Inner, requests: &[SendRequest<'_>]) -> usize {
        if requests.len() > 1 && !inner.stores_directly && !requests.first().is_some_and(|first| stores(inner, first)) {
            return 0;
        }
        let mut placed = 0;
        while let Some(request) = requests.get(placed)
            && (placed == 0 || inner.stores_directly)
            && self.place_directly(nic, inner, request)
        {
            placed += 1;
        }
        placed
    }

    /// Carries out a request without the peer's process, if it may: what was posted before is done, and the peer says
    /// yes. False leaves everything as it was.
    ///
    /// A program that posts one request after the other and does not look for completions in between is served faster
    /// by the ring than by system calls, because many travel together: so the completion queue must have been polled
    /// since the last time, unless the memory is one that this process can map.
    #[inline]
    pub(super) fn place_directly(&self, nic: &Ground, inner: &mut Inner, request: &SendRequest<'_>) -> bool {
        if !matches!(request.operation, Operation::Write { immediate: None, .. } | Operation::Read { .. }) {
            return false;
        }
        let Link::Shared(link) = &inner.path.link else { return false };
        let Some(peer) = link.peer_memory() else { return false };
        let Some(cq) = self.send_cq.as_ref() else { return false };
        if nic.records.capture.is_some() || nic.records.trace.is_watched() || nic.links.registry.rings_meet_faults() {
            return false;
        }
        let Some(placement) = inner.pair.may_place(request, MAPPED_COPY_MAX_BYTES) else { return false };
        let Placement { subject, to, remote, access, length } = placement;
        let may_call = length <= KERNEL_COPY_MAX_BYTES && (inner.stores_directly || cq.was_polled());
        if !may_call && !peer.can_map(remote.key) {
            return false;
        }
        let range = Range { key: remote.key, address: remote.address, length: length.into() };
        let wanted = DirectAccess { from: self.qpn, address: inner.path.source, to, range, access };
        let writes = access == Access::REMOTE_WRITE;
        let length = length as usize;
        let moved = match request.data {
            // SAFETY: the bytes are there for the whole of this call.
            Data::Inline(bytes) if writes => unsafe { peer.write(&wanted, bytes.as_ptr(), bytes.len(), false) },
            Data::Gather(&[sge]) => {
                let local = Range { key: known_key(subject, sge.key), address: sge.address, length: sge.length.into() };
                let right = if writes { Access::empty() } else { Access::LOCAL_WRITE };
                let Ok(bytes) = nic.memory.lend_briefly(subject, local, right) else { return false };
                let vanishes = bytes.may_vanish();
                // SAFETY: the guard lends as many bytes, with the right to write where it reads; for a system call
                // only, if they may vanish.
                unsafe {
                    match writes {
                        true => peer.write(&wanted, Guard::as_ptr(&bytes), length, vanishes),
                        false => peer.read(&wanted, Guard::as_ptr(&bytes), length, vanishes),
                    }
                }
            }
            _ => None,
        };
        inner.stores_directly = moved == Some(Moved::ByMapping);
        if moved.is_none() {
            return false;
        }
        cq.was_served();
        let now = nic.now();
        let (pair, mut port) = self.split(nic, inner);
        if nic.records.trace.is_on() {
            nic.records.tell_send(now, self.qpn, 0, request);
        }
        pair.placed(now, request, &placement, &mut port);
        if nic.records.trace.is_on() {
            let by = if moved == Some(Moved::ByMapping) { "mapping" } else { "system_call" };
            let (wr_id, opcode, bytes) = (request.wr_id, request.operation.name(), length as u64);
            let (dest_qpn, key, address) = (to, range.key, range.address);
            let kind = trace::Kind::MovedDirectly { wr_id, opcode, dest_qpn, key, address, bytes, by };
            nic.records.trace.record(&trace::Event { at: now.as_nanos(), qpn: Some(self.qpn), kind });
        }
        self.complete_all(nic, inner, now, None);
        true
    }

    /// Whether the peer's process lets this one reach its memory at present. Which requests go that way is another
    /// question.
    pub fn places_directly(&self) -> bool {
        matches!(&self.inner.lock().path.link, Link::Shared(link) if link.peer_memory().is_some())
    }

    /// Whether the last request that was carried out directly was by a mapping of the peer's memory, without a system
    /// call.
    pub fn stores_directly(&self) -> bool {
        self.inner.lock().stores_directly
    }

    /// Tells the peer whether this queue pair takes requests without this process, after it was changed. Completions
    /// are counted by packets, so one that counts takes none.
    pub(super) fn publish(&self, nic: &Ground, inner: &mut Inner) {
        self.withdraw(nic, inner);
        let (Some(published), Link::Shared(_)) = (&nic.links.published, &inner.path.link) else { return };
        let attributes = inner.pair.attributes();
        let takes = self.kind == Kind::ReliableConnected && attributes.state == State::ReadyToSend;
        let mut access = attributes.access.intersection(Access::REMOTE_READ | Access::REMOTE_WRITE);
        if attributes.max_dest_rd_atomic == 0 {
            access.remove(Access::REMOTE_READ);
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
        if inner.published && inner.pair.state() != State::ReadyToSend {
            self.withdraw(nic, inner);
        }
    }
}
