//! The rules of verbs: scripts that break each, and scripts that keep it.
//!
//! - `connections`: connections, UV-05xx
//! - `manager`: the connection manager, UV-07xx
//! - `memory`: memory
//! - `mistakes`: what two rules find
//! - `posting`: posting
//! - `completions`: completions
//! - `processes`: processes, threads and lives of objects
//! - `races`: accesses of several processes that nothing orders, UV-10xx
//! - `script`: small programs told as events
//! - `waits`: waiting for what cannot come, UV-0916 to UV-0918

mod completions;
mod connections;
mod manager;
mod memory;
mod mistakes;
mod posting;
mod processes;
mod races;
mod script;
mod waits;
