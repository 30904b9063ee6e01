//! Memory of a GPU through the Rust API, on the stand-in for the GPU's driver.
#![allow(unsafe_code, reason = "a driver has an interface in C")]

use crate::example;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::OnceLock;
use ubiverbs::{Access, Reliable};

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The stand-in, compiled.
fn library() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/driver.c");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libcuda.so.1");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&library).arg(source);
        assert!(compiler.arg("-lpthread").status().expect("apt-get install gcc").success());
        library
    })
}

#[test]
fn the_example_does_what_it_says_where_there_is_a_gpu() {
    let mut example = example::command("gpu_write");
    let run = example.env("LD_LIBRARY_PATH", library().parent().unwrap()).output().expect("it runs");
    let (said, complained) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && said.contains("1048576 bytes of the GPU were written"), "{said}\n{complained}");
}

struct Driver(*mut c_void);

impl Driver {
    fn load() -> Driver {
        let name = CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: a C string and a flag, RTLD_NOW.
        let driver = Driver(unsafe { dlopen(name.as_ptr(), 2) });
        assert!(!driver.0.is_null());
        let mut context = null_mut();
        // SAFETY: the types are those of `driver.h`.
        unsafe {
            assert_eq!(driver.call::<unsafe extern "C" fn(c_uint) -> c_uint>("cuInit")(0), 0);
            type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_uint;
            assert_eq!(driver.call::<Create>("cuCtxCreate_v2")(&raw mut context, 0, 0), 0);
        }
        driver
    }

    unsafe fn call<F: Copy>(&self, name: &str) -> F {
        let name = CString::new(name).unwrap();
        // SAFETY: a handle and a C string; the caller says of which type the function is.
        unsafe {
            let found = dlsym(self.0, name.as_ptr());
            assert!(!found.is_null());
            std::mem::transmute_copy(&found)
        }
    }

    fn allocate(&self, size: usize) -> u64 {
        let mut pointer = 0;
        // SAFETY: as `driver.h` says.
        let allocate = unsafe { self.call::<unsafe extern "C" fn(*mut u64, usize) -> c_uint>("cuMemAlloc_v2") };
        // SAFETY: room for the answer.
        assert_eq!(unsafe { allocate(&raw mut pointer, size) }, 0);
        pointer
    }

    fn put(&self, pointer: u64, bytes: &[u8]) {
        type Put = unsafe extern "C" fn(u64, *const u8, usize) -> c_uint;
        // SAFETY: as `driver.h` says.
        assert_eq!(unsafe { self.call::<Put>("cuMemcpyHtoD_v2")(pointer, bytes.as_ptr(), bytes.len()) }, 0);
    }

    fn bytes(&self, pointer: u64, length: usize) -> Vec<u8> {
        type Get = unsafe extern "C" fn(*mut u8, u64, usize) -> c_uint;
        let mut bytes = vec![0; length];
        // SAFETY: as `driver.h` says; there is room.
        assert_eq!(unsafe { self.call::<Get>("cuMemcpyDtoH_v2")(bytes.as_mut_ptr(), pointer, length) }, 0);
        bytes
    }
}

#[test]
fn a_region_of_a_gpu_is_a_buffer_like_any_other() -> Result<(), ubiverbs::Error> {
    let driver = Driver::load();
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    let (here, there) = (driver.allocate(1 << 20), driver.allocate(1 << 20));
    // SAFETY: memory of the stand-in, which is never freed.
    let (source, target) =
        unsafe { (pd.share_gpu(here, 1 << 20, Access::empty())?, pd.share_gpu(there, 1 << 20, Access::REMOTE_WRITE)?) };
    driver.put(here + 64, b"from one kernel to another");
    let part = source.part(64..90)?;
    assert_eq!((part.len(), part.pointer()), (26, here + 64));
    let part = qp.write(part, target.part(4096..4122)?.remote_slice())?.wait()?;
    assert_eq!(driver.bytes(there + 4096, 26), b"from one kernel to another");
    // SAFETY: as above; but so much was not allocated.
    assert!(unsafe { pd.share_gpu(here, 2 << 20, Access::empty()) }.is_err());
    // SAFETY: nothing.
    assert!(unsafe { pd.share_gpu(here, 0, Access::empty()) }.is_err());
    source.revoke()?;
    assert!(source.is_revoked() && qp.write(part, target.remote_slice().slice(0..26)?).is_err());
    Ok(())
}
