//! Work in flight: what the NIC owns until a completion, or the end of the queue, gives it back. Each queue has one
//! table. A slot holds the buffer of a work request and remembers who wants to hear of it: the handle that posting
//! returned, the completion queue, or nobody. Losing interest never frees a slot; only the NIC's word does. What
//! arrives for a receive whose handle is gone is kept: see [`left`].

mod dropped_receives;
mod handle;

use crate::allocation::Allocation;
use crate::buffer::Buffer;
use crate::completion;
use crate::ending::Ending;
use dropped_receives::Message;
pub(crate) use dropped_receives::{ReceivePlace, Refused};
use latch::lock;
use seam::Error;
use seam::wake;
use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Waker;
use transport::{Completion, PostError};
use wire::{Qpn, refuse_if};

/// What a work request holds on to.
#[derive(Debug)]
pub enum Held {
    /// Nothing: its bytes were copied.
    Nothing,
    /// A buffer.
    Buffer(Buffer),
    /// A buffer of a receive that is to come back as a certain type.
    Typed(Box<Typed>),
    /// A value that is no buffer: a window, say.
    Value(Box<dyn Value>),
    /// The place of the table's own where the answer to an atomic operation lands.
    Word(usize),
}

/// A buffer, and the type that it came as.
#[derive(Debug)]
pub struct Typed {
    /// The type.
    pub kind: TypeId,
    /// The buffer.
    pub buffer: Buffer,
}

impl Held {
    /// The buffer, if it is one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Held::Buffer(buffer) => Some(buffer),
            Held::Typed(typed) => Some(typed.buffer),
            Held::Nothing | Held::Value(_) | Held::Word(_) => None,
        }
    }
}

/// Anything that can wait in a table.
pub trait Value: Any + Debug + Send + Sync {}

impl<V: Any + Debug + Send + Sync> Value for V {}

impl dyn Value {
    /// What it is, if it is that.
    pub fn downcast<V: Any>(self: Box<Self>) -> Result<Box<V>, Box<dyn Any>> {
        (self as Box<dyn Any>).downcast()
    }
}

/// How a work request ended, as its handle hears of it.
#[derive(Debug)]
pub(crate) struct Finish {
    pub how: How,
    pub held: Held,
    /// What an atomic operation found.
    pub value: u64,
}

#[derive(Debug)]
pub(crate) enum How {
    Completed(Completion),
    /// The queue ended first.
    Destroyed,
    /// It was never posted.
    NotPosted,
    /// It was refused, later than its handle was given out: in a batch.
    Refused(PostError),
}

/// Names a slot: what the NIC gets as the number of the work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    slot: u32,
    generation: u32,
}

impl Ticket {
    /// Work that holds nothing and of which only a failure is reported, to the completion queue under this number.
    pub fn quiet(number: u32) -> Ticket {
        Ticket { slot: NO_SLOT, generation: number }
    }

    pub fn wr_id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    pub fn of(wr_id: u64) -> Ticket {
        Ticket { slot: wr_id as u32, generation: (wr_id >> 32) as u32 }
    }
}

/// No slot: there are never so many.
const NO_SLOT: u32 = u32::MAX;

