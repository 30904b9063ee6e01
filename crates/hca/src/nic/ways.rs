//! The ways out of the NIC: which link leads to a peer, under which windows, and how a train or a message gets onto it.

use super::{LocalAddress, Nic, lock};
use crate::capture::Capture;
use crate::debt::Debtor;
use crate::device::Device;
use crate::host::{self, Host, SharedWindow, WindowOf, Windows};
use crate::multicast;
use crate::path::{Link, Path};
use crate::queue_pair::{Qp, TrainCargo};
use crate::shared;
use crate::udp::Outgoing;
use link::shared::{Front, State};
use link::slots::Slot;
use link::udp::{Cargo, Route};
use memory::Guard;
use std::sync::Arc;
use trace::Direction;
use transport::{AddressVector, Piece, Refusal, Train};
use wire::{Gid, Headers, Qpn, ROCE_PORT};

/// A train of fewer packets is copied.
const WORTH_LENDING: u32 = 3;

impl Nic {
    /// The way from a device to a peer.
    pub(crate) fn path(&self, device: &Device, av: &AddressVector, peer: Qpn, lane: u32) -> Path {
        let Some(source) = device.port().gid(av.sgid_index) else { return Path::default() };
        let destination = av.dgid;
        let here = self.is_own_address(destination);
        let link = match Slot::of(peer) {
            _ if !here || self.options.only_udp => Link::Udp,
            Some(_) if self.numbers.owns(peer) => Link::Process,
            Some(slot) => self.exchange.reach(slot, lane).map_or(Link::Udp, Link::Shared),
            None => Link::Udp,
        };
        let scope = multicast::scope(destination.to_ip(), device.interface_index());
        let route = link::udp::Route {
            source: source.to_ip(),
            destination: destination.to_ip(),
            scope,
            traffic_class: av.traffic_class,
            hop_limit: av.hop_limit,
        };
        Path { link, source, destination, route: Some(route) }
    }

    /// The windows under which packets of a path are sent.
    pub(crate) fn windows(&self, path: &Path, av: &AddressVector, peer: Qpn) -> Windows {
        if path.is_lossless() {
            return Windows::unlimited();
        }
        let process = (av.dgid, Slot::of(peer).map_or(0, Slot::number));
        let mut windows = lock(&self.windows);
        if windows.len() == windows.capacity() {
            // Before it grows: processes come and go, and nobody sends to those that went.
            windows.retain(|_, window| Arc::strong_count(window) > 1);
        }
        let window = windows.entry(process).or_insert_with(|| Arc::new(SharedWindow::new(self.peer_window)));
        let window = Arc::clone(window);
        Windows { peer: WindowOf::Shared(window), here: WindowOf::Shared(Arc::clone(&self.here)) }
    }

    /// Puts a train on its way, or into what goes out over UDP soon. A packet without a way is lost, as in any network; a payload that is gone is
    /// an error.
    pub(crate) fn send(
        &self,
        qp: &Qp,
        path: &Path,
        train: &Train<'_>,
        outgoing: &mut Outgoing<'_>,
        host: &mut Host<'_>,
    ) -> Result<(), Refusal> {
        if let Some(capture) = &self.capture {
            self.capture_sent(&mut lock(capture), qp, path, &mut TrainCargo { train, host });
        }
        match &path.link {
            Link::None => Ok(()),
            Link::Process => {
                let address = LocalAddress { source: path.source, destination: path.destination };
                let length = train.payload.len() as usize;
                let fill = |out: &mut [u8]| train.payload.copy(0, out, host);
                self.local.push(address, train.headers, train.count, length, fill)
            }
            Link::Shared(link) if link.state() == State::Up => {
                shared::datagrams::send_datagram(link, path, train, host)
            }
            Link::Shared(_) | Link::Udp => {
                let Some(route) = &path.route else { return Ok(()) };
                let lend = || self.lend(qp, train);
                match outgoing.send(route, &mut TrainCargo { train, host }, lend, train.retransmission) {
                    Err(link::udp::SendError::Payload(refusal)) => Err(refusal),
                    // Counted there; the packet is lost, and its sender will find out.
                    _ => Ok(()),
                }
            }
        }
    }

