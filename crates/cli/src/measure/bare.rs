//! What the machine itself can do, to judge the others by: a ring in memory that two processes share, one process that
//! copies into another's memory by a system call, and a plain copy. Nothing here checks, orders, repeats or protects
//! anything; no link could be faster.

use super::patience::Patience;
use super::{Carrier, Kind, Run};
use crate::control::Control;
use crate::exit::Failure;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A slot: its number, and what it carries. What is longer takes several.
const NUMBER_BYTES: usize = size_of::<u64>();
const SLOT_PAYLOAD_BYTES: usize = 1 << 16;
/// Not a power of two, so that slots do not compete for the same place of a cache.
const SLOT_STRIDE: usize = SLOT_PAYLOAD_BYTES + 64;
const SLOTS_PER_RING: u64 = 32;
/// Before the slots of a ring: how many were read, alone in its cache lines.
const RING_HEAD_BYTES: usize = 128;
const RING_BYTES: usize = RING_HEAD_BYTES + SLOTS_PER_RING as usize * SLOT_STRIDE;

/// The limits, seen from one side.
pub struct Bare {
    out: Ring,
    back: Ring,
    /// The other process, and memory of it; unknown to the second side.
    target: Option<Target>,
    /// What the second side lets the first write to.
    own: Vec<u8>,
}

struct Target {
    process: i32,
    address: u64,
}

impl Bare {
    /// The first side, on memory that the second has as well.
    pub fn offer(memory: &File) -> Result<Bare, Failure> {
        // Beyond the limit the kernel would end us with a signal.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < 2 * RING_BYTES as u64) {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        memory.set_len(2 * RING_BYTES as u64).map_err(failed)?;
        let shared = Rc::new(Shared::of(memory)?);
        let (out, back) = (Ring::new(&shared, 0), Ring::new(&shared, RING_BYTES));
        Ok(Bare { out, back, target: None, own: Vec::new() })
    }

    /// The second side.
    pub fn accept(memory: &File, largest: usize) -> Result<Bare, Failure> {
        let shared = Rc::new(Shared::of(memory)?);
        let (out, back) = (Ring::new(&shared, RING_BYTES), Ring::new(&shared, 0));
        // Not zero, or its pages would not be there before they are written to.
        Ok(Bare { out, back, target: None, own: vec![1; largest] })
    }

    /// Where the first side may write.
    pub fn address(&self) -> u64 {
        self.own.as_ptr() as u64
    }

    /// Tells the first side where the second lets it write. Some systems forbid it; then it is as if it was not said.
    pub fn aim(&mut self, process: u32, address: u64) {
        let target = Target { process: process as i32, address };
        if target.write(&[1]).is_ok() {
            self.target = Some(target);
        }
    }

    /// Whether this can be measured here.
    pub fn can(&self, carrier: Carrier) -> bool {
        carrier != Carrier::ProcessVm || self.target.is_some()
    }

    pub fn first(&mut self, run: Run, control: &Control, sample: &mut dyn FnMut(u64)) -> Result<(), Failure> {
        let mut patience = Patience::new(control.gone());
        let bytes = vec![1; run.point.size];
        let mut room = vec![2; run.point.size];
        let begun = Instant::now();
        match (run.point.carrier, run.point.kind) {
            (Carrier::Memcpy, _) => {
                for _ in 0..run.count {
                    black_box(&mut room[..]).copy_from_slice(black_box(&bytes));
                }
            }
            (Carrier::ProcessVm, _) => {
                let target = self.target.as_ref().ok_or_else(|| failed(io::ErrorKind::PermissionDenied.into()))?;
                for _ in 0..run.count {
                    target.write(&bytes).map_err(failed)?;
                }
            }
            (_, Kind::RoundTrip) => {
                for _ in 0..run.count {
                    let begun = Instant::now();
                    self.out.put(&bytes, &mut patience)?;
                    self.back.take(&mut room, &mut patience)?;
                    sample(begun.elapsed().as_nanos() as u64);
                }
                return Ok(());
            }
            _ => {
                for _ in 0..run.count {
                    self.out.put(&bytes, &mut patience)?;
                }
                self.back.take(&mut [0], &mut patience)?;
            }
        }
        sample(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    pub fn second(&mut self, run: Run, control: &Control) -> Result<(), Failure> {
        let mut patience = Patience::new(control.gone());
        let mut room = vec![2; run.point.size];
        match (run.point.carrier, run.point.kind) {
            (Carrier::Ring, Kind::RoundTrip) => {
                for _ in 0..run.count {
                    self.back.take(&mut room, &mut patience)?;
                    self.out.put(&room, &mut patience)?;
                }
                Ok(())
            }
            (Carrier::Ring, _) => {
                for _ in 0..run.count {
                    self.back.take(&mut room, &mut patience)?;
                }
                self.out.put(&[1], &mut patience)
            }
            // The first side does it alone.
            _ => Ok(()),
        }
    }
}

impl Target {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let local = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
            let there = ptr::without_provenance_mut(self.address as usize + done);
            let remote = libc::iovec { iov_base: there, iov_len: rest.len() };
            // SAFETY: it only reads the bytes here; the memory there was given to us for this, and is at least as long
            // as any message.
            let written = unsafe { libc::process_vm_writev(self.process, &local, 1, &remote, 1, 0) };
            match usize::try_from(written) {
                Ok(0) | Err(_) => return Err(io::Error::last_os_error()),
                Ok(written) => done += written,
            }
        }
        Ok(())
    }
}

