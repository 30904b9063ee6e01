//! What a machine is told: what happened, and what it happened to.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

/// The process that a machine runs in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The names and addresses of the host.
    pub hosts: Vec<String>,
    /// The names of the executable: of its file, and as the system shows the process.
    pub names: Vec<String>,
    /// How many processes of the run opened a device before this one.
    pub index: u32,
}

/// What something happened to, or what could be struck: as much as is known of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scene<'a> {
    /// The device.
    pub device: Option<DeviceView<'a>>,
    /// The number of the port, from 1.
    pub port: Option<u8>,
    /// The queue pair.
    pub pair: Option<PairView<'a>>,
    /// The completion queue.
    pub queue: Option<QueueView>,
    /// The connection.
    pub connection: Option<ConnectionView>,
}

/// A device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its place among the devices, from 0.
    pub index: u32,
}

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairView<'a> {
    /// Its number.
    pub number: u32,
    /// Its type: a word of [`words::PAIR_KINDS`](crate::words::PAIR_KINDS).
    pub kind: &'a str,
    /// The peer's address, if it is connected.
    pub peer: Option<IpAddr>,
    /// As the how manieth of its process it was made, from 1.
    pub order: u32,
}

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueView {
    /// Its number.
    pub number: u32,
    /// As the how manieth of its process it was made, from 1.
    pub order: u32,
}

/// A connection of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionView {
    /// As the how manieth of its process it began, from 1.
    pub order: u32,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// The port that is listened on.
    pub port: Option<u16>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment<'a> {
    /// Time has passed, nothing else.
    Time,
    /// A device was opened. The time of the script begins with the first.
    Opened(Scene<'a>),
    /// A queue pair sends a message, or has received one.
    Message {
        /// Its device and queue pair.
        scene: Scene<'a>,
        /// How long it is.
        bytes: u64,
    },
    /// The program makes a call.
    Call {
        /// What it is about, as far as that is known.
        scene: Scene<'a>,
        /// Its name in C.
        name: &'a str,
    },
    /// A completion is about to be delivered.
    Completion {
        /// Its device, queue pair and completion queue.
        scene: Scene<'a>,
        /// How long its message is.
        bytes: u64,
        /// Of a receive, not of a send.
        is_receive: bool,
    },
    /// An event of the connection manager is about to be delivered.
    ConnectionEvent {
        /// Its connection.
        scene: Scene<'a>,
        /// Its number in `rdma_cm_event_type`.
        event: u32,
    },
    /// A connection request has arrived.
    ConnectionRequest(Scene<'a>),
    /// A message of the connection manager is sent, or has arrived.
    ConnectionMessage {
        /// Its connection.
        scene: Scene<'a>,
        /// Its attribute identifier.
        message: u32,
    },
    /// Bytes are about to be copied from or to GPU memory.
    GpuCopy(Scene<'a>),
}

impl<'a> Moment<'a> {
    /// What it happened to.
    #[must_use]
    pub fn scene(&self) -> Scene<'a> {
        match *self {
            Moment::Time => Scene::default(),
            Moment::Opened(scene) | Moment::ConnectionRequest(scene) | Moment::GpuCopy(scene) => scene,
            Moment::Message { scene, .. }
            | Moment::Call { scene, .. }
            | Moment::Completion { scene, .. }
            | Moment::ConnectionEvent { scene, .. }
            | Moment::ConnectionMessage { scene, .. } => scene,
        }
    }
}
