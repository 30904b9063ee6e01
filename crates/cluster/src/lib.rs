//! Groups of processes over RDMA: who is connected with whom, how they find each other, what they compute together, and
//! who has died.
//!
//! ```text
//! Group::builder(4).topology(Topology::Ring).secret(&text).rendezvous(address, rank).join()
//!                                                                                   all members, each with its rank
//!       .all_reduce(&mut gradients, Op::Sum)                                        all members have the sum
//! ```
//!
//! It is built on the safe API of [`ubiverbs`] and nothing else: futures that need no runtime, no thread of its own, no
//! clock but the timers of that crate. [`Group`] has an example.
//!
//! # How many queue pairs
//!
//! | topology | of one member | of all | hops |
//! |---|---|---|---|
//! | [`Ring`](Topology::Ring) | 2 | 2n | up to n - 1 |
//! | [`BidirectionalRing`](Topology::BidirectionalRing) | 2 | 2n | up to n / 2 |
//! | [`Torus`](Topology::Torus) | 4 | 4n | up to √n |
//! | [`Hypercube`](Topology::Hypercube) | log n | n log n | up to log n |
//! | [`BinaryTree`](Topology::BinaryTree) | up to 3 | 2(n - 1) | up to 2 log n |
//! | [`Star`](Topology::Star) | 1, and n - 1 of member 0 | 2(n - 1) | 2 |
//! | [`FullMesh`](Topology::FullMesh) | n - 1 | n(n - 1) | 1 |
//!
//! [`Builder::plan`] counts them, and the memory, before anything is opened:
//!
//! ```
//! use cluster::{Group, Topology};
//!
//! let plan = Group::builder(1024).topology(Topology::FullMesh).plan()?;
//! assert_eq!(plan.queue_pairs(), 1_047_552);
//! println!("{plan}"); // mesh of 1,024: 1,047,552 queue pairs, …
//! # Ok::<(), cluster::Error>(())
//! ```
//!
//! # Calls
//!
//! | call | afterwards |
//! |---|---|
//! | [`barrier`](Group::barrier) | all members have called it |
//! | [`broadcast`](Group::broadcast) | all have what the root has |
//! | [`all_gather`](Group::all_gather) | all have the blocks of all |
//! | [`reduce_scatter`](Group::reduce_scatter) | each has one block of the sum |
//! | [`all_reduce`](Group::all_reduce) | all have the sum |
//! | [`all_to_all`](Group::all_to_all) | each has a block of each |
//! | [`send`](Group::send), [`receive`](Group::receive) | one has what another sent |
//! | [`leave`](Group::leave) | all have got everything; the connections end |
//!
//! All work with every topology. Messages go along the connections that there are, and members on the way pass them on;
//! with [`on_demand`](Builder::on_demand), connections are made instead when they are first needed.
//!
//! Results are the same on all members, bit by bit, floats included.
//!
//! # When something goes wrong
//!
//! Every member gets the same error, with the rank in it, and the group is over: a member that died ([`Error::Died`]),
//! left ([`Error::Left`]), calls something else than the others ([`Error::Calls`]) or nothing at all
//! ([`Error::Silent`]). A member that does not call anything at that moment learns of it with its next call, or from
//! [`failed`](Group::failed).
#![forbid(unsafe_code)]

mod bell;
mod builder;
mod call;
mod collectives;
mod element;
mod error;
mod group;
mod meeting;
mod net;
mod pending;
mod plan;
mod secret;
mod settings;
mod spoken;
mod topology;
mod verdict;

pub use builder::Builder;
pub use call::{Algorithm, Call};
pub use element::{Element, Op};
pub use error::Error;
pub use group::Group;
pub use pending::Pending;
pub use plan::Plan;
pub use secret::Secret;
pub use settings::Sharing;
#[doc(hidden)]
pub use spoken::Spoken;
pub use topology::{Custom, MAX_MEMBERS, Topology};
