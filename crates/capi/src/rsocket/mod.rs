//! Sockets over RDMA: the calls of `rsocket(7)`. Each is the call without the `r`, on a [socket](sockets::Socket).
//!
//! | part | what it has |
//! |---|---|
//! | `table` | descriptors and the sockets behind them |
//! | `lifecycle` | from `rsocket` to `rclose` |
//! | `data` | sending and receiving |
//! | `waiting` | calls that sleep |
//! | `poll` | `rpoll` and `rselect` |
//! | `options` | `rsetsockopt`, `rgetsockopt`, `rfcntl` |

mod address;
pub mod data;
pub mod iomap;
pub mod lifecycle;
pub mod options;
pub mod poll;
pub mod repoll;
mod table;
mod waiting;

pub(crate) use table::{Numbered, find as waitable};
