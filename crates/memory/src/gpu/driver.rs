//! The GPU's driver, as far as the NIC needs it: a handful of entry points of `libcuda.so.1`. Nothing is linked: the
//! library is used only if the program has loaded it already, which a program with a GPU pointer has.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use wire::refuse_if;

/// A call of the driver failed, with the driver's number for why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverError(pub u32);

impl DriverError {
    /// The driver is there and the call is not, as a driver would say it: not supported.
    const MISSING: DriverError = DriverError(801);
    /// What a copy fails with that is to fail: `CUDA_ERROR_UNKNOWN`.
    pub(crate) const UNKNOWN: DriverError = DriverError(999);
}

/// A context and a stream, which only the driver looks into.
pub(super) type Context = *mut c_void;
pub(super) type Stream = *mut c_void;

/// What names memory of one process in another. The driver takes it by value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(C)]
pub(super) struct Handle(pub [u8; 64]);

/// A stream that does not wait for the program's own work, nor the program's for it.
const NON_BLOCKING: c_uint = 1;
/// Memory that is registered for all contexts.
const REGISTER_PORTABLE: c_uint = 1;
/// Access between GPUs is enabled when it is needed.
const LAZY_PEER_ACCESS: c_uint = 1;

/// Attributes of a pointer that are asked for.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Attribute {
    Context = 1,
    MemoryType = 2,
    BufferId = 7,
    IsManaged = 8,
    DeviceOrdinal = 9,
    IsIpcCapable = 10,
    RangeStart = 11,
    RangeSize = 12,
}

/// The types of memory that the processor and a GPU have.
const HOST_MEMORY: c_uint = 1;
const DEVICE_MEMORY: c_uint = 2;

macro_rules! entry_points {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The entry points.
        struct Calls {
            $($name: Option<unsafe extern "C" fn($($argument),*) -> c_uint>,)*
        }

        impl Calls {
            /// # Safety
            /// `library` is a handle of a library whose functions of these names have these types.
            unsafe fn of(library: *mut c_void) -> Calls {
                Calls { $($name: {
                    // SAFETY: a handle, and a name that ends in zero.
                    let found = unsafe { libc::dlsym(library, concat!($symbol, "\0").as_ptr().cast::<c_char>()) };
                    type Call = unsafe extern "C" fn($($argument),*) -> c_uint;
                    // SAFETY: the function of this name has this type; null is none.
                    unsafe { std::mem::transmute::<*mut c_void, Option<Call>>(found) }
                },)* }
            }
        }
    };
}

/// What `cuMemSetAccess` is told: a device, and what it may do.
#[repr(C)]
struct AccessDescription {
    location_type: c_int,
    device: c_int,
    flags: c_int,
}

/// What `cuMemcpy2DAsync` is told: a picture of rows, from where and to where.
#[repr(C)]
struct Rows {
    source_place: [usize; 2],
    source_type: c_uint,
    source_host: *const c_void,
    source_device: u64,
    source_array: *mut c_void,
    source_pitch: usize,
    target_place: [usize; 2],
    target_type: c_uint,
    target_host: *mut c_void,
    target_device: u64,
    target_array: *mut c_void,
    target_pitch: usize,
    width: usize,
    height: usize,
}

impl Rows {
    /// Two rows of so many bytes, one after the other, into a GPU's memory.
    fn into(target: u64, source: *const u8, width: usize) -> Rows {
        Rows {
            source_place: [0; 2],
            source_type: HOST_MEMORY,
            source_host: source.cast(),
            source_device: 0,
            source_array: null_mut(),
            source_pitch: width,
            target_place: [0; 2],
            target_type: DEVICE_MEMORY,
            target_host: null_mut(),
            target_device: target,
            target_array: null_mut(),
            target_pitch: width,
            width,
            height: 2,
        }
    }
}

/// A location that is a device; the right to read; the kind of handle that is a descriptor.
const LOCATION_DEVICE: c_int = 1;
const ACCESS_READ_WRITE: c_int = 3;
const HANDLE_DESCRIPTOR: c_int = 1;

