//! How members find each other: all come to member 0, which tells everybody where the others are, and when all are
//! connected.
//!
//! ```text
//! member                                   member 0
//!   connect, with an introduction  ----->
//!                                  <-----   refused, with a number that is new for each meeting
//!   the same, with the number and  ----->   does it know the secret? same size, topology, settings? rank still free?
//!   a proof of the group's secret
//!                                  <-----   welcome: your rank, a number for this session, a proof of the secret
//!                                  <-----   the addresses of all
//!   connects with its neighbours            does the same
//!   ready, or why not              ----->   waits for all
//!                                  <-----   go, or why not
//! ```
//!
//! A process with another secret, or of another version, is told so, and the meeting goes on without it; strangers are
//! refused without a word. What a member says is checked; what does not fit ends the meeting for everybody, with the
//! rank that it came from: only those who have proved the secret are members. Nothing is kept of the others.
//!
//! The secret is never sent. What members prove to each other afterwards depends on the number of the session, too, on
//! who asks whom, and for what: a proof that was seen elsewhere is worth nothing.

mod host;
mod member;
mod talk;

pub(crate) use talk::Word;

use crate::builder::Builder;
use crate::error::Error;
use crate::net::{Net, Parts};
use crate::secret::{Secret, TAG_BYTES};

/// Before the number of a meeting, in a refusal.
const CHALLENGE_MARK: &[u8] = b"ubiC";

/// What member 0 proves with: to the one with this introduction, for this rank and session.
fn welcome(secret: &Secret, introduction: &[u8; TAG_BYTES], rank: u32, session: &[u8; TAG_BYTES]) -> [u8; TAG_BYTES] {
    secret.tag(&[b"welcome", introduction, &rank.to_le_bytes(), session])
}

/// Meets the others and connects.
pub(crate) async fn meet(builder: Builder, secret: Secret) -> Result<Net, Error> {
    let Some(place) = builder.place.clone() else { return Err(Error::Setting { what: "nowhere to meet".into() }) };
    match place.rank() {
        Some(0) => host::meet(builder, secret, &place).await,
        _ => member::meet(builder, secret, &place).await,
    }
}

/// Connects with the neighbours, within the limit.
async fn connect(parts: Parts, limit: std::time::Duration) -> Result<Net, Error> {
    let near = parts.topology.neighbours(parts.rank, parts.size)?;
    let mut net = Net::new(parts)?;
    match ubiverbs::timeout(limit, net.connect_all(&near)).await.ok() {
        Some(Ok(())) => Ok(net),
        Some(Err(error)) => Err(error),
        None => Err(Error::Missing { ranks: net.apart(&near), limit }),
    }
}
