//! What members compute together. Each call checks its arguments, then begins; from there on every member takes part,
//! and what fails, fails for all.

mod exchange;
mod ring;
mod trees;

use crate::call::{Algorithm, Call, Collective, Header, Kind};
use crate::element::{Element, Op, fits};
use crate::error::Error;
use crate::group::Group;
use crate::net::{Message, Net};
use crate::pending::Pending;
use crate::topology::{Topology, Tree};
use std::ops::Range;

/// A call of all members: begun, carried out, and ended for all if it fails.
macro_rules! all {
    ($group:expr, $call:expr, |$net:ident| $body:expr) => {{
        let $net = &mut $group.net;
        let done = match $net.begin($call) {
            Ok(()) => $body.await,
            Err(error) => Err(error),
        };
        $net.end();
        let done = done.map_err(|error| $net.fail(error));
        heard($net, done).await
    }};
}

/// Up to so many bytes, an all-reduce is quickest in few steps: measured by `cargo bench -p ubiverbs-cluster`.
const FEW_STEPS: usize = 128 << 10;

/// Blocks up to this size go to everybody at once.
const SMALL_BLOCK: usize = 16 << 10;

/// What the NIC moves at once. A message that is one of several has as many of them as fit its buffer, header included.
const TRAIN_BYTES: usize = 64 << 10;

