//! The handle of posted work.

use crate::buffer::sealed::Lend;
use crate::completion::{Completion, ReceivedInto, verdict};
use crate::table::{Finish, Held, How, Table, Ticket};
use seam::Failed;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Work that has been posted. It is under way whether or not anybody looks at this handle.
///
/// There are three things to do with it:
/// - **await it**, with any executor or with [`block_on`](crate::block_on), or [`wait`](Operation::wait) for it: the
///   answer is the buffer, or what came of the work;
/// - leave it to the completion queue with [`polled`](Operation::polled), and take the answer there;
/// - **drop it**: the work goes on, and its buffer is freed when the NIC has no more use for it.
///
/// # Cancel safety
/// Dropping it, as `select!` and `timeout` do with what they do not wait for any longer, cancels no work: that cannot
/// be taken back.
///
/// | of | dropping it loses |
/// |---|---|
/// | a receive | nothing: the message is for the next [`recv`](crate::QueuePair::recv) |
/// | a SEND or WRITE | the word whether it arrived, and the buffer |
/// | a READ | what was read, and the buffer; it can be read again |
/// | an atomic operation | what was found there: it has been carried out all the same, or will be |
///
/// A caller that wants to go on later keeps the operation and awaits `&mut operation`, as
/// [`wait_for`](Operation::wait_for) does.
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
/// let receiving = b.recv(pd.allocate(5)?)?;
/// drop(a.send_inline(b"hello")?); // fire and forget
/// let message = ubiverbs::block_on(receiving)?;
/// assert_eq!(message.payload(), b"hello");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// It is a plain future: wakers only, no runtime. It can be sent to another thread, and it does not keep its queue pair
/// alive: when that is dropped, work under way ends with [`Error::Destroyed`](crate::Error::Destroyed), and the buffer
/// comes back.
#[must_use = "await it, leave it to the completion queue with `polled`, or drop it on purpose"]
pub struct Operation<R: Outcome> {
    table: Arc<Table>,
    ticket: Ticket,
    /// The answer has been taken, or left to another call.
    over: bool,
    outcome: PhantomData<fn() -> R>,
}

/// What comes of an operation: a buffer, a [`Received`](crate::Received) message, the number an atomic operation found,
/// or nothing.
#[diagnostic::on_unimplemented(
    message = "no operation ends with `{Self}`",
    label = "not what comes of an operation",
    note = "an operation gives its buffer back, or answers a `Received` message, the `u64` that an atomic operation found, or nothing"
)]
pub trait Outcome: sealed::Outcome {}

pub(crate) mod sealed {
    use crate::table::Held;

    pub trait Outcome: Sized {
        /// What a failure gives back.
        type Buffer: Send + 'static;
        /// What one waits for who waits for it.
        const NAME: &'static str = "the completion of a SEND, WRITE or READ";
        fn succeeded(completion: &transport::Completion, held: Held, value: u64) -> Option<Self>;
        fn failed(held: Held) -> Option<Self::Buffer>;
    }
}

/// What a failed operation gives back.
pub(crate) type BufferOf<R> = <R as sealed::Outcome>::Buffer;

impl<R: Outcome> Operation<R> {
    pub(crate) fn new(table: &Arc<Table>, ticket: Ticket) -> Operation<R> {
        Operation { table: Arc::clone(table), ticket, over: false, outcome: PhantomData }
    }

    /// Waits until it is done. The waiting thread drives.
    pub fn wait(self) -> Result<R, Failed<BufferOf<R>>> {
        crate::block_on(self)
    }

