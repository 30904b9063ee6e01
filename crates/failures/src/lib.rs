//! Failure scripts: which part of a NIC breaks, when, and where.
//!
//! A [`Script`] is read from TOML. A [`Machine`] obeys it: it is told what happens in a process ([`Moment`]s, with the
//! time), and returns [`Strike`]s, which its owner carries out. It has no clock, no threads and no randomness but its
//! seed: the same script, seed and moments give the same strikes.
//!
//! | module | what it has |
//! |---|---|
//! | [`script`] | what a script says: failures, their triggers and places |
//! | [`action`] | what can break |
//! | [`machine`] | when it breaks |
//! | [`moment`] | what a machine is told |
//! | [`library`] | scripts that come with ubiverbs |
//! | [`report`] | what struck, as JSON |
//! | `text` | TOML with its lines, for this and other languages |
//! | [`words`] | names and numbers: errno, statuses, events, calls |
//!
//! ```
//! use failures::{Action, Machine, Moment, Phase, Scene, Script, Who};
//!
//! let script = Script::parse("[[failure]]\nat = '2s'\nfor = '1s'\ndo = 'port-down'\n").unwrap();
//! let mut machine = Machine::new(&script, script.seed(None), &Who::default());
//! let mut strikes = Vec::new();
//! machine.feed(0, &Moment::Opened(Scene::default()), &mut strikes);
//! assert_eq!(machine.next_time(), Some(2_000_000_000));
//! machine.feed(2_000_000_000, &Moment::Time, &mut strikes);
//! assert_eq!((strikes[0].action, strikes[0].phase, strikes[0].line()), (Action::PortDown, Phase::Begin, 4));
//! machine.feed(3_000_000_000, &Moment::Time, &mut strikes);
//! assert_eq!(strikes[1].phase, Phase::End);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(all(test, feature = "parse"))]
extern crate std;

pub mod action;
mod dice;
mod error;
pub mod library;
pub mod machine;
pub mod moment;
pub mod report;
pub mod script;
#[cfg(feature = "parse")]
pub mod text;
pub mod words;

pub use action::{Action, Direction, Hook};
pub use error::ScriptError;
pub use machine::{Machine, Phase, Strike, Wants};
pub use moment::{ConnectionView, DeviceView, Moment, PairView, QueueView, Scene, Who};
pub use script::{Chance, Failure, MAX_FAILURES, MAX_SCRIPT_BYTES, Nanos, Place, Script};
