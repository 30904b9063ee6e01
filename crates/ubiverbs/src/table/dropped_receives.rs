//! Receives whose handles were dropped. The NIC cannot give a receive back, so it stays, and what arrives for it is
//! for the next who waits: dropping a handle loses no message.
//!
//! | a receive that nobody waits for | then |
//! |---|---|
//! | gets a message, and others wait | the one that has waited longest gets it; its own receive is now the one that nobody waits for |
//! | gets a message, and nobody waits | it is kept, in the order of arrival, for the next receive that is posted |
//! | fails | its buffer goes; those who wait hear of it with their own receives |
//!
//! A handle that is dropped after its message came passes it on, and each that has a later one and did not take it yet
//! gets the one before: who takes one message after the other gets them in order. A buffer that is posted joins the
//! queue, as long as there is room and not too many receives are left; else its handle waits without a receive of its
//! own ([`Observer::HandleWithout`]), of which there are never more than receives that nobody waits for.

use super::{After, Finish, Held, How, Inner, Observer, Slot, State, Table, Ticket};
use crate::completion::Completion as Told;
use latch::lock;
use std::any::TypeId;
use transport::{Completion, PostError, Status};
use wire::refuse_if;

/// A message, in the buffer of a receive that nobody waits for.
#[derive(Debug)]
pub(super) struct Message {
    completion: Completion,
    held: Held,
    arrived: u32,
}

impl Message {
    pub fn into_finish(self) -> Finish {
        Finish { how: How::Completed(self.completion), held: self.held, value: 0 }
    }
}

/// What becomes of a receive that the NIC did not take.
pub(crate) enum Refused {
    /// Its handle waits for the message of another.
    Waits,
    /// Its handle has the message of another. The buffer goes.
    Answered(#[allow(dead_code)] Held),
    /// There is no handle.
    GiveBack(Held),
}

/// Where a receive that is about to be posted ends up.
pub(crate) enum ReceivePlace {
    /// It is to be posted.
    Post(Ticket),
    /// Its handle waits for the message of another.
    Wait(Ticket),
    /// Its handle has a message already. The buffer is to be posted, or goes.
    Answered(Ticket, Result<Ticket, Held>),
}

/// Buffers come back as the types they were given as, and are not mixed up: a message goes to a handle that waits for
/// this type. Plain buffers have none.
type Class = Option<TypeId>;

fn class_of(held: &Held) -> Class {
    if let Held::Typed(typed) = held { Some(typed.kind) } else { None }
}

fn has_succeeded(how: &How) -> bool {
    matches!(how, How::Completed(completion) if completion.status == Status::Success)
}

impl Table {
    /// Takes what a receive is about to hold.
    #[inline]
    pub fn insert_receive(&self, held: Held) -> Result<ReceivePlace, Held> {
        let mut inner = lock(&self.inner);
        refuse_if!(inner.closed, held);
        if inner.left > 0 || !inner.kept.is_empty() {
            return Ok(inner.insert_beside_left(held, self.may_be_left.unwrap_or(0)));
        }
        let ticket = inner.take_slot(held, State::Pending(Observer::Handle(None)));
        inner.pending += 1;
        Ok(ReceivePlace::Post(ticket))
    }

    /// The NIC did not take a receive; `is_full` if its queue is full.
    #[cold]
    pub fn refused(&self, ticket: Ticket, is_full: bool) -> Refused {
        let mut inner = lock(&self.inner);
        let Some(slot) = inner.slot(ticket) else { return Refused::GiveBack(Held::Nothing) };
        if let State::Pending(Observer::Left) = slot.state {
            // A message came for its handle meanwhile, from a receive that nobody waited for: the buffer goes.
            inner.left -= 1;
            inner.forget_order();
            return Refused::Answered(inner.vacate(ticket).unwrap_or(Held::Nothing));
        }
        let class = class_of(&slot.held);
        if is_full
            && inner.has_spare(class)
            && let Some(Slot { state: State::Pending(observer @ Observer::Handle(None)), .. }) = inner.slot(ticket)
        {
            *observer = Observer::HandleWithout(None);
            inner.pending -= 1;
            inner.without += 1;
            return Refused::Waits;
        }
        Refused::GiveBack(inner.vacate(ticket).unwrap_or(Held::Nothing))
    }

