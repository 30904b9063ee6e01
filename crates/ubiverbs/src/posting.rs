//! How work is given to the NIC, in so far as queue pairs and shared receive queues do it alike: the pieces of a request,
//! and receives.

use crate::buffer::{Buffer, RegisteredMut, sealed::Lend};
use crate::completion::{Received, ReceivedInto};
use crate::operation::Operation;
use crate::table::{Held, ReceivePlace, Refused, Table, Ticket, Typed};
use seam::{Error, Failed};
use std::any::TypeId;
use std::sync::Arc;
use transport::{PostError, ReceiveRequest, Sge};

/// Scatter/gather entries: a few here, more elsewhere.
#[derive(Default)]
pub(crate) struct RequestPieces {
    few: [Sge; 4],
    count: usize,
    many: Vec<Sge>,
}

impl RequestPieces {
    #[inline]
    pub fn push(&mut self, sge: Sge) {
        match self.few.get_mut(self.count) {
            Some(place) if self.many.is_empty() => {
                *place = sge;
                self.count += 1;
            }
            _ => self.push_more(sge),
        }
    }

    #[cold]
    fn push_more(&mut self, sge: Sge) {
        if self.many.is_empty() {
            self.many.extend_from_slice(&self.few);
        }
        self.many.push(sge);
    }

    #[inline]
    pub fn as_slice(&self) -> &[Sge] {
        if self.many.is_empty() { self.few.get(..self.count).unwrap_or_default() } else { &self.many }
    }
}

/// Posts a receive to a queue of its own or to a shared one.
#[inline]
pub(crate) fn post_receive(
    table: &Arc<Table>,
    domain: transport::ProtectionDomain,
    buffer: RegisteredMut,
    mut post: impl FnMut(ReceiveRequest<'_>) -> Result<(), PostError>,
) -> Result<Operation<Received>, Failed<RegisteredMut>> {
    let buffer = Buffer::Mut(buffer);
    let mut sge = Sge::default();
    let back = |error: Error, held: Held| match held {
        Held::Buffer(Buffer::Mut(buffer)) => Failed { error, buffer },
        _ => unreachable!("a receive holds the one buffer it was given"),
    };
    if let Err(error) = buffer.pieces(domain, &mut |piece: Sge| sge = piece) {
        return Err(back(error, Held::Buffer(buffer)));
    }
    let post = |ticket: Ticket| post(ReceiveRequest { wr_id: ticket.wr_id(), sges: &[sge] });
    match place_receive(table, Held::Buffer(buffer), post) {
        Ok(ticket) => Ok(Operation::new(table, ticket)),
        Err((error, held)) => Err(back(error, held)),
    }
}

/// Posts a receive, or waits for one that nobody waits for, or takes a message that came for such a one.
#[inline]
fn place_receive(
    table: &Table,
    held: Held,
    mut post: impl FnMut(Ticket) -> Result<(), PostError>,
) -> Result<Ticket, (Error, Held)> {
    Ok(match table.insert_receive(held).map_err(|held| (Error::Destroyed, held))? {
        ReceivePlace::Post(ticket) => match post(ticket) {
            Ok(()) => ticket,
            Err(error) => match table.refused(ticket, matches!(error, PostError::QueueFull { .. })) {
                Refused::Waits | Refused::Answered(_) => ticket,
                Refused::GiveBack(held) => return Err((error.into(), held)),
            },
        },
        ReceivePlace::Wait(ticket) => ticket,
        ReceivePlace::Answered(handle, posted) => {
            let withdraw = |ticket| post(ticket).map_err(|error| table.withdraw_left(ticket, error));
            let surplus = posted.and_then(withdraw).err();
            drop(surplus);
            handle
        }
    })
}

/// Posts a receive to a queue of its own or to a shared one.
pub(crate) fn post_scatter<B: Lend>(
    table: &Arc<Table>,
    domain: transport::ProtectionDomain,
    buffer: B,
    mut post: impl FnMut(ReceiveRequest<'_>) -> Result<(), PostError>,
) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
    const SAME: &str = "what was lent as one type comes back as the same";
    let back = |(error, held): (Error, Held)| Failed {
        error,
        buffer: held.into_buffer().and_then(B::from_buffer).expect(SAME),
    };
    let buffer = buffer.into_buffer();
    let mut pieces = RequestPieces::default();
    let placed = buffer.pieces(domain, &mut |piece: Sge| pieces.push(piece));
    // What arrives for it, should its handle be dropped, is for the next receive of the same type.
    let held = Held::Typed(Box::new(Typed { kind: TypeId::of::<B>(), buffer }));
    if let Err(error) = placed {
        return Err(back((error, held)));
    }
    let post = |ticket: Ticket| post(ReceiveRequest { wr_id: ticket.wr_id(), sges: pieces.as_slice() });
    let ticket = place_receive(table, held, post).map_err(back)?;
    Ok(Operation::new(table, ticket))
}
