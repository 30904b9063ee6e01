//! DREQ and DREP: the two messages that end a connection (specification 12.6.10 and 12.6.11).

use super::fields::message;
use super::{CommId, Data};
use crate::Qpn;

message! {
    /// Request to disconnect.
    Dreq {
        /// The sender's name for the connection.
        local_comm_id: CommId;
        /// The receiver's name for it.
        remote_comm_id: CommId;
        /// The receiver's queue pair.
        remote_qpn: Qpn;
        /// For the user.
        private_data: Data<220>;
    }
}

message! {
    /// Reply to a disconnection.
    Drep {
        /// The sender's name for the connection.
        local_comm_id: CommId;
        /// The receiver's name for it.
        remote_comm_id: CommId;
        /// For the user.
        private_data: Data<224>;
    }
}
