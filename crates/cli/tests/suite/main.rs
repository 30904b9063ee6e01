//! The program `ubiverbs` as a user runs it.
//!
//! - `bench`: `bench`
//! - `cluster`: `cluster`
//! - `colours`: where there are colours
//! - `completions`: what shells are told to complete
//! - `demo`: `demo` between two processes
//! - `devices`: `devices` and `explain`
//! - `litmus`: `litmus`
//! - `run`: `run`, as far as it goes without libraries
//! - `simulate`: `simulate`
//! - `simulated`: `demo` on simulated hosts
//! - `sources`: what the sources must do, such as escape the names that others gave
//! - `strangers`: who comes to a `--server` without its secret, and what a caller may ask for
//! - `torture`: commands under failure scripts
//! - `program`: the program, started and listened to

mod bench;
mod cluster;
mod colours;
mod completions;
mod demo;
mod devices;
mod litmus;
mod program;
mod run;
mod simulate;
mod simulated;
mod sources;
mod strangers;
mod torture;
