//! Completion queues: where finished work is reported. A completion that an operation's handle waits for goes there;
//! one that was left to the queue waits here, with its buffer, to be polled.

mod channel;

pub use channel::CompletionChannel;

use crate::completion::Completion;
use crate::device::{Context, ContextCore};
use crate::ending::Ending;
use crate::table::{After, Reporter, Table};
use latch::lock;
use seam::wake;
use seam::{Argument, Error};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasherDefault, Hasher};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::task::{Poll, Waker};
use std::time::Duration;
use transport::Queue;
use wire::{Qpn, Srqn, refuse_if};

/// A completion queue. A handle; clones are the same queue.
///
/// In polling style an operation is left to the queue with [`polled`](crate::Operation::polled), and its completion,
/// buffer included, is taken from here:
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let cq = context.completion_queue(16).create()?;
/// let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
/// b.recv(pd.allocate(100)?)?.polled(1);
/// a.send_inline(b"hello")?.polled(2);
///
/// let mut left = 2;
/// while left > 0 {
///     for completion in cq.poll()? {
///         left -= 1;
///         match completion.wr_id() {
///             1 => assert_eq!(completion.into_received()?.payload(), b"hello"),
///             _ => assert!(completion.is_ok()),
///         }
///     }
/// }
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_cq")]
pub struct CompletionQueue {
    pub(crate) core: Arc<Core>,
}

/// How a completion queue is to be. Made by [`Context::completion_queue`].
#[derive(Debug)]
#[must_use = "call `create`"]
#[doc(alias = "ibv_create_cq")]
pub struct CompletionQueueBuilder<'a> {
    context: &'a Context,
    capacity: u32,
    channel: Option<&'a CompletionChannel>,
    timestamps: bool,
    refused: Option<Argument>,
}

impl Context {
    /// A completion queue for `capacity` completions, or as many as the work of its queue pairs may need.
    #[doc(alias = "ibv_create_cq")]
    #[track_caller]
    pub fn completion_queue(&self, capacity: u32) -> CompletionQueueBuilder<'_> {
        // Not in a closure, which would be the caller that is named.
        let refused = match capacity {
            0 => Some(Argument::refuse("completion_queue", capacity, ONE_AT_LEAST)),
            _ => None,
        };
        CompletionQueueBuilder { context: self, capacity, channel: None, timestamps: false, refused }
    }
}

impl<'a> CompletionQueueBuilder<'a> {
    /// Reports to this channel when it is armed.
    pub fn channel(self, channel: &'a CompletionChannel) -> CompletionQueueBuilder<'a> {
        CompletionQueueBuilder { channel: Some(channel), ..self }
    }

    /// Says of each completion when it was told, by the device's [clock](Context::clock): [`Completion::timestamp`],
    /// [`Received::timestamp`].
    ///
    /// ```
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// let cq = context.completion_queue(16).timestamps().create()?;
    /// let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
    /// let receiving = b.recv(pd.allocate(8)?)?;
    /// let before = context.clock();
    /// a.send_inline(b"now")?.wait()?;
    /// let message = receiving.wait()?;
    /// assert!((before..=context.clock()).contains(&message.timestamp().expect("it was asked for")));
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// [`Received::timestamp`]: crate::Received::timestamp
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    #[doc(alias = "ibv_create_cq_ex")]
    pub fn timestamps(self) -> CompletionQueueBuilder<'a> {
        CompletionQueueBuilder { timestamps: true, ..self }
    }

    /// Makes it.
    pub fn create(self) -> Result<CompletionQueue, Error> {
        self.refused.map_or(Ok(()), Err)?;
        let context = Arc::clone(&self.context.core);
        let channel = self.channel.map(CompletionChannel::backend);
        let queue = context.opened.create_completion_queue(self.capacity, channel)?;
        let core = Arc::new(Core {
            queue,
            context,
            inner: Mutex::new(Inner::default()),
            ready: AtomicUsize::new(0),
            timestamps: self.timestamps,
            asynchronous: Once::new(),
        });
        if let Some(channel) = self.channel {
            channel.report(&core);
        }
        Ok(CompletionQueue { core })
    }
}

/// What a completion queue may hold.
const ONE_AT_LEAST: &str = "it must hold one completion at least";

