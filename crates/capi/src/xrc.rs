//! XRC domains: what the targets and the shared receive queues of several parts of a program have in common.

use crate::boundary::{object, status};
use crate::context::{Context, lock};
use crate::errno::Errno;
use crate::protection_domain::Users;
use crate::queue_pair::QueuePair;
use crate::registry::PerProcess;
use abi::{ibv_context, ibv_qp, ibv_qp_open_attr, ibv_xrcd, ibv_xrcd_init_attr};
use hca::Qp;
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// An XRC domain, as one part of a program holds it.
#[repr(C)]
pub struct XrcDomain {
    base: ibv_xrcd,
    pub(crate) number: u32,
    pub(crate) users: Users,
    domain: Arc<Domain>,
}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain").field("number", &self.number).finish_non_exhaustive()
    }
}

/// The domain itself.
#[derive(Debug)]
struct Domain {
    number: u32,
    /// Its targets and who holds them, by queue pair number.
    targets: Mutex<HashMap<u32, (Weak<Qp>, Weak<()>)>>,
}

impl Domain {
    fn new() -> Arc<Domain> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Arc::new(Domain { number: NEXT.fetch_add(1, Ordering::Relaxed), targets: Mutex::default() })
    }
}

/// A file, by device and inode.
type File = (u64, u64);

/// Domains that were opened with a file.
static BY_FILE: PerProcess<HashMap<File, Weak<Domain>>> = PerProcess::new();

impl XrcDomain {
    /// The domain behind a pointer from C.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a XrcDomain, Errno> {
        xrcd.cast::<XrcDomain>().as_ref().ok_or_else(Errno::null)
    }

    /// Makes a target known to others who open the domain.
    pub(crate) fn enter(&self, qp: &Arc<Qp>, handles: &Arc<()>) {
        let mut targets = lock(&self.domain.targets);
        targets.retain(|_, (_, handles)| handles.strong_count() > 0);
        targets.insert(qp.qpn().value(), (Arc::downgrade(qp), Arc::downgrade(handles)));
    }

    /// A target by its number, and a hold on it.
    pub(crate) fn find(&self, number: u32) -> Option<(Arc<Qp>, Arc<()>)> {
        let targets = lock(&self.domain.targets);
        let (qp, handles) = targets.get(&number)?;
        Some((qp.upgrade()?, handles.upgrade()?))
    }
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attributes: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    object("ibv_open_xrcd", || {
        let context = Context::of(context)?;
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
            fd => of_file(fd, attributes.oflags)?,
        };
        let base = ibv_xrcd { context: context.as_c() };
        let opened = XrcDomain { base, number: domain.number, users: Users::default(), domain };
        Ok(Box::into_raw(Box::new(opened)).cast())
    })
}

/// The domain of a file: everybody in this process who shows the same file means the same domain.
fn of_file(fd: c_int, flags: c_int) -> Result<Arc<Domain>, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a place for the answer; the descriptor is only looked at.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: filled by the call.
    let stat = unsafe { stat.assume_init() };
    let mut domains = BY_FILE.lock();
    let file = (stat.st_dev, stat.st_ino);
    match domains.get(&file).and_then(Weak::upgrade) {
        Some(_) if flags & libc::O_EXCL != 0 => Err(Errno::INVALID),
        Some(domain) => Ok(domain),
        None if flags & libc::O_CREAT == 0 => Err(Errno(libc::EAGAIN)),
        None => {
            let domain = Domain::new();
            domains.insert(file, Arc::downgrade(&domain));
            Ok(domain)
        }
    }
}

pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    status("ibv_close_xrcd", || {
        XrcDomain::of(xrcd)?.users.none()?;
        drop(Box::from_raw(xrcd.cast::<XrcDomain>()));
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn open_qp(context: *mut ibv_context, attributes: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    object("ibv_open_qp", || {
        let context = Context::of(context)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let needed = abi::IBV_QP_OPEN_ATTR_NUM | abi::IBV_QP_OPEN_ATTR_XRCD | abi::IBV_QP_OPEN_ATTR_TYPE;
        if attributes.comp_mask & needed != needed || attributes.qp_type != abi::IBV_QPT_XRC_RECV {
            return Err(Errno::INVALID);
        }
        let qp_context = match attributes.comp_mask & abi::IBV_QP_OPEN_ATTR_CONTEXT {
            0 => std::ptr::null_mut(),
            _ => attributes.qp_context,
        };
        QueuePair::open(context, attributes.xrcd, attributes.qp_num, qp_context)
    })
}
