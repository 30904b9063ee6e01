//! Opened devices: what a context and its objects share, and the objects of a context by number.

use crate::errno::Errno;
use crate::object::Object;
use crate::registry::{LiveObjects, PerProcess, Pointer, lock};
use abi::{Handle, ibv_context, ibv_cq, ibv_device, ibv_qp, ibv_srq, verbs_context};
use hca::{AsyncEvent, Nic};
use std::ffi::c_int;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use trace::Call;

/// How many completion vectors a device pretends to have.
pub(crate) const COMPLETION_VECTORS: c_int = 1;

/// The objects of a context that events name by number, as C knows them.
#[derive(Debug, Default)]
pub(crate) struct ObjectTable {
    pub cqs: LiveObjects<u32, ibv_cq>,
    pub qps: LiveObjects<u32, ibv_qp>,
    pub srqs: LiveObjects<u32, ibv_srq>,
}

/// What an opened device and its objects share; it outlives a context that is closed before them.
#[derive(Debug)]
pub(crate) struct OpenDevice {
    pub nic: Arc<Nic>,
    pub hca: Arc<hca::Context>,
    pub objects: Mutex<ObjectTable>,
    /// How many address handles there are.
    pub address_handles: AtomicU32,
    /// How many completion counters there are.
    pub completion_counters: AtomicU32,
    /// The file behind `cmd_fd`, by device and inode.
    pub file: (u64, u64),
}

impl OpenDevice {
    pub fn new(nic: Arc<Nic>, hca: Arc<hca::Context>, file: (u64, u64)) -> OpenDevice {
        OpenDevice {
            nic,
            hca,
            objects: Mutex::default(),
            address_handles: AtomicU32::new(0),
            completion_counters: AtomicU32::new(0),
            file,
        }
    }

    pub fn objects(&self) -> MutexGuard<'_, ObjectTable> {
        lock(&self.objects)
    }

    /// Tells the trace that the program waits for its own acknowledgements before an object goes.
    pub fn tell_wait(&self, object: &'static str, number: u64, missing: u32) {
        self.nic.called(None, || Call::WaitForAcks { object, number, missing });
    }

    pub fn device(&self) -> &Arc<hca::Device> {
        self.hca.device()
    }
}

/// The port of that number of a device.
pub(crate) fn port_of(device: &Arc<hca::Device>, number: u32) -> Result<&Arc<hca::Device>, Errno> {
    let port = u8::try_from(number).ok().and_then(|number| device.at_port(number));
    port.ok_or_else(|| match device.port_count() {
        1 => Errno::invalid("the device has one port, number 1"),
        count => Errno::invalid(format_args!("the device has no port {number}; it has ports 1 to {count}")),
    })
}

/// An opened device.
#[repr(C)]
pub struct Context {
    pub(crate) verbs: verbs_context,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) device: *mut ibv_device,
    pub(crate) command: OwnedFd,
}

/// Every context that is open, for imports and for the bad news of a panic.
pub(crate) static OPEN_DEVICES: PerProcess<Vec<(Weak<OpenDevice>, Pointer<ibv_device>)>> = PerProcess::new();

// SAFETY: `verbs` is the first field of a `repr(C)` structure, C gets the `context` inside it, and boxed ones only.
unsafe impl Object for Context {
    type C = ibv_context;
    const OFFSET: usize = offset_of!(verbs_context, context);
}

impl Context {
    /// The opened device for a call that a kernel would serve: `EIO` if the device has failed.
    pub(crate) fn working(context: Handle<'_, ibv_context>) -> Result<&Context, Errno> {
        let context = Context::of(context)?;
        if context.opened.device().has_failed() { Err(Errno::device_failed()) } else { Ok(context) }
    }

    /// The port of that number.
    pub(crate) fn port(&self, number: u32) -> Result<&Arc<hca::Device>, Errno> {
        port_of(self.opened.device(), number)
    }

    /// The device that it opened; in a forked child that of the same name of the child's own NIC.
    pub(crate) fn device_here(context: Handle<'_, ibv_context>) -> Result<Arc<OpenDevice>, Errno> {
        if !Context::is_inherited(context) {
            return Ok(Arc::clone(&Context::working(context)?.opened));
        }
        let OpenDevice { hca, file, .. } = &*Context::of_any(context)?.opened;
        let nic = Nic::of_process()?;
        let own = nic.devices().into_iter().find(|own| own.name() == hca.device().name());
        let hca = nic.open_device(&own.ok_or(Errno::of(libc::ENODEV))?)?;
        Ok(Arc::new(OpenDevice::new(nic, hca, *file)))
    }

    /// The pointer C gets.
    pub(crate) fn as_c(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }
}

/// Which file a descriptor is of.
pub(crate) fn file_identity(descriptor: &OwnedFd) -> Result<(u64, u64), Errno> {
    let metadata = File::from(descriptor.try_clone()?).metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Tells every open context that the library had an error inside: whatever the program relied on may be wrong.
pub(crate) fn push_device_fatal() {
    for (opened, _) in OPEN_DEVICES.lock().iter() {
        if let Some(opened) = opened.upgrade() {
            opened.hca.events().push(AsyncEvent::DeviceFatal);
        }
    }
}
