//! SIDR_REQ and SIDR_REP: find the datagram queue pair behind a service id (specification 12.11).

use super::code::codes;
use super::fields::message;
use super::{CommId, Data, ServiceId};
use crate::{Pkey, Qkey, Qpn};

message! {
    /// Request for the queue pair behind a service id.
    SidrReq {
        /// The sender's name for the request.
        request_id: CommId;
        /// The partition.
        pkey: Pkey, then 2 reserved;
        /// What is asked for.
        service_id: ServiceId;
        /// For the user; an IP service begins with [`IpCm`](super::IpCm).
        private_data: Data<216>;
    }
}

codes! {
    /// How the resolution went.
    SidrStatus(u8), bits 8, {
        Valid = 0 "queue pair found",
        ServiceIdNotSupported = 1 "service id not supported",
        Rejected = 2 "rejected by the service",
        NoQp = 3 "no queue pair available",
        Redirected = 4 "go to another port",
        UnsupportedVersion = 5 "unsupported version",
    }
}

message! {
    /// Reply to a service id resolution.
    SidrRep {
        /// The receiver's name for the request.
        request_id: CommId;
        /// How it went.
        status: SidrStatus;
        /// How many bytes of [`SidrRep::info`] count.
        info_length: u8, then 2 reserved;
        /// The queue pair.
        qpn: Qpn;
        /// What was asked for.
        service_id: ServiceId;
        /// The key of the queue pair.
        qkey: Qkey;
        /// More, depending on the status.
        info: Data<72>;
        /// For the user.
        private_data: Data<136>;
    }
}