impl Group {
    /// Waits until all members have called it.
    pub fn barrier(&mut self) -> Pending<'_, ()> {
        Pending::new(async {
            all!(self, Call::of(Collective::Barrier), |net| async {
                let algorithm = small(net);
                reduce::<u8>(net, algorithm, &mut [], Op::Sum).await
            })
        })
    }

    /// All members get what member `root` has. All give slices of the same length.
    pub fn broadcast<'a, T: Element>(&'a mut self, data: &'a mut [T], root: u32) -> Pending<'a, ()> {
        let size = self.size();
        if root >= size {
            return Pending::new(async move { Err(Error::Rank { rank: root, size }) });
        }
        let call = Call { root, ..call::<T>(Collective::Broadcast, data.len()) };
        Pending::new(async move {
            all!(self, call, |net| async {
                let tree = tree(net, root);
                trees::broadcast(net, &tree, data).await
            })
        })
    }

    /// All members get the blocks of all, in the order of ranks: `all` is as long as all blocks together.
    pub fn all_gather<'a, T: Element>(&'a mut self, block: &'a [T], all: &'a mut [T]) -> Pending<'a, ()> {
        if let Err(error) = self.blocks("all_gather", block.len(), all.len()) {
            return Pending::new(async { Err(error) });
        }
        Pending::new(async move {
            all!(self, call::<T>(Collective::AllGather, block.len()), |net| async {
                let (start, length) = (net.rank as usize * block.len(), block.len());
                all[start..start + length].copy_from_slice(block);
                if length * T::SIZE <= SMALL_BLOCK && !is_ring(net) {
                    exchange::all_gather(net, all, length).await
                } else {
                    ring::all_gather(net, all, length).await
                }
            })
        })
    }

    /// Sums up `data` over all members, or whatever `op` is; member `r` gets the `r`-th of as many blocks as there are
    /// members.
    pub fn reduce_scatter<'a, T: Element>(&'a mut self, data: &'a [T], block: &'a mut [T], op: Op) -> Pending<'a, ()> {
        if let Err(error) =
            self.blocks("reduce_scatter", block.len(), data.len()).and_then(|()| knows::<T>("reduce_scatter", op))
        {
            return Pending::new(async { Err(error) });
        }
        let call = Call { op: Some(op), ..call::<T>(Collective::ReduceScatter, block.len()) };
        Pending::new(async move {
            all!(self, call, |net| async {
                if size_of_val(data) > FEW_STEPS && !is_tree(net) {
                    return ring::reduce_scatter(net, data, block, op).await;
                }
                let mut sum = data.to_vec();
                let algorithm = small(net);
                reduce(net, algorithm, &mut sum, op).await?;
                let start = net.rank as usize * block.len();
                block.copy_from_slice(&sum[start..start + block.len()]);
                Ok(())
            })
        })
    }

    /// All members get the sum of what all have, or whatever `op` is, element by element. How it is done depends on the
    /// size and the topology.
    pub fn all_reduce<'a, T: Element>(&'a mut self, data: &'a mut [T], op: Op) -> Pending<'a, ()> {
        let is_much = size_of_val(data) > FEW_STEPS && !is_tree(&self.net);
        let algorithm = if is_much { Algorithm::Ring } else { small(&self.net) };
        self.all_reduce_by(algorithm, data, op)
    }

    /// [`all_reduce`](Group::all_reduce) in one particular way. All members must choose the same.
    pub fn all_reduce_by<'a, T: Element>(
        &'a mut self,
        algorithm: Algorithm,
        data: &'a mut [T],
        op: Op,
    ) -> Pending<'a, ()> {
        if let Err(error) = knows::<T>("all_reduce", op) {
            return Pending::new(async { Err(error) });
        }
        let count = data.len();
        let call = Call { op: Some(op), algorithm: Some(algorithm), ..call::<T>(Collective::AllReduce, count) };
        Pending::new(async move { all!(self, call, |net| reduce(net, algorithm, data, op)) })
    }

    /// Each member gets a block of each: block `r` of `to` goes to member `r`, and what it sent comes as block `r` of
    /// `from`.
    pub fn all_to_all<'a, T: Element>(&'a mut self, to: &'a [T], from: &'a mut [T]) -> Pending<'a, ()> {
        let block = to.len() / self.size() as usize;
        let fits = || {
            if to.len() != from.len() {
                let why = format!("{} elements are to be sent, and there is room for {}", to.len(), from.len());
                return Err(Error::Argument { call: "all_to_all", why });
            }
            self.blocks("all_to_all", block, to.len())
        };
        if let Err(error) = fits() {
            return Pending::new(async { Err(error) });
        }
        Pending::new(async move {
            all!(self, call::<T>(Collective::AllToAll, block), |net| async {
                exchange::all_to_all(net, to, from, block).await
            })
        })
    }

    /// Sends to one member, which [receives](Group::receive) it. Done when it is on its way: members may send to each
    /// other at once.
    pub fn send<'a, T: Element>(&'a mut self, to: u32, data: &'a [T]) -> Pending<'a, ()> {
        Pending::new(async move {
            self.other("send", to)?;
            let net = &mut self.net;
            let sent = send(net, to, data).await;
            heard(net, sent).await
        })
    }

    /// Receives what a member [sent](Group::send): as many elements of the same type.
    pub fn receive<'a, T: Element>(&'a mut self, from: u32, data: &'a mut [T]) -> Pending<'a, ()> {
        Pending::new(async move {
            self.other("receive", from)?;
            let net = &mut self.net;
            let received = receive(net, from, data).await;
            heard(net, received).await
        })
    }

    /// Leaves: waits until all members do, and until everything has arrived. A group that is dropped without may lose
    /// what it sent last, and others that wait for it get [`Error::Left`].
    pub fn leave(mut self) -> Pending<'static, ()> {
        Pending::new(async move {
            // Along connections that exist: a member that has left is not needed any more.
            let call = Call::of(Collective::Leave);
            all!(self, call, |net| async {
                let tree = Tree::along(&net.topology, 0, net.size);
                trees::reduce::<u8>(net, &tree, &mut [], Op::Sum).await
            })?;
            let drained = self.net.drain().await;
            heard(&mut self.net, drained).await
        })
    }

    fn blocks(&self, call: &'static str, block: usize, all: usize) -> Result<(), Error> {
        let size = self.size() as usize;
        if block.checked_mul(size) == Some(all) {
            return Ok(());
        }
        let why = format!("{size} members with blocks of {block} elements have {}, not {all}", block * size);
        Err(Error::Argument { call, why })
    }

    fn other(&self, call: &'static str, rank: u32) -> Result<(), Error> {
        let size = self.size();
        match rank {
            rank if rank >= size => Err(Error::Rank { rank, size }),
            rank if rank == self.rank() => {
                Err(Error::Argument { call, why: "a member has no messages for itself".into() })
            }
            _ => Ok(()),
        }
    }
}

