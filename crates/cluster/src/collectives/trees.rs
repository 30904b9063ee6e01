//! Up and down a tree, piece by piece: a member passes a piece on while the next one comes.

use super::{expect, slots};
use crate::element::{Element, Op};
use crate::error::Error;
use crate::net::Net;
use crate::topology::Tree;

const TAG_UP: u32 = 0;
const TAG_DOWN: u32 = 1;

/// All get what the root has.
pub(super) async fn broadcast<T: Element>(net: &mut Net, tree: &Tree, data: &mut [T]) -> Result<(), Error> {
    let (parent, children) = (tree.parent(net.rank), tree.children(net.rank));
    down(net, parent, &children, data).await
}

/// The root sums up and tells all.
pub(super) async fn reduce<T: Element>(net: &mut Net, tree: &Tree, data: &mut [T], op: Op) -> Result<(), Error> {
    let (parent, children) = (tree.parent(net.rank), tree.children(net.rank));
    for place in slots::<T>(net, 0..data.len()) {
        for &child in &children {
            let part = net.part(child).await?;
            expect::<T>(net, &part, TAG_UP, &place)?;
            T::fold(op, &mut data[place.clone()], part.payload(), true);
            net.give_back(part.buffer);
        }
        match parent {
            Some(parent) => {
                net.room(parent).await?;
                net.send(net.header(parent, TAG_UP, place.start), &data[place])?;
            }
            None => {
                for &child in &children {
                    net.room(child).await?;
                    net.send(net.header(child, TAG_DOWN, place.start), &data[place.clone()])?;
                }
            }
        }
    }
    if parent.is_some() { down(net, parent, &children, data).await } else { Ok(()) }
}

async fn down<T: Element>(net: &mut Net, parent: Option<u32>, children: &[u32], data: &mut [T]) -> Result<(), Error> {
    for place in slots::<T>(net, 0..data.len()) {
        let mut arrived = None;
        if let Some(parent) = parent {
            let part = net.part(parent).await?;
            expect::<T>(net, &part, TAG_DOWN, &place)?;
            T::take(part.payload(), &mut data[place.clone()]);
            arrived = Some(part);
        }
        for &child in children {
            net.room(child).await?;
            let header = net.header(child, TAG_DOWN, place.start);
            match arrived.take() {
                Some(part) => net.pass_on(header, part)?,
                None => net.send(header, &data[place.clone()])?,
            }
        }
        if let Some(part) = arrived {
            net.give_back(part.buffer);
        }
    }
    Ok(())
}
