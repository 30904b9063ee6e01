//! Memory of the NIC's own between a GPU and other memory. The driver copies to and from it at full speed, as it is
//! registered there; and a copy that takes too long can be left alone with it, while the memory it was for is the
//! program's again.

use latch::{Mutex, Rank};

use super::HostRegistration;
use super::contexts::{self, ContextNumber};
use super::driver::{Driver, DriverError};
use crate::mapping::Mapping;

/// How long one is. A call costs about 10 us, the processor's copy of so much 25 us: one goes on during the other.
pub(super) const LENGTH: usize = 256 << 10;

/// How many wait for their next use.
const KEPT: usize = 8;

static FREE: Mutex<Vec<Bounce>> = Mutex::new(Rank::GpuBounces, Vec::new());

/// So much memory. Its registration ends before it does.
#[derive(Debug)]
pub(super) struct Bounce {
    registration: Option<HostRegistration>,
    mapping: Mapping,
}

impl Bounce {
    /// One that nobody uses.
    pub fn take() -> Result<Bounce, DriverError> {
        const OUT_OF_MEMORY: DriverError = DriverError(2);
        if let Some(free) = FREE.lock().pop() {
            return Ok(free);
        }
        let mapping = Mapping::anonymous(LENGTH).map_err(|_| OUT_OF_MEMORY)?;
        Ok(Bounce { registration: None, mapping })
    }

    /// It may be used again.
    pub fn put(self) {
        let mut free = FREE.lock();
        if free.len() < KEPT {
            free.push(self);
        }
    }

    /// Registers it with the driver, if it is not.
    pub fn register(&mut self, driver: &Driver, context: ContextNumber) {
        if self.registration.is_none() {
            let first = self.mapping.first();
            let register = || Ok(HostRegistration::new(first, LENGTH));
            self.registration = contexts::within(driver, context, register).ok();
        }
    }

    /// Where it lies.
    pub fn first(&self) -> *mut u8 {
        self.mapping.first()
    }

    /// Its first bytes: at most as many as it has.
    pub fn bytes(&mut self, length: usize) -> &mut [u8] {
        // SAFETY: mapped, as long, and nobody else's; no copy is under way when its owner asks.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.first(), length.min(LENGTH)) }
    }
}