/// What is to be done about a work request that ended, once no lock is held.
pub(crate) enum After {
    /// Nothing: its handle has not been polled yet.
    Nothing,
    /// Its handle waits.
    Wake(Waker),
    /// It goes to the completion queue, under the program's number, with what it held and what an atomic operation
    /// found.
    Queue(u64, Held, u64),
    /// Nobody wants it: the buffer goes when this is dropped.
    Drop(#[allow(dead_code)] Held),
    /// It went to a handle that waited without a receive of its own; that one's buffer goes.
    WakeAndDrop(Option<Waker>, #[allow(dead_code)] Held),
    /// It goes to the completion queue: the number, the message's buffer, and the one that goes.
    QueueAndDrop(Box<(u64, Held, Held)>),
}

impl After {
    /// Does it, where no completion queue has a part in it.
    #[inline]
    pub fn carry_out(self) {
        match self {
            After::Wake(waker) => wake(waker),
            After::WakeAndDrop(waker, _) => waker.into_iter().for_each(wake),
            After::Nothing | After::Queue(..) | After::Drop(_) | After::QueueAndDrop(_) => {}
        }
    }
}

/// A completion queue, as the tables know it whose work it reports.
pub(crate) trait Reporter: Debug + Send + Sync {
    /// Sorts what has completed: to handles, to the ready queue, or away. Wakes the tasks and threads that wait. No
    /// lock is held while it wakes or frees.
    fn dispatch(&self);

    /// From now on completions are sorted as they come. For what came before, [`dispatch`](Reporter::dispatch)
    /// afterwards. A program that only polls does not pay for it.
    fn make_asynchronous(self: Arc<Self>);

    /// Adds a completion that was taken from a table before it was left to the queue.
    fn add(&self, completion: completion::Completion);

    /// How a queue pair that reports there ended.
    fn ending_of(&self, qpn: Qpn) -> Option<Arc<Ending>>;

    /// Whether a queue pair reports there.
    fn has_member(&self, qpn: Qpn) -> bool;
}

/// What every work request needs of it comes first, here and in the parts.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table {
    inner: Mutex<Inner>,
    /// The completion queues that may report its work: one, or for a shared receive queue those of its queue pairs.
    queues: Mutex<Vec<Weak<dyn Reporter>>>,
    /// A handle has been awaited: completion queues must not wait to be polled.
    asynchronous: AtomicBool,
    /// Where answers to atomic operations land.
    words: Option<Arc<Allocation>>,
    /// Of what belongs to one queue pair: its end.
    ending: OnceLock<Arc<Ending>>,
    /// Of receives: how many that nobody waits for there may be, with and without a message.
    may_be_left: Option<u32>,
}

#[derive(Debug)]
#[repr(C)]
struct Inner {
    slots: Vec<Slot>,
    /// The slot that became free last; those that did before it follow in a chain.
    free: Option<u32>,
    /// Slots that the NIC has.
    pending: u32,
    /// How many slots were taken so far: the order of those who wait.
    taken: u32,
    /// How many messages came so far for handles and for nobody: their order.
    arrived: u32,
    /// Receives of the NIC's that nobody waits for, as their handles were dropped.
    left: u32,
    /// Those who wait for one of these, without a receive of their own.
    without: u32,
    closed: bool,
    free_words: Vec<usize>,
    /// Messages that came for such receives while nobody waited, oldest first.
    kept: VecDeque<Message>,
    /// Messages of such receives for handles whose own receive the NIC still has.
    early: Vec<(Ticket, Message)>,
    /// Who waits, and who did, the longest first: while there are such receives and it is of use.
    order: Option<VecDeque<Ticket>>,
}

/// What a slot holds stands beside its state: it stays where it is while the state changes. All that work needs whose
/// completion is polled is on one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot {
    generation: u32,
    /// When it was taken.
    since: u32,
    state: State,
    held: Held,
    /// How it ended, with what an atomic operation found, if it is done and its handle has not asked yet.
    done: Option<(How, u64)>,
    /// When a message arrived.
    arrived: u32,
}

const _: () = assert!(std::mem::offset_of!(Slot, done) <= 64);

#[derive(Debug)]
enum State {
    /// Nobody's; and the next that is.
    Free(Option<u32>),
    /// The NIC has it, but for those without a receive.
    Pending(Observer),
    /// It is done.
    Done,
}

#[derive(Debug)]
enum Observer {
    Handle(Option<Waker>),
    Queue(u64),
    /// A receive whose handle was dropped: its message is for the next who waits.
    Left,
    /// A handle without a receive of its own, which waits for such a message,
    HandleWithout(Option<Waker>),
    /// and the same left to the completion queue.
    QueueWithout(u64),
    Nobody,
}

impl State {
    /// Whether a task or thread waits for it.
    fn waits(&self) -> bool {
        let receive = matches!(self, State::Pending(Observer::Handle(_) | Observer::Queue(_)));
        receive || self.is_without_receive()
    }

    fn is_without_receive(&self) -> bool {
        matches!(self, State::Pending(Observer::HandleWithout(_) | Observer::QueueWithout(_)))
    }
}

impl Table {
    /// Whose work it is, in words.
    pub fn owner(&self) -> String {
        self.ending.get().map_or("a shared receive queue".into(), |ending| format!("queue pair {}", ending.qpn()))
    }

    /// An empty table for a send queue; `words` is where answers to atomic operations land, if there can be any.
    pub fn of_sends(words: Option<Arc<Allocation>>) -> Arc<Table> {
        Table::new(words, None)
    }

    /// An empty table for a queue of that many receives.
    pub fn of_receives(capacity: u32) -> Arc<Table> {
        Table::new(None, Some(capacity.max(1)))
    }

    fn new(words: Option<Arc<Allocation>>, may_be_left: Option<u32>) -> Arc<Table> {
        let free_words = words.as_ref().map_or(Vec::new(), |words| (0..words.len() / 8).rev().collect());
        let inner = Inner {
            slots: Vec::new(),
            free: None,
            pending: 0,
            taken: 0,
            arrived: 0,
            left: 0,
            without: 0,
            closed: false,
            free_words,
            kept: VecDeque::new(),
            early: Vec::new(),
            order: None,
        };
        Arc::new(Table {
            inner: Mutex::new(inner),
            queues: Mutex::new(Vec::new()),
            asynchronous: AtomicBool::new(false),
            words,
            ending: OnceLock::new(),
            may_be_left,
        })
    }

