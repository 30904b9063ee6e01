//! Counters of flows. A program says which figure it wants where, names the object in the specifications of flows, and
//! reads what they have matched.

use crate::boundary::{object, status};
use crate::context::Context;
use crate::errno::{Errno, refuse_if};
use crate::object::Object;
use crate::registry::lock;
use crate::use_count::UseCount;
use abi::{Handle, In, Owned, ibv_context, ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow};
use hca::FlowCounters;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};

/// The last place a figure may have.
const MAX_INDEX: u32 = 8190;

/// Figures of flows.
#[repr(C)]
pub struct Counters {
    base: ibv_counters,
    pub(crate) counters: Arc<FlowCounters>,
    /// Which figure goes where. Several in one place add up.
    points: Mutex<Vec<Point>>,
    /// Flows that count here.
    pub(crate) users: UseCount,
}

struct Point {
    index: u32,
    of_bytes: bool,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for Counters {
    type C = ibv_counters;
}

pub(crate) extern "C" fn create_counters(
    context: Handle<'_, ibv_context>,
    attributes: In<'_, ibv_counters_init_attr>,
) -> *mut ibv_counters {
    object("ibv_create_counters", || {
        let context = Context::working(context)?;
        if attributes.as_ref().ok_or_else(Errno::null)?.comp_mask != 0 {
            return Err(Errno::invalid("comp_mask has bits that are not known"));
        }
        let base = ibv_counters { context: context.as_c() };
        let (counters, points) = (Arc::default(), Mutex::default());
        Ok(Box::new(Counters { base, counters, points, users: UseCount::default() }).into_c())
    })
}

pub(crate) extern "C" fn destroy_counters(counters: Owned<'_, ibv_counters>) -> c_int {
    status("ibv_destroy_counters", || {
        Counters::given_back(&counters)?.users.require_zero()?;
        drop(Counters::from_c(counters)?);
        Ok(())
    })
}

pub(crate) extern "C" fn attach_counters_point_flow(
    counters: Handle<'_, ibv_counters>,
    attributes: In<'_, ibv_counter_attach_attr>,
    flow: Handle<'_, ibv_flow>,
) -> c_int {
    status("ibv_attach_counters_point_flow", || {
        let counters = Counters::of(counters)?;
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        if attributes.comp_mask != 0 || attributes.index > MAX_INDEX {
            return Err(Errno::invalid("comp_mask is not 0, or index is beyond what an object has"));
        }
        refuse_if!(!flow.is_null(), Errno::unsupported("counters are given to a flow when it is made, not afterwards"));
        let of_bytes = match attributes.counter_desc {
            abi::IBV_COUNTER_PACKETS => false,
            abi::IBV_COUNTER_BYTES => true,
            _ => return Err(Errno::unsupported("only packets and bytes are counted")),
        };
        counters.users.require_zero()?;
        lock(&counters.points).push(Point { index: attributes.index, of_bytes });
        Ok(())
    })
}

/// # Safety
/// `values` is null or has room for `room` figures.
pub(crate) unsafe extern "C" fn read_counters(
    counters: Handle<'_, ibv_counters>,
    values: *mut u64,
    room: u32,
    flags: u32,
) -> c_int {
    status("ibv_read_counters", || {
        let counters = Counters::of(counters)?;
        if flags & !abi::IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 {
            return Err(Errno::invalid("flags has bits that are not known"));
        }
        let points = lock(&counters.points);
        if values.is_null() || points.iter().any(|point| point.index >= room) {
            return Err(Errno::invalid("there is no room for every figure that was attached"));
        }
        let mut figures = vec![0u64; room as usize];
        for point in points.iter() {
            let figure = if point.of_bytes { counters.counters.bytes() } else { counters.counters.packets() };
            if let Some(place) = figures.get_mut(point.index as usize) {
                *place += figure;
            }
        }
        // SAFETY: not null, so with room for as many.
        unsafe { figures.as_ptr().copy_to_nonoverlapping(values, figures.len()) };
        Ok(())
    })
}
