//! Two processes of one host, of which this is one, at work together. One test at a time: what another does to the host, or
//! to this process, would be seen.
//!
//! - `two_processes`: whatever the other process does, work completes
//! - `answers`: messages that are answered, until one is not
//! - `connecting`: a connection to another process, and its end
//! - `datagrams`: more datagrams than a link holds
//! - `direct`: memory that is reached without its process
//! - `faults`: faults that were asked for
//! - `interfaces`: interfaces that come and go
//! - `progress`: no kind of program is kept waiting
//! - `rates`: limits, and congestion
//! - `recordings`: what processes record of themselves
//! - `scripts`: failure scripts under one of the two
//! - `shared_memory`: peers that are stopped, flooded or many

mod answers;
mod connecting;
mod datagrams;
mod direct;
mod faults;
mod interfaces;
mod neighbours;
mod progress;
mod rates;
mod recordings;
mod scripts;
mod shared_memory;
mod two_processes;
