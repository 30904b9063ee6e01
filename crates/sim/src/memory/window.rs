//! Memory windows: keys that open part of a region, with fewer rights, and are cheap to move (IBA 10.6.7). Type 1
//! windows belong to a protection domain, type 2 windows to the queue pair that bound them.

use super::{Memory, MemoryEntry, index_of, within};
use transport::{Access, Bind, ProtectionDomain, Range, Refusal, Subject};
use wire::access::RefusalCause;
use wire::{Key, Qpn, refuse_if};

/// The type of a window, with the specification's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WindowKind {
    /// Bound at will, reached through any queue pair of the protection domain.
    Type1,
    /// Bound by a queue pair for itself, and freed by invalidating it.
    Type2,
}

/// What to allocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowSpec {
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// Its type.
    pub kind: WindowKind,
}

#[derive(Debug)]
pub(super) struct Window {
    pd: ProtectionDomain,
    kind: WindowKind,
    key: Key,
    /// Whether the key has been bound and then invalidated, as opposed to never bound.
    invalidated: bool,
    bound: Option<Bound>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) region: Key,
    /// First address inside the region.
    address: u64,
    length: u64,
    access: Access,
    /// Type 2: for whom.
    qpn: Qpn,
}

impl Bound {
    /// The first address as peers see it.
    fn start(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.address }
    }

    /// An address inside the window as an address inside the region.
    pub(super) fn translate(&self, address: u64) -> u64 {
        self.address.wrapping_add(address.wrapping_sub(self.start()))
    }
}

impl Window {
    /// First address, as peers see it, and length, if it is bound.
    pub(super) fn extent(&self) -> Option<(u64, u64)> {
        self.bound.map(|bound| (bound.start(), bound.length))
    }

    /// The binding, if a peer may reach through it this way.
    pub(super) fn admits(&self, subject: Subject, range: Range, access: Access) -> Result<&Bound, RefusalCause> {
        if !subject.remote {
            // A window's key is an R_Key only.
            return Err(RefusalCause::WrongKind);
        }
        refuse_if!(self.key != range.key, RefusalCause::UnknownKey);
        refuse_if!(self.pd != subject.pd, RefusalCause::WrongProtectionDomain);
        let unbound = if self.invalidated { RefusalCause::Invalidated } else { RefusalCause::WindowUnbound };
        let bound = self.bound.as_ref().ok_or(unbound)?;
        refuse_if!(self.kind == WindowKind::Type2 && bound.qpn != subject.qpn, RefusalCause::WrongQueuePair);
        refuse_if!(!bound.access.contains(access), RefusalCause::NotPermitted);
        let (start, length) = (bound.start(), bound.length);
        within(start, length, range.address, range.length).ok_or(RefusalCause::OutOfBounds { start, length })?;
        Ok(bound)
    }
}

impl Memory {
    pub(crate) fn allocate_window(&mut self, spec: WindowSpec) -> Key {
        let index = self.next_index;
        self.next_index += 1;
        let key = Key::new(index << 8);
        let window = Window { pd: spec.pd, kind: spec.kind, key, invalidated: false, bound: None };
        self.entries.insert(index, MemoryEntry::Window(window));
        key
    }

    pub(crate) fn bind(&mut self, subject: Subject, bind: &Bind) -> Result<(), Refusal> {
        let range = Range { key: bind.window, address: bind.address, length: bind.length };
        let refuse = |cause| Refusal { range, access: bind.access, cause };
        let Some(MemoryEntry::Window(window)) = self.entries.get(&index_of(bind.window)) else {
            return Err(refuse(RefusalCause::UnknownKey));
        };
        refuse_if!(window.key != bind.window, refuse(RefusalCause::UnknownKey));
        refuse_if!(window.pd != subject.pd, refuse(RefusalCause::WrongProtectionDomain));
        // A type 2 window is bound only when free, and a binding of no length would be no binding (IBA C10-72).
        if window.kind == WindowKind::Type2 && (window.bound.is_some() || bind.length == 0) {
            return Err(refuse(RefusalCause::WrongKind));
        }
        let before = window.bound.map(|bound| bound.region);
        if bind.length > 0 {
            self.check_behind(subject, bind).map_err(refuse)?;
        }
        if let Some(key) = before {
            self.count_windows(key, -1);
        }
        if bind.length > 0 {
            self.count_windows(bind.region, 1);
        }
        if let Some(MemoryEntry::Window(window)) = self.entries.get_mut(&index_of(bind.window)) {
            let Bind { region, address, length, access, .. } = *bind;
            window.key = bind.bound_key();
            window.invalidated = false;
            window.bound = (length > 0).then_some(Bound { region, address, length, access, qpn: subject.qpn });
        }
        Ok(())
    }

