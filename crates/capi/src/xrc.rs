//! XRC domains: what the targets and the shared receive queues of several parts of a program have in common.

use crate::boundary::{object, status};
use crate::context::Context;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::registry::{PerProcess, lock};
use crate::use_count::UseCount;
use abi::{Handle, In, Owned, ibv_context, ibv_xrcd, ibv_xrcd_init_attr};
use hca::Qp;
use profiles::Feature;
use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// An XRC domain, as one part of a program holds it.
#[repr(C)]
pub struct XrcDomain {
    base: ibv_xrcd,
    pub(crate) number: u32,
    pub(crate) users: UseCount,
    domain: Arc<Domain>,
}

/// The domain itself.
#[derive(Debug)]
struct Domain {
    number: u32,
    /// Its targets and what holds them, by queue pair number.
    targets: Mutex<HashMap<u32, (Weak<Qp>, Weak<()>)>>,
}

impl Domain {
    fn new() -> Arc<Domain> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Domain { number: NEXT.fetch_add(1, Ordering::Relaxed), targets: Mutex::default() })
    }
}

/// A file, by device and inode.
type FileId = (u64, u64);

/// Domains that were opened with a file.
static BY_FILE: PerProcess<HashMap<FileId, Weak<Domain>>> = PerProcess::new();

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for XrcDomain {
    type C = ibv_xrcd;
}

impl XrcDomain {
    /// Makes a target known to other parts of the program that open the domain.
    pub(crate) fn register_target(&self, qp: &Arc<Qp>, handles: &Arc<()>) {
        let mut targets = lock(&self.domain.targets);
        targets.retain(|_, (_, handles)| handles.strong_count() > 0);
        targets.insert(qp.qpn().value(), (Arc::downgrade(qp), Arc::downgrade(handles)));
    }

    /// A target by its number, and a hold on it.
    pub(crate) fn find_target(&self, number: u32) -> Option<(Arc<Qp>, Arc<()>)> {
        let targets = lock(&self.domain.targets);
        let (qp, handles) = targets.get(&number)?;
        Some((qp.upgrade()?, handles.upgrade()?))
    }
}

pub(crate) extern "C" fn open_xrcd(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_xrcd_init_attr>,
) -> *mut ibv_xrcd {
    object("ibv_open_xrcd", || {
        let context = Context::working(context)?;
        context.opened.device().offers(Feature::OpenXrcd)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let needed = abi::IBV_XRCD_INIT_ATTR_FD | abi::IBV_XRCD_INIT_ATTR_OFLAGS;
        if attributes.comp_mask & needed != needed
            || attributes.comp_mask & !needed != 0
            || attributes.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0
        {
            return Err(Errno::INVALID);
        }
        let domain = match attributes.fd {
            -1 if attributes.oflags & libc::O_CREAT == 0 => return Err(Errno::INVALID),
            -1 => Domain::new(),
            fd => domain_of_file(fd, attributes.oflags)?,
        };
        let base = ibv_xrcd { context: context.as_c() };
        let opened = XrcDomain { base, number: domain.number, users: UseCount::default(), domain };
        Ok(Box::new(opened).into_c())
    })
}

/// The domain of a file: all calls of this process that show the same file mean the same domain.
fn domain_of_file(fd: c_int, flags: c_int) -> Result<Arc<Domain>, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a place for the answer; the descriptor is only looked at.
    refuse_if!(unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0, std::io::Error::last_os_error().into());
    // SAFETY: filled by the call.
    let stat = unsafe { stat.assume_init() };
    let mut domains = BY_FILE.lock();
    let file = (stat.st_dev, stat.st_ino);
    match domains.get(&file).and_then(Weak::upgrade) {
        Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::INVALID),
        Some(domain) => Ok(domain),
        None if flags & libc::O_CREAT == 0 => Err(Errno::of(libc::EAGAIN)),
        None => {
            let domain = Domain::new();
            domains.insert(file, Arc::downgrade(&domain));
            Ok(domain)
        }
    }
}

pub(crate) extern "C" fn close_xrcd(xrcd: Owned<'_, ibv_xrcd>) -> c_int {
    status("ibv_close_xrcd", || {
        XrcDomain::given_back(&xrcd)?.users.require_zero()?;
        drop(XrcDomain::from_c(xrcd)?);
        Ok(())
    })
}
