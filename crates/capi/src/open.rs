//! Opening, importing and closing devices, and the two tables of operations that the header's inline functions use.

use crate::boundary::{after_panic, object, status};
use crate::context::{COMPLETION_VECTORS, Context, OPEN_DEVICES, OpenDevice, file_identity, push_device_fatal};
use crate::device::Device;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::queue_pair::QueuePair;
use crate::registry::Pointer;
use crate::{
    buffer, completion_queue, completion_queue_ex, counters, device_memory, dma_handle, flow, memory_region,
    memory_region_ex, memory_window, posting, protection_domain, query, queue_pair_create, queue_pair_state,
    shared_receive_queue, tag_matching, work_queue, xrc,
};
use abi::{Handle, Owned, ibv_context, ibv_device, verbs_context};
use hca::Nic;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

impl Context {
    fn open(device: *mut ibv_device, hca: Arc<hca::Device>, command: OwnedFd) -> Result<*mut ibv_context, Errno> {
        let nic = Nic::of_process()?;
        // After a fork the device may be one of the parent's NIC; the child's has one of the same name.
        let own = nic.devices().into_iter().find(|own| own.name() == hca.name()).ok_or(Errno::of(libc::ENODEV))?;
        let opened = nic.open_device(&own)?;
        let opened = Arc::new(OpenDevice::new(nic, opened, file_identity(&command)?));
        after_panic(push_device_fatal);
        {
            let mut open = OPEN_DEVICES.lock();
            open.retain(|(opened, _)| opened.strong_count() > 0);
            open.push((Arc::downgrade(&opened), Pointer(device)));
        }
        let mut context = Box::new(Context { verbs: verbs_context::zeroed(), opened, device, command });
        context.fill_tables();
        Ok(context.into_c())
    }

    fn fill_tables(&mut self) {
        let verbs = &mut self.verbs;
        verbs.sz = size_of::<verbs_context>();
        verbs.free_buf = Some(buffer::ibv_free_buf);
        verbs.alloc_buf = Some(buffer::ibv_alloc_buf);
        verbs.dm_export_dmabuf_fd = Some(device_memory::ibv_dm_export_dmabuf_fd);
        verbs.reg_mr_ex = Some(memory_region_ex::ibv_reg_mr_ex);
        verbs.dealloc_dmah = Some(dma_handle::ibv_dealloc_dmah);
        verbs.alloc_dmah = Some(dma_handle::ibv_alloc_dmah);
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
        verbs.open_qp = Some(queue_pair_create::open_qp);
        verbs.create_qp_ex = Some(queue_pair_create::create_qp_ex);
        verbs.get_srq_num = Some(shared_receive_queue::get_srq_num);
        verbs.create_srq_ex = Some(shared_receive_queue::create_srq_ex);
        verbs.post_srq_ops = Some(tag_matching::post_srq_ops);
        verbs.open_xrcd = Some(xrc::open_xrcd);
        verbs.close_xrcd = Some(xrc::close_xrcd);
        verbs.create_wq = Some(work_queue::create_wq);
        verbs.modify_wq = Some(work_queue::modify_wq);
        verbs.destroy_wq = Some(work_queue::destroy_wq);
        verbs.create_rwq_ind_table = Some(work_queue::create_rwq_ind_table);
        verbs.destroy_rwq_ind_table = Some(work_queue::destroy_rwq_ind_table);
        verbs.ibv_create_flow = Some(flow::create_flow);
        verbs.ibv_destroy_flow = Some(flow::destroy_flow);
        verbs.create_counters = Some(counters::create_counters);
        verbs.destroy_counters = Some(counters::destroy_counters);
        verbs.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
        verbs.read_counters = Some(counters::read_counters);
        let context = &mut verbs.context;
        context.device = self.device;
        context.cmd_fd = self.command.as_raw_fd();
        context.async_fd = self.opened.hca.events().raw_fd();
        context.num_comp_vectors = COMPLETION_VECTORS;
        context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        context.abi_compat = abi::VERBS_ABI_IS_EXTENDED as *mut _;
        let ops = &mut context.ops;
        ops._compat_query_device = Some(query::ibv_query_device);
        ops._compat_query_port = Some(query::ibv_query_port);
        ops.alloc_mw = Some(memory_window::alloc_mw);
        ops.bind_mw = Some(posting::bind_mw);
        ops.dealloc_mw = Some(memory_window::dealloc_mw);
        let card = self.opened.device().profile();
        ops.poll_cq = Some(match (latch::sanitizer::is_present(), card) {
            (_, Some(card)) if !card.completions.is_usual() => completion_queue::poll_cq_as_card,
            (true, _) => completion_queue::poll_cq_told,
            (false, _) => completion_queue::poll_cq,
        });
        ops.req_notify_cq = Some(completion_queue::req_notify_cq);
        ops.post_srq_recv = Some(posting::post_srq_recv);
        ops.post_send = Some(posting::post_send);
        ops.post_recv = Some(posting::post_recv);
    }
}

