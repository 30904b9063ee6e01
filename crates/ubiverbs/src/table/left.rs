//! Receives whose handles were dropped. The NIC cannot give a receive back, so it stays, and what arrives for it is for the next who waits:
//! dropping a handle loses no message.
//!
//! | a receive that nobody waits for | then |
//! |---|---|
//! | gets a message, and others wait | the one that has waited longest gets it; its own receive is now the one that nobody waits for |
//! | gets a message, and nobody waits | it is kept, in the order of arrival, for the next receive that is posted |
//! | fails | its buffer goes; those who wait hear of it with their own receives |
//!
//! A handle that is dropped after its message came passes it on, and each that has a later one and did not take it yet gets the one before:
//! who takes one message after the other gets them in order. A buffer that is posted joins the queue, as long as there is room and not too
//! many receives are left; else its handle waits without a receive of its own ([`Observer::HandleWithout`]), of which there are never more than
//! receives that nobody waits for.

use super::{After, Finish, Held, How, Inner, Observer, State, Table, Ticket};
use crate::buffer::Buffer;
use crate::completion::Completion as Told;
use crate::lock;
use transport::{Completion, Status};

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

/// Where a receive that is about to be posted ends up.
pub(crate) enum Place {
    /// It is to be posted.
    Post(Ticket),
    /// Its handle waits for the message of another.
    Wait(Ticket),
    /// Its handle has a message already. The buffer is to be posted, or goes.
    Answered(Ticket, Result<Ticket, Held>),
}

/// Buffers of one piece and of several come back as different types, and are not mixed up.
fn is_several(held: &Held) -> bool {
    matches!(held, Held::Buffer(Buffer::Several(_)))
}

fn has_succeeded(how: &How) -> bool {
    matches!(how, How::Completed(completion) if completion.status == Status::Success)
}

impl Table {
    /// Takes what a receive is about to hold.
    #[inline]
    pub fn insert_receive(&self, held: Held) -> Result<Place, Held> {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return Err(held);
        }
        if inner.left > 0 || !inner.kept.is_empty() {
            return Ok(inner.insert_beside_left(held, self.may_be_left.unwrap_or(0)));
        }
        let ticket = inner.take_slot(held, State::Pending(Observer::Handle(None)));
        inner.pending += 1;
        Ok(Place::Post(ticket))
    }

    /// The queue of the NIC is full, with receives that nobody waits for among others: then the handle waits for one of these. Says whether.
    #[cold]
    pub fn wait_instead(&self, ticket: Ticket) -> bool {
        let mut inner = lock(&self.inner);
        let Some(slot) = inner.slot(ticket) else { return false };
        let several = is_several(&slot.held);
        if !inner.has_spare(several) {
            return false;
        }
        let Some(slot) = inner.slot(ticket) else { return false };
        // Nobody has polled it yet.
        let State::Pending(observer @ Observer::Handle(None)) = &mut slot.state else { return false };
        *observer = Observer::HandleWithout(None);
        inner.pending -= 1;
        true
    }

    /// The NIC did not take a receive that nobody would have waited for.
    #[cold]
    pub fn withdraw_left(&self, ticket: Ticket) -> Held {
        let mut inner = lock(&self.inner);
        inner.left -= 1;
        inner.vacate(ticket).unwrap_or(Held::Nothing)
    }

    /// Waits for a receive of one piece that nobody waits for, if there is one.
    pub fn resume(&self) -> Option<Ticket> {
        let mut inner = lock(&self.inner);
        if inner.closed {
            return None;
        }
        let answered = inner.answer_from_kept(false);
        if answered.is_some() || !inner.has_spare(false) {
            return answered;
        }
        Some(inner.take_slot(Held::Nothing, State::Pending(Observer::HandleWithout(None))))
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
            Some((State::Pending(Observer::HandleWithout(_)), _)) => {
                drop(inner);
                return self.discard(ticket);
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
            queue.add(Told::new(wr_id, &completion, held, 0, || None));
        }
    }
}

impl Inner {
    /// Takes what a receive is about to hold, where there are receives or messages that nobody waits for.
    #[cold]
    fn insert_beside_left(&mut self, held: Held, may_be_left: u32) -> Place {
        let several = is_several(&held);
        let answered = self.answer_from_kept(several);
        let may_post = self.left as usize + self.kept.len() < may_be_left as usize;
        let Some(handle) = answered else {
            if may_post || !self.has_spare(several) {
                self.pending += 1;
                return Place::Post(self.take_slot(held, State::Pending(Observer::Handle(None))));
            }
            return Place::Wait(self.take_slot(held, State::Pending(Observer::HandleWithout(None))));
        };
        if !may_post {
            return Place::Answered(handle, Err(held));
        }
        self.pending += 1;
        self.left += 1;
        Place::Answered(handle, Ok(self.take_slot(held, State::Pending(Observer::Left))))
    }