entry_points! {
    retain = "cuMemRetainAllocationHandle" (*mut u64, *mut c_void);
    release = "cuMemRelease" (u64);
    export_descriptor = "cuMemExportToShareableHandle" (*mut c_void, u64, c_int, u64);
    import_descriptor = "cuMemImportFromShareableHandle" (*mut u64, *mut c_void, c_int);
    reserve = "cuMemAddressReserve" (*mut u64, usize, usize, u64, u64);
    map = "cuMemMap" (u64, usize, usize, u64, u64);
    set_access = "cuMemSetAccess" (u64, usize, *const AccessDescription, usize);
    unmap = "cuMemUnmap" (u64, usize);
    free_range = "cuMemAddressFree" (u64, usize);
    attributes = "cuPointerGetAttributes" (c_uint, *const c_uint, *const *mut c_void, u64);
    device = "cuDeviceGet" (*mut c_int, c_int);
    current_device = "cuCtxGetDevice" (*mut c_int);
    retain_primary = "cuDevicePrimaryCtxRetain" (*mut Context, c_int);
    make_context = "cuCtxCreate_v2" (*mut Context, c_uint, c_int);
    end_context = "cuCtxDestroy_v2" (Context);
    push = "cuCtxPushCurrent_v2" (Context);
    pop = "cuCtxPopCurrent_v2" (*mut Context);
    make_stream = "cuStreamCreate" (*mut Stream, c_uint);
    wait = "cuStreamSynchronize" (Stream);
    out = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Stream);
    into = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Stream);
    rows_into = "cuMemcpy2DAsync_v2" (*const Rows, Stream);
    across = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Stream);
    register_host = "cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unregister_host = "cuMemHostUnregister" (*mut c_void);
    export = "cuIpcGetMemHandle" (*mut Handle, u64);
    import = "cuIpcOpenMemHandle_v2" (*mut u64, Handle, c_uint);
    close = "cuIpcCloseMemHandle" (u64);
}

/// The driver.
pub(super) struct Driver {
    calls: Calls,
}

/// What the driver knows of a pointer to memory of a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Allocation {
    /// The context it was allocated in, or null: that of its device.
    pub context: usize,
    pub device: c_int,
    /// The piece of memory it is in.
    pub start: u64,
    pub length: u64,
    /// No other allocation of this process has or had this number.
    pub id: u64,
    /// Other processes can be given it.
    pub is_exportable: bool,
}

/// The driver, once it was found. It stays loaded: the handle is never closed.
static FOUND_DRIVER: AtomicPtr<Driver> = AtomicPtr::new(null_mut());

/// The driver, if it was needed before: costs a load.
pub(super) fn known() -> Option<&'static Driver> {
    // SAFETY: null, or what `driver` leaked.
    unsafe { FOUND_DRIVER.load(Ordering::Acquire).as_ref() }
}

/// The driver, if the program has loaded it.
pub(super) fn driver() -> Option<&'static Driver> {
    if let Some(driver) = known() {
        return Some(driver);
    }
    if cfg!(miri) {
        return None;
    }
    const LIBRARY_NAME: &CStr = c"libcuda.so.1";
    // SAFETY: a C string; nothing is loaded, and so no code runs.
    let library = unsafe { libc::dlopen(LIBRARY_NAME.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the driver's functions, as its interface has them.
    let calls = unsafe { Calls::of(library) };
    let made = Box::into_raw(Box::new(Driver { calls }));
    if FOUND_DRIVER.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // Another thread was first.
        // SAFETY: made above, and not shared.
        drop(unsafe { Box::from_raw(made) });
    }
    known()
}

fn done(code: c_uint) -> Result<(), DriverError> {
    if code == 0 { Ok(()) } else { Err(DriverError(code)) }
}

macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        match $self.calls.$name {
            // SAFETY: the arguments are what the driver's interface wants of this call; each caller says so.
            Some(function) => done(unsafe { function($($argument),*) }),
            None => Err(DriverError::MISSING),
        }
    };
}

