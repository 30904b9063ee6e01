//! RTU: tells the replier that the connection is ready to use (specification 12.6.9).

use super::fields::message;
use super::{CommId, Data};

message! {
    /// Ready to use.
    Rtu {
        /// The sender's name for the connection.
        local_comm_id: CommId;
        /// The receiver's name for it.
        remote_comm_id: CommId;
        /// For the user.
        private_data: Data<224>;
    }
}