    /// All its work belongs to a queue pair with this end.
    pub fn ends_with(&self, ending: &Arc<Ending>) {
        let _ = self.ending.set(Arc::clone(ending));
    }

    /// The end of the queue pair that a completion is of.
    pub fn ending_of(&self, completion: &Completion) -> Option<Arc<Ending>> {
        let own = self.ending.get().map(Arc::clone);
        own.or_else(|| self.queue_of(completion)?.ending_of(completion.qpn))
    }

    /// Its work may be reported by this completion queue.
    pub fn reported_by(&self, queue: &Arc<impl Reporter + 'static>) {
        let mut queues = lock(&self.queues);
        queues.retain(|known| known.strong_count() > 0);
        if !queues.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(queue))) {
            queues.push(Arc::downgrade(queue) as Weak<dyn Reporter>);
        }
        drop(queues);
        if self.asynchronous.load(Ordering::SeqCst) {
            Arc::clone(queue).make_asynchronous();
        }
    }

    /// Takes what a work request is about to hold. The NIC does not have it yet; if it never gets it,
    /// [`withdraw`](Table::withdraw) it.
    #[inline]
    pub fn insert(&self, held: Held) -> Result<Ticket, Held> {
        let mut inner = lock(&self.inner);
        refuse_if!(inner.closed, held);
        let ticket = inner.take_slot(held, State::Pending(Observer::Handle(None)));
        inner.pending += 1;
        Ok(ticket)
    }

    /// A place for the answer to an atomic operation: its number, address and key.
    pub fn take_word(&self) -> Option<(usize, &Arc<Allocation>)> {
        let words = self.words.as_ref()?;
        let word = lock(&self.inner).free_words.pop()?;
        Some((word, words))
    }

    /// Gives a place back that was not used.
    pub fn return_word(&self, word: usize) {
        lock(&self.inner).free_words.push(word);
    }

    /// The NIC did not take it.
    pub fn withdraw(&self, ticket: Ticket) -> Held {
        let mut inner = lock(&self.inner);
        let Some(held) = inner.vacate(ticket) else { return Held::Nothing };
        if let Held::Word(word) = held {
            inner.free_words.push(word);
        }
        held
    }

    /// A work request completed.
    #[inline]
    pub fn complete(&self, completion: &Completion) -> After {
        let Ticket { slot, generation } = Ticket::of(completion.wr_id);
        if slot == NO_SLOT {
            return After::Queue(generation.into(), Held::Nothing, 0);
        }
        self.close(Ticket::of(completion.wr_id), || How::Completed(*completion))
    }

    /// A work request ended without a completion.
    pub fn end(&self, ticket: Ticket, how: How) -> After {
        self.close(ticket, || how)
    }

    /// A work request ended, and the NIC has let go of what it held. A number that is not in flight (any more) is
    /// nothing to anybody.
    #[inline]
    fn close(&self, ticket: Ticket, how: impl FnOnce() -> How) -> After {
        let mut inner = lock(&self.inner);
        let Inner { slots, free, free_words, pending, arrived, .. } = &mut *inner;
        let Some(slot) = slots.get_mut(ticket.slot as usize).filter(|slot| slot.generation == ticket.generation) else {
            return After::Nothing;
        };
        let State::Pending(observer) = &mut slot.state else { return After::Nothing };
        let observer = std::mem::replace(observer, Observer::Nobody);
        *pending -= 1;
        let mut value = 0;
        if let Held::Word(word) = slot.held {
            value = self.answer(word);
            free_words.push(word);
        }
        if let Observer::Handle(waker) = observer {
            *arrived = arrived.wrapping_add(1);
            (slot.state, slot.done, slot.arrived) = (State::Done, Some((how(), value)), *arrived);
            return waker.map_or(After::Nothing, After::Wake);
        }
        let held = std::mem::replace(&mut slot.held, Held::Nothing);
        slot.release(ticket.slot, free);
        match observer {
            Observer::Queue(wr_id) => After::Queue(wr_id, held, value),
            Observer::Left => inner.left_ended(how(), held),
            _ => After::Drop(held),
        }
    }

    /// How much work the NIC has.
    pub fn pending(&self) -> usize {
        lock(&self.inner).pending as usize
    }

    /// The NIC has ended the queue: everything in flight comes back without completion. `for_good` takes no work any
    /// more.
    pub fn cancel(&self, for_good: bool) {
        let mut inner = lock(&self.inner);
        inner.closed |= for_good;
        let tickets = inner.tickets_in_flight();
        let kept = std::mem::take(&mut inner.kept);
        drop(inner);
        drop(kept);
        for ticket in tickets {
            let without = lock(&self.inner).end_without_receive(ticket, How::Destroyed);
            without.unwrap_or_else(|| self.end(ticket, How::Destroyed)).carry_out();
        }
    }

    /// The completion queue that reported this.
    pub fn queue_of(&self, completion: &Completion) -> Option<Arc<dyn Reporter>> {
        let queues = lock(&self.queues);
        let known = || queues.iter().filter_map(Weak::upgrade);
        // Of a queue pair that is gone by now, any.
        known().find(|queue| queue.has_member(completion.qpn)).or_else(|| known().next())
    }

    /// What an atomic operation found.
    fn answer(&self, word: usize) -> u64 {
        let cell = self.words.as_ref().map(|words| words.word(word * 8));
        if let Some(Ok(cell)) = cell { cell.load(Ordering::Acquire) } else { 0 }
    }
}