impl CompletionQueue {
    /// Takes what has completed, oldest first, and drives the NIC if there is nothing. Does not wait. What the iterator
    /// is not asked for stays in the queue.
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&self) -> Result<Polled<'_>, Error> {
        let mut polled = Polled { queue: self, first: None, left: self.core.waiting() };
        if polled.left == 0 {
            self.core.poll_first(&mut polled.first);
            polled.left = self.core.waiting();
            refuse_if!(polled.left == 0 && polled.first.is_none() && self.core.has_overflowed(), Error::Overflowed);
        }
        Ok(polled)
    }

    /// The next completion, as a future.
    ///
    /// # Cancel safety
    /// It takes a completion at the moment it returns it: dropping it before loses none.
    pub fn next(&self) -> Next<'_> {
        Next { queue: self }
    }

    /// Waits for the next completion. The waiting thread drives.
    pub fn wait(&self) -> Result<Completion, Error> {
        crate::block_on(self.next())
    }

    /// Waits for the next completion, but not longer than `limit`.
    ///
    /// # Cancel safety
    /// A completion that comes later stays in the queue.
    pub fn wait_for(&self, limit: Duration) -> Result<Option<Completion>, Error> {
        crate::block_on::block_on_for(pin!(self.next()), limit).transpose()
    }

    /// Asks for one event on the channel, when the next completion comes; at once if there is one that no event has
    /// told of, or that the last poll left. So a program that polls, arms and sleeps misses nothing.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self) {
        self.core.queue.arm(false);
        if self.core.ready() > 0 {
            // Sorted already, and no longer in the queue of the NIC.
            self.core.queue.rouse();
        }
    }

    /// Asks for an event when the next completion comes, or is there, whose sender marked it as solicited, or that
    /// failed.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm_solicited(&self) {
        self.core.queue.arm(true);
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> u32 {
        self.core.queue.capacity()
    }

    /// Changes how many it holds.
    #[doc(alias = "ibv_resize_cq")]
    #[track_caller]
    pub fn resize(&self, capacity: u32) -> Result<(), Error> {
        refuse_if!(capacity == 0, Argument::refuse("resize", capacity, ONE_AT_LEAST).into());
        self.core.queue.resize(capacity)
    }
}

impl PartialEq for CompletionQueue {
    fn eq(&self, other: &CompletionQueue) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for CompletionQueue {}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CompletionQueue({} of {})", self.core.waiting(), self.capacity())
    }
}

/// Completions of a queue, borrowed from it: each is taken when the iterator comes to it.
#[derive(Debug)]
pub struct Polled<'a> {
    queue: &'a CompletionQueue,
    /// What came while the queue was looked at.
    first: Option<Completion>,
    left: usize,
}

impl Iterator for Polled<'_> {
    type Item = Completion;

    #[inline]
    fn next(&mut self) -> Option<Completion> {
        if self.first.is_some() {
            return self.first.take();
        }
        while self.left > 0 {
            self.left -= 1;
            let next = self.queue.core.next();
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let first = usize::from(self.first.is_some());
        (first, Some(first + self.left))
    }
}

impl Drop for Polled<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(first) = self.first.take() {
            self.queue.core.put_back(first);
        }
        // Handles hear of what they wait for whether or not the iterator is asked for everything.
        if self.left > 0 {
            self.queue.core.dispatch();
        }
    }
}

/// The next completion of a queue. Made by [`CompletionQueue::next`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Next<'a> {
    queue: &'a CompletionQueue,
}

impl Future for Next<'_> {
    type Output = Result<Completion, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let core = &self.queue.core;
        Arc::clone(core).make_asynchronous();
        core.dispatch();
        let mut inner = lock(&core.inner);
        if let Some(completion) = core.pop_from(&mut inner) {
            return Poll::Ready(Ok(completion));
        }
        if core.has_overflowed() {
            return Poll::Ready(Err(Error::Overflowed));
        }
        seam::environment::waits_for(|| format!("a completion in queue {}", core.queue.id()));
        if !inner.waiters.iter().any(|waiter| waiter.will_wake(context.waker())) {
            inner.waiters.push(context.waker().clone());
        }
        drop(inner);
        // What came between the look and the waker was told to nobody.
        core.dispatch();
        core.pop().map_or(Poll::Pending, |completion| Poll::Ready(Ok(completion)))
    }
}

/// What the handles of a completion queue share.
pub(crate) struct Core {
    pub queue: Arc<dyn seam::CompletionQueue>,
    pub context: Arc<ContextCore>,
    inner: Mutex<Inner>,
    /// How many are ready, for a poll that finds nothing without taking the lock. Written under it.
    ready: AtomicUsize,
    /// Completions say when they were told.
    timestamps: bool,
    /// Done when a task or thread first waits for single operations or for the next completion: from then on
    /// completions are sorted as they come, not when the queue is polled.
    asynchronous: Once,
}

