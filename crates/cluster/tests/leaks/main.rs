//! What groups leave behind. A program of its own: it counts the open files of the process.
//!
//! - `leaks`: groups that come and go leave no file open
//! - `members`: members that are threads

mod leaks;
#[path = "../members/mod.rs"]
mod members;