    /// A handle that has the oldest message that was kept, if there is one.
    fn answer_from_kept(&mut self, several: bool) -> Option<Ticket> {
        let oldest = self.kept.iter().position(|message| is_several(&message.held) == several)?;
        let Message { completion, held, arrived } = self.kept.remove(oldest)?;
        let ticket = self.take_slot(held, State::Done);
        if let Some(slot) = self.slot(ticket) {
            (slot.done, slot.arrived) = (Some((How::Completed(completion), 0)), arrived);
        }
        Some(ticket)
    }

    /// Whether there are more receives that nobody waits for than handles that wait without a receive.
    fn has_spare(&self, several: bool) -> bool {
        let balance = |state: &State| match state {
            State::Pending(Observer::Left) => 1,
            _ if state.is_without_receive() => -1,
            _ => 0,
        };
        let alike = self.slots.iter().filter(|slot| is_several(&slot.held) == several);
        alike.map(|slot| balance(&slot.state)).sum::<i64>() > 0
    }

    /// A receive that nobody waits for has ended, and its slot is free.
    #[cold]
    pub(super) fn left_ended(&mut self, how: How, held: Held) -> After {
        self.left -= 1;
        match how {
            How::Completed(completion) if completion.status == Status::Success => {
                self.arrived = self.arrived.wrapping_add(1);
                self.give(Message { completion, held, arrived: self.arrived })
            }
            failed => self.fail_waiting(failed, held),
        }
    }

    /// It failed: one that waits for it hears of that, and gets its own buffer back, or this one.
    fn fail_waiting(&mut self, how: How, held: Held) -> After {
        let several = is_several(&held);
        let Some(index) = self.longest(several, State::is_without_receive) else {
            return After::Drop(held);
        };
        self.end_waiting(index, how, held)
    }

    /// A handle that waits without a receive of its own is answered, with its own buffer if it has one, else with this.
    fn end_waiting(&mut self, index: usize, how: How, held: Held) -> After {
        self.arrived = self.arrived.wrapping_add(1);
        let Inner { slots, free, arrived, .. } = self;
        let Some(slot) = slots.get_mut(index) else { return After::Drop(held) };
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
            other => {
                slot.state = other;
                After::Drop(surplus)
            }
        }
    }

    /// The queue ended, and a handle waits without a receive.
    #[cold]
    pub(super) fn end_without_receive(&mut self, ticket: Ticket, how: How) -> Option<After> {
        self.slot(ticket).filter(|slot| slot.state.is_without_receive())?;
        Some(self.end_waiting(ticket.slot as usize, how, Held::Nothing))
    }

    /// The slot in a certain state that was taken first.
    fn longest(&self, several: bool, wanted: impl Fn(&State) -> bool) -> Option<usize> {
        let slots = self.slots.iter().enumerate();
        let fits = slots.filter(|(_, slot)| wanted(&slot.state) && is_several(&slot.held) == several);
        fits.max_by_key(|(_, slot)| self.taken.wrapping_sub(slot.since)).map(|(index, _)| index)
    }

    /// Gives a message to the one that has waited longest, or keeps it.
    fn give(&mut self, message: Message) -> After {
        let waits = |state: &State| {
            matches!(state, State::Pending(Observer::Handle(_) | Observer::Queue(_))) || state.is_without_receive()
        };
        let index = self.longest(is_several(&message.held), waits);
        let Inner { slots, free, left, early, kept, arrived, .. } = self;
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
                let surplus = std::mem::replace(&mut slot.held, Held::Nothing);
                slot.release(index, free);
                After::QueueAndDrop(Box::new((wr_id, message.held, surplus)))
            }
            Observer::HandleWithout(waker) => {
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
        let several = is_several(&message.held);
        let age = |arrived: u32| now.wrapping_sub(arrived);
        let mut later: Vec<&mut dyn Exchange> = Vec::new();
        for slot in &mut self.slots {
            if matches!(&slot.done, Some((how, _)) if has_succeeded(how)) && is_several(&slot.held) == several {
                later.push(slot);
            }
        }
        for (_, early) in &mut self.early {
            if is_several(&early.held) == several {
                later.push(early);
            }
        }
        later.retain(|other| age(other.arrived()) < age(message.arrived));
        later.sort_by_key(|other| std::cmp::Reverse(age(other.arrived())));
        for other in later {
            other.exchange(&mut message);
        }
        (message.completion, self.give(message))
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

impl Exchange for super::Slot {
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