fn failed(source: io::Error) -> Failure {
    Failure::System { what: "cannot measure what the machine itself can do", source }
}

/// Memory of two rings.
struct Shared(NonNull<u8>);

impl Shared {
    fn of(file: &File) -> Result<Shared, Failure> {
        if file.metadata().map_err(failed)?.len() < 2 * RING_BYTES as u64 {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever there is room, of a file that is long enough.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                2 * RING_BYTES,
                rights,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at.cast::<u8>()) {
            Some(at) if at.as_ptr().cast::<libc::c_void>() != libc::MAP_FAILED => Ok(Shared(at)),
            _ => Err(failed(io::Error::last_os_error())),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and every ring in it held this value.
        unsafe { libc::munmap(self.0.as_ptr().cast(), 2 * RING_BYTES) };
    }
}

/// One direction, seen from one end of it.
struct Ring {
    shared: Rc<Shared>,
    begins: usize,
    /// How many slots were used here.
    position: u64,
    /// How many the other end had read, when last looked at.
    read: u64,
}

impl Ring {
    fn new(shared: &Rc<Shared>, begins: usize) -> Ring {
        Ring { shared: Rc::clone(shared), begins, position: 0, read: 0 }
    }

    fn counter(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` is within a ring, a ring within the mapping, and all offsets are multiples of eight. Both ends
        // use only atomic operations here.
        unsafe { self.shared.0.byte_add(self.begins + at).cast().as_ref() }
    }

    fn slot(&self) -> usize {
        RING_HEAD_BYTES + (self.position % SLOTS_PER_RING) as usize * SLOT_STRIDE
    }

    /// Where the bytes of the next slot are.
    fn bytes(&self) -> *mut u8 {
        // SAFETY: as for counters.
        unsafe { self.shared.0.as_ptr().add(self.begins + self.slot() + NUMBER_BYTES) }
    }

    fn put(&mut self, message: &[u8], patience: &mut Patience<'_>) -> Result<(), Failure> {
        for part in message.chunks(SLOT_PAYLOAD_BYTES) {
            while self.position - self.read >= SLOTS_PER_RING {
                self.read = self.counter(0).load(Ordering::Acquire).min(self.position);
                if self.position - self.read >= SLOTS_PER_RING {
                    patience.wear()?;
                }
            }
            // SAFETY: a part fits into a slot, and the other end has read this slot and does not look at it before its
            // number is stored.
            unsafe { ptr::copy_nonoverlapping(part.as_ptr(), self.bytes(), part.len()) };
            self.counter(self.slot()).store(self.position + 1, Ordering::Release);
            self.position += 1;
        }
        Ok(())
    }

    fn take(&mut self, room: &mut [u8], patience: &mut Patience<'_>) -> Result<(), Failure> {
        for part in room.chunks_mut(SLOT_PAYLOAD_BYTES) {
            while self.counter(self.slot()).load(Ordering::Acquire) != self.position + 1 {
                std::hint::spin_loop();
                patience.wear()?;
            }
            patience.renew();
            // SAFETY: a part is no longer than a slot, and the other end does not write to it before it is counted as
            // read.
            unsafe { ptr::copy_nonoverlapping(self.bytes(), part.as_mut_ptr(), part.len()) };
            self.position += 1;
            self.counter(0).store(self.position, Ordering::Release);
        }
        Ok(())
    }
}
