//! Queue pairs of the weakest NIC: what they write waits until their program is told, and they send and complete late
//! (`transport::weak`). They use packets only, as nothing else passes by here.

use super::port::{GpuTrains, NicPort, known_key};
use super::{Inner, Qp};
use crate::ground::Ground;
use transport::weak::{Before, Turn, Weak};
use transport::{Port, Range, Refusal, Subject, Time};

/// Writes to the program's memory.
fn place(nic: &Ground) -> impl FnMut(Subject, Range, &[u8]) -> Result<(), Refusal> + '_ {
    |subject, range, bytes| nic.memory.write(subject, known_key(subject, range.key), range.address, bytes)
}

impl NicPort<'_> {
    /// Places what must not be overtaken by what happens now.
    #[inline]
    pub(super) fn before(&mut self, what: Before) {
        if let Some(weak) = &mut self.weak {
            weak.before(what, place(self.nic));
        }
    }

    /// A READ request has come: some of what it asks for may be read early.
    #[cold]
    pub(super) fn read_early(&mut self, subject: Subject, range: Range) {
        self.before(Before::Read(range));
        let nic = self.nic;
        if let Some(weak) = &mut self.weak {
            weak.read_requested(range, |part, bytes| {
                nic.memory.read(subject, known_key(subject, part.key), part.address, bytes)
            });
        }
    }

    /// Takes payload that will be placed later. GPU memory is written at once, as only its driver knows the bytes.
    #[cold]
    pub(super) fn write_weakly(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.check(subject, range, Weak::right_to_write(subject))?;
        let Some(weak) = &mut self.weak else { return Ok(()) };
        if let GpuTrains::Received(source) = &self.gpu {
            weak.before(Before::Everything, place(self.nic));
            return self.nic.memory.write_named(subject, known_key(subject, range.key), range.address, data, source);
        }
        weak.write(subject, range, data, place(self.nic))
    }
}

impl Qp {
    /// Sends and completes as far as it may now.
    #[cold]
    pub(super) fn drive_weak(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        inner.touched = 0;
        let turn = inner.weak.as_mut().map_or(Turn::All, |weak| weak.turn(now));
        if turn != Turn::Wait {
            self.transmit(nic, inner, now);
        }
        if inner.weak.as_mut().is_some_and(|weak| weak.wakes_for_nothing()) {
            [&self.send_cq, &self.receive_cq].into_iter().flatten().for_each(|cq| cq.rouse());
        }
        if turn == Turn::All {
            self.complete_all(nic, inner, now, None);
        }
        self.sleep(&nic.progress, inner);
    }

    /// Places some of what waits, if it is time.
    #[cold]
    pub(super) fn place_some(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        if let Some(weak) = &mut inner.weak {
            weak.time_has_come(now, place(nic));
        }
    }

    /// Places all that waits, and keeps nothing back any more: the queue pair or its process ends.
    #[cold]
    pub(super) fn end_weakness(&self, nic: &Ground, inner: &mut Inner) {
        if let Some(mut weak) = inner.weak.take() {
            weak.before(Before::Everything, place(nic));
        }
    }

    /// Whether payload for it, or from its peer, is placed in any order.
    pub fn places_in_any_order(&self) -> bool {
        self.inner.lock().weak.is_some()
    }
}