/// Locked while the queue of the NIC is, or alone; never the other way round.
#[derive(Default)]
struct Inner {
    ready: VecDeque<Completion>,
    members: HashMap<Qpn, Member, BuildHasherDefault<Scatter>>,
    /// Receive queues of XRC domains that report here.
    shared: Vec<(Srqn, Arc<Table>)>,
    waiters: Vec<Waker>,
    /// How much work its queue pairs may have outstanding together.
    work: u32,
}

impl Inner {
    /// Where the work is that completed, and why its queue pair ended, should it have.
    #[inline]
    fn table_of(&self, completion: &transport::Completion) -> Option<(&Arc<Table>, Option<&Arc<Ending>>)> {
        let Some(member) = self.members.get(&completion.qpn) else {
            // Queues of XRC domains are filled by queue pairs that report nowhere.
            let Queue::Shared(number) = completion.queue else { return None };
            return self.shared.iter().find(|(known, _)| *known == number).map(|(_, table)| (table, None));
        };
        let table = match completion.queue {
            Queue::Send => &member.send,
            Queue::Receive | Queue::Shared(_) => &member.receive,
        };
        Some((table, Some(&member.ending)))
    }

    /// Hands out the oldest of a completion that was just taken and of those that are ready.
    #[inline]
    fn oldest(&mut self, completion: Completion, to: &mut Option<Completion>) {
        *to = Some(completion);
        if !self.ready.is_empty() {
            // Others have sorted meanwhile: what they found is older.
            self.ready.extend(to.take());
            *to = self.ready.pop_front();
        }
    }
}

/// Scatters the numbers of this program's own queue pairs over a table. Nobody else chooses them, so it need not be
/// hard to foresee.
#[derive(Default)]
struct Scatter(u64);