impl Driver {
    /// What it knows of an address; `None` if that is no memory of a GPU, or memory that the processor reaches too.
    pub fn allocation(&self, address: u64) -> Option<Allocation> {
        const ASKED_ATTRIBUTES: [c_uint; 8] = [
            Attribute::Context as c_uint,
            Attribute::MemoryType as c_uint,
            Attribute::BufferId as c_uint,
            Attribute::IsManaged as c_uint,
            Attribute::DeviceOrdinal as c_uint,
            Attribute::IsIpcCapable as c_uint,
            Attribute::RangeStart as c_uint,
            Attribute::RangeSize as c_uint,
        ];
        // Each answer has room for the longest, and all are little-endian.
        let mut answers = [0u64; ASKED_ATTRIBUTES.len()];
        let places: [*mut c_void; ASKED_ATTRIBUTES.len()] = answers.each_mut().map(|answer| (&raw mut *answer).cast());
        call!(self.attributes(ASKED_ATTRIBUTES.len() as c_uint, ASKED_ATTRIBUTES.as_ptr(), places.as_ptr(), address))
            .ok()?;
        let [context, memory_type, id, managed, device, ipc, start, length] = answers.map(u64::from_le);
        if memory_type as c_uint != DEVICE_MEMORY || managed & 0xff != 0 || length == 0 {
            return None;
        }
        let is_exportable = ipc & 0xff != 0;
        Some(Allocation { context: context as usize, device: device as c_int, start, length, id, is_exportable })
    }

    /// The context that all of a process share on a device.
    pub fn primary_context(&self, ordinal: c_int) -> Result<Context, DriverError> {
        let (mut device, mut context) = (0, null_mut());
        call!(self.device(&raw mut device, ordinal))?;
        call!(self.retain_primary(&raw mut context, device))?;
        Ok(context)
    }

    /// A new context on a device. Waits in it are looked for as the driver finds best.
    pub fn make_context(&self, ordinal: c_int) -> Result<Context, DriverError> {
        let (mut device, mut context, mut popped) = (0, null_mut(), null_mut());
        call!(self.device(&raw mut device, ordinal))?;
        call!(self.make_context(&raw mut context, 0, device))?;
        // The driver has made it the thread's.
        call!(self.pop(&raw mut popped))?;
        Ok(context)
    }

    /// Ends one that nothing uses any more.
    pub fn end_context(&self, context: Context) {
        let _ = call!(self.end_context(context));
    }

    /// Runs `f` in a context.
    pub fn within<R>(&self, context: Context, f: impl FnOnce() -> Result<R, DriverError>) -> Result<R, DriverError> {
        call!(self.push(context))?;
        let result = f();
        let mut popped = null_mut();
        // It was pushed, so there is one.
        let _ = call!(self.pop(&raw mut popped));
        result
    }

    /// A stream of the current context.
    pub fn make_stream(&self) -> Result<Stream, DriverError> {
        let mut stream = null_mut();
        call!(self.make_stream(&raw mut stream, NON_BLOCKING))?;
        Ok(stream)
    }

    /// Waits until everything in a stream is done.
    pub fn wait(&self, stream: Stream) -> Result<(), DriverError> {
        call!(self.wait(stream))
    }

    /// Begins to copy out of a GPU's memory.
    ///
    /// # Safety
    /// `target` is valid for writes of `length` bytes until the stream was waited for.
    pub unsafe fn begin_out(
        &self,
        target: *mut u8,
        source: u64,
        length: usize,
        stream: Stream,
    ) -> Result<(), DriverError> {
        call!(self.out(target.cast(), source, length, stream))
    }

