//! Memory windows: keys that open part of a region, with fewer rights, and are cheap to move (IBA 10.6.7). Type 1
//! windows are reached through any queue pair of their protection domain; type 2 windows belong to the queue pair that
//! bound them.

use crate::books::{self, What, WindowType};
use crate::error::Error;
use crate::memory::Memory;
use crate::slot::{Kind, Reach, Slot, Terms, within};
use wire::access::{Access, Bind, ProtectionDomain, Range, Refusal, RefusalCause, Subject};
use wire::{Key, Qpn, refuse_if};

impl Memory {
    /// A window that is bound to nothing yet, by its key.
    ///
    /// # Errors
    /// [`Error::TooManyWindows`].
    pub fn allocate_window(&self, domain: ProtectionDomain, kind: WindowType) -> Result<Key, Error> {
        let limit = self.limits.windows;
        let mut books = self.books();
        refuse_if!(books.windows >= limit || books.full(), Error::TooManyWindows { limit });
        let what = What::Window(books::Window { kind, domain, region: None, qpn: Qpn::new(0), changing: false });
        let (number, key) = books.take(&self.keys, what).ok_or(Error::TooManyWindows { limit })?;
        let slot = self.table.make(number).ok_or(Error::TooManyWindows { limit })?;
        slot.open(key, &closed(Kind::Unbound, domain));
        Ok(key)
    }

    /// The present key of a window, by any key it ever had: they differ in the lowest byte only. `None` if there is no
    /// such window.
    #[must_use]
    pub fn window_key(&self, key: Key) -> Option<Key> {
        let number = self.keys.slot(key);
        let slot = self.table.get(number)?;
        let mut books = self.books();
        books.window(number)?;
        let present = slot.key();
        (present.value() >> 8 == key.value() >> 8).then_some(present)
    }

    /// Binds a window, or unbinds one of type 1. Whatever went on through its old binding is over when it returns. Of
    /// the new key only the lowest byte counts: the others are the window's, whatever the program wrote there.
    ///
    /// # Errors
    /// The refusal names the cause, and the window is as it was. [`RefusalCause::WrongKind`] is (type 1) the same key
    /// again, a window of type 2 that is bound already or would be bound to nothing, and a region that counts from 0
    /// (IBA C10-72).
    pub fn bind(&self, subject: Subject, bind: &Bind) -> Result<(), Refusal> {
        let range = Range { key: bind.window, address: bind.address, length: bind.length };
        let refuse = |cause| Refusal { range, access: bind.access, cause };
        let new_key = bind.bound_key();
        let (number, slot) = self.find(bind.window).ok_or(refuse(RefusalCause::UnknownKey))?;
        let mut books = self.books();
        let (kind, before) = {
            let window = claim(&mut books, number, slot, bind.window, subject).map_err(refuse)?;
            let wrong = match window.kind {
                WindowType::Type1 => new_key == bind.window,
                WindowType::Type2 => window.region.is_some() || bind.length == 0,
            };
            refuse_if!(wrong, refuse(RefusalCause::WrongKind));
            (window.kind, window.region)
        };
        let mut region = None;
        let mut terms = closed(Kind::Unbound, subject.pd);
        if bind.length > 0 {
            let (behind, opened) = self.resolve(&mut books, subject, bind, kind).map_err(refuse)?;
            (region, terms) = (Some(behind), opened);
            // From here on the region cannot go.
            books.count_window(behind, 1);
        }
        if let Some(window) = books.window(number) {
            window.changing = true;
        }
        slot.close();
        drop(books);
        self.drain(slot);
        let mut books = self.books();
        if let Some(window) = books.window(number) {
            window.changing = false;
            window.region = region;
            window.qpn = subject.qpn;
        }
        if let Some(before) = before {
            books.count_window(before, -1);
        }
        books.bound_type2 += u32::from(kind == WindowType::Type2);
        slot.open(new_key, &terms);
        Ok(())
    }

    /// Invalidates a window of type 2, on behalf of the queue pair it belongs to: by a peer's SEND with invalidate or
    /// by local work. Whatever went on through it is over when it returns, and its key opens nothing until it is bound
    /// again.
    ///
    /// # Errors
    /// The refusal names the cause; [`RefusalCause::WrongKind`] is any other object's key.
    pub fn invalidate(&self, subject: Subject, key: Key) -> Result<(), Refusal> {
        let range = Range { key, address: 0, length: 0 };
        let refuse = |cause| Refusal { range, access: Access::empty(), cause };
        let (number, slot) = self.find(key).ok_or(refuse(RefusalCause::UnknownKey))?;
        let mut books = self.books();
        match books.what(number) {
            Some(What::Region(region)) if slot.key() == key => {
                let mine = region.holding.domain == subject.pd;
                return Err(refuse(if mine { RefusalCause::WrongKind } else { RefusalCause::WrongProtectionDomain }));
            }
            _ => {}
        }
        let window = claim(&mut books, number, slot, key, subject).map_err(refuse)?;
        refuse_if!(window.kind == WindowType::Type1, refuse(RefusalCause::WrongKind));
        if window.region.is_none() {
            // Which of the two it is, its terms say.
            let never = slot.look(key, &self.bell).is_ok_and(|terms| terms.kind == Kind::Unbound);
            return Err(refuse(if never { RefusalCause::WindowUnbound } else { RefusalCause::Invalidated }));
        }
        refuse_if!(window.qpn != subject.qpn, refuse(RefusalCause::WrongQueuePair));
        window.changing = true;
        slot.close();
        drop(books);
        self.sever(number, slot, key, subject.pd);
        Ok(())
    }

