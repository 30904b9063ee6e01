//! The memory of a simulated host: the program's own buffers, by the keys under which it registered them. The crate
//! `memory` checks and copies, as it does for the NIC of a process.

use sim::HostMemory;
use std::sync::Arc;
use transport::{Access, Atomic, Bind, Range, Refusal, Subject};
use wire::{Feth, Key, Placement};

/// What a party has registered.
pub(super) struct Registrations(pub(super) Arc<memory::Memory>);

impl HostMemory for Registrations {
    fn check(&mut self, subject: Subject, range: Range, access: Access) -> Result<(), Refusal> {
        self.0.check(subject, range, access)
    }

    fn read(&mut self, subject: Subject, range: Range, out: &mut [u8]) -> Result<(), Refusal> {
        self.0.read(subject, range.key, range.address, out)
    }

    fn write(&mut self, subject: Subject, range: Range, data: &[u8]) -> Result<(), Refusal> {
        self.0.write(subject, range.key, range.address, data)
    }

    fn atomic(&mut self, subject: Subject, range: Range, operation: Atomic) -> Result<u64, Refusal> {
        self.0.atomic(subject, range.key, range.address, operation)
    }

    fn flush(&mut self, subject: Subject, range: Range, feth: Feth) -> Result<(), Refusal> {
        let mut access = Access::empty();
        access.set(Access::FLUSH_GLOBAL, feth.placement.contains(Placement::GLOBAL));
        access.set(Access::FLUSH_PERSISTENT, feth.placement.contains(Placement::PERSISTENT));
        self.0.flush(subject, range, access)
    }

    fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal> {
        self.0.invalidate(subject, key)
    }

    fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal> {
        // A program that has several binds under way knows the key the window will have, not the one it has.
        let window = self.0.window_key(bind.window).unwrap_or(bind.window);
        self.0.bind(subject, &Bind { window, ..*bind })
    }
}
