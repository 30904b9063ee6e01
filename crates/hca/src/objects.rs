//! The objects of the verbs: devices, contexts, completion queues, shared receive queues, groups. Queue pairs have a
//! room of their own.

pub mod channel;
pub(crate) mod completion_queue;
pub(crate) mod context;
pub mod device;
pub(crate) mod groups;
pub(crate) mod landing;
pub(crate) mod numbers;
pub(crate) mod shared_queue;
pub(crate) mod table;
