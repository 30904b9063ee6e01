//! Registered memory. Apart from these are `alone`, in whose process no other thread takes locks, and `gpu`, whose process
//! has the driver of a GPU.
//!
//! - `registration`: what may be registered, changed and given back
//! - `rules`: who may touch what
//! - `windows`: memory windows
//! - `on_demand`: memory that may come and go
//! - `device`: memory of the device
//! - `placement`: the order in which bytes appear
//! - `races`: many threads at once
//! - `model`: random regions and accesses beside a plain model
//! - `protocol`: gate and version under a model checker
//! - `harness`: memory that is touched by address only

mod device;
#[path = "../harness/mod.rs"]
mod harness;
mod model;
mod on_demand;
mod placement;
mod protocol;
mod races;
mod registration;
mod rules;
mod windows;

/// Where the sources under the model checker find their atomics.
#[cfg(not(miri))]
use protocol::sync;