/// What a call answers. If the group has failed, the neighbours hear of it first.
async fn heard(net: &mut Net, done: Result<(), Error>) -> Result<(), Error> {
    if done.is_err() {
        net.last_words().await;
    }
    done
}

async fn send<T: Element>(net: &mut Net, to: u32, data: &[T]) -> Result<(), Error> {
    for place in slots::<T>(net, 0..data.len()) {
        net.room(to).await?;
        let letter = call::<T>(Collective::Message, data.len());
        let header = Header { kind: Kind::Letter, call: letter, ..net.header(to, 0, place.start) };
        net.send(header, &data[place])?;
    }
    Ok(())
}

async fn receive<T: Element>(net: &mut Net, from: u32, data: &mut [T]) -> Result<(), Error> {
    let ours = call::<T>(Collective::Message, data.len());
    for place in slots::<T>(net, 0..data.len()) {
        let letter = net.letter(from).await?;
        let theirs = letter.header.call;
        if theirs != ours {
            let other = net.rank;
            return Err(net.fail(Error::Calls { rank: from, theirs, other, ours }));
        }
        expect::<T>(net, &letter, 0, &place)?;
        T::take(letter.payload(), &mut data[place]);
        net.give_back(letter.buffer);
    }
    Ok(())
}

fn call<T: Element>(what: Collective, count: usize) -> Call {
    Call { element: T::CODE, count: count as u64, ..Call::of(what) }
}

fn knows<T: Element>(call: &'static str, op: Op) -> Result<(), Error> {
    if fits::<T>(op) {
        return Ok(());
    }
    Err(Error::Argument { call, why: format!("floats have no {op}") })
}

/// How little data is summed up. Around a large ring a tree has as many hops one after the other as doubling, and far
/// fewer in all.
fn small(net: &Net) -> Algorithm {
    if is_tree(net) || is_ring(net) && net.size > 4 { Algorithm::Tree } else { Algorithm::RecursiveDoubling }
}

/// Whether messages go along a tree, or along whatever a program has made up.
fn is_tree(net: &Net) -> bool {
    let of_trees = matches!(net.topology, Topology::BinaryTree | Topology::Star | Topology::Custom(_));
    of_trees && !net.settings.on_demand
}

fn is_ring(net: &Net) -> bool {
    matches!(net.topology, Topology::Ring | Topology::BidirectionalRing) && !net.settings.on_demand
}

/// The tree from a root over which least is passed on.
fn tree(net: &Net, root: u32) -> Tree {
    if net.settings.on_demand { Tree::binomial(root, net.size) } else { Tree::along(&net.topology, root, net.size) }
}

async fn reduce<T: Element>(net: &mut Net, algorithm: Algorithm, data: &mut [T], op: Op) -> Result<(), Error> {
    if net.size == 1 {
        return Ok(());
    }
    match algorithm {
        Algorithm::Ring => ring::all_reduce(net, data, op).await,
        Algorithm::RecursiveDoubling => exchange::all_reduce(net, data, op).await,
        Algorithm::Tree => {
            let tree = tree(net, 0);
            trees::reduce(net, &tree, data, op).await
        }
    }
}

/// The messages that elements are sent in; one without any if there are none.
fn slots<T: Element>(net: &Net, range: Range<usize>) -> impl DoubleEndedIterator<Item = Range<usize>> + Clone + use<T> {
    let slot = net.settings.slot;
    let is_alone = range.len() * T::SIZE <= slot;
    let bytes = if is_alone || slot < TRAIN_BYTES { slot } else { slot / TRAIN_BYTES * TRAIN_BYTES - Header::LENGTH };
    let each = bytes / T::SIZE;
    let count = range.len().div_ceil(each).max(1);
    (0..count).map(move |slot| {
        let start = range.start + slot * each;
        start..(start + each).min(range.end)
    })
}

/// Whether a message is the one that its turn is.
fn expect<T: Element>(net: &mut Net, message: &Message, step: u32, place: &Range<usize>) -> Result<(), Error> {
    let Header { step: theirs, offset, origin, .. } = message.header;
    if (theirs, offset) == (step, place.start as u64) && message.payload().len() == place.len() * T::SIZE {
        return Ok(());
    }
    Err(net.fail(Error::nonsense(origin, "a message out of turn")))
}