impl Hasher for Scatter {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // The golden ratio: consecutive numbers end up far from each other, in the upper bits too.
        self.0 = (self.0.rotate_left(5) ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A queue pair that reports here.
pub(crate) struct Member {
    pub send: Arc<Table>,
    pub receive: Arc<Table>,
    /// How much of its work may be outstanding that completes here. Receives of a shared queue count for each queue
    /// pair, up to a few: how many of them one takes cannot be known.
    pub work: u32,
    /// How it ends.
    pub ending: Arc<Ending>,
}

impl Core {
    /// The oldest completion that is left to the queue. None also if the one that is looked at was for a handle.
    #[inline]
    fn next(&self) -> Option<Completion> {
        if self.ready() > 0 {
            return self.pop();
        }
        let mut next = None;
        self.take(&mut |inner, completion| inner.oldest(completion, &mut next));
        next
    }

    /// Looks for a completion where there is none, which drives. What comes and is left to the queue goes to `first`.
    #[inline]
    fn poll_first(&self, first: &mut Option<Completion>) {
        self.sort(|take| self.queue.poll(1, take), &mut |inner, completion| inner.oldest(completion, first));
    }

    /// Takes one completion from the NIC and hands it to the handle or call that wants it: `give`, if it is left to the
    /// queue. Says whether there was one.
    #[inline]
    fn take(&self, give: &mut impl FnMut(&mut Inner, Completion)) -> bool {
        self.sort(|take| self.queue.take(1, take), give)
    }

    /// Sorts one completion that `from` takes.
    #[inline]
    fn sort(
        &self,
        from: impl FnOnce(&mut dyn FnMut(&transport::Completion, u64)) -> usize,
        give: &mut impl FnMut(&mut Inner, Completion),
    ) -> bool {
        let mut after = After::Nothing;
        let taken = from(&mut |completion, at| {
            let stamped;
            let completion = match self.timestamps {
                false => completion,
                true => {
                    stamped = transport::Completion { told_at: at.max(1), ..*completion };
                    &stamped
                }
            };
            let mut inner = lock(&self.inner);
            let Some((table, ending)) = inner.table_of(completion) else { return };
            match table.complete(completion) {
                After::Queue(wr_id, held, value) => {
                    let told = Completion::new(wr_id, completion, held.into_buffer(), value, || ending.cloned());
                    give(&mut inner, told);
                    self.ready.store(inner.ready.len(), Ordering::Release);
                }
                After::QueueAndDrop(told) => {
                    let (wr_id, held, surplus) = *told;
                    let told = Completion::new(wr_id, completion, held.into_buffer(), 0, || ending.cloned());
                    give(&mut inner, told);
                    self.ready.store(inner.ready.len(), Ordering::Release);
                    after = After::Drop(surplus);
                }
                other => after = other,
            }
        });
        after.carry_out();
        taken > 0
    }

    /// Wakes those who wait for the next completion, if there is one or never will be.
    fn wake_waiters(&self) {
        if self.ready() == 0 && !self.has_overflowed() {
            return;
        }
        // Who waits again at once is not woken again.
        let waiting = lock(&self.inner).waiters.len();
        for _ in 0..waiting {
            let waiter = lock(&self.inner).waiters.pop();
            waiter.into_iter().for_each(wake);
        }
    }

    /// Takes one back that the program did not want yet.
    #[cold]
    fn put_back(&self, completion: Completion) {
        let mut inner = lock(&self.inner);
        inner.ready.push_front(completion);
        self.ready.store(inner.ready.len(), Ordering::Release);
        drop(inner);
        self.wake_waiters();
    }

    /// A queue pair reports here from now on. The queue grows where it could not hold all the work its queue pairs may
    /// have outstanding.
    pub fn join(&self, qpn: Qpn, member: Member) {
        let mut inner = lock(&self.inner);
        inner.work = inner.work.saturating_add(member.work);
        let work = inner.work;
        inner.members.insert(qpn, member);
        drop(inner);
        self.hold(work);
    }

    /// Makes room for so much work.
    fn hold(&self, work: u32) {
        if work > self.queue.capacity() {
            // A NIC that cannot resize leaves it at what the program asked for.
            let _ = self.queue.resize(work.checked_next_power_of_two().unwrap_or(work));
        }
    }

    /// A receive queue of an XRC domain reports here from now on.
    pub fn join_shared(&self, number: Srqn, table: &Arc<Table>, receives: u32) {
        let mut inner = lock(&self.inner);
        inner.work = inner.work.saturating_add(receives);
        inner.shared.push((number, Arc::clone(table)));
        let work = inner.work;
        drop(inner);
        self.hold(work);
    }

    /// That no longer.
    pub fn leave_shared(&self, number: Srqn, receives: u32) {
        let mut inner = lock(&self.inner);
        inner.work = inner.work.saturating_sub(receives);
        inner.shared.retain(|(known, _)| *known != number);
    }

    pub fn leave(&self, qpn: Qpn) {
        let mut inner = lock(&self.inner);
        let Some(gone) = inner.members.remove(&qpn) else { return };
        inner.work = inner.work.saturating_sub(gone.work);
        drop(inner);
        drop(gone);
    }

    pub fn has_overflowed(&self) -> bool {
        self.queue.has_overflowed()
    }

    /// How many there may be to hand out: ready ones, and what has not been sorted.
    #[inline]
    fn waiting(&self) -> usize {
        self.ready() + self.queue.waiting()
    }

    #[inline]
    fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    fn pop(&self) -> Option<Completion> {
        self.pop_from(&mut lock(&self.inner))
    }

    fn pop_from(&self, inner: &mut Inner) -> Option<Completion> {
        let completion = inner.ready.pop_front();
        self.ready.store(inner.ready.len(), Ordering::Release);
        completion
    }
}

impl Reporter for Core {
    fn dispatch(&self) {
        while self.take(&mut |inner, completion| inner.ready.push_back(completion)) {}
        self.wake_waiters();
    }

    fn make_asynchronous(self: Arc<Core>) {
        let weak = Arc::downgrade(&self);
        self.asynchronous.call_once(|| {
            self.queue.observe(Box::new(move || {
                if let Some(core) = weak.upgrade() {
                    core.dispatch();
                }
            }));
        });
    }

    fn add(&self, completion: Completion) {
        let mut inner = lock(&self.inner);
        inner.ready.push_back(completion);
        self.ready.store(inner.ready.len(), Ordering::Release);
        drop(inner);
        self.queue.rouse();
        self.wake_waiters();
    }

    fn ending_of(&self, qpn: Qpn) -> Option<Arc<Ending>> {
        lock(&self.inner).members.get(&qpn).map(|member| Arc::clone(&member.ending))
    }

    fn has_member(&self, qpn: Qpn) -> bool {
        lock(&self.inner).members.contains_key(&qpn)
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "completion queue {}", self.queue.id())
    }
}
