//! Receives into buffers of any type: several pieces, a part of one, memory of the program's own.

use crate::buffer::{Destination, sealed::Lend};
use crate::completion::ReceivedInto;
use crate::error::{Error, Failed};
use crate::operation::Operation;
use crate::queue_pair::work::{Pieces, give_back};
use crate::queue_pair::{Core, PreparedQueuePair, QueuePair};
use crate::table::{Held, Table};
use crate::transports::Transport;
use std::sync::Arc;
use transport::{PostError, ReceiveRequest, Sge};

impl<T: Transport> QueuePair<T> {
    /// Posts a receive into a buffer of any type: several of them, of which each is filled before the next; a
    /// [`Part`](crate::Part) of one; memory of the program's [own](crate::Own). How many pieces there may be,
    /// [`max_pieces`](crate::QueuePairBuilder::max_pieces) says.
    ///
    /// ```
    /// # use ubiverbs::Reliable;
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// let receiving = b.recv_into(vec![pd.allocate(4)?, pd.allocate(4)?, pd.allocate(4)?])?;
    /// a.send_inline(b"scatter")?.wait()?;
    /// let message = receiving.wait()?;
    /// assert_eq!(message.payload_pieces().collect::<Vec<_>>(), [&b"scat"[..], b"ter"]);
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    #[doc(alias = "ibv_post_recv")]
    #[doc(alias = "ibv_sge")]
    pub fn recv_into<B: Destination>(&self, buffer: B) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
        self.core().recv_into(buffer)
    }
}

impl<T: Transport> PreparedQueuePair<T> {
    /// Posts a receive into a buffer of any type, as [`QueuePair::recv_into`].
    #[doc(alias = "ibv_post_recv")]
    pub fn recv_into<B: Destination>(&self, buffer: B) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
        self.core().recv_into(buffer)
    }
}

impl Core {
    fn recv_into<B: Destination>(&self, buffer: B) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
        post_scatter(&self.receive, self.domain, buffer, |request| {
            // SAFETY: `post_scatter` has moved the buffer into the table, where nothing reaches it until the work has
            // ended.
            #[allow(unsafe_code)]
            unsafe { self.pair.post_receive(&[request]) }.map_err(|(_, error)| error)
        })
    }
}

/// Posts a receive to a queue of its own or to a shared one.
pub(crate) fn post_scatter<B: Lend>(
    table: &Arc<Table>,
    domain: transport::ProtectionDomain,
    buffer: B,
    post: impl FnOnce(ReceiveRequest<'_>) -> Result<(), PostError>,
) -> Result<Operation<ReceivedInto<B>>, Failed<B>> {
    let buffer = buffer.into_buffer();
    let mut pieces = Pieces::default();
    if let Err(error) = buffer.pieces(domain, &mut |piece: Sge| pieces.push(piece)) {
        return Err(give_back(error, Held::Buffer(buffer)));
    }
    let ticket = table.insert(Held::Buffer(buffer)).map_err(|held| give_back(Error::Destroyed, held))?;
    match post(ReceiveRequest { wr_id: ticket.wr_id(), sges: pieces.as_slice() }) {
        Ok(()) => Ok(Operation::new(table, ticket)),
        Err(error) => Err(give_back(error.into(), table.withdraw(ticket))),
    }
}
