//! Receives into buffers of any type: several pieces, a part of one, memory of the program's own.

use crate::buffer::Destination;
use crate::completion::ReceivedInto;
use crate::operation::Operation;
use crate::posting::post_scatter;
use crate::queue_pair::{Core, PreparedQueuePair, QueuePair};
use crate::transports::Transport;
use seam::Failed;

impl<T: Transport> QueuePair<T> {
    /// Posts a receive into a buffer of any type: several of them, of which each is filled before the next; a
    /// [`Part`](crate::Part) of one; memory of the program's [own](crate::Own). How many pieces there may be,
    /// [`max_pieces`](crate::QueuePairBuilder::max_pieces) says.
    ///
    /// # Cancel safety
    /// As [`recv`](QueuePair::recv) among receives into buffers of this type: a message that came for an operation that
    /// was dropped is for the next `recv_into` with a buffer of the same type, and comes in the buffer of the earlier
    /// call.
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
