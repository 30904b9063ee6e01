//! Names looked up in the background: a thread asks the C library, an event says how it ended, and the program then
//! fetches the answer.

use super::addrinfo::{free, hints_for_c, look_up};
use super::id::ConnectionId;
use crate::boundary::{number, zero};
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use abi::{Handle, In, Out, rdma_addrinfo, rdma_cm_id};
use hca::cm::{EventKind, Id};
use libc::{sockaddr, socklen_t};
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::{Arc, Mutex};

/// What became of the last name that an id was given.
#[derive(Default)]
pub(super) enum Lookup {
    /// None was given, or the program has the answer, or there is none.
    #[default]
    None,
    /// It is being looked up, or the program has yet to fetch the answer.
    Busy(Arc<Mutex<AddrinfoList>>),
}

/// A list for `rdma_freeaddrinfo`, or null as long as there is none.
pub(super) struct AddrinfoList(*mut rdma_addrinfo);

// SAFETY: the list is this value's alone.
unsafe impl Send for AddrinfoList {}

impl AddrinfoList {
    fn take(&mut self) -> Option<*mut rdma_addrinfo> {
        let list = std::mem::replace(&mut self.0, null_mut());
        (!list.is_null()).then_some(list)
    }
}

impl Drop for AddrinfoList {
    fn drop(&mut self) {
        // SAFETY: null, or a list that no program has.
        unsafe { free(self.0) };
    }
}

/// A question, with copies of all that the program gave.
struct AddrinfoQuery {
    node: Option<CString>,
    service: Option<CString>,
    hints: Option<rdma_addrinfo>,
    /// What the hints point to.
    addresses: [Option<Vec<u8>>; 2],
}

// SAFETY: the pointers of the hints are replaced by pointers to its own copies before they are followed.
unsafe impl Send for AddrinfoQuery {}

impl AddrinfoQuery {
    /// # Safety
    /// `node` and `service` are null or C strings, and the addresses of `hints` null or as long as it says.
    unsafe fn new(
        node: *const c_char,
        service: *const c_char,
        hints: Option<&rdma_addrinfo>,
    ) -> Result<AddrinfoQuery, Errno> {
        // SAFETY: not null, so a C string.
        let text = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_owned());
        let bytes = |address: *const sockaddr, length: socklen_t| {
            if length as usize > size_of::<libc::sockaddr_storage>() {
                return Err(Errno::invalid("no address is that long"));
            }
            // SAFETY: not null, so of that length.
            let bytes = || unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length as usize) }.to_vec();
            Ok((!address.is_null() && length > 0).then(bytes))
        };
        let addresses = match hints {
            Some(hints) => [bytes(hints.ai_src_addr, hints.ai_src_len)?, bytes(hints.ai_dst_addr, hints.ai_dst_len)?],
            None => [None, None],
        };
        Ok(AddrinfoQuery { node: text(node), service: text(service), hints: hints.copied(), addresses })
    }

    /// Asks the C library, which may take long.
    fn ask(mut self) -> Result<AddrinfoList, Errno> {
        if let Some(hints) = &mut self.hints {
            let [source, destination] = &mut self.addresses;
            let place =
                |bytes: &mut Option<Vec<u8>>| bytes.as_mut().map_or(null_mut(), |bytes| bytes.as_mut_ptr().cast());
            (hints.ai_src_addr, hints.ai_dst_addr) = (place(source), place(destination));
        }
        let pointer = |text: &Option<CString>| text.as_ref().map_or(null(), |text| text.as_ptr());
        // SAFETY: null or C strings, and addresses as long as the hints say.
        match unsafe { look_up(pointer(&self.node), pointer(&self.service), self.hints.as_ref()) } {
            Ok(list) => Ok(AddrinfoList(list)),
            Err(Err(error)) => Err(error),
            Err(Ok(code)) => Err(errno_of(code)),
        }
    }
}

