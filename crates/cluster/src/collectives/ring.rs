//! Around the ring: pieces are summed up on their way, then told on another one. A message that arrives becomes the
//! next one in its own buffer, so nothing is copied that need not be, and pieces are under way everywhere at once.
//!
//! A member begins with few messages, and with one more for each that ends at it. What is under way ends without
//! anybody beginning anything, and lets as many begin, or ends the last piece of a member, which then begins all that
//! it has left. So no member waits for ever.

use crate::call::Header;
use crate::element::{Element, Op};
use crate::error::Error;
use crate::net::{Message, Net};
use crate::topology::{Topology, cycle};
use std::ops::Range;

/// How many messages of each member are under way on a lane: the next one begins when one has ended. If a member sent
/// all of its own at once, the buffers of a call would not fit the processor's cache. 16 MiB between four members on
/// two processors: without a limit 1.00 of Open MPI's time, 16 0.86, 8 0.91, 4 0.84, 2 0.88.
const MESSAGES_PER_LANE: usize = 4;

/// A message of the lane that goes the other way.
const BACKWARDS_BIT: u32 = 1 << 31;

/// What is read and written: the same place, or two.
enum Data<'a, T> {
    One(&'a mut [T]),
    /// What is written is only this part.
    Two {
        read: &'a [T],
        write: &'a mut [T],
        start: usize,
    },
}

impl<T> Data<'_, T> {
    fn read(&self, range: Range<usize>) -> &[T] {
        match self {
            Data::One(data) => &data[range],
            Data::Two { read, .. } => &read[range],
        }
    }

    fn write(&mut self, range: Range<usize>) -> &mut [T] {
        match self {
            Data::One(data) => &mut data[range],
            Data::Two { write, start, .. } => &mut write[range.start - *start..range.end - *start],
        }
    }
}

/// One way around.
struct Lane {
    next: u32,
    previous: u32,
    /// Our place on it.
    place: usize,
    size: usize,
    flag: u32,
    /// Where each piece begins; one more than there are pieces.
    pieces: Vec<Range<usize>>,
    steps: Range<u32>,
    /// What we begin with, as far as it was not sent yet.
    own: Vec<Range<usize>>,
    /// How many of them may go now.
    window: usize,
    /// Messages that are to come.
    left: usize,
    /// Those of them that go no further.
    last: usize,
}

impl Lane {
    fn new<T: Element>(net: &Net, cycle: &[u32], flag: u32, pieces: Vec<Range<usize>>, steps: Range<u32>) -> Lane {
        let size = cycle.len();
        let place = cycle.iter().position(|rank| *rank == net.rank).unwrap_or(0);
        let (next, previous) = (cycle[(place + 1) % size], cycle[(place + size - 1) % size]);
        let own = Vec::new();
        let (window, left, last) = (MESSAGES_PER_LANE, 0, 0);
        let mut lane = Lane { next, previous, place, size, flag, pieces, steps, own, window, left, last };
        let messages = |range: Range<usize>| super::slots::<T>(net, range).filter(|place| !place.is_empty());
        lane.own = messages(lane.piece(lane.place, lane.steps.start)).rev().collect();
        lane.left = lane.steps.clone().map(|step| messages(lane.coming(step)).count()).sum();
        lane.last = messages(lane.coming(lane.steps.end - 1)).count();
        lane
    }

    /// The piece that the member at this place sends in this step.
    fn piece(&self, place: usize, step: u32) -> Range<usize> {
        self.pieces[(place + 2 * self.size - step as usize) % self.size].clone()
    }

    /// Whether the next message of our own may go: for each that ends here, or if none does any more.
    fn may_begin(&self) -> bool {
        self.window > 0 || self.last.min(self.left) == 0
    }

    /// The piece that comes in this step.
    fn coming(&self, step: u32) -> Range<usize> {
        self.piece(self.place + self.size - 1, step)
    }
}

pub(super) async fn all_reduce<T: Element>(net: &mut Net, data: &mut [T], op: Op) -> Result<(), Error> {
    let (size, count) = (net.size as usize, data.len());
    let cycle = cycle(&net.topology, net.size);
    let cut = |range: Range<usize>| -> Vec<Range<usize>> {
        let at = |piece: usize| range.start + (range.len() as u128 * piece as u128 / size as u128) as usize;
        (0..size).map(|piece| at(piece)..at(piece + 1)).collect()
    };
    let steps = 0..2 * (net.size - 1);
    let mut lanes = Vec::new();
    if matches!(net.topology, Topology::BidirectionalRing) && size > 2 {
        let backwards: Vec<u32> = cycle.iter().rev().copied().collect();
        lanes.push(Lane::new::<T>(net, &cycle, 0, cut(0..count / 2), steps.clone()));
        lanes.push(Lane::new::<T>(net, &backwards, BACKWARDS_BIT, cut(count / 2..count), steps));
    } else {
        lanes.push(Lane::new::<T>(net, &cycle, 0, cut(0..count), steps));
    }
    go_around(net, &mut lanes, Data::One(data), op).await
}

