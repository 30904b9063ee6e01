//! Explains failures of RDMA programs, and checks programs against the rules of verbs.
//!
//! What the program called and what the NIC did goes in, as events of [`trace`]; [`Finding`]s come out. There is no IO:
//! the same [`Checker`] runs inside a live process, on the log of an earlier run, and on a simulation. What only a live
//! process can be asked, such as what a buffer holds now, is asked of a [`Witness`].
//!
//! | module | what it has |
//! |---|---|
//! | [`rule`] | rules: numbers that never change meaning, severities, pages |
//! | [`finding`] | what is reported |
//! | [`model`] | what the program has: domains, memory, queues, queue pairs, work under way |
//! | `explain` | rules that explain what failed (`--why`) |
//! | `rules` | rules that programs break unnoticed (`--check`) |
//! | [`races`] | accesses of memory that nothing orders, of all processes of a run (`--check=races`) |
//!
//! ```
//! use checks::{Absent, Checker, Settings};
//!
//! let mut checker = Checker::new(Settings::why());
//! let mut findings = Vec::new();
//! # let events: Vec<trace::Event> = Vec::new();
//! for event in &events {
//!     checker.observe(event, &mut Absent, &mut |finding| findings.push(finding));
//! }
//! checker.finish(1_000_000_000, &mut Absent, &mut |finding| findings.push(finding));
//! assert!(findings.is_empty());
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod checker;
pub mod errno;
mod examine;
mod explain;
pub mod finding;
mod injected;
mod json;
mod map;
mod mistakes;
pub mod model;
mod naming;
mod posted_work;
pub mod races;
pub mod rule;
mod rules;
mod settings;
mod witness;

pub use checker::Checker;
pub use examine::is_of_use;
pub use explain::work::{rule_of_completion, rule_of_failure};
pub use finding::{Between, Finding, Subject};
pub use json::{Stamp, quoted};
pub use rule::{Family, Number, RULES, Rule, Severity};
pub use settings::{MAX_RULES_FILE_BYTES, Settings};
pub use witness::{Absent, Witness};
