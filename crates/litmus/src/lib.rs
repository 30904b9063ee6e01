//! Litmus tests: small programs of a few processes that read and write each other's memory over queue pairs, with the
//! outcomes that the specification allows and forbids. [`parse`] reads them, [`library`] has those of ubiverbs,
//! [`Stage`] runs them on the simulator, and a [`Tally`] counts what was seen. docs/litmus.md describes the format and
//! the model that the outcomes follow.
#![forbid(unsafe_code)]

mod library;
mod outcome;
mod parse;
mod simulated;
mod tally;
mod test;

pub use library::library;
pub use outcome::{Condition, Left, Outcome, Seen, Verdict};
pub use parse::{ParseError, parse};
pub use simulated::{Broken, Stage};
pub use tally::{Tally, Unlisted, run_simulated};
pub use test::{Cells, Operand, Pair, Posted, Process, Step, Test, What};
