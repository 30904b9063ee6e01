//! A slot: 4096 queue pair numbers, and the communication ids that go with them.

use std::fmt;
use wire::Qpn;
use wire::cm::CommId;

/// A share of 4096 queue pair numbers, and of the communication ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// Queue pair numbers in a slot.
    pub const INDICES: u16 = 1 << 12;

    /// How many slots a host has.
    pub const COUNT: u16 = 4094;

    /// Communication ids in a slot.
    pub const COMMUNICATIONS: u32 = 1 << 20;

    /// The slot with this number, 1 to [`COUNT`](Slot::COUNT).
    pub const fn new(number: u16) -> Option<Slot> {
        if number >= 1 && number <= Slot::COUNT { Some(Slot(number)) } else { None }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }

    /// The slot that a queue pair number belongs to; none for management and multicast.
    #[inline]
    pub const fn of(qpn: Qpn) -> Option<Slot> {
        Slot::new((qpn.value() >> 12) as u16)
    }

    /// The queue pair number with this index in the slot; of the index only the lower 12 bits count.
    #[inline]
    pub const fn qpn(self, index: u16) -> Qpn {
        Qpn::new((self.0 as u32) << 12 | (index % Slot::INDICES) as u32)
    }

    /// The place of a queue pair number within its slot.
    #[inline]
    pub const fn index(qpn: Qpn) -> u16 {
        qpn.value() as u16 % Slot::INDICES
    }

    /// The slot whose owner gave out a communication id.
    pub const fn of_communication(id: CommId) -> Option<Slot> {
        Slot::new((id.value() >> 20) as u16)
    }

    /// The communication id with this number in the slot; of the number only the lower 20 bits count.
    pub const fn communication(self, number: u32) -> CommId {
        CommId::new(((self.0 as u32) << 20) | (number % Slot::COMMUNICATIONS))
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
