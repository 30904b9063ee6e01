//! What a program calls on a queue pair, and what follows from it: trains inside the process are delivered, and queue
//! pairs go on that got room to send.

use crate::call_trace as calls;
use crate::nic::{Nic, probes};
use crate::objects::device::Device;
use crate::queue_pair::Qp;
use crate::queue_pair::reach::Neighbour;
use trace::Call;
use transport::{AddressVector, Attributes, Modify, ModifyError, PostError, ReceiveRequest, SendRequest, State};

impl Nic {
    /// Tells the trace of the way of an address handle.
    pub fn tell_path(&self, device: &Device, av: &AddressVector) {
        self.called(None, || calls::path(device.port().gid(av.sgid_index), av));
    }
}

impl Qp {
    /// Calls `observer` once when it goes to ERR, in whichever thread drives, with no lock held. There can be one.
    pub fn observe_stop(&self, nic: &Nic, observer: impl Fn() + Send + Sync + 'static) {
        nic.called(Some(self.qpn()), || Call::AwaitClose {});
        self.set_stop_observer(observer);
    }

    /// Changes state and attributes, or neither. The link to its peer is chosen on the way to RTR, and where the network
    /// has to be asked for the peer, this waits for its answer, a second at most.
    pub fn modify(&self, nic: &Nic, modify: &Modify) -> Result<(), ModifyError> {
        self.change_and_tell(nic, modify, Neighbour::Asked)
    }

    /// Changes state and attributes like [`modify`](Qp::modify), for a thread that must not wait: the network is not
    /// asked.
    pub fn modify_at_once(&self, nic: &Nic, modify: &Modify) -> Result<(), ModifyError> {
        self.change_and_tell(nic, modify, Neighbour::Unasked)
    }

    fn change_and_tell(&self, nic: &Nic, modify: &Modify, neighbour: Neighbour) -> Result<(), ModifyError> {
        self.change(&nic.ground, modify, neighbour)?;
        nic.called(Some(self.qpn()), || calls::modify_qp(modify));
        if let Some(av) = &modify.av {
            nic.called(Some(self.qpn()), || calls::path(self.context().device().port().gid(av.sgid_index), av));
        }
        nic.ask_for_peer(self, modify.state);
        nic.after_call(nic.now());
        Ok(())
    }

    /// Its connection has ended, as the connection manager says: everything outstanding is flushed.
    pub fn disconnect(&self, nic: &Nic) {
        self.end_connection(&nic.ground);
        nic.after_call(nic.now());
    }

    /// Posts sends, in order, until one is refused: then its index and why.
    #[inline]
    pub fn post_send(&self, nic: &Nic, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        self.post_more_sends(nic, requests, 0)
    }

    /// Posts a part of a list of requests, which has `first` requests before this part.
    #[inline]
    pub fn post_more_sends(
        &self,
        nic: &Nic,
        requests: &[SendRequest<'_>],
        first: usize,
    ) -> Result<(), (usize, PostError)> {
        let posted = self.send(&nic.ground, requests, first);
        if probes::are_watched() {
            probes::posted_sends(self, &requests[..posted.map_or_else(|(sent, _)| sent, |()| requests.len())]);
        }
        if nic.tracing().is_on() {
            nic.note_sent(self, &requests[..posted.map_or_else(|(sent, _)| sent, |()| requests.len())]);
        }
        nic.after_posting();
        posted
    }

    /// Posts sends like [`post_send`](Qp::post_send), but none of them if the queue has no room for all. The index is
    /// then that of the first for which there is none.
    pub fn post_send_all(&self, nic: &Nic, requests: &[SendRequest<'_>]) -> Result<(), (usize, PostError)> {
        // One alone is taken or not.
        if requests.len() > 1 {
            let (room, capacity, state) = self.send_room();
            if requests.len() > room && state >= State::ReadyToSend {
                return Err((room, PostError::QueueFull { queue: "send", capacity }));
            }
        }
        self.post_send(nic, requests)
    }

    /// Posts receives, in order, until one is refused: then its index and why.
    #[inline]
    pub fn post_receive(&self, nic: &Nic, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, PostError)> {
        self.post_more_receives(nic, requests, 0)
    }

    /// Posts receives of a part of the program's list, which has `first` requests before them.
    #[inline]
    pub fn post_more_receives(
        &self,
        nic: &Nic,
        requests: &[ReceiveRequest<'_>],
        first: usize,
    ) -> Result<(), (usize, PostError)> {
        let posted = self.receive(&nic.ground, requests, first);
        if probes::are_watched() {
            probes::posted_receives(self, &requests[..posted.map_or_else(|(done, _)| done, |()| requests.len())]);
        }
        nic.after_posting();
        posted
    }

    /// Its attributes, for a program that asks.
    pub fn query(&self, nic: &Nic) -> Attributes {
        let attributes = self.attributes();
        nic.called(Some(self.qpn()), || Call::QueryQp { state: attributes.state.name() });
        attributes
    }
}
