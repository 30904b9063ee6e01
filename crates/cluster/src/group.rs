//! A group of processes: how it is to be, and the handle that a member has of it.

use crate::error::Error;
use crate::meeting::{self, Place};
use crate::net::Net;
use crate::pending::Pending;
use crate::topology::{FNV, Topology, fnv};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

/// How messages are buffered, and how long members wait. Members must agree on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// Payload of a message.
    pub slot: usize,
    /// How many messages a neighbour may have sent that were not looked at.
    pub receives: u32,
    pub sharing: Sharing,
    pub on_demand: bool,
    pub deadline: Duration,
}

/// Where receives come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Sharing {
    /// Each connection has its own while there are few, and all share one queue where there are more than sixteen.
    #[default]
    Auto,
    /// Each connection has its own.
    Own,
    /// All connections of a member take from one shared receive queue of so many messages.
    Shared(u32),
}

/// Connections that a member has before it shares receives.
const CONNECTIONS_WITH_OWN: u32 = 16;

impl Settings {
    /// How many receives connections share, if they do.
    pub fn shares(&self, connections: u32) -> Option<u32> {
        // As many as sixteen connections have, however many there are: that is what sharing is for.
        let enough = || self.receives * CONNECTIONS_WITH_OWN;
        match self.sharing {
            Sharing::Shared(receives) => Some(receives),
            Sharing::Auto if connections > CONNECTIONS_WITH_OWN || self.on_demand => Some(enough()),
            _ => None,
        }
    }

    fn digest(&self) -> u64 {
        let mut digest = fnv(FNV, &(self.slot as u64).to_le_bytes());
        digest = fnv(digest, &self.receives.to_le_bytes());
        fnv(digest, &[u8::from(self.on_demand)])
    }
}

/// How a group is to be. Made by [`Group::builder`].
///
/// Each member makes one with the same size, topology and settings, and joins: with a [list](Builder::addresses) of all
/// addresses, or at a [rendezvous](Builder::rendezvous).
#[derive(Clone, Debug)]
#[must_use = "call `join`"]
pub struct Builder {
    pub(crate) size: u32,
    pub(crate) topology: Topology,
    pub(crate) settings: Settings,
    pub(crate) name: String,
    pub(crate) limit: Duration,
    pub(crate) place: Option<Place>,
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
        self.place = Some(Place::Rendezvous { at, rank: rank.into() });
        self
    }

    /// Every member knows all addresses: member `r` listens at the `r`-th. Their number is the size of the group.
    pub fn addresses(mut self, addresses: &[SocketAddr], rank: u32) -> Builder {
        self.place = Some(Place::List { addresses: addresses.to_vec(), rank });
        self
    }

    /// The name of the group: who has another one is not let in. Anybody who knows it may join, so it is a password
    /// where strangers can reach the rendezvous.
    pub fn name(mut self, name: &str) -> Builder {
        self.name = name.to_owned();
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
    pub fn plan(&self) -> Result<crate::Plan, Error> {
        crate::plan::plan(&self.topology, self.size, &self.settings)
    }

    /// Joins: finds the others and connects with the neighbours. Done when all members are connected; or none is, and
    /// every member that came gets the error that says why.
    pub fn join(self) -> Pending<'static, Group> {
        Pending::new(async move {
            self.check()?;
            let net = meeting::meet(self).await?;
            Ok(Group { net })
        })
    }

    fn check(&self) -> Result<(), Error> {
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
            None => refuse("members meet at a rendezvous or have a list of addresses"),
            Some(place) => place.check(self.size),
        }
    }

    /// What members must agree on, as one number.
    pub(crate) fn digest(&self) -> u64 {
        let list = match &self.place {
            Some(Place::List { addresses, .. }) => {
                addresses.iter().fold(FNV, |digest, address| fnv(digest, address.to_string().as_bytes()))
            }
            _ => 0,
        };
        let parts = [self.topology.digest(self.size), self.settings.digest(), list];
        parts.iter().fold(FNV, |digest, part| fnv(digest, &part.to_le_bytes()))
    }
}

/// A group of processes, as one member has it.
///
/// All members make the same calls in the same order, as with MPI. Each call returns a [`Pending`]: await it, or `wait`
/// for it.
///
/// ```
/// use cluster::{Group, Op, Topology};
///
/// // Four members; here they are threads, and find each other at an address.
/// # let at = { let l = ubiverbs::cm::Listener::bind("127.0.0.1:0")?; l.local_addr() };
/// let member = move |rank: u32| {
///     let group = Group::builder(4).topology(Topology::Ring).rendezvous(at, rank);
///     let mut group = group.join().wait()?;
///     let mut data = [rank as u64, 1];
///     group.all_reduce(&mut data, Op::Sum).wait()?;
///     group.leave().wait()?;
///     Ok::<_, cluster::Error>(data)
/// };
/// let members: Vec<_> = (0..4).map(|rank| std::thread::spawn(move || member(rank))).collect();
/// for member in members {
///     assert_eq!(member.join().unwrap()?, [6, 4]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    pub(crate) net: Net,
}

impl Group {
    /// A group of `size` members, about to be joined.
    pub fn builder(size: u32) -> Builder {
        Builder {
            size,
            topology: Topology::Ring,
            settings: Settings {
                slot: 64 << 10,
                receives: 6,
                sharing: Sharing::Auto,
                on_demand: false,
                deadline: Duration::from_secs(60),
            },
            name: String::new(),
            limit: Duration::from_secs(30),
            place: None,
        }
    }

    /// Which member this is: 0 and up.
    pub fn rank(&self) -> u32 {
        self.net.rank
    }

    /// How many members there are.
    pub fn size(&self) -> u32 {
        self.net.size
    }

    /// Who is connected with whom.
    pub fn topology(&self) -> &Topology {
        &self.net.topology
    }

    /// How many queue pairs this member has now.
    pub fn queue_pairs(&self) -> u32 {
        self.net.queue_pairs()
    }

    /// What made the group fail, if something has. From then on every call answers it.
    pub fn failure(&self) -> Option<Error> {
        self.net.failure().cloned()
    }

    /// Waits until the group fails, and says why: for a member that has nothing to do but to know that all live.
    ///
    /// # Cancel safety
    /// Unlike calls of all members it can be dropped at any time.
    pub fn failed(&mut self) -> Pending<'_, Error> {
        Pending::new(async {
            loop {
                if let Some(failure) = self.net.failure().cloned() {
                    self.net.last_words().await;
                    return Ok(failure);
                }
                if let Err(error) = self.net.progress().await {
                    self.net.last_words().await;
                    return Ok(error);
                }
            }
        })
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {}, {})", self.rank(), self.size(), self.topology())
    }
}
