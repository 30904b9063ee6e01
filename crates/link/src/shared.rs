//! Between processes of one host: trains in shared memory, whole, with their payload. Each direction is a ring that its writer made and that both
//! have mapped; a process is woken by a bell, and only when it sleeps. Its own threads alone write to a process's memory: who sends copies into the
//! ring, who receives copies out of it.
//!
//! | module | what |
//! |---|---|
//! | `map` | memory whose size is sealed |
//! | `ring` | the ring: records on cache lines, nothing believed |
//! | `face`, `word` | the word that says "ring for me", and the bells |
//! | `link` | a ring with its connection, at either end |
//! | `exchange` | how links come about and end |

mod exchange;
mod face;
mod link;
mod map;
pub(crate) mod message;
pub(crate) mod passing;
mod ring;
#[cfg(test)]
mod tests;
mod word;

pub(crate) use exchange::Offer;
pub use exchange::{Change, Exchange};
pub use face::Face;
pub use link::{Inbound, Notes, Outbound, Reading, State};
pub(crate) use message::{OFFER, WILL, kind};
pub use ring::{Broken, Front, LARGE, LONGEST, Reader, SMALL, Writer};
pub use word::Sleeper;
