//! How members find each other: all come to member 0, which tells everybody where the others are, and when all are
//! connected.
//!
//! ```text
//! member                                   member 0
//!   connect, with an introduction  ----->   is it one of ours? same size, topology, settings? rank still free?
//!                                  <-----   welcome: your rank, a number that only members know
//!                                  <-----   the addresses of all
//!   connects with its neighbours            does the same
//!   ready, or why not              ----->   waits for all
//!                                  <-----   go, or why not
//! ```
//!
//! A process with another name of the group, or of another version, is told so, and the meeting goes on without it;
//! strangers are refused without a word. What a member says is checked; what does not fit ends the meeting for
//! everybody, with the rank that it came from.

mod host;
mod member;
mod talk;

pub(crate) use talk::Word;

use crate::error::Error;
use crate::group::Builder;
use crate::net::{Net, Parts};
use crate::topology::{FNV, fnv};
use std::collections::HashMap;
use std::net::SocketAddr;

/// Where members meet.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Rendezvous { at: SocketAddr, rank: Option<u32> },
    List { addresses: Vec<SocketAddr>, rank: u32 },
}

impl Place {
    /// Whether it makes sense for a group of this size.
    pub fn check(&self, size: u32) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Setting { what });
        match self {
            Place::Rendezvous { rank: Some(rank), .. } | Place::List { rank, .. } if *rank >= size => {
                Err(Error::Rank { rank: *rank, size })
            }
            Place::Rendezvous { at, .. } if at.ip().is_unspecified() || at.port() == 0 => {
                refuse(format!("{at} is no place to meet: an address of member 0 and a port are needed"))
            }
            Place::List { addresses, .. } if addresses.len() != size as usize => {
                refuse(format!("there are {} addresses for {size} members", addresses.len()))
            }
            Place::List { addresses, .. } => {
                let mut seen = HashMap::new();
                for (rank, address) in (0..).zip(addresses) {
                    if address.ip().is_unspecified() || address.port() == 0 {
                        return refuse(format!("rank {rank} has the address {address}, where nobody can find it"));
                    }
                    if let Some(first) = seen.insert(address, rank) {
                        return Err(Error::AddressTwice { first, second: rank, address: *address });
                    }
                }
                Ok(())
            }
            Place::Rendezvous { .. } => Ok(()),
        }
    }

    fn rank(&self) -> Option<u32> {
        match self {
            Place::Rendezvous { rank, .. } => *rank,
            Place::List { rank, .. } => Some(*rank),
        }
    }

    fn meeting_point(&self) -> SocketAddr {
        match self {
            Place::Rendezvous { at, .. } => *at,
            Place::List { addresses, .. } => addresses[0],
        }
    }
}

/// The name of a group as members show it.
fn token(name: &str) -> [u8; 16] {
    let (low, high) = (fnv(FNV, name.as_bytes()), fnv(fnv(FNV, b"ubiverbs group"), name.as_bytes()));
    let mut token = [0; 16];
    token[..8].copy_from_slice(&low.to_le_bytes());
    token[8..].copy_from_slice(&high.to_le_bytes());
    token
}

/// Meets the others and connects.
pub(crate) async fn meet(builder: Builder) -> Result<Net, Error> {
    let Some(place) = builder.place.clone() else { return Err(Error::Setting { what: "nowhere to meet".into() }) };
    match place.rank() {
        Some(0) => host::meet(builder, &place).await,
        _ => member::meet(builder, &place).await,
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