/// An error of the C library's lookups as an errno, which is what events have.
fn errno_of(code: c_int) -> Errno {
    match code {
        libc::EAI_AGAIN => Errno::of(libc::EAGAIN),
        libc::EAI_MEMORY => Errno::NO_MEMORY,
        libc::EAI_SYSTEM => std::io::Error::last_os_error().into(),
        libc::EAI_FAMILY => Errno::of(libc::EAFNOSUPPORT),
        libc::EAI_NONAME | libc::EAI_SERVICE => Errno::of(libc::ENOENT),
        _ => Errno::of(libc::EIO),
    }
}

/// Looks up a name and a service. An event says how it ended; an id without a channel waits for it.
///
/// # Safety
/// `node` and `service` are null or C strings, and the addresses of `hints` null or as long as it says.
#[unsafe(export_name = "ubiverbs_rdma_resolve_addrinfo")]
pub unsafe extern "C" fn rdma_resolve_addrinfo(
    id: Handle<'_, rdma_cm_id>,
    node: *const c_char,
    service: *const c_char,
    hints: In<'_, rdma_addrinfo>,
) -> c_int {
    number("rdma_resolve_addrinfo", || {
        let it = ConnectionId::of(id)?;
        let hints = hints.as_ref();
        refuse_if!(node.is_null() && service.is_null() && hints.is_none(), Errno::null());
        let flags = hints.map_or(0, |hints| hints.ai_flags as u32);
        if flags & abi::RAI_SA != 0 {
            return match node.is_null() && service.is_null() && flags & abi::RAI_DNS == 0 {
                true => Err(Errno::invalid("no service to look for")),
                false => Err(Errno::unsupported("no subnet administration on Ethernet")),
            };
        }
        hints.map(hints_for_c).transpose().map_err(|_| Errno::invalid("no such kind of service"))?;
        // SAFETY: as this call demands.
        let question = unsafe { AddrinfoQuery::new(node, service, hints) }?;
        let answer = Arc::new(Mutex::new(AddrinfoList(null_mut())));
        {
            let mut state = it.state();
            if let Lookup::Busy(_) = state.lookup {
                return Err(Errno::busy("a name is being looked up, or its answer was not fetched"));
            }
            state.lookup = Lookup::Busy(Arc::clone(&answer));
        }
        let subject = Arc::clone(&it.id);
        let started = hca::spawn("ubiverbs-lookup", move || report(&subject, question, &answer));
        if let Err(error) = started {
            it.state().lookup = Lookup::None;
            return Err(error.into());
        }
        it.complete()
    })
}

/// Asks, and tells the id. One that was destroyed meanwhile hears nothing.
fn report(subject: &Arc<Id>, question: AddrinfoQuery, answer: &Mutex<AddrinfoList>) {
    let (kind, status) = match question.ask() {
        Ok(found) => {
            *crate::registry::lock(answer) = found;
            (EventKind::AddressInfoResolved, 0)
        }
        Err(error) => (EventKind::AddressInfoError, -error.code()),
    };
    let _ = subject.write_event(kind, status, 0);
}

impl ConnectionId {
    /// A lookup has failed: there is nothing to fetch, and another may begin.
    pub(super) fn lookup_failed(&self) {
        self.state().lookup = Lookup::None;
    }
}

/// Fetches what was found. The list is the program's then.
#[unsafe(export_name = "ubiverbs_rdma_query_addrinfo")]
pub extern "C" fn rdma_query_addrinfo(id: Handle<'_, rdma_cm_id>, mut result: Out<'_, *mut rdma_addrinfo>) -> c_int {
    zero("rdma_query_addrinfo", || {
        let it = ConnectionId::of(id)?;
        refuse_if!(result.is_null(), Errno::null());
        let mut state = it.state();
        let found = match &state.lookup {
            Lookup::Busy(answer) => crate::registry::lock(answer).take(),
            Lookup::None => None,
        };
        result.write(found.ok_or(Errno::of(libc::ENOENT))?);
        state.lookup = Lookup::None;
        Ok(())
    })
}
