//! The messages the manager sends, made from what it knows of a connection.

use wire::cm::{
    ApStatus, Apr, CmDatagram, CommId, Data, Drep, Dreq, Failover, Lap, Mra, ReceivedMessage, Rej, RejectReason,
    RejectedMessage, Rep, Req, Rtu, TransportService,
};
use wire::{Qkey, Timeout, Transport, refuse_if};

use crate::connection::{Connection, State};
use crate::{Accept, CmError, Connect, Ece};

/// A datagram with vendor options.
pub(crate) fn with_options(transaction: u64, message: impl Into<wire::cm::Message>, ece: Ece) -> CmDatagram {
    let mut datagram = CmDatagram::new(transaction, message.into());
    datagram.header.attribute_modifier = ece.options;
    datagram
}

/// Puts `bytes` into a field.
pub(crate) fn data<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<Data<N>, CmError> {
    Data::from_slice(bytes).map_err(|_| CmError::DataTooLong { what, have: bytes.len(), room: N })
}

/// The REQ of a connection, if every value fits its field.
pub(crate) fn req(id: CommId, connect: &Connect) -> Result<Req, CmError> {
    let (service, extended_transport) = match connect.transport {
        Transport::Rc => (TransportService::ReliableConnection, 0),
        Transport::Uc => (TransportService::UnreliableConnection, 0),
        Transport::Xrc => (TransportService::Extended, 1),
        _ => return Err(CmError::OutOfRange("transport")),
    };
    for (name, value, bits) in [
        ("retry count", u32::from(connect.retry_count), 3),
        ("RNR retry count", connect.rnr_retry_count.into(), 3),
        ("CM retries", connect.max_cm_retries.into(), 4),
        ("flow label", connect.flow_label, 20),
        ("service level", connect.service_level.into(), 4),
        ("packet rate", connect.packet_rate.into(), 6),
        ("vendor id", connect.ece.vendor_id, 24),
    ] {
        refuse_if!(value >> bits != 0, CmError::OutOfRange(name));
    }
    Ok(Req {
        local_comm_id: id,
        vendor_id: connect.ece.vendor_id,
        service_id: connect.service,
        local_ca_guid: connect.ca_guid,
        local_qkey: Qkey::new(0),
        local_qpn: connect.qpn,
        responder_resources: connect.responder_resources,
        local_eecn: 0,
        initiator_depth: connect.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: connect.remote_cm_response_timeout,
        service,
        flow_control: connect.flow_control,
        starting_psn: connect.psn,
        local_cm_response_timeout: connect.local_cm_response_timeout,
        retry_count: connect.retry_count,
        pkey: connect.pkey,
        path_mtu: connect.mtu.code(),
        rdc_exists: false,
        rnr_retry_count: connect.rnr_retry_count,
        max_cm_retries: connect.max_cm_retries,
        srq: connect.srq,
        extended_transport,
        primary: wire::cm::Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: connect.route.source,
            remote_gid: connect.route.destination,
            flow_label: connect.flow_label,
            packet_rate: connect.packet_rate,
            traffic_class: connect.traffic_class,
            hop_limit: connect.hop_limit,
            service_level: connect.service_level,
            subnet_local: false,
            local_ack_timeout: connect.local_ack_timeout,
        },
        alternate: wire::cm::Path::default(),
        sap_supported: false,
        private_data: connect.private_data,
    })
}

/// The REP of a connection, if every value fits its field.
pub(crate) fn rep(id: CommId, connection: &Connection, accept: &Accept) -> Result<Rep, CmError> {
    refuse_if!(accept.rnr_retry_count > 7, CmError::OutOfRange("RNR retry count"));
    refuse_if!(accept.ece.vendor_id >> 24 != 0, CmError::OutOfRange("vendor id"));
    // An XRC target has no receive queue, and its number stands where an end-to-end context would.
    let (local_qpn, local_eecn) =
        if connection.xrc { (wire::Qpn::new(0), accept.qpn.value()) } else { (accept.qpn, 0) };
    Ok(Rep {
        local_comm_id: id,
        remote_comm_id: connection.peer,
        local_qkey: Qkey::new(0),
        local_qpn,
        local_eecn,
        starting_psn: accept.psn,
        vendor_id: accept.ece.vendor_id,
        responder_resources: accept.responder_resources,
        initiator_depth: accept.initiator_depth,
        target_ack_delay: accept.target_ack_delay,
        failover: Failover::Accepted,
        flow_control: accept.flow_control,
        rnr_retry_count: accept.rnr_retry_count,
        srq: accept.srq || connection.xrc,
        local_ca_guid: accept.ca_guid,
        private_data: accept.private_data,
    })
}