    /// The NIC did not take a receive that nothing would have waited for. Returns the buffer, unless a handle waits for
    /// that receive by now, and hears of it.
    #[cold]
    pub fn withdraw_left(&self, ticket: Ticket, error: PostError) -> Held {
        let mut inner = lock(&self.inner);
        inner.left -= 1;
        inner.forget_order();
        let held = inner.vacate(ticket).unwrap_or(Held::Nothing);
        if inner.without <= inner.left {
            return held;
        }
        let after = inner.fail_waiting(How::Refused(error), held);
        inner.forget_order();
        drop(inner);
        after.carry_out();
        Held::Nothing
    }

    /// Waits for a receive of one piece that nobody waits for, if there is one.
    pub fn resume(&self) -> Option<Ticket> {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return None;
        }
        let answered = inner.answer_from_kept(None);
        if answered.is_some() || !inner.has_spare(None) {
            return answered;
        }
        Some(inner.take_slot_without(Held::Nothing))
    }

    /// The handle of a receive is gone.
    pub(super) fn leave(&self, ticket: Ticket) {
        let mut inner = lock(&self.inner);
        let Inner { slots, left, .. } = &mut *inner;
        let slot = slots.get_mut(ticket.slot as usize).filter(|slot| slot.generation == ticket.generation);
        let message = match slot.map(|slot| (&mut slot.state, slot.arrived)) {
            Some((State::Pending(observer @ Observer::Handle(_)), _)) => {
                let before = std::mem::replace(observer, Observer::Left);
                *left += 1;
                // A waker may do anything when it is dropped: not under the lock.
                drop(inner);
                return drop(before);
            }
            Some((State::Done, arrived)) => match inner.finish(ticket) {
                Some(Finish { how: How::Completed(completion), held, .. }) if completion.status == Status::Success => {
                    Message { completion, held, arrived }
                }
                failed => {
                    drop(inner);
                    return drop(failed);
                }
            },
            Some((State::Pending(observer @ Observer::HandleWithout(_)), _)) => {
                let before = std::mem::replace(observer, Observer::HandleWithout(None));
                let held = inner.vacate(ticket);
                drop(inner);
                return drop((before, held));
            }
            _ => match inner.take_early(ticket) {
                Some(message) => message,
                None => return,
            },
        };
        let (completion, after) = inner.hand_on(message);
        drop(inner);
        let (wr_id, held, _surplus) = match after {
            After::Queue(wr_id, held, _) => (wr_id, held, Held::Nothing),
            After::QueueAndDrop(told) => *told,
            other => return other.carry_out(),
        };
        if let Some(queue) = self.queue_of(&completion) {
            queue.add(Told::new(wr_id, &completion, held.into_buffer(), 0, || None));
        }
    }
}

impl Inner {
    /// Takes what a receive is about to hold, where there are receives or messages that nobody waits for.
    #[cold]
    fn insert_beside_left(&mut self, held: Held, may_be_left: u32) -> ReceivePlace {
        let class = class_of(&held);
        let answered = self.answer_from_kept(class);
        let may_post = self.left as usize + self.kept.len() < may_be_left as usize;
        let Some(handle) = answered else {
            if may_post || !self.has_spare(class) {
                self.pending += 1;
                let ticket = self.take_slot(held, State::Pending(Observer::Handle(None)));
                self.order.iter_mut().for_each(|order| order.push_back(ticket));
                return ReceivePlace::Post(ticket);
            }
            return ReceivePlace::Wait(self.take_slot_without(held));
        };
        if !may_post {
            return ReceivePlace::Answered(handle, Err(held));
        }
        self.pending += 1;
        self.left += 1;
        ReceivePlace::Answered(handle, Ok(self.take_slot(held, State::Pending(Observer::Left))))
    }

    /// A handle that waits without a receive of its own.
    fn take_slot_without(&mut self, held: Held) -> Ticket {
        let ticket = self.take_slot(held, State::Pending(Observer::HandleWithout(None)));
        self.without += 1;
        self.order.iter_mut().for_each(|order| order.push_back(ticket));
        ticket
    }