    /// Invalidates every window of type 2 that a queue pair bound: to be called when it goes, before its number is
    /// given away again.
    pub fn release_queue_pair(&self, qpn: Qpn) {
        let mut claimed = Vec::new();
        let mut books = self.books();
        for number in books.windows_of(qpn) {
            let (Some(slot), Some(window)) = (self.table.get(number), books.window(number)) else { continue };
            // A window that is being changed is invalidated or freed by the thread that changes it.
            if !window.changing {
                window.changing = true;
                slot.close();
                claimed.push((number, slot, slot.key(), window.domain));
            }
        }
        drop(books);
        for (number, slot, key, domain) in claimed {
            self.sever(number, slot, key, domain);
        }
    }

    /// Frees a window, bound or not. Whatever went on through it is over when it returns.
    ///
    /// # Errors
    /// [`Error::WrongKind`] for a region's key, [`Error::ChangeUnderWay`] while another thread is at it.
    pub fn free_window(&self, key: Key) -> Result<(), Error> {
        let (number, slot) = self.find(key).ok_or(Error::UnknownKey { key })?;
        let mut books = self.books();
        refuse_if!(slot.key() != key, Error::UnknownKey { key });
        match books.what(number) {
            Some(What::Window(window)) if window.changing => return Err(Error::ChangeUnderWay { key }),
            Some(What::Window(window)) => window.changing = true,
            Some(What::Region(_)) => return Err(Error::WrongKind { key }),
            _ => return Err(Error::UnknownKey { key }),
        }
        slot.close();
        drop(books);
        self.drain(slot);
        slot.free();
        let mut books = self.books();
        if let What::Window(books::Window { kind, region: Some(region), .. }) = books.give(number) {
            books.count_window(region, -1);
            books.bound_type2 -= u32::from(kind == WindowType::Type2);
        }
        Ok(())
    }

    /// The terms of a binding, if the region lets itself be bound so (IBA C10-73 to C10-75), and the region's slot.
    fn resolve(
        &self,
        books: &mut books::Books,
        subject: Subject,
        bind: &Bind,
        kind: WindowType,
    ) -> Result<(u32, Terms), RefusalCause> {
        let (number, slot) = self.find(bind.region).ok_or(RefusalCause::UnknownKey)?;
        let behind = match books.region(number) {
            Some(region) if slot.key() == bind.region => region,
            _ => return Err(RefusalCause::UnknownKey),
        };
        refuse_if!(behind.changing, RefusalCause::Invalidated);
        let terms = behind.holding.terms();
        refuse_if!(terms.domain != subject.pd, RefusalCause::WrongProtectionDomain);
        let unwritable = bind.access.peers_write() && !terms.access.contains(Access::LOCAL_WRITE);
        refuse_if!(!terms.access.contains(Access::MW_BIND) || unwritable, RefusalCause::NotPermitted);
        // The window's addresses would have two origins.
        refuse_if!(terms.access.contains(Access::ZERO_BASED), RefusalCause::WrongKind);
        let Terms { start, length, .. } = terms;
        let offset = within(start, length, bind.address, bind.length)
            .ok_or(RefusalCause::OutOfBounds { start, length })? as usize;
        let opened = Terms {
            kind: Kind::Window { type2: kind == WindowType::Type2 },
            qpn: subject.qpn,
            access: bind.access,
            start: if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.address },
            length: bind.length,
            base: terms.base.wrapping_add(offset),
            ..terms
        };
        Ok((number, opened))
    }

    /// Ends the binding of a closed window that is marked as being changed.
    fn sever(&self, number: u32, slot: &Slot, key: Key, domain: ProtectionDomain) {
        self.drain(slot);
        let mut books = self.books();
        let mut before = None;
        if let Some(window) = books.window(number) {
            before = window.region.take();
            window.changing = false;
        }
        if let Some(region) = before {
            books.count_window(region, -1);
            books.bound_type2 -= 1;
        }
        slot.open(key, &closed(Kind::Invalidated, domain));
    }
}

/// The window, if the slot is still the key's and the subject may change it now. The caller that changes it marks it.
fn claim<'b>(
    books: &'b mut books::Books,
    number: u32,
    slot: &Slot,
    key: Key,
    subject: Subject,
) -> Result<&'b mut books::Window, RefusalCause> {
    match books.window(number) {
        Some(window) if slot.key() == key => {
            refuse_if!(window.domain != subject.pd, RefusalCause::WrongProtectionDomain);
            refuse_if!(window.changing, RefusalCause::Invalidated);
            Ok(window)
        }
        _ => Err(RefusalCause::UnknownKey),
    }
}

/// The terms of a window that opens nothing.
fn closed(kind: Kind, domain: ProtectionDomain) -> Terms {
    Terms {
        kind,
        domain,
        qpn: Qpn::new(0),
        access: Access::empty(),
        start: 0,
        length: 0,
        base: std::ptr::null_mut(),
        reach: Reach::Processor,
    }
}
