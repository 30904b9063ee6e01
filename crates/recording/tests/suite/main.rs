//! Recordings are read as they were written, wherever they end, and whoever wrote them.
//!
//! - `round_trip`: what goes in comes out
//! - `damage`: files that are cut off, of another version, or lies
//! - `recorded`: makes recordings for both

mod damage;
mod recorded;
mod round_trip;
