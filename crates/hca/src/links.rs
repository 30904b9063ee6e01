//! The links that a queue pair may use, in order of preference; the sockets of UDP and of raw packets; windows that
//! queue pairs share.

pub(crate) mod packets;
pub(crate) mod path;
pub(crate) mod region_publisher;
pub(crate) mod registry;
pub(crate) mod udp;
mod udp_link;
pub(crate) mod unread_watch;
pub(crate) mod windows;
