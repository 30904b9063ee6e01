//! Members in pairs: recursive doubling, and each with each.

use super::{expect, slots};
use crate::element::{Element, Op};
use crate::error::Error;
use crate::net::Net;
use std::ops::Range;

/// Messages under way to a partner while its own are awaited.
const MESSAGES_AHEAD: usize = 4;

/// In step `k` each has the sum over `2^k` members. Those beyond a power of two hand theirs to a neighbour first, and
/// get the result from it.
pub(super) async fn all_reduce<T: Element>(net: &mut Net, data: &mut [T], op: Op) -> Result<(), Error> {
    let (rank, size) = (net.rank, net.size);
    let power = 1 << size.ilog2();
    let beyond = size - power;
    const FOLD_STEP: u32 = 40;
    const UNFOLD_STEP: u32 = 41;
    let place = if rank < 2 * beyond {
        if rank.is_multiple_of(2) {
            send_all(net, rank + 1, FOLD_STEP, data).await?;
            return receive_all(net, rank + 1, UNFOLD_STEP, data).await;
        }
        for range in slots::<T>(net, 0..data.len()) {
            let part = net.part(rank - 1).await?;
            expect::<T>(net, &part, FOLD_STEP, &range)?;
            T::fold(op, &mut data[range], part.payload(), false);
            net.give_back(part.buffer);
        }
        rank / 2
    } else {
        rank - beyond
    };
    for step in 0..power.ilog2() {
        let other = place ^ (1 << step);
        let partner = if other < beyond { 2 * other + 1 } else { other + beyond };
        swap(net, partner, step, data, |data, bytes| T::fold(op, data, bytes, place < other)).await?;
    }
    if rank < 2 * beyond {
        send_all(net, rank - 1, UNFOLD_STEP, data).await?;
    }
    Ok(())
}

/// Sends elements and combines them with those of the partner, a few messages ahead.
async fn swap<T: Element>(
    net: &mut Net,
    partner: u32,
    step: u32,
    data: &mut [T],
    combine: impl Fn(&mut [T], &[u8]),
) -> Result<(), Error> {
    let places: Vec<Range<usize>> = slots::<T>(net, 0..data.len()).collect();
    for turn in 0..places.len() + MESSAGES_AHEAD {
        if let Some(place) = places.get(turn) {
            net.room(partner).await?;
            net.send(net.header(partner, step, place.start), &data[place.clone()])?;
        }
        if let Some(place) = turn.checked_sub(MESSAGES_AHEAD).and_then(|turn| places.get(turn)) {
            let part = net.part(partner).await?;
            expect::<T>(net, &part, step, place)?;
            combine(&mut data[place.clone()], part.payload());
            net.give_back(part.buffer);
        }
    }
    Ok(())
}

async fn send_all<T: Element>(net: &mut Net, to: u32, step: u32, data: &[T]) -> Result<(), Error> {
    for place in slots::<T>(net, 0..data.len()) {
        net.room(to).await?;
        net.send(net.header(to, step, place.start), &data[place])?;
    }
    Ok(())
}

async fn receive_all<T: Element>(net: &mut Net, from: u32, step: u32, data: &mut [T]) -> Result<(), Error> {
    for place in slots::<T>(net, 0..data.len()) {
        let part = net.part(from).await?;
        expect::<T>(net, &part, step, &place)?;
        T::take(part.payload(), &mut data[place]);
        net.give_back(part.buffer);
    }
    Ok(())
}

/// Everybody tells everybody.
pub(super) async fn all_gather<T: Element>(net: &mut Net, all: &mut [T], block: usize) -> Result<(), Error> {
    let (rank, size) = (net.rank, net.size);
    let of = |rank: u32| rank as usize * block..(rank as usize + 1) * block;
    for distance in 1..size {
        send_all(net, (rank + distance) % size, distance, &all[of(rank)]).await?;
    }
    for distance in 1..size {
        let from = (rank + size - distance) % size;
        receive_all(net, from, distance, &mut all[of(from)]).await?;
    }
    Ok(())
}

/// Everybody has something for everybody: in step `k` for the one `k` ranks further.
pub(super) async fn all_to_all<T: Element>(net: &mut Net, to: &[T], from: &mut [T], block: usize) -> Result<(), Error> {
    let (rank, size) = (net.rank, net.size);
    let of = |rank: u32| rank as usize * block..(rank as usize + 1) * block;
    from[of(rank)].copy_from_slice(&to[of(rank)]);
    // Short blocks are all sent before any is awaited.
    let ahead = if block * T::SIZE <= net.settings.slot { size } else { 1 };
    for turn in 1..size + ahead {
        if turn < size {
            let other = (rank + turn) % size;
            send_all(net, other, turn, &to[of(other)]).await?;
        }
        if let Some(distance) = turn.checked_sub(ahead).map(|turn| turn + 1).filter(|turn| *turn < size) {
            let other = (rank + size - distance) % size;
            receive_all(net, other, distance, &mut from[of(other)]).await?;
        }
    }
    Ok(())
}