    /// Lends the payload of a train to the system call that sends it, if it is long, in one place, and will be sent again from a copy should the
    /// program change it meanwhile.
    fn lend(&self, qp: &Qp, train: &Train<'_>) -> Option<Guard<'_>> {
        let reliable = qp.kind().is_reliable() && train.wr_id.is_some();
        if !reliable || train.count < WORTH_LENDING || !qp.may_lend(train.retransmission) || self.capture.is_some() {
            return None;
        }
        let length = train.payload.len();
        match train.payload.pieces(0, length).next()? {
            Piece::Memory(subject, range) if range.length == u64::from(length) => {
                self.memory.lend(host::subject(subject), host::range(range), memory::Access::empty()).ok()
            }
            _ => None,
        }
    }

    /// Sends nothing but an acknowledgement. One that is lost is as if the message had been lost: it will be sent again.
    pub(crate) fn acknowledge(&self, route: &Route, headers: &Headers, outgoing: &mut Outgoing<'_>) {
        let lengths = (headers.len(), 0);
        let _ = outgoing.send_one(route, headers.bth.dest_qpn, lengths, |front, _| headers.encode(front).map(drop));
    }

    /// Begins to send what a queue pair has to send.
    pub(crate) fn outgoing(&self, from: Qpn) -> Outgoing<'_> {
        self.udp.outgoing(from)
    }

    #[inline]
    pub(crate) fn debtor(&self) -> &Debtor {
        &self.debtor
    }

    pub(crate) fn capture_sent(&self, capture: &mut Capture, qp: &Qp, path: &Path, cargo: &mut TrainCargo<'_, '_, '_>) {
        use link::udp::Cargo;
        let Some(route) = &path.route else { return };
        let port = self.udp.port(route, qp.qpn());
        let device = qp.context().device().name();
        let mut payload = Vec::new();
        for index in 0..cargo.count() {
            let (headers, length) = cargo.packet(index);
            payload.resize(length, 0);
            // A payload that is gone: the packet is not sent either.
            if cargo.payload(index, &mut payload).is_ok() {
                capture.frame(device, route, port, &headers, &payload, Direction::Outbound);
            }
        }
    }

    /// A train that came through shared memory, as the packets it stands for.
    pub(crate) fn capture_train(&self, capture: &mut Capture, front: &Front, payload: &[u8]) {
        let (source, destination) = front.addresses;
        let devices = self.devices();
        let device = devices.iter().find(|device| device.port().gids.contains(&Some(destination)));
        let (source, destination) = (source.to_ip(), destination.to_ip());
        let route = link::udp::Route { source, destination, scope: 0, traffic_class: 0, hop_limit: 64 };
        let to = AddressVector::default();
        let train = Train {
            headers: front.headers,
            count: if front.mtu == 0 { 1 } else { front.count },
            mtu: front.mtu,
            payload: transport::Payload::Bytes(payload),
            to: &to,
            wr_id: None,
            retransmission: false,
        };
        let name = device.map_or("other", |device| device.name());
        for index in 0..train.count {
            let (from, length) = train.slice(index);
            let bytes = payload.get(from as usize..from as usize + length as usize).unwrap_or(&[]);
            capture.frame(name, &route, ROCE_PORT, &train.packet(index), bytes, Direction::Inbound);
        }
    }

    /// Sends a management datagram.
    pub(crate) fn send_mad<C: Cargo>(&self, route: &Route, cargo: &mut C, headers: &Headers) {
        if let Some(capture) = &self.capture {
            let source = Gid::from_ip(route.source);
            let device = self.device_with(source).map_or_else(|| "other".into(), |device| device.name().to_owned());
            let mut payload = vec![0; cargo.packet(0).1];
            if cargo.payload(0, &mut payload).is_ok() {
                let port = self.udp.port(route, Qpn::GSI);
                lock(capture).frame(&device, route, port, headers, &payload, Direction::Outbound);
            }
        }
        // Counted there; the message is lost, and its sender will find out.
        let _ = self.udp.outgoing(Qpn::GSI).send(route, cargo, || None, false);
    }

    /// The name of the device that has the address a packet was sent to, or that a packet to all came in by. What is for none of them goes by another
    /// name.
    pub(super) fn device_of(&self, arrival: &link::udp::Arrival<'_>) -> String {
        let (devices, gid) = (self.devices(), arrival.destination());
        let device = devices.iter().find(|device| match arrival.is_multicast() {
            true => device.interface_index() == arrival.interface,
            false => device.port().gids.contains(&Some(gid)),
        });
        device.map_or("other", |device| device.name()).to_owned()
    }
}
