//! Streams with the traits of others.
//!
//! - `on_tokio`: tokio
//! - `on_futures`: the crate `futures`

mod on_futures;
mod on_tokio;
