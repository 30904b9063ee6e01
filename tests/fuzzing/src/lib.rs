//! What the fuzz targets do with their bytes, where that takes more than the core: rings of shared memory, messages
//! between processes, management agents, texts of the kernel and of the environment, flows of raw packets, scripts of
//! simulated clusters, what members of groups say, and the C interface. Each body is a function of bytes that panics if
//! a rule is broken; `fuzz/` calls it with what libFuzzer thinks of, the tests of this crate with the corpora and with
//! random bytes.

mod agents;
mod c_calls;
mod choices;
mod descriptors;
mod flows;
mod groups;
mod messages;
mod netlink;
mod ring;
mod scripts;
mod socket_messages;
mod texts;

pub use agents::agents;
pub use c_calls::c_calls;
pub use descriptors::open_descriptors;
pub use flows::flows;
pub use groups::groups;
pub use messages::{messages, records};
pub use netlink::{netlink, reports};
pub use ring::{ring, ring_under_attack};
pub use scripts::scripts;
pub use socket_messages::socket_messages;
pub use texts::{endpoint, logs, probes, recordings, settings, tables};
