//! The ways out of the NIC: which link leads to a peer, under which windows, and how a train or a message gets onto it.

use crate::ground::Ground;
use crate::links::path::{self, Link, Path};
use crate::links::registry::{Host, Peer};
use crate::links::udp::Outgoing;
use crate::links::windows::Windows;
use crate::objects::device::Device;
use crate::progress::delayed_ack::DelayedAckOwner;
use crate::queue_pair::port::NicPort;
use crate::queue_pair::{Qp, TrainCargo};
use crate::record::capture::Capture;
use crate::tuning::LEND_MIN_PACKETS;
use ::host::arrival::Origin;
use ::host::names::ManagementClass;
use ::host::slots::Slot;
use latch::plain::Mutex;
use link::shared::Front;
use link::udp::{PortProbe, Route};
use link::{Arrived, Destination, Handling, NoPayload};
use memory::Guard;
use std::sync::Arc;
use trace::{Direction, DropReason};
use transport::{AddressVector, Piece, Train};
use wire::access::{Access, Refusal};
use wire::mad::MadHeader;
use wire::{Ecn, Gid, Headers, IpHeader, Packet, Qpn, ROCE_PORT, UdpHeader};

impl Ground {
    /// The way from a device's port, which the vector names, to a peer.
    pub(crate) fn path(&self, device: &Arc<Device>, av: &AddressVector, peer: Qpn, lane: u32) -> Path {
        let (source, is_cut) = {
            let Some(device) = device.at_port(av.port) else { return Path::default() };
            let port = device.port();
            (port.gid(av.sgid_index), port.is_cut)
        };
        if is_cut {
            return Path { link: Link::Down, source: source.unwrap_or_default(), destination: av.dgid, route: None };
        }
        let Some(source) = source else { return Path::default() };
        let destination = av.dgid;
        if self.links.is_black_hole(source, destination) {
            return Path { link: Link::BlackHole, source, destination, route: None };
        }
        let is_here = !self.options.only_udp && self.host.is_own_address(destination);
        let link = self.links.registry.way(
            &Host { numbers: &self.host.numbers, exchange: &self.links.exchange },
            &Peer { qpn: peer, is_here, lane },
        );
        let scope = path::scope(destination.to_ip(), device.interface_index());
        let route = link::udp::Route {
            source: source.to_ip(),
            destination: destination.to_ip(),
            scope,
            // The first six bits are the program's, the last two the NIC's.
            traffic_class: Ecn::Capable0.in_class(av.traffic_class),
            hop_limit: av.hop_limit,
        };
        Path { link, source, destination, route: Some(route) }
    }

    /// The windows under which packets of a path are sent.
    pub(crate) fn windows(&self, path: &Path, av: &AddressVector, peer: Qpn) -> Windows {
        if !path.needs_windows() {
            return Windows::unlimited();
        }
        self.windows.towards((av.dgid, Slot::of(peer).map_or(0, Slot::number)))
    }

    /// Puts a train on its way, or into what goes out over UDP soon. A packet without a way is lost, as in any network;
    /// a payload that is gone is an error.
    pub(crate) fn send(
        &self,
        qp: &Qp,
        path: &Path,
        train: &Train<'_>,
        outgoing: &mut Outgoing<'_>,
        port: &mut NicPort<'_>,
    ) -> Result<(), Refusal> {
        if let Some(capture) = &self.records.capture {
            self.capture_sent(&mut capture.lock(), qp, path, &mut TrainCargo { train, port });
        }
        let no_route = || self.dropped(self.now(), Some(qp.qpn()), Some(&train.headers), DropReason::NoRoute);
        match &path.link {
            Link::None => {
                no_route();
                Ok(())
            }
            Link::Down => {
                self.dropped(self.now(), Some(qp.qpn()), Some(&train.headers), DropReason::PortDown);
                Ok(())
            }
            Link::BlackHole => {
                self.dropped(self.now(), Some(qp.qpn()), Some(&train.headers), DropReason::Partitioned);
                Ok(())
            }
            Link::General(entry) => self.send_through(entry.link(), qp.qpn(), path, train, port),
            // A ring that is up takes what it has room for elsewhere.
            Link::Shared(_) | Link::Udp => {
                let Some(route) = path.route_of(&train.headers) else {
                    no_route();
                    return Ok(());
                };
                let lend = || self.lend(qp, train);
                match outgoing.send(&route, &mut TrainCargo { train, port }, lend, train.retransmission) {
                    Err(link::udp::SendError::Payload(refusal)) => Err(refusal),
                    // Told of there; the packet is lost, and its sender will find out.
                    _ => Ok(()),
                }
            }
        }
    }

