//! Completion counters: numbers of completed work requests, or of their bytes, instead of a completion for each.

use crate::boundary::{copy_out, object, status};
use crate::context::{Context, OpenDevice};
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, program_field};
use crate::use_count::UseCount;
use abi::{Handle, In, Out, Owned, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context};
use hca::CountedWork;
use profiles::Feature;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A completion counter.
#[repr(C)]
pub struct CompletionCounter {
    base: ibv_comp_cntr,
    pub(crate) opened: Arc<OpenDevice>,
    pub(crate) counter: Arc<hca::CompletionCounter>,
    number: u32,
    /// Queue pairs that it is attached to.
    pub(crate) users: UseCount,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for CompletionCounter {
    type C = ibv_comp_cntr;

    fn device_has_failed(&self) -> bool {
        self.opened.device().has_failed()
    }

    fn has_its_handle(&self) -> bool {
        program_field!(self.base, handle) == self.number
    }
}

/// Counters of an opened device at a time.
const MAX_COUNTERS: u32 = 1 << 16;

/// Every kind of work.
pub(crate) const ALL_WORK: u32 = (1 << CountedWork::ALL.len()) - 1;

/// What the device can count.
///
/// # Safety
/// `out` is null or has room for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: Handle<'_, ibv_context>,
    out: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    status("ibv_query_comp_cntr_caps", || {
        Context::working(context)?;
        refuse_if!(out.is_null(), Errno::null());
        let supported_qp_attach_ops = ALL_WORK;
        let caps = ibv_comp_cntr_caps { max_value: u64::MAX, max_counters: MAX_COUNTERS, supported_qp_attach_ops };
        // SAFETY: not null, so with room for `size` bytes.
        unsafe { copy_out(&caps, out, size) };
        Ok(())
    })
}

/// A new counter.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_cntr(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_comp_cntr_init_attr>,
) -> *mut ibv_comp_cntr {
    /// Numbers that programs find in `handle`.
    static NEXT: AtomicU32 = AtomicU32::new(1);
    object("ibv_create_comp_cntr", || {
        let context = Context::working(context)?;
        context.opened.device().offers(Feature::CompletionCounter)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        if attributes.comp_mask != 0 || attributes.flags != 0 {
            return Err(Errno::invalid("comp_mask or flags have bits that are not known"));
        }
        let bytes = match attributes.type_ {
            abi::IBV_COMP_CNTR_TYPE_WRS => false,
            abi::IBV_COMP_CNTR_TYPE_BYTES => true,
            _ => return Err(Errno::invalid("counters count work requests or bytes")),
        };
        let counters = &context.opened.completion_counters;
        if counters.fetch_add(1, Ordering::Relaxed) >= MAX_COUNTERS {
            counters.fetch_sub(1, Ordering::Relaxed);
            return Err(Errno::no_memory("as many counters exist as the device has"));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let made = CompletionCounter {
            base: ibv_comp_cntr { context: context.as_c(), handle: number },
            opened: Arc::clone(&context.opened),
            counter: Arc::new(hca::CompletionCounter::new(bytes)),
            number,
            users: UseCount::default(),
        };
        Ok(Box::new(made).into_c())
    })
}

/// Destroys a counter that is attached to no queue pair.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_destroy_comp_cntr(counter: Owned<'_, ibv_comp_cntr>) -> c_int {
    status("ibv_destroy_comp_cntr", || {
        CompletionCounter::given_back(&counter)?.users.require_zero()?;
        let counter = CompletionCounter::from_c(counter)?;
        counter.opened.completion_counters.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    })
}

fn change(
    call: &'static str,
    counter: Handle<'_, ibv_comp_cntr>,
    change: impl FnOnce(&hca::CompletionCounter),
) -> c_int {
    status(call, || {
        change(&CompletionCounter::by_handle(counter)?.counter);
        Ok(())
    })
}

fn read(
    call: &'static str,
    counter: Handle<'_, ibv_comp_cntr>,
    mut value: Out<'_, u64>,
    of: impl FnOnce(&hca::CompletionCounter) -> &AtomicU64,
) -> c_int {
    status(call, || {
        let counter = &CompletionCounter::by_handle(counter)?.counter;
        value.write(of(counter).load(Ordering::Acquire)).ok_or_else(Errno::null)
    })
}

/// Sets how much has completed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_comp_cntr(counter: Handle<'_, ibv_comp_cntr>, value: u64) -> c_int {
    change("ibv_set_comp_cntr", counter, |counter| counter.completed().store(value, Ordering::Release))
}

/// Sets how much has failed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_set_err_comp_cntr(counter: Handle<'_, ibv_comp_cntr>, value: u64) -> c_int {
    change("ibv_set_err_comp_cntr", counter, |counter| counter.failed().store(value, Ordering::Release))
}

/// Adds to what has completed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_inc_comp_cntr(counter: Handle<'_, ibv_comp_cntr>, amount: u64) -> c_int {
    change("ibv_inc_comp_cntr", counter, |counter| {
        counter.completed().fetch_add(amount, Ordering::AcqRel);
    })
}

/// Adds to what has failed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_inc_err_comp_cntr(counter: Handle<'_, ibv_comp_cntr>, amount: u64) -> c_int {
    change("ibv_inc_err_comp_cntr", counter, |counter| {
        counter.failed().fetch_add(amount, Ordering::AcqRel);
    })
}

/// How much has completed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_comp_cntr(counter: Handle<'_, ibv_comp_cntr>, value: Out<'_, u64>) -> c_int {
    read("ibv_read_comp_cntr", counter, value, hca::CompletionCounter::completed)
}

/// How much has failed.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_read_err_comp_cntr(counter: Handle<'_, ibv_comp_cntr>, value: Out<'_, u64>) -> c_int {
    read("ibv_read_err_comp_cntr", counter, value, hca::CompletionCounter::failed)
}

/// The counters that are attached to a queue pair, each of which counts it as a user.
#[derive(Debug, Default)]
pub(crate) struct Attached(pub(crate) Vec<*mut ibv_comp_cntr>);

// SAFETY: its pointers are only followed while the queue pair counts as their user.
unsafe impl Send for Attached {}

impl Attached {
    /// The queue pair is destroyed.
    pub(crate) fn detach(&mut self) {
        for counter in self.0.drain(..) {
            // SAFETY: attached, so not destroyed yet.
            if let Ok(counter) = CompletionCounter::of(unsafe { Handle::new(counter) }) {
                counter.users.leave();
            }
        }
    }
}
