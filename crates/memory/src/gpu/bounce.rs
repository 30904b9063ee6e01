//! Memory of the NIC's own between a GPU and other memory. The driver copies to and from it at full speed, as it is
//! registered there; and a copy that takes too long can be left alone with it, while the memory it was for is the
//! program's again.

use std::mem::ManuallyDrop;

use latch::Rank;
use latch::plain::Mutex;

use super::HostRegistration;
use super::contexts;
use super::driver::{Driver, DriverError};
use crate::mapping::Mapping;
use crate::slot::DeviceNumber;

/// How long one is. A call costs about 10 us, the processor's copy of so much 25 us: one goes on during the other.
pub(super) const BOUNCE_BYTES: usize = 256 << 10;

/// Those that no copy uses. They stay: the driver waits for kernels before it ends a registration, and kernels may wait
/// for the NIC.
static FREE_BOUNCES: Mutex<Vec<Memory>> = Mutex::new(Rank::GpuBounces, Vec::new());

#[derive(Debug)]
struct Memory {
    registration: Option<HostRegistration>,
    mapping: Mapping,
}

/// So much memory, until it is dropped.
#[derive(Debug)]
pub(super) struct Bounce(ManuallyDrop<Memory>);

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the bounce.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        FREE_BOUNCES.lock().push(memory);
    }
}

impl Bounce {
    /// One that nobody uses.
    pub fn take() -> Result<Bounce, DriverError> {
        const OUT_OF_MEMORY: DriverError = DriverError(2);
        if let Some(free) = FREE_BOUNCES.lock().pop() {
            return Ok(Bounce(ManuallyDrop::new(free)));
        }
        let mapping = Mapping::anonymous(BOUNCE_BYTES).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Bounce(ManuallyDrop::new(Memory { registration: None, mapping })))
    }

    /// Registers it with the driver, if it is not.
    pub fn register(&mut self, driver: &Driver, device: DeviceNumber) {
        if self.0.registration.is_none() {
            let first = self.0.mapping.first();
            let register = || Ok(HostRegistration::new(first, BOUNCE_BYTES));
            self.0.registration =
                contexts::on(driver, device).and_then(|context| context.within(driver, register)).ok();
        }
    }

    /// Where it lies.
    pub fn first(&self) -> *mut u8 {
        self.0.mapping.first()
    }

    /// Its first bytes: at most as many as it has.
    pub fn bytes(&mut self, length: usize) -> &mut [u8] {
        // SAFETY: mapped, as long, and nobody else's; no copy is under way when its owner asks.
        unsafe { std::slice::from_raw_parts_mut(self.0.mapping.first(), length.min(BOUNCE_BYTES)) }
    }
}