/// A REJ to a peer with which we have no connection.
pub(crate) fn stateless_rej(
    transaction: u64,
    ours: CommId,
    theirs: CommId,
    rejected: RejectedMessage,
    reason: RejectReason,
) -> CmDatagram {
    let (info, private_data) = (Data::default(), Data::default());
    let rej = Rej { local_comm_id: ours, remote_comm_id: theirs, rejected, info_length: 0, reason, info, private_data };
    CmDatagram::new(transaction, rej.into())
}

/// The answer to a peer that offers another path: RoCE has none.
pub(crate) fn apr(transaction: u64, lap: &Lap) -> CmDatagram {
    let apr = Apr {
        local_comm_id: lap.remote_comm_id,
        remote_comm_id: lap.local_comm_id,
        info_length: 0,
        status: ApStatus::NotSupported,
        info: Data::default(),
        private_data: Data::default(),
    };
    CmDatagram::new(transaction, apr.into())
}

impl Connection {
    /// The REJ that ends it, in the form its state asks for.
    pub fn rej(
        &self,
        id: CommId,
        reason: RejectReason,
        info: &[u8],
        private_data: Data<148>,
    ) -> Result<CmDatagram, CmError> {
        let (local_comm_id, rejected) = match self.state {
            // The peer has not learnt our name, and need not.
            State::ReqReceived => (CommId::new(0), RejectedMessage::Req),
            State::MraReqSent => (id, RejectedMessage::Req),
            State::RepReceived | State::MraRepSent => (id, RejectedMessage::Rep),
            _ => (id, RejectedMessage::NoMessage),
        };
        let remote_comm_id = self.peer;
        let info_length = info.len() as u8;
        let info = data("additional reject information", info)?;
        let rej = Rej { local_comm_id, remote_comm_id, rejected, info_length, reason, info, private_data };
        Ok(CmDatagram::new(self.transaction, rej.into()))
    }

    pub fn mra(&self, id: CommId, service_timeout: Timeout, private_data: Data<222>) -> CmDatagram {
        let received = if self.state.is_half_open() { ReceivedMessage::Req } else { ReceivedMessage::Rep };
        let mra = Mra { local_comm_id: id, remote_comm_id: self.peer, received, service_timeout, private_data };
        CmDatagram::new(self.transaction, mra.into())
    }

    pub fn rtu(&self, id: CommId, private_data: Data<224>) -> CmDatagram {
        CmDatagram::new(self.transaction, Rtu { local_comm_id: id, remote_comm_id: self.peer, private_data }.into())
    }

    pub fn dreq(&self, id: CommId, transaction: u64, private_data: Data<220>) -> CmDatagram {
        let dreq = Dreq { local_comm_id: id, remote_comm_id: self.peer, remote_qpn: self.remote_qpn, private_data };
        CmDatagram::new(transaction, dreq.into())
    }
}

/// The answer to a DREQ, whether or not we know the connection.
pub(crate) fn drep(transaction: u64, ours: CommId, theirs: CommId, private_data: Data<224>) -> CmDatagram {
    CmDatagram::new(transaction, Drep { local_comm_id: ours, remote_comm_id: theirs, private_data }.into())
}

/// What a DREQ says that was sent because a process ended, with or without its doing, and not because its program
/// asked for it. Other implementations find it in the private data, and may ignore it.
pub const PROCESS_ENDED: &[u8] = b"ubiverbs: the process has ended";

/// What a DREQ says because a process ended, as the message has it.
pub fn process_ended() -> Data<220> {
    Data::from_slice(PROCESS_ENDED).unwrap_or_default()
}