pub(super) async fn reduce_scatter<T: Element>(
    net: &mut Net,
    data: &[T],
    block: &mut [T],
    op: Op,
) -> Result<(), Error> {
    let start = net.rank as usize * block.len();
    if net.size == 1 {
        block.copy_from_slice(data);
        return Ok(());
    }
    let steps = 0..net.size - 1;
    let mut lanes = [lane_of_blocks::<T>(net, block.len(), steps)];
    go_around(net, &mut lanes, Data::Two { read: data, write: block, start }, op).await
}

pub(super) async fn all_gather<T: Element>(net: &mut Net, all: &mut [T], block: usize) -> Result<(), Error> {
    if net.size == 1 {
        return Ok(());
    }
    let steps = net.size - 1..2 * (net.size - 1);
    let mut lanes = [lane_of_blocks::<T>(net, block, steps)];
    go_around(net, &mut lanes, Data::One(all), Op::Sum).await
}

/// A lane on which each member ends with its own block summed up, and begins to tell it.
fn lane_of_blocks<T: Element>(net: &Net, block: usize, steps: Range<u32>) -> Lane {
    let cycle = cycle(&net.topology, net.size);
    let size = cycle.len();
    // The member at place p ends the first round with piece p + 1.
    let owner = |piece: usize| cycle[(piece + size - 1) % size] as usize;
    let pieces = (0..size).map(|piece| owner(piece) * block..(owner(piece) + 1) * block).collect();
    Lane::new::<T>(net, &cycle, 0, pieces, steps)
}

async fn go_around<T: Element>(net: &mut Net, lanes: &mut [Lane], mut data: Data<'_, T>, op: Op) -> Result<(), Error> {
    loop {
        for lane in lanes.iter_mut() {
            while lane.may_begin() && net.has_room(lane.next) {
                let Some(place) = lane.own.pop() else { break };
                lane.window = lane.window.saturating_sub(1);
                let header = net.header(lane.next, lane.steps.start | lane.flag, place.start);
                net.send(header, data.read(place))?;
            }
        }
        // One that has something is served; if none has, any of them is waited for.
        let waiting = lanes.iter().filter(|lane| lane.left > 0);
        let Some(lane) = waiting.clone().find(|lane| net.has_part(lane.previous)).or(waiting.clone().next()) else {
            let Some(lane) = lanes.iter().find(|lane| !lane.own.is_empty()) else { return Ok(()) };
            net.room(lane.next).await?;
            continue;
        };
        let previous = lane.previous;
        if !net.has_part(previous) {
            net.wait(previous).await?;
            continue;
        }
        let part = net.part(previous).await?;
        arrived(net, lanes, &mut data, op, part)?;
    }
}

fn arrived<T: Element>(
    net: &mut Net,
    lanes: &mut [Lane],
    data: &mut Data<'_, T>,
    op: Op,
    mut part: Message,
) -> Result<(), Error> {
    let Header { origin, step, offset, .. } = part.header;
    let flag = step & BACKWARDS_BIT;
    let step = step & !BACKWARDS_BIT;
    let fits = |lane: &&mut Lane| lane.flag == flag && lane.previous == origin && lane.steps.contains(&step);
    let found = lanes.iter_mut().find(fits).filter(|lane| lane.left > 0);
    let elements = part.payload().len() / T::SIZE;
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    let place = start..start.saturating_add(elements);
    let Some(lane) = found.filter(|lane| {
        let piece = lane.coming(step);
        piece.start <= place.start && place.end <= piece.end && part.payload().len().is_multiple_of(T::SIZE)
    }) else {
        return Err(net.fail(Error::nonsense(origin, "a piece of another step")));
    };
    lane.left -= 1;
    let first_round = lane.size as u32 - 1;
    if step < first_round {
        T::fold_into(op, part.payload_mut(), data.read(place.clone()));
    }
    if step + 1 >= first_round {
        T::take(part.payload(), data.write(place.clone()));
    }
    if step + 1 < lane.steps.end {
        let header = net.header(lane.next, (step + 1) | flag, place.start);
        return net.pass_on(header, part);
    }
    lane.last = lane.last.saturating_sub(1);
    lane.window += 1;
    net.give_back(part.buffer);
    Ok(())
}
