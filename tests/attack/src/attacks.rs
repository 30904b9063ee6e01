//! The attacks, each with a name and a verdict. An attacker is told the numbers that it would have to guess: what holds
//! then, holds. Where only the secrecy of numbers protects, the attack is of the kind that is not defended, and
//! docs/security.md says what guessing costs.

mod connections;
mod files;
mod forged;
pub mod inquiries;
mod load;
mod registry;
mod sockets;
mod stopped;
pub mod tools;

use crate::actor::Outcome;
use crate::network::Network;
use crate::random::Random;

/// What came of an attack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The victims noticed nothing, or no more than they should.
    Held(String),
    /// They were harmed.
    Broken(String),
    /// They were harmed, as docs/security.md says that they can be.
    Undefended(String),
}

/// Held if nothing was seen.
pub fn judge(hurt: Option<String>, held: impl Into<String>) -> Verdict {
    hurt.map_or_else(|| Verdict::Held(held.into()), Verdict::Broken)
}

/// An attack.
pub struct Attack {
    /// What `--only` selects it by.
    pub name: &'static str,
    /// What is tried.
    pub what: &'static str,
    /// Tries it.
    pub run: fn(&Network, &mut Random) -> Outcome<Verdict>,
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Attack> {
    [
        stopped::ATTACKS,
        forged::ATTACKS,
        connections::ATTACKS,
        sockets::ATTACKS,
        registry::ATTACKS,
        load::ATTACKS,
        files::ATTACKS,
        tools::ATTACKS,
        inquiries::ATTACKS,
    ]
    .into_iter()
    .flatten()
}
