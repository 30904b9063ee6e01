//! Opened devices: the two tables of operations that the header's inline functions use, the objects of a context by number, and the
//! descriptor by which another part of the process can import it.

use crate::boundary::{object, status};
use crate::completion_queue::CompletionQueue;
use crate::device::Device;
use crate::errno::Errno;
use crate::queue_pair::QueuePair;
use crate::registry::PerProcess;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::{
    completion_queue, completion_queue_ex, device_memory, memory_region, memory_window, posting, protection_domain,
    query, queue_pair, queue_pair_state, shared_receive_queue, xrc,
};
use abi::{ibv_context, ibv_device, verbs_context};
use hca::{AsyncEvent, Nic};
use std::collections::HashMap;
use std::ffi::c_int;
use std::fmt;
use std::fs::File;
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How many completion vectors a device pretends to have.
pub(crate) const COMPLETION_VECTORS: c_int = 1;

/// Takes a lock whose holder may have panicked: what it guards is valid at every step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pointer that may be kept where threads share it.
pub(crate) struct Pointer<T>(pub *mut T);

// SAFETY: it is only followed under the lock that keeps its object from going.
unsafe impl<T> Send for Pointer<T> {}

impl<T> fmt::Debug for Pointer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:p}", self.0)
    }
}

/// The objects of a context that events name by number.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub cqs: HashMap<u32, Pointer<CompletionQueue>>,
    pub qps: HashMap<u32, Pointer<QueuePair>>,
    pub srqs: HashMap<u32, Pointer<SharedReceiveQueue>>,
}

/// What an opened device and its objects share; it outlives a context that is closed before them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub nic: Arc<Nic>,
    pub hca: Arc<hca::Context>,
    live: Mutex<Live>,
    /// The file behind `cmd_fd`, by device and inode.
    file: (u64, u64),
}

impl Shared {
    pub fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }

    pub fn device(&self) -> &Arc<hca::Device> {
        self.hca.device()
    }
}

/// An opened device.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    pub(crate) shared: Arc<Shared>,
    device: *mut ibv_device,
    command: OwnedFd,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.shared.device().name()).finish_non_exhaustive()
    }
}

/// Every context that is open, for imports and for the bad news of a panic.
static OPEN: PerProcess<Vec<(Weak<Shared>, Pointer<ibv_device>)>> = PerProcess::new();

impl Context {
    /// The context behind a pointer from C.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Result<&'a Context, Errno> {
        if context.is_null() {
            return Err(Errno::null());
        }
        Ok(&*Context::surrounding(context))
    }

    unsafe fn surrounding(context: *mut ibv_context) -> *mut Context {
        context.byte_sub(offset_of!(verbs_context, context)).cast()
    }

    /// The pointer C gets.
    pub(crate) fn as_c(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    fn open(device: *mut ibv_device, hca: Arc<hca::Device>, command: OwnedFd) -> Result<*mut Context, Errno> {
        let nic = Nic::of_process()?;
        // After a fork the device may be one of the parent's NIC; the child's has one of the same name.
        let own = nic.devices().into_iter().find(|own| own.name() == hca.name()).ok_or(Errno(libc::ENODEV))?;
        let opened = nic.open_device(&own)?;
        let shared = Arc::new(Shared { nic, hca: opened, live: Mutex::default(), file: identity(&command)? });
        {
            let mut open = OPEN.lock();
            open.retain(|(shared, _)| shared.strong_count() > 0);
            open.push((Arc::downgrade(&shared), Pointer(device)));
        }
        // SAFETY: all zeros are null pointers and no functions.
        let verbs = unsafe { zeroed() };
        let context = Box::into_raw(Box::new(Context { verbs, shared, device, command }));
        // SAFETY: just made, and nobody else has it.
        unsafe { (*context).fill_tables() };
        Ok(context)
    }

    fn fill_tables(&mut self) {
        let verbs = &mut self.verbs;
        verbs.sz = size_of::<verbs_context>();
        verbs.query_port = Some(query::query_port_sized);
        verbs.advise_mr = Some(memory_region::advise_mr);
        verbs.alloc_null_mr = Some(memory_region::alloc_null_mr);
        verbs.reg_dm_mr = Some(device_memory::reg_dm_mr);
        verbs.alloc_dm = Some(device_memory::alloc_dm);
        verbs.free_dm = Some(device_memory::free_dm);
        verbs.modify_qp_rate_limit = Some(queue_pair_state::modify_qp_rate_limit);
        verbs.alloc_parent_domain = Some(protection_domain::alloc_parent_domain);
        verbs.dealloc_td = Some(protection_domain::dealloc_td);
        verbs.alloc_td = Some(protection_domain::alloc_td);
        verbs.modify_cq = Some(completion_queue::modify_cq);
        verbs.query_rt_values = Some(query::query_rt_values);
        verbs.create_cq_ex = Some(completion_queue_ex::create_cq_ex);
        verbs.query_device_ex = Some(query::query_device_ex);
        verbs.open_qp = Some(xrc::open_qp);
        verbs.create_qp_ex = Some(queue_pair::create_qp_ex);
        verbs.get_srq_num = Some(shared_receive_queue::get_srq_num);
        verbs.create_srq_ex = Some(shared_receive_queue::create_srq_ex);
        verbs.open_xrcd = Some(xrc::open_xrcd);
        verbs.close_xrcd = Some(xrc::close_xrcd);
        let context = &mut verbs.context;
        context.device = self.device;
        context.cmd_fd = self.command.as_raw_fd();
        context.async_fd = self.shared.hca.events().raw_fd();
        context.num_comp_vectors = COMPLETION_VECTORS;
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        context.abi_compat = abi::VERBS_ABI_IS_EXTENDED as *mut _;
        let ops = &mut context.ops;
        ops._compat_query_device = Some(query::ibv_query_device);
        ops._compat_query_port = Some(query::ibv_query_port);
        ops.alloc_mw = Some(memory_window::alloc_mw);
        ops.bind_mw = Some(memory_window::bind_mw);
        ops.dealloc_mw = Some(memory_window::dealloc_mw);
        ops.poll_cq = Some(completion_queue::poll_cq);
        ops.req_notify_cq = Some(completion_queue::req_notify_cq);
        ops.post_srq_recv = Some(posting::post_srq_recv);
        ops.post_send = Some(posting::post_send);
        ops.post_recv = Some(posting::post_recv);
    }
}