impl Inner {
    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot> {
        self.slots.get_mut(ticket.slot as usize).filter(|slot| slot.generation == ticket.generation)
    }

    /// Takes a free slot, or makes one.
    #[inline]
    fn take_slot(&mut self, held: Held, state: State) -> Ticket {
        self.taken = self.taken.wrapping_add(1);
        let Inner { slots, free, taken, .. } = self;
        let Some((slot, entry)) = free.and_then(|slot| Some((slot, slots.get_mut(slot as usize)?))) else {
            return self.grow(held, state);
        };
        if let State::Free(next) = entry.state {
            *free = next;
        }
        (entry.held, entry.state, entry.since) = (held, state, *taken);
        Ticket { slot, generation: entry.generation }
    }

    /// A slot that there was not yet.
    #[cold]
    fn grow(&mut self, held: Held, state: State) -> Ticket {
        if self.slots.is_empty() {
            // Where there are thousands of tables most hold one at a time.
            self.slots.reserve_exact(1);
        }
        let (slot, generation) = (self.slots.len() as u32, generation());
        self.slots.push(Slot { generation, since: self.taken, held, state, done: None, arrived: 0 });
        Ticket { slot, generation }
    }

    /// Takes what the handle of work that is done asks for, and empties its slot.
    fn finish(&mut self, ticket: Ticket) -> Option<Finish> {
        let (how, value) = self.slot(ticket)?.done.take()?;
        self.vacate(ticket).map(|held| Finish { how, held, value })
    }

    /// Empties a slot for the next work request.
    fn vacate(&mut self, ticket: Ticket) -> Option<Held> {
        let Inner { slots, free, pending, without, .. } = self;
        let slot = slots.get_mut(ticket.slot as usize).filter(|slot| slot.generation == ticket.generation)?;
        match slot.state {
            State::Free(_) => return None,
            _ if slot.state.is_without_receive() => *without -= 1,
            State::Pending(_) => *pending -= 1,
            State::Done => slot.done = None,
        }
        let held = std::mem::replace(&mut slot.held, Held::Nothing);
        slot.release(ticket.slot, free);
        Some(held)
    }

    /// All that wait for an answer; receives that nobody waits for first, as their end answers those without a receive
    /// of their own.
    fn tickets_in_flight(&self) -> Vec<Ticket> {
        let ticket = |(index, slot): (usize, &Slot)| Ticket { slot: index as u32, generation: slot.generation };
        let slots = || self.slots.iter().enumerate();
        let is_left = |slot: &Slot| matches!(slot.state, State::Pending(Observer::Left));
        let left = slots().filter(|(_, slot)| is_left(slot)).map(ticket);
        let others = |slot: &Slot| matches!(slot.state, State::Pending(_)) && !is_left(slot);
        left.chain(slots().filter(|(_, slot)| others(slot)).map(ticket)).collect()
    }
}

impl Slot {
    /// Makes it the first of those that are free, under another generation.
    #[inline]
    fn release(&mut self, slot: u32, free: &mut Option<u32>) {
        self.generation = self.generation.wrapping_add(1);
        self.state = State::Free(free.replace(slot));
    }
}

/// Where the generations of a slot begin: elsewhere each time, so that a completion of a queue pair long gone is not
/// taken for one of another that got its number.
fn generation() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(0x9e37_79b9, Ordering::Relaxed)
}

impl How {
    /// The completion, or why there is none.
    pub fn check(&self) -> Result<&Completion, Error> {
        match self {
            How::Completed(completion) => Ok(completion),
            How::Destroyed => Err(Error::Destroyed),
            How::NotPosted => Err(Error::NotPosted),
            How::Refused(error) => Err(Error::Post(*error)),
        }
    }
}
