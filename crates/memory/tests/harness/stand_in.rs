//! The stand-in for the GPU's driver (`tests/gpu/driver.c`), compiled and loaded here, so that the crate finds it as it
//! would find the driver of a program that uses a GPU.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

static LOADED: OnceLock<usize> = OnceLock::new();
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The driver, for one test at a time: what it is told to do it does to all.
pub struct StandIn {
    library: *mut c_void,
    context: *mut c_void,
    _turn: MutexGuard<'static, ()>,
}

impl StandIn {
    pub fn new() -> StandIn {
        let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let library = *LOADED.get_or_init(load) as *mut c_void;
        let mut stand_in = StandIn { library, context: null_mut(), _turn };
        // SAFETY: the types are those of `driver.h`.
        unsafe {
            assert_eq!(stand_in.call::<unsafe extern "C" fn(c_uint) -> c_uint>("cuInit")(0), 0);
            // What a test that failed has left.
            for call in ["cuPointerGetAttributes", "cuCtxPushCurrent_v2", "cuStreamCreate", "cuStreamSynchronize"] {
                stand_in.fail(call, 0, 0);
            }
            let create =
                stand_in.call::<unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_uint>("cuCtxCreate_v2");
            assert_eq!(create(&raw mut stand_in.context, 0, 0), 0);
        }
        stand_in
    }

    unsafe fn call<F: Copy>(&self, name: &str) -> F {
        let name = CString::new(name).unwrap();
        // SAFETY: a handle and a C string.
        let found = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!found.is_null());
        // SAFETY: the caller says of which type the function is; a pointer it is in any case.
        unsafe { std::mem::transmute_copy(&found) }
    }

    pub fn allocate(&self, size: usize) -> u64 {
        let mut address = 0;
        // SAFETY: as `driver.h` says.
        unsafe {
            let allocate = self.call::<unsafe extern "C" fn(*mut u64, usize) -> c_uint>("cuMemAlloc_v2");
            assert_eq!(allocate(&raw mut address, size), 0);
        }
        address
    }

    pub fn free(&self, address: u64) {
        // SAFETY: as `driver.h` says.
        unsafe { assert_eq!(self.call::<unsafe extern "C" fn(u64) -> c_uint>("cuMemFree_v2")(address), 0) };
    }

    /// What a kernel would see.
    pub fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        // SAFETY: as `driver.h` says; there is room.
        unsafe {
            let copy = self.call::<unsafe extern "C" fn(*mut u8, u64, usize) -> c_uint>("cuMemcpyDtoH_v2");
            assert_eq!(copy(bytes.as_mut_ptr(), address, length), 0);
        }
        bytes
    }

    /// What a kernel would write.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        // SAFETY: as `driver.h` says.
        unsafe {
            let copy = self.call::<unsafe extern "C" fn(u64, *const u8, usize) -> c_uint>("cuMemcpyHtoD_v2");
            assert_eq!(copy(address, bytes.as_ptr(), bytes.len()), 0);
        }
    }

    /// The call fails from now on, after so many that do not; with 0 it does no more.
    pub fn fail(&self, call: &str, after: i32, error: u32) {
        let call = CString::new(call).unwrap();
        // SAFETY: as `driver.h` says.
        unsafe {
            self.call::<unsafe extern "C" fn(*const c_char, c_int, c_uint)>("stand_in_fail")(
                call.as_ptr(),
                after,
                error,
            )
        };
    }

    /// The call does not return until it is let go.
    pub fn hold(&self, call: &str, held: bool) {
        let call = CString::new(call).unwrap();
        // SAFETY: as `driver.h` says.
        unsafe {
            self.call::<unsafe extern "C" fn(*const c_char, c_int)>("stand_in_hold")(call.as_ptr(), held.into());
        }
    }

    /// Copies in the program's context wait, as behind a kernel, until they are let go.
    pub fn hold_program(&self, held: bool) {
        // SAFETY: as `driver.h` says.
        unsafe {
            self.call::<unsafe extern "C" fn(*mut c_void, c_int)>("stand_in_hold_context")(self.context, held.into());
        }
    }

    pub fn calls(&self, call: &str) -> u64 {
        let call = CString::new(call).unwrap();
        // SAFETY: as `driver.h` says.
        unsafe { self.call::<unsafe extern "C" fn(*const c_char) -> u64>("stand_in_calls")(call.as_ptr()) }
    }

    pub fn destroy_context(&mut self) {
        let context = std::mem::replace(&mut self.context, null_mut());
        if context.is_null() {
            return;
        }
        let mut popped = null_mut();
        // SAFETY: as `driver.h` says.
        unsafe {
            assert_eq!(
                self.call::<unsafe extern "C" fn(*mut *mut c_void) -> c_uint>("cuCtxPopCurrent_v2")(&raw mut popped),
                0
            );
            assert_eq!(self.call::<unsafe extern "C" fn(*mut c_void) -> c_uint>("cuCtxDestroy_v2")(context), 0);
        }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.destroy_context();
    }
}

fn load() -> usize {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/driver.c");
    let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
    let output = compiler.arg(&library).arg(source).arg("-lpthread").output().expect("apt-get install gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let name = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: a C string; the library has no constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    handle as usize
}
