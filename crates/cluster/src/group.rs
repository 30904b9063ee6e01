//! A group of processes: the handle that a member has of it.

use crate::builder::Builder;
use crate::error::Error;
use crate::meeting;
use crate::net::Net;
use crate::pending::Pending;
use crate::settings::{Settings, Sharing};
use crate::topology::Topology;
use std::fmt;
use std::time::Duration;

impl Builder {
    /// Joins: finds the others and connects with the neighbours. Done when all members are connected; or none is, and
    /// every member that came gets the error that says why.
    pub fn join(self) -> Pending<'static, Group> {
        Pending::new(async move {
            let secret = self.check()?;
            let net = meeting::meet(self, secret).await?;
            Ok(Group { net })
        })
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
///     let group = Group::builder(4).topology(Topology::Ring).secret("an example's").rendezvous(at, rank);
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
            secret: None,
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
