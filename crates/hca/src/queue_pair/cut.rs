//! Queue pairs whose port is taken down on purpose, or whose peer is beyond a black hole: their way is cut, so that what
//! they send is lost; with the port down, what comes for them is not taken either. Afterwards they find a way as they did
//! when they were connected, and go on where they were, unless their retries have run out meanwhile.

use super::belief::Belief;
use super::shared_link::Shared;
use super::{Inner, Qp};
use crate::ground::Ground;
use crate::links::path::Link;
use crate::queue_pair::reach::Neighbour;
use transport::{Modify, State};

impl Qp {
    /// The port of its device has gone down, or is up again; or a part of the network has.
    pub(crate) fn follow_ways(&self, nic: &Ground) {
        let mut inner = self.inner.lock();
        self.flush_acks(nic, &mut inner);
        if self.kind.is_connected() {
            self.find_way_again(nic, &mut inner);
        } else {
            inner.belief = self.belief_without_peer();
        }
        let now = nic.now();
        self.drive(nic, &mut inner, now);
        self.leave(nic, inner);
    }

    /// Its way is cut, or what it was before; which one, the device's port and the network say.
    fn find_way_again(&self, nic: &Ground, inner: &mut Inner) {
        if matches!(inner.path.link, Link::None) {
            return;
        }
        let attributes = inner.pair.attributes();
        let path = nic.path(self.context.device(), &attributes.av, attributes.dest_qpn, self.lane());
        let (is_cut, was_cut) = (path.link.is_cut(), inner.path.link.is_cut());
        if !is_cut && !was_cut {
            return;
        }
        inner.path = path;
        // What is under way is counted in the windows it has: they stay, if the way has any.
        if !is_cut && inner.path.needs_windows() != inner.windows.are_shared() {
            let windows = nic.windows(&inner.path, &attributes.av, attributes.dest_qpn);
            let left = std::mem::replace(&mut inner.windows, windows);
            self.pass_on(&nic.progress, &left);
        }
        inner.shared = Shared::default();
        inner.belief = Belief::of(&nic.host, &inner.path, attributes.dest_qpn);
        self.note_udp(&nic.progress, inner);
        self.publish(nic, inner);
    }

    /// What it takes where it has no one peer.
    pub(super) fn belief_without_peer(&self) -> Belief {
        if self.port_device().port().is_cut { Belief::with_port_down() } else { Belief::default() }
    }

    /// Its device has failed: it stops, and what was posted is flushed.
    pub(crate) fn stop_with_device(&self, nic: &Ground) {
        // ERR is legal from every state.
        let _ = self.change(nic, &Modify { state: Some(State::Error), ..Modify::default() }, Neighbour::Unasked);
    }
}