    /// Lends the payload of a train to the system call that sends it, if it is long, in one place, and will be sent
    /// again from a copy should the program change it meanwhile.
    fn lend(&self, qp: &Qp, train: &Train<'_>) -> Option<Guard<'_>> {
        let reliable = qp.kind().is_reliable() && train.wr_id.is_some();
        if !reliable
            || train.count < LEND_MIN_PACKETS
            || !qp.may_lend(train.retransmission)
            || self.records.capture.is_some()
        {
            return None;
        }
        let length = train.payload.len();
        match train.payload.pieces(0, length).next()? {
            Piece::Memory(subject, range) if range.length == u64::from(length) => {
                self.memory.lend(subject, range, Access::empty()).ok()
            }
            _ => None,
        }
    }

    /// Sends a packet without payload, whose loss matters little: an acknowledgement that is lost is as if the message
    /// had been lost, which will be sent again.
    pub(crate) fn send_alone(&self, route: &Route, headers: &Headers, outgoing: &mut Outgoing<'_>) {
        let lengths = (headers.len(), 0);
        let _ = outgoing.send_one(route, headers.bth.dest_qpn, lengths, |front, _| headers.encode(front).map(drop));
    }

    /// Begins to send what a queue pair has to send.
    pub(crate) fn outgoing(&self, from: Qpn) -> Outgoing<'_> {
        self.links.udp.outgoing(self, from)
    }

    #[inline]
    pub(crate) fn delayed_ack_owner(&self) -> &DelayedAckOwner {
        &self.progress.delayed_ack_owner
    }

    pub(crate) fn capture_sent(&self, capture: &mut Capture, qp: &Qp, path: &Path, cargo: &mut TrainCargo<'_, '_, '_>) {
        use link::udp::Cargo;
        let Some(route) = path.route_of(&cargo.train.headers) else { return };
        let port = self.links.udp.port(&route, qp.qpn());
        let device = qp.port_device().port_name();
        let mut payload = Vec::new();
        for index in 0..cargo.count() {
            let (headers, length) = cargo.packet(index);
            payload.resize(length, 0);
            // A payload that is gone: the packet is not sent either.
            if cargo.payload(index, &mut payload).is_ok() {
                capture.frame(device, &route, port, &headers, &payload, Direction::Outbound);
            }
        }
    }

    /// A train that came through shared memory, as the packets it stands for.
    pub(crate) fn capture_train(&self, capture: &Mutex<Capture>, front: &Front, payload: &[u8]) {
        let (source, destination) = front.addresses;
        let Front { headers, count, mtu, .. } = front;
        let (count, mtu) = (*count, *mtu);
        // Only datagrams say how they are to be handled.
        let handling = if headers.deth.is_some() { front.handling } else { Handling::USUAL };
        let (process, ip, congestion_marked) = (None, None, false);
        self.capture_arrived(
            capture,
            &Arrived { headers, count, mtu, payload, source, destination, process, ip, handling, congestion_marked },
        );
    }

    /// What came over a link that is received from through the trait, as the packets it stands for. The capture is not
    /// locked before the list of devices.
    pub(crate) fn capture_arrived(&self, capture: &Mutex<Capture>, train: &Arrived<'_>) {
        let Arrived { source, destination, handling, .. } = *train;
        let devices = self.host.port_devices();
        let device = devices.iter().find(|device| device.port().gids.contains(&Some(destination)));
        let (source, destination) = (source.to_ip(), destination.to_ip());
        let sent = Ecn::of_sent(train.headers.bth.opcode);
        let ecn = if train.congestion_marked { Ecn::Experienced } else { sent };
        let (traffic_class, hop_limit) = (ecn.in_class(handling.traffic_class), handling.hops());
        let route = link::udp::Route { source, destination, scope: 0, traffic_class, hop_limit };
        let name = device.map_or("other", |device| device.port_name());
        let mut capture = capture.lock();
        for index in 0..train.packets() {
            let (headers, bytes) = train.packet(index);
            capture.frame(name, &route, ROCE_PORT, &headers, bytes, Direction::Inbound);
        }
    }

    /// Why what is sent from one address to another gets nowhere, if a failure script cuts it off.
    fn way_is_cut(&self, source: Gid, destination: Gid) -> Option<DropReason> {
        match self.host.is_cut(source) {
            true => Some(DropReason::PortDown),
            false => self.links.is_black_hole(source, destination).then_some(DropReason::Partitioned),
        }
    }

