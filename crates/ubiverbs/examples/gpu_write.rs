//! # 15. GPU memory: from one place to another, and the processor never sees it
//!
//! A NIC that reaches GPU memory needs a kernel module. This one needs the GPU's driver, which the program
//! has anyway: `share_gpu` registers the pointer that `cuMemAlloc` or `cudaMalloc` gave, and from then on the region is
//! a buffer like any other. It is `unsafe` to make, since no type says how long a GPU's memory stays allocated, and
//! safe to use.
//!
//! Here a program writes from one piece of GPU memory into another, as it would into that of a peer. Where there is no
//! GPU, it says so and ends.
//!
//! ```text
//! cargo run --example gpu_write
//! ```

#![allow(unsafe_code, reason = "a driver has an interface in C")]

use std::error::Error as StdError;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use ubiverbs::{Access, Reliable};

const SIZE: usize = 1 << 20;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The GPU's driver, as far as the example needs it. A program would use a crate for CUDA here.
struct Gpu(*mut c_void);

impl Gpu {
    /// The first GPU, with a context of this thread; or why there is none.
    fn open() -> Result<Gpu, String> {
        const RTLD_NOW: c_int = 2;
        // SAFETY: a C string and a flag; the library is the driver's own.
        let library = unsafe { dlopen(c"libcuda.so.1".as_ptr(), RTLD_NOW) };
        if library.is_null() {
            return Err("libcuda.so.1, the driver of NVIDIA's GPUs, is not installed".into());
        }
        let gpu = Gpu(library);
        let (mut device, mut context): (c_int, *mut c_void) = (0, null_mut());
        // SAFETY: these functions have these types, and there is room for the answers.
        unsafe {
            let init: unsafe extern "C" fn(c_uint) -> c_uint = gpu.function(c"cuInit")?;
            let get: unsafe extern "C" fn(*mut c_int, c_int) -> c_uint = gpu.function(c"cuDeviceGet")?;
            type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_uint;
            let create: Create = gpu.function(c"cuCtxCreate_v2")?;
            check("cuInit", init(0))?;
            check("cuDeviceGet", get(&raw mut device, 0))?;
            check("cuCtxCreate", create(&raw mut context, 0, device))?;
        }
        Ok(gpu)
    }

    /// # Safety
    /// The function of that name has the type `F`.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F, String> {
        // SAFETY: a handle and a C string; the type is as the caller says.
        unsafe {
            let found = dlsym(self.0, name.as_ptr());
            if found.is_null() { Err(format!("no {name:?}")) } else { Ok(std::mem::transmute_copy(&found)) }
        }
    }

    fn allocate(&self, size: usize) -> Result<u64, String> {
        let mut pointer = 0;
        // SAFETY: as above.
        unsafe {
            let allocate: unsafe extern "C" fn(*mut u64, usize) -> c_uint = self.function(c"cuMemAlloc_v2")?;
            check("cuMemAlloc", allocate(&raw mut pointer, size))?;
        }
        Ok(pointer)
    }

    /// Stands for a kernel that writes. The bytes are there when it returns.
    fn fill(&self, pointer: u64, bytes: &[u8]) -> Result<(), String> {
        // SAFETY: as above; as many bytes are there.
        unsafe {
            let copy: unsafe extern "C" fn(u64, *const u8, usize) -> c_uint = self.function(c"cuMemcpyHtoD_v2")?;
            let wait: unsafe extern "C" fn() -> c_uint = self.function(c"cuCtxSynchronize")?;
            check("cuMemcpyHtoD", copy(pointer, bytes.as_ptr(), bytes.len()))?;
            check("cuCtxSynchronize", wait())
        }
    }

    /// Stands for a kernel that reads.
    fn look(&self, pointer: u64, length: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; length];
        // SAFETY: as above; there is room.
        unsafe {
            let copy: unsafe extern "C" fn(*mut u8, u64, usize) -> c_uint = self.function(c"cuMemcpyDtoH_v2")?;
            check("cuMemcpyDtoH", copy(bytes.as_mut_ptr(), pointer, length))?;
        }
        Ok(bytes)
    }
}

fn check(call: &str, code: c_uint) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call}: the driver says {code}")) }
}

fn main() -> Result<(), Box<dyn StdError>> {
    let gpu = match Gpu::open() {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("this example needs a GPU, and there is none: {why}");
            return Ok(());
        }
    };
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;

    let (here, there) = (gpu.allocate(SIZE)?, gpu.allocate(SIZE)?);
    // SAFETY: the memory is allocated until the program ends.
    let (source, target) =
        unsafe { (pd.share_gpu(here, SIZE, Access::empty())?, pd.share_gpu(there, SIZE, Access::REMOTE_WRITE)?) };
    println!("from {source:?}\nto   {target:?}");

    let bytes: Vec<u8> = (0..SIZE).map(|index| (index % 251) as u8).collect();
    gpu.fill(here, &bytes)?;
    qp.write(source, target.remote_slice())?.wait()?;
    // A completion says that the bytes are where kernels see them.
    assert_eq!(gpu.look(there, SIZE)?, bytes);
    println!("{SIZE} bytes of the GPU were written, and the processor touched none");
    Ok(())
}
