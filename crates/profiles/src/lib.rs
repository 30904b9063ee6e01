//! What each RDMA card tells, grants and refuses: profiles of NICs, as data.
//!
//! A [`Profile`] is read from TOML, with what it inherits. A NIC asks it: [`limit`](Profile::limit) is what it tells of
//! itself, [`at_most`](Profile::at_most) and [`offers`](Profile::offers) are what it answers to a request, and
//! [`grant`](Profile::grant) is how large a queue becomes. What a profile does not say, the NIC does as without one.
//!
//! | module | what it has |
//! |---|---|
//! | [`schema`] | the words of profiles: limits, features, flags |
//! | [`profile`] | a profile, and what it answers |
//! | [`library`] | profiles that come with ubiverbs |
//! | [`order`] | how much less than the usual the NIC promises about order |
//! | [`completions`] | which fields of `ibv_wc` a card fills, and what a full queue does |
//! | [`registration`] | keys and addresses of regions |
//! | [`timers`] | how a card rounds times |
//!
//! ```
//! use profiles::{Feature, Limit, Profile};
//!
//! let profile = Profile::parse("mine", "[limits]\nmax-inline = 101\n[refuses.pairs]\nUC = 'EOPNOTSUPP'\n").unwrap();
//! let profile: &'static Profile = Box::leak(Box::new(profile));
//! assert_eq!(profile.limit(Limit::MaxInline), Some(101));
//! let refusal = profile.at_most(Limit::MaxInline, 128).unwrap_err();
//! assert_eq!(refusal.errno, 22);
//! assert_eq!(refusal.to_string(), "the NIC's profile mine has max-inline 101, and 128 is asked for");
//! assert_eq!(profile.offers(Feature::Uc).unwrap_err().errno, 95);
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(all(test, feature = "parse"))]
extern crate std;

pub mod completions;
pub mod library;
pub mod order;
pub mod profile;
#[cfg(feature = "parse")]
mod reader;
pub mod registration;
pub mod schema;
#[cfg(all(test, feature = "parse"))]
mod tests;
pub mod timers;

pub use completions::{Class, Completions, Field, Fields};
pub use failures::ScriptError as ProfileError;
pub use order::Order;
pub use profile::{Addresses, Family, Granting, NodeType, Profile, Refusal, Said};
pub use registration::{IovaRule, KeyLayout, Registration};
pub use schema::{Atomics, Feature, Grant, Limit};
pub use timers::{Granularity, Timers};

/// No profile is longer.
pub const MAX_PROFILE_BYTES: usize = 256 << 10;

/// No profile inherits through more.
pub const MAX_ANCESTORS: usize = 8;
