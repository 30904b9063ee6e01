//! A NIC that uses UDP for everything. A program of its own: every test says so before the NIC of the process is attached.
//!
//! - `attaching`: it is attached once
//! - `ending`: how connections end

mod attaching;
mod ending;