/// A file of its own: a program that imports a descriptor of it means this context.
fn command_file() -> Result<OwnedFd, Errno> {
    // A socket that leads nowhere: unlike memory, every system allows it, and it has a number of its own.
    let (socket, _) = UnixDatagram::pair()?;
    // None of the first three.
    Ok(OwnedFd::from(socket).try_clone()?)
}

/// Opens a device.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: Handle<'_, ibv_device>) -> *mut ibv_context {
    object("ibv_open_device", || {
        let known = Device::of(device)?;
        Context::open(device.as_ptr(), Arc::clone(&known.device), command_file()?)
    })
}

/// Closes a device. What the program left behind stops working. A forked child that closes its parent's has nothing to
/// give back, and hears of no error: hardware answers so.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_close_device(context: Owned<'_, ibv_context>) -> c_int {
    status("ibv_close_device", || {
        if Context::is_inherited(context.handle()) {
            return Ok(());
        }
        let context = Context::from_c(context)?;
        let left: Result<Vec<Arc<hca::Qp>>, Errno> =
            context.opened.objects().qps.iter().map(|qp| Ok(Arc::clone(&QueuePair::of(qp)?.qp))).collect();
        let (nic, left) = (&context.opened.nic, left?);
        nic.close_device(&context.opened.hca);
        // Nothing of the program's memory may be touched from here on. The program has not destroyed them: it is told.
        let _own = hca::OwnCalls::told_by(nic.tracing());
        for qp in left {
            nic.destroy_qp(&qp);
        }
        Ok(())
    })
}

/// Opens the device behind another context's `cmd_fd`, or a copy of it, which then belongs to the library.
///
/// # Safety
/// If `command` is the descriptor of a context, the program gives it up.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(command: c_int) -> *mut ibv_context {
    object("ibv_import_device", || {
        refuse_if!(command < 0, Errno::invalid("there is no such descriptor"));
        // SAFETY: until it is known to be a context's, the descriptor stays the program's, and is only copied.
        let copy = unsafe { BorrowedFd::borrow_raw(command) }.try_clone_to_owned();
        let copy = copy.map_err(|_| Errno::invalid("there is no such descriptor"))?;
        let file = file_identity(&copy)?;
        let found = OPEN_DEVICES.lock().iter().find_map(|(opened, device)| {
            let opened = opened.upgrade().filter(|opened| opened.file == file)?;
            Some((Arc::clone(opened.device()), device.0))
        });
        let foreign = || Errno::invalid("the descriptor is not the cmd_fd of an open context");
        let (hca, device) = found.ok_or_else(foreign)?;
        // SAFETY: the program gives up the descriptor of a context, which it is known to be now.
        Context::open(device, hca, unsafe { OwnedFd::from_raw_fd(command) })
    })
}
