//! Networks of switches and hosts on a virtual clock, with the real transport in every host: what `ubiverbs simulate`
//! runs. A [`Scenario`] says what is simulated; a [`Network`] runs it; a [`Report`] says what came of it. The same
//! scenario gives the same report, to the byte.
//!
//! Hosts have NICs whose queue pairs are [`transport::QueuePair`]s. Between hosts packets are typed headers and a
//! length of payload; they are encoded only where a host is captured. Switches have a queue at each output, one
//! buffer for all of them, marks, pauses or drops.
//!
//! ```
//! use fabric::{Network, Scenario, Workload};
//!
//! let scenario = Scenario {
//!     hosts: 4,
//!     workload: Workload::Incast { senders: 3, bytes: 65_536, messages: 1 },
//!     ..Scenario::default()
//! };
//! let mut network = Network::new(&scenario)?;
//! network.run();
//! assert_eq!(network.report().counts.messages_received, 3);
//! # Ok::<(), fabric::Error>(())
//! ```

#![forbid(unsafe_code)]

mod calendar;
mod calls;
mod endpoint;
mod graph;
mod messages;
mod network;
mod packets;
mod port;
mod recorder;
mod regions;
pub mod report;
mod scenario;
pub mod script;
mod statistics;
mod topology;
pub mod units;
mod workload;
mod world;

pub use graph::LinkClass;
pub use network::{Footprint, Network};
pub use recorder::EventSink;
pub use report::Report;
pub use scenario::{
    Congestion, Failure, FailureKind, FailurePlace, Scenario, SwitchConfig, TraceMessage, Workload, red_for_rate,
};
pub use script::{Script, ScriptError};
pub use sim::Red;
pub use statistics::{Counts, Sample};
pub use topology::{Cables, Shape};

/// Why there is no network to run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Hosts and topology do not fit each other.
    #[error("{0}")]
    Topology(String),
    /// The workload makes no sense in this network.
    #[error("{0}")]
    Workload(String),
    /// A failure is of something that is not there.
    #[error("{0}")]
    Failure(String),
    /// Connections would need more queue pair numbers than there are.
    #[error("{0} queue pairs are more than the 2^24 numbers there are for them")]
    QueuePairs(u64),
}