    /// A handle that has the oldest message that was kept, if there is one.
    fn answer_from_kept(&mut self, class: Class) -> Option<Ticket> {
        let oldest = self.kept.iter().position(|message| class_of(&message.held) == class)?;
        let Message { completion, held, arrived } = self.kept.remove(oldest)?;
        let ticket = self.take_slot(held, State::Done);
        if let Some(slot) = self.slot(ticket) {
            (slot.done, slot.arrived) = (Some((How::Completed(completion), 0)), arrived);
        }
        Some(ticket)
    }

    /// Whether there are more receives that nobody waits for than handles that wait without a receive.
    fn has_spare(&self, class: Class) -> bool {
        if self.left == 0 {
            return false;
        }
        let balance = |state: &State| match state {
            State::Pending(Observer::Left) => 1,
            _ if state.is_without_receive() => -1,
            _ => 0,
        };
        let alike = self.slots.iter().filter(|slot| class_of(&slot.held) == class);
        alike.map(|slot| balance(&slot.state)).sum::<i64>() > 0
    }

    /// A receive that nobody waits for has ended, and its slot is free.
    #[cold]
    pub(super) fn left_ended(&mut self, how: How, held: Held) -> After {
        self.left -= 1;
        let after = match how {
            How::Completed(completion) if completion.status == Status::Success => {
                self.arrived = self.arrived.wrapping_add(1);
                self.give(Message { completion, held, arrived: self.arrived })
            }
            failed => self.fail_waiting(failed, held),
        };
        self.forget_order();
        after
    }

    /// Where no receive is left, those who wait from now on are not written down.
    fn forget_order(&mut self) {
        if self.left == 0 {
            self.order = None;
        }
    }

    /// It failed: one that waits for it hears of that, and gets its own buffer back, or this one.
    fn fail_waiting(&mut self, how: How, held: Held) -> After {
        if self.without == 0 {
            return After::Drop(held);
        }
        let class = class_of(&held);
        match self.longest(class, State::is_without_receive) {
            Some(index) => self.end_waiting(index, how, held),
            None => After::Drop(held),
        }
    }

    /// A handle that waits without a receive of its own is answered, with its own buffer if it has one, else with this.
    fn end_waiting(&mut self, index: usize, how: How, held: Held) -> After {
        self.arrived = self.arrived.wrapping_add(1);
        let Inner { slots, free, arrived, without, .. } = self;
        let Some(slot) = slots.get_mut(index).filter(|slot| slot.state.is_without_receive()) else {
            return After::Drop(held);
        };
        *without -= 1;
        let surplus = if let Held::Nothing = slot.held { std::mem::replace(&mut slot.held, held) } else { held };
        match std::mem::replace(&mut slot.state, State::Done) {
            State::Pending(Observer::HandleWithout(waker)) => {
                (slot.done, slot.arrived) = (Some((how, 0)), *arrived);
                After::WakeAndDrop(waker, surplus)
            }
            State::Pending(Observer::QueueWithout(wr_id)) => {
                let held = std::mem::replace(&mut slot.held, Held::Nothing);
                slot.release(index as u32, free);
                After::QueueAndDrop(Box::new((wr_id, held, surplus)))
            }
            _ => After::Drop(surplus),
        }
    }

    /// The queue ended, and a handle waits without a receive.
    #[cold]
    pub(super) fn end_without_receive(&mut self, ticket: Ticket, how: How) -> Option<After> {
        self.slot(ticket).filter(|slot| slot.state.is_without_receive())?;
        Some(self.end_waiting(ticket.slot as usize, how, Held::Nothing))
    }

    /// The slot in a certain state, of those who wait, that was taken first.
    fn longest(&mut self, class: Class, wanted: impl Fn(&State) -> bool) -> Option<usize> {
        let Inner { slots, order, taken, .. } = self;
        let slots: &[Slot] = slots;
        let order = order.get_or_insert_with(|| {
            let waits = |(index, slot): (usize, &Slot)| {
                let ticket = Ticket { slot: index as u32, generation: slot.generation };
                slot.state.waits().then_some((taken.wrapping_sub(slot.since), ticket))
            };
            let mut waiting: Vec<(u32, Ticket)> = slots.iter().enumerate().filter_map(waits).collect();
            waiting.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
            waiting.into_iter().map(|(_, ticket)| ticket).collect()
        });
        let waiting = |ticket: &Ticket| {
            let slot = slots.get(ticket.slot as usize)?;
            (slot.generation == ticket.generation && slot.state.waits()).then_some(slot)
        };
        // Those who have been answered since.
        while order.front().is_some_and(|first| waiting(first).is_none()) {
            order.pop_front();
        }
        let fits = |slot: &Slot| wanted(&slot.state) && class_of(&slot.held) == class;
        order.iter().find(|ticket| waiting(ticket).is_some_and(fits)).map(|ticket| ticket.slot as usize)
    }

