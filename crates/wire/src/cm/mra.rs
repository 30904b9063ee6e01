//! MRA: says that a message arrived and that the answer will take a while (specification 12.6.6).

use super::code::codes;
use super::fields::message;
use super::{CommId, Data};
use crate::Timeout;

codes! {
    /// The message whose receipt is acknowledged.
    ReceivedMessage(u8), bits 2, {
        Req = 0 "REQ",
        Rep = 1 "REP",
        Lap = 2 "LAP",
    }
}

message! {
    /// Message receipt acknowledgement.
    Mra {
        /// The sender's name for the connection.
        local_comm_id: CommId;
        /// The receiver's name for it.
        remote_comm_id: CommId;
        /// What arrived.
        received: ReceivedMessage;
        /// How long the answer will take.
        service_timeout: Timeout;
        /// For the user.
        private_data: Data<222>;
    }
}