    /// Whether the region lets itself be bound so (IBA C10-73 to C10-75).
    fn check_behind(&self, subject: Subject, bind: &Bind) -> Result<(), RefusalCause> {
        let Some(MemoryEntry::Region(behind)) = self.entries.get(&index_of(bind.region)) else {
            return Err(RefusalCause::UnknownKey);
        };
        refuse_if!(behind.region.key != bind.region, RefusalCause::UnknownKey);
        behind.admits(subject, Access::MW_BIND)?;
        let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        refuse_if!(writes && !behind.access.contains(Access::LOCAL_WRITE), RefusalCause::NotPermitted);
        // The window's addresses would have two origins.
        refuse_if!(behind.access.contains(Access::ZERO_BASED), RefusalCause::WrongKind);
        let (start, length) = (behind.region.address, behind.region.length);
        within(start, length, bind.address, bind.length).ok_or(RefusalCause::OutOfBounds { start, length })?;
        Ok(())
    }

    fn count_windows(&mut self, region: Key, change: i32) {
        if let Some(MemoryEntry::Region(behind)) = self.entries.get_mut(&index_of(region)) {
            behind.windows = behind.windows.saturating_add_signed(change);
        }
    }

    pub(crate) fn invalidate(&mut self, subject: Subject, key: Key) -> Result<(), Refusal> {
        let range = Range { key, address: 0, length: 0 };
        let refuse = |cause| Refusal { range, access: Access::empty(), cause };
        let entry = self.entries.get_mut(&index_of(key)).ok_or(refuse(RefusalCause::UnknownKey))?;
        match entry {
            MemoryEntry::Region(behind) => {
                refuse_if!(behind.region.key != key, refuse(RefusalCause::UnknownKey));
                behind.admits(subject, Access::empty()).map_err(refuse)?;
                refuse_if!(!behind.invalidatable, refuse(RefusalCause::WrongKind));
                refuse_if!(behind.windows > 0, refuse(RefusalCause::WindowsBound));
                behind.invalidated = true;
            }
            MemoryEntry::Window(window) => {
                refuse_if!(window.key != key, refuse(RefusalCause::UnknownKey));
                refuse_if!(window.pd != subject.pd, refuse(RefusalCause::WrongProtectionDomain));
                refuse_if!(window.kind == WindowKind::Type1, refuse(RefusalCause::WrongKind));
                match window.bound {
                    None if window.invalidated => return Err(refuse(RefusalCause::Invalidated)),
                    None => return Err(refuse(RefusalCause::WindowUnbound)),
                    Some(bound) if bound.qpn != subject.qpn => return Err(refuse(RefusalCause::WrongQueuePair)),
                    Some(bound) => {
                        window.bound = None;
                        window.invalidated = true;
                        self.count_windows(bound.region, -1);
                    }
                }
            }
        }
        Ok(())
    }

    /// Frees a window. False if the key is no window's.
    pub(crate) fn free_window(&mut self, key: Key) -> bool {
        let index = index_of(key);
        let Some(MemoryEntry::Window(window)) = self.entries.get(&index) else { return false };
        if window.key != key {
            return false;
        }
        let bound = window.bound.map(|bound| bound.region);
        self.entries.remove(&index);
        if let Some(region) = bound {
            self.count_windows(region, -1);
        }
        true
    }
}
