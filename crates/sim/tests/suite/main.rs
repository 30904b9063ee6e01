//! The simulated network.
//!
//! - `network`: what it does to packets, the same way twice
//! - `services`: everything a host offers, each once through
//! - `scale`: a packet costs the same with ten and with ten thousand queue pairs

mod network;
mod scale;
mod services;