    /// Waits until it is done, but not longer than `limit`. It goes on then, and can be waited for again: a datagram
    /// may never come, and still does its receive wait for one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let mut receiving = b.recv(pd.allocate(5)?)?;
    /// assert!(receiving.wait_for(Duration::from_millis(1)).is_none());
    /// a.send_inline(b"late")?.wait()?;
    /// let message = receiving.wait_for(Duration::from_secs(1)).expect("it has come")?;
    /// assert_eq!(message.payload(), b"late");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Cancel safety
    /// The operation is only borrowed: what comes later is there for the next call.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<R, Failed<BufferOf<R>>>> {
        crate::block_on::block_on_for(Pin::new(self), limit)
    }

    /// Leaves it to the completion queue: its completion comes from
    /// [`CompletionQueue::poll`](crate::CompletionQueue::poll), with this number and with its buffer.
    pub fn polled(mut self, wr_id: u64) {
        self.over = true;
        let Some(finish) = self.table.hand_to_queue(self.ticket, wr_id) else { return };
        // Done already. Without a completion (the queue pair is gone) there is nothing to report.
        if let Finish { how: How::Completed(completion), held, value } = finish
            && let Some(queue) = self.table.queue_of(&completion)
        {
            queue.add(Completion::new(wr_id, &completion, held.into_buffer(), value, || {
                self.table.ending_of(&completion)
            }));
        }
    }

    /// Lets go of it for good: the work goes on, and nobody wants to know what comes of it. A message that arrives for
    /// a receive is thrown away, where dropping the handle keeps it for the next [`recv`](crate::QueuePair::recv).
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// b.recv(pd.allocate(16)?)?.discard();
    /// let second = b.recv(pd.allocate(16)?)?;
    /// a.send_inline(b"a greeting")?.wait()?;
    /// a.send_inline(b"an answer")?.wait()?;
    /// assert_eq!(second.wait()?.payload(), b"an answer");
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    pub fn discard(mut self) {
        self.over = true;
        self.table.discard(self.ticket);
    }

    /// Whether it is done. Only tells what has been noticed: something must drive, by polling, waiting or awaiting.
    pub fn is_done(&self) -> bool {
        self.table.is_done(self.ticket)
    }
}

impl<R: Outcome> Future for Operation<R> {
    type Output = Result<R, Failed<BufferOf<R>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready(Finish { how, held, value }) = self.table.poll(self.ticket, context) else {
            seam::environment::waits_for(|| format!("{} of {}", R::NAME, self.table.owner()));
            return Poll::Pending;
        };
        self.over = true;
        let result = how.check().and_then(|completion| {
            verdict(completion, || self.table.ending_of(completion))?;
            Ok(completion)
        });
        // The type that posted the work and the type that takes the answer are the same, so the buffer is always there.
        const SAME: &str = "an operation's buffer comes back as what it was posted as";
        Poll::Ready(match result {
            Ok(completion) => Ok(R::succeeded(completion, held, value).expect(SAME)),
            Err(error) => Err(Failed { error, buffer: R::failed(held).expect(SAME) }),
        })
    }
}

impl<R: Outcome> Drop for Operation<R> {
    fn drop(&mut self) {
        if !self.over {
            self.table.abandon(self.ticket);
        }
    }
}

impl<R: Outcome> fmt::Debug for Operation<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({})", if self.is_done() { "done" } else { "under way" })
    }
}

impl<B: Lend> Outcome for B {}
impl<B: Lend> Outcome for ReceivedInto<B> {}
impl Outcome for u64 {}
impl Outcome for () {}

fn buffer<B: Lend>(held: Held) -> Option<B> {
    if let Held::Buffer(buffer) = held { B::from_buffer(buffer) } else { None }
}

impl<B: Lend> sealed::Outcome for B {
    type Buffer = B;

    fn succeeded(_: &transport::Completion, held: Held, _: u64) -> Option<B> {
        buffer(held)
    }

    fn failed(held: Held) -> Option<B> {
        buffer(held)
    }
}

impl<B: Lend> sealed::Outcome for ReceivedInto<B> {
    type Buffer = B;
    const NAME: &'static str = "a message";

    fn succeeded(completion: &transport::Completion, held: Held, _: u64) -> Option<ReceivedInto<B>> {
        Some(ReceivedInto::new(B::from_buffer(held.into_buffer()?)?, completion))
    }

    fn failed(held: Held) -> Option<B> {
        B::from_buffer(held.into_buffer()?)
    }
}

impl sealed::Outcome for u64 {
    type Buffer = ();
    const NAME: &'static str = "the answer to an atomic operation";

    fn succeeded(_: &transport::Completion, _: Held, value: u64) -> Option<u64> {
        Some(value)
    }

    fn failed(_: Held) -> Option<()> {
        Some(())
    }
}

impl sealed::Outcome for () {
    type Buffer = ();
    const NAME: &'static str = "the completion of work without a buffer";

    fn succeeded(_: &transport::Completion, _: Held, _: u64) -> Option<()> {
        Some(())
    }

    fn failed(_: Held) -> Option<()> {
        Some(())
    }
}