/// Which file a descriptor is of.
fn identity(descriptor: &OwnedFd) -> Result<(u64, u64), Errno> {
    let metadata = File::from(descriptor.try_clone()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Tells every open context that the library had an error inside: whatever the program relied on may be wrong.
pub(crate) fn tell_all_of_a_panic() {
    for (shared, _) in OPEN.lock().iter() {
        if let Some(shared) = shared.upgrade() {
            shared.hca.events().push(AsyncEvent::DeviceFatal);
        }
    }
}

/// Opens a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    object("ibv_open_device", || {
        let known = Device::of(device)?;
        // A file of its own: whoever shows a descriptor of it means this context.
        let command = libc::memfd_create(c"ubiverbs-context".as_ptr(), libc::MFD_CLOEXEC);
        if command < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let command = OwnedFd::from_raw_fd(command);
        Ok((*Context::open(device, Arc::clone(&known.device), command)?).as_c())
    })
}

/// Closes a device. What the program left behind stops working.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status("ibv_close_device", || {
        Context::of(context)?;
        let context = Box::from_raw(Context::surrounding(context));
        // Nothing of the program's memory may be touched from here on.
        let left: Vec<Arc<hca::Qp>> = context.shared.live().qps.values().map(|qp| Arc::clone(&(*qp.0).qp)).collect();
        for qp in left {
            context.shared.nic.destroy_qp(&qp);
        }
        Ok(())
    })
}

/// Opens the device behind another context's `cmd_fd`, or a copy of it, which then belongs to the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(command: c_int) -> *mut ibv_context {
    object("ibv_import_device", || {
        if command < 0 {
            return Err(Errno(libc::EBADF));
        }
        // Until it is known to be one of ours it stays the caller's.
        let copy = libc::fcntl(command, libc::F_DUPFD_CLOEXEC, 0);
        if copy < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        let file = identity(&OwnedFd::from_raw_fd(copy))?;
        let found = OPEN.lock().iter().find_map(|(shared, device)| {
            let shared = shared.upgrade().filter(|shared| shared.file == file)?;
            Some((Arc::clone(shared.device()), device.0))
        });
        let foreign = || Errno::invalid("the descriptor is not the cmd_fd of an open context");
        let (hca, device) = found.ok_or_else(foreign)?;
        Ok((*Context::open(device, hca, OwnedFd::from_raw_fd(command))?).as_c())
    })
}
