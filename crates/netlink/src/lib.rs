//! `NETLINK_RDMA` as programs know it from the kernel: a datagram of requests goes in, datagrams of answers come out.
//! No socket, no clock and no process is touched here; what there is comes from a [`Host`]. Requests are not trusted:
//! they get the kernel's answers, among them its errors.
//!
//! | module | what |
//! |---|---|
//! | [`message`] | messages and attributes, as bytes |
//! | [`numbers`] | the numbers of `rdma/rdma_netlink.h` |
//! | [`requests`] | what a request asks for, and who answers it |
//! | `devices`, `resources`, `statistics` | the answers |

#![forbid(unsafe_code)]

mod devices;
pub mod message;
pub mod numbers;
pub mod requests;
mod resources;
mod statistics;
#[cfg(test)]
mod tests;

pub use requests::answer;

use inventory::Process;
use std::rc::Rc;
use transport::Counters;

/// A device, as far as it does not change while a program runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Its GUID, as a number.
    pub guid: u64,
    /// The version of its firmware: ours.
    pub firmware: String,
    /// `device_cap_flags`.
    pub capabilities: u64,
    /// Its number.
    pub number: u32,
    /// The number of its interface.
    pub interface: u32,
    /// The name of its interface.
    pub interface_name: String,
    /// Its ports, from 1 on: whether they are up.
    pub ports: Vec<bool>,
}

/// What there is to tell of.
pub trait Host {
    /// The devices; their numbers are those that `ibv_get_device_index` has.
    fn devices(&mut self) -> Vec<Device>;
    /// The processes, with what they have.
    fn processes(&mut self) -> Rc<Vec<Process>>;
    /// What was counted on a port of a device.
    fn counters(&mut self, device: &str, port: u32) -> Counters;
    /// Whether the program that asks may change the network, and be told keys.
    fn is_administrator(&self) -> bool;
}