    /// Begins to copy into a GPU's memory.
    ///
    /// # Safety
    /// `source` is valid for reads of `length` bytes until the stream was waited for.
    pub unsafe fn begin_into(
        &self,
        target: u64,
        source: *const u8,
        length: usize,
        stream: Stream,
    ) -> Result<(), DriverError> {
        // Of fewer bytes the driver makes a part of its commands, which wait for the process's turn on the
        // multiprocessors. As rows of a picture they are left to the engine that copies.
        const COPIED: usize = 32 << 10;
        if !(2..COPIED).contains(&length) || self.calls.rows_into.is_none() {
            return call!(self.into(target, source.cast(), length, stream));
        }
        let even = length & !1;
        let rows = |skipped: usize| {
            let rows = Rows::into(target + skipped as u64, source.wrapping_add(skipped), even / 2);
            call!(self.rows_into(&raw const rows, stream))
        };
        // Of an odd number, all but the last and all but the first.
        rows(0).and_then(|()| if even == length { Ok(()) } else { rows(1) })
    }

    /// Begins to copy inside a GPU, or between GPUs.
    pub fn begin_across(&self, target: u64, source: u64, length: usize, stream: Stream) -> Result<(), DriverError> {
        call!(self.across(target, source, length, stream))
    }

    /// Lets GPUs reach memory of the processor by themselves, which makes copies faster. Its pages are pinned.
    pub fn register_host(&self, first: *mut u8, length: usize) -> Result<(), DriverError> {
        call!(self.register_host(first.cast(), length, REGISTER_PORTABLE))
    }

    /// The opposite.
    pub fn unregister_host(&self, first: *mut u8) -> Result<(), DriverError> {
        call!(self.unregister_host(first.cast()))
    }

    /// What names an allocation in other processes.
    pub fn export(&self, address: u64) -> Result<Handle, DriverError> {
        let mut handle = Handle([0; 64]);
        call!(self.export(&raw mut handle, address))?;
        Ok(handle)
    }

    /// Where another process's allocation lies in the current context.
    pub fn import(&self, handle: Handle) -> Result<u64, DriverError> {
        let mut address = 0;
        call!(self.import(&raw mut address, handle, LAZY_PEER_ACCESS))?;
        Ok(address)
    }

    /// A descriptor of memory that was mapped into the GPU's addresses, if its program let others have it. Such memory
    /// is mapped from its beginning on: the driver knows no other way yet.
    pub fn export_descriptor(&self, address: u64) -> Result<OwnedFd, DriverError> {
        let (mut handle, mut descriptor): (u64, c_int) = (0, -1);
        call!(self.retain(&raw mut handle, std::ptr::without_provenance_mut(address as usize)))?;
        let exported = call!(self.export_descriptor((&raw mut descriptor).cast(), handle, HANDLE_DESCRIPTOR, 0));
        let _ = call!(self.release(handle));
        exported?;
        refuse_if!(descriptor < 0, DriverError::MISSING);
        // SAFETY: the driver opened it for its caller.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Maps memory of another process into the GPU's addresses of this one, for the device of the current context.
    pub fn import_descriptor(&self, descriptor: &OwnedFd, length: usize) -> Result<u64, DriverError> {
        let (mut handle, mut address, mut device) = (0, 0, 0);
        call!(self.current_device(&raw mut device))?;
        // The interface has a number where a pointer is.
        let number = std::ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        call!(self.import_descriptor(&raw mut handle, number, HANDLE_DESCRIPTOR))?;
        let mapped = call!(self.reserve(&raw mut address, length, 0, 0, 0)).and_then(|()| {
            call!(self.map(address, length, 0, handle, 0)).inspect_err(|_| {
                let _ = call!(self.free_range(address, length));
            })
        });
        // The mapping keeps the memory.
        let _ = call!(self.release(handle));
        mapped?;
        let access = AccessDescription { location_type: LOCATION_DEVICE, device, flags: ACCESS_READ_WRITE };
        if let Err(error) = call!(self.set_access(address, length, &raw const access, 1)) {
            let _ = self.close_descriptor(address, length);
            return Err(error);
        }
        Ok(address)
    }

    /// Gives that back.
    pub fn close_descriptor(&self, address: u64, length: usize) -> Result<(), DriverError> {
        call!(self.unmap(address, length))?;
        call!(self.free_range(address, length))
    }

    /// Gives another process's allocation back.
    pub fn close(&self, address: u64) -> Result<(), DriverError> {
        call!(self.close(address))
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// No stream.
pub(super) const NO_STREAM: Stream = null_mut();
