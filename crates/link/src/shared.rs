//! Between processes of one host: trains in shared memory, whole, with their payload. Each direction is a ring that its
//! writer made and that both have mapped; a process is woken by a bell, and only when it sleeps. Only a process's own
//! threads write to its memory: the sender copies into the ring, the receiver copies out of it.
//!
//! | module | what |
//! |---|---|
//! | [`direct`] | WRITEs and READs that need neither ring nor bell |
//! | `map` | memory whose size is sealed |
//! | `ring` | the ring: records on cache lines, nothing believed |
//! | `doorbell`, `word` | the word that says "ring for me", and the bells |
//! | `link` | a ring with its connection, at either end |
//! | `exchange` | how links come about and end |
//! | `general` | the same as every other link is used |

pub mod direct;
mod doorbell;
mod exchange;
mod general;
mod link;
mod map;
mod ring;
#[cfg(test)]
mod tests;
mod word;

pub use doorbell::Doorbell;
pub use exchange::{Change, Exchange};
pub use link::{Inbound, Notes, Outbound, Reading, State};
pub use ring::{
    Broken, Front, LARGE_RING_BYTES, MAX_NAME_BYTES, MAX_PAYLOAD_BYTES, Reader, SMALL_RING_BYTES, Unwritten, Writer,
};
pub use word::{Needs, Sleeper};