    /// Sends a management datagram, from the socket that `to.from` chooses.
    pub(crate) fn send_mad(&self, to: &Destination, headers: &Headers, bytes: &[u8]) {
        if let Some(reason) = self.way_is_cut(to.source, to.destination) {
            return self.dropped(self.now(), Some(Qpn::GSI), Some(headers), reason);
        }
        self.note_mad(to, || self.links.udp.port(&Route::from(to), to.from), headers, bytes);
        if self.host.is_own_address(to.destination) {
            return self.tell_local(to, headers, bytes);
        }
        let mut fill = |from: usize, out: &mut [u8]| {
            let payload = bytes.get(from..from + out.len()).ok_or(NoPayload)?;
            out.copy_from_slice(payload);
            Ok(())
        };
        let length = bytes.len();
        let mut train = link::Train { headers, count: 1, mtu: 0, length, fill: &mut fill };
        // If it is not sent, that is told of there; the message is lost, and its sender will find out.
        let _ = self.outgoing(to.from).send(&Route::from(to), &mut train, || None, false);
    }

    /// Sends a management datagram to another host, from the socket of a probe.
    pub(crate) fn probe_port(&self, probe: &mut PortProbe, to: &Destination, headers: &Headers, bytes: &[u8]) {
        if let Some(reason) = self.way_is_cut(to.source, to.destination) {
            return self.dropped(self.now(), Some(Qpn::GSI), Some(headers), reason);
        }
        self.note_mad(to, || probe.port(), headers, bytes);
        probe.send(&Route::from(to), headers, bytes);
    }

    /// A management datagram is sent: captures and counters have it.
    fn note_mad(&self, to: &Destination, port: impl FnOnce() -> u16, headers: &Headers, bytes: &[u8]) {
        if let Some(capture) = &self.records.capture {
            let device =
                self.host.device_with(to.source).map_or_else(|| "other".into(), |device| device.port_name().to_owned());
            capture.lock().frame(&device, &Route::from(to), port(), headers, bytes, Direction::Outbound);
        }
        if let Some(device) = self.host.device_with(to.source) {
            device.count_mad(to.destination, headers.bth.opcode, bytes.len(), true);
        }
    }

    /// The management class that a datagram asks something of, on the device with an address.
    fn class_asked(&self, destination: Gid, datagram: &[u8]) -> Option<ManagementClass> {
        let (header, _) = MadHeader::parse(datagram).ok()?;
        let (class, version) = (header.management_class, header.class_version);
        let (interface, oui) = (self.host.port_id_of(destination), ::mad::class::oui(class, datagram));
        (!header.is_response()).then_some(ManagementClass { interface, class, version, oui })
    }

    /// A message to a process of this host, as it would be on the wire.
    fn tell_local(&self, to: &Destination, headers: &Headers, bytes: &[u8]) {
        let packet = Packet { headers: *headers, payload: bytes };
        let port = self.links.udp.port(&Route::from(to), to.from);
        let mut encoded = vec![0; packet.encoded_length()];
        let ip = IpHeader::udp(to.source, to.destination, encoded.len());
        let (Ok(ip), Ok(udp)) = (ip, UdpHeader::roce(port, encoded.len())) else {
            return self.dropped(self.now(), Some(Qpn::GSI), Some(headers), DropReason::NoRoute);
        };
        let told = packet.encode(&ip, &udp, &mut encoded).is_ok_and(|length| {
            let bytes = encoded.get(..length).unwrap_or_default();
            let (headers, payload, origin) = (*headers, packet.payload, Origin::Local);
            let none = link::udp::Arrival::NONE;
            let class = self.class_asked(to.destination, payload);
            self.links.udp.tell(&link::udp::Arrival { headers, payload, ip, bytes, port, origin, ..none }, class)
        });
        if !told {
            self.dropped(self.now(), Some(Qpn::GSI), Some(headers), DropReason::Overflow);
        }
    }

    /// The name of the device that has the address a packet was sent to, or that a packet to all came in by. What is
    /// for none of them goes by another name.
    pub(crate) fn device_of(&self, arrival: &link::udp::Arrival<'_>) -> String {
        let (devices, gid) = (self.host.port_devices(), arrival.destination());
        let device = devices.iter().find(|device| match arrival.is_multicast() {
            true => device.interface_index() == arrival.interface,
            false => device.port().gids.contains(&Some(gid)),
        });
        device.map_or("other", |device| device.port_name()).to_owned()
    }
}
