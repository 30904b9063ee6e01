//! How a group is to be, and where its members meet.

use crate::error::Error;
use crate::plan::{Plan, plan};
use crate::secret::Secret;
use crate::settings::{Settings, Sharing};
use crate::topology::{FNV_OFFSET, Topology, fnv};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

/// How a group is to be. Made by [`Group::builder`](crate::Group::builder).
///
/// Each member makes one with the same [secret](Builder::secret), size, topology and settings, and joins: with a
/// [list](Builder::addresses) of all addresses, or at a [rendezvous](Builder::rendezvous).
#[derive(Clone, Debug)]
#[must_use = "call `join`"]
pub struct Builder {
    pub(crate) size: u32,
    pub(crate) topology: Topology,
    pub(crate) settings: Settings,
    pub(crate) secret: Option<Secret>,
    pub(crate) limit: Duration,
    pub(crate) place: Option<MeetingPlace>,
}

impl Builder {
    /// Who is connected with whom. A ring if not said.
    pub fn topology(mut self, topology: Topology) -> Builder {
        self.topology = topology;
        self
    }

    /// Members meet at this address: member 0 listens there, and the others find it. A member of rank `None` gets one
    /// that is free; member 0 must know that it is.
    pub fn rendezvous(mut self, at: SocketAddr, rank: impl Into<Option<u32>>) -> Builder {
        self.place = Some(MeetingPlace::Rendezvous { at, rank: rank.into() });
        self
    }

    /// Every member knows all addresses: member `r` listens at the `r`-th. Their number is the size of the group.
    pub fn addresses(mut self, addresses: &[SocketAddr], rank: u32) -> Builder {
        self.place = Some(MeetingPlace::List { addresses: addresses.to_vec(), rank });
        self
    }

    /// What members know and nobody else. Each proves it to the others, and no process is let in that cannot; it is
    /// never sent. [`Secret::draw`] makes one. Without it nobody joins.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Builder {
        self.secret = Some(secret.as_ref()).filter(|secret| !secret.is_empty()).map(Secret::new);
        self
    }

    /// Connections beyond those of the topology are made when they are first needed, and messages go directly. If not
    /// said, messages go along the connections of the topology, and members on the way pass them on.
    pub fn on_demand(mut self) -> Builder {
        self.settings.on_demand = true;
        self
    }

    /// Where receives come from.
    pub fn receives(mut self, sharing: Sharing) -> Builder {
        self.settings.sharing = sharing;
        self
    }

    /// How many messages a neighbour may have under way, of how many bytes each. 6 of 64 KiB if not said: the buffers
    /// of more, or of longer ones, do not fit the processor's cache. Where messages take long, more are faster.
    pub fn messages(mut self, count: u32, bytes: usize) -> Builder {
        (self.settings.receives, self.settings.slot) = (count, bytes);
        self
    }

    /// How long members wait for each other when they meet. 30 seconds if not said.
    pub fn meeting_limit(mut self, limit: Duration) -> Builder {
        self.limit = limit;
        self
    }

    /// How long a call waits while nothing comes, before it says who takes no part. One minute if not said.
    pub fn deadline(mut self, deadline: Duration) -> Builder {
        self.settings.deadline = deadline;
        self
    }

    /// What it would cost, before anything is opened.
    ///
    /// # Errors
    /// [`Error::Topology`] if the size does not fit.
    pub fn plan(&self) -> Result<Plan, Error> {
        plan(&self.topology, self.size, &self.settings)
    }

    pub(crate) fn check(&self) -> Result<Secret, Error> {
        self.topology.check(self.size)?;
        let refuse = |what: &str| Err(Error::Setting { what: what.to_owned() });
        let Settings { slot, receives, sharing, deadline, .. } = self.settings;
        if !(64..=1 << 24).contains(&slot) || !slot.is_multiple_of(64) {
            return refuse("a message has 64 bytes to 16 MiB, a multiple of 64");
        }
        if !(2..=1024).contains(&receives) {
            return refuse("2 to 1024 messages may be under way");
        }
        if matches!(sharing, Sharing::Shared(0)) {
            return refuse("a shared receive queue holds one receive at least");
        }
        if deadline.is_zero() || self.limit.is_zero() {
            return refuse("members wait longer than not at all");
        }
        match &self.place {
            None => return refuse("members meet at a rendezvous or have a list of addresses"),
            Some(place) => place.check(self.size)?,
        }
        let missing = || Error::Setting { what: "members prove a secret of the group, and there is none".to_owned() };
        self.secret.ok_or_else(missing)
    }

    /// What members must agree on, as one number.
    pub(crate) fn digest(&self) -> u64 {
        let list = match &self.place {
            Some(MeetingPlace::List { addresses, .. }) => {
                addresses.iter().fold(FNV_OFFSET, |digest, address| fnv(digest, address.to_string().as_bytes()))
            }
            _ => 0,
        };
        let parts = [self.topology.digest(self.size), self.settings.digest(), list];
        parts.iter().fold(FNV_OFFSET, |digest, part| fnv(digest, &part.to_le_bytes()))
    }
}

/// Where members meet.
#[derive(Clone, Debug)]
pub(crate) enum MeetingPlace {
    Rendezvous { at: SocketAddr, rank: Option<u32> },
    List { addresses: Vec<SocketAddr>, rank: u32 },
}

impl MeetingPlace {
    /// Whether it makes sense for a group of this size.
    pub fn check(&self, size: u32) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Setting { what });
        match self {
            MeetingPlace::Rendezvous { rank: Some(rank), .. } | MeetingPlace::List { rank, .. } if *rank >= size => {
                Err(Error::Rank { rank: *rank, size })
            }
            MeetingPlace::Rendezvous { at, .. } if at.ip().is_unspecified() || at.port() == 0 => {
                refuse(format!("{at} is no place to meet: an address of member 0 and a port are needed"))
            }
            MeetingPlace::List { addresses, .. } if addresses.len() != size as usize => {
                refuse(format!("there are {} addresses for {size} members", addresses.len()))
            }
            MeetingPlace::List { addresses, .. } => {
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
            MeetingPlace::Rendezvous { .. } => Ok(()),
        }
    }

    pub fn rank(&self) -> Option<u32> {
        match self {
            MeetingPlace::Rendezvous { rank, .. } => *rank,
            MeetingPlace::List { rank, .. } => Some(*rank),
        }
    }

    pub fn meeting_point(&self) -> SocketAddr {
        match self {
            MeetingPlace::Rendezvous { at, .. } => *at,
            MeetingPlace::List { addresses, .. } => addresses[0],
        }
    }
}