    /// Gives a message to the one that has waited longest, or keeps it.
    fn give(&mut self, message: Message) -> After {
        let index = self.longest(class_of(&message.held), State::waits);
        let Inner { slots, free, left, without, early, kept, arrived, .. } = self;
        let Some((index, slot)) = index.and_then(|index| Some((index as u32, slots.get_mut(index)?))) else {
            let age = |message: &Message| arrived.wrapping_sub(message.arrived);
            let place = kept.partition_point(|older| age(older) > age(&message));
            kept.insert(place, message);
            return After::Nothing;
        };
        let State::Pending(observer) = &mut slot.state else { return After::Drop(message.held) };
        match std::mem::replace(observer, Observer::Left) {
            Observer::Queue(wr_id) => {
                *left += 1;
                After::Queue(wr_id, message.held, 0)
            }
            Observer::Handle(waker) => {
                *left += 1;
                early.push((Ticket { slot: index, generation: slot.generation }, message));
                waker.map_or(After::Nothing, After::Wake)
            }
            Observer::QueueWithout(wr_id) => {
                *without -= 1;
                let surplus = std::mem::replace(&mut slot.held, Held::Nothing);
                slot.release(index, free);
                After::QueueAndDrop(Box::new((wr_id, message.held, surplus)))
            }
            Observer::HandleWithout(waker) => {
                *without -= 1;
                let surplus = std::mem::replace(&mut slot.held, message.held);
                (slot.state, slot.arrived) = (State::Done, message.arrived);
                slot.done = Some((How::Completed(message.completion), 0));
                After::WakeAndDrop(waker, surplus)
            }
            // None of those who wait.
            Observer::Left | Observer::Nobody => After::Drop(message.held),
        }
    }

    /// Passes on a message whose handle was dropped. The answer is about the one that comes last by that.
    fn hand_on(&mut self, mut message: Message) -> (Completion, After) {
        let now = self.arrived;
        let class = class_of(&message.held);
        let age = |arrived: u32| now.wrapping_sub(arrived);
        let mut later: Vec<&mut dyn Exchange> = Vec::new();
        for slot in &mut self.slots {
            if matches!(&slot.done, Some((how, _)) if has_succeeded(how)) && class_of(&slot.held) == class {
                later.push(slot);
            }
        }
        for (_, early) in &mut self.early {
            if class_of(&early.held) == class {
                later.push(early);
            }
        }
        later.retain(|other| age(other.arrived()) < age(message.arrived));
        later.sort_by_key(|other| std::cmp::Reverse(age(other.arrived())));
        for other in later {
            other.exchange(&mut message);
        }
        let completion = message.completion;
        let after = self.give(message);
        self.forget_order();
        (completion, after)
    }

    /// The message that came for a handle with another receive than its own.
    #[cold]
    pub(super) fn take_early(&mut self, ticket: Ticket) -> Option<Message> {
        let index = self.early.iter().position(|(known, _)| *known == ticket)?;
        Some(self.early.swap_remove(index).1)
    }

    pub(super) fn has_early(&self, ticket: Ticket) -> bool {
        self.early.iter().any(|(known, _)| *known == ticket)
    }
}

/// A handle that has a message and has not taken it.
trait Exchange {
    fn arrived(&self) -> u32;
    fn exchange(&mut self, message: &mut Message);
}

impl Exchange for Message {
    fn arrived(&self) -> u32 {
        self.arrived
    }

    fn exchange(&mut self, message: &mut Message) {
        std::mem::swap(self, message);
    }
}

impl Exchange for Slot {
    fn arrived(&self) -> u32 {
        self.arrived
    }

    fn exchange(&mut self, message: &mut Message) {
        if let Some((How::Completed(completion), _)) = &mut self.done {
            std::mem::swap(completion, &mut message.completion);
            std::mem::swap(&mut self.held, &mut message.held);
            std::mem::swap(&mut self.arrived, &mut message.arrived);
        }
    }
}
