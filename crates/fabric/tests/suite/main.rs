//! Simulated clusters.
//!
//! - `behaviour`: whole runs: topologies, workloads, failures
//! - `script`: what scripts of networks mean
//! - `truth`: small networks beside what is computed by hand
//! - `dcqcn`: DCQCN beside its paper
//! - `hostile`: scripts thrown together by chance

mod behaviour;
mod dcqcn;
mod hostile;
mod script;
mod truth;
