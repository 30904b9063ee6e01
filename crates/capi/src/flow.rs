//! Flows: which Ethernet frames a raw queue pair gets.

use crate::boundary::{object, status};
use crate::context::{OpenDevice, port_of};
use crate::counters::Counters;
use crate::errno::{Errno, refuse_if};
use crate::object::{Object, program_field};
use crate::queue_pair::QueuePair;
use abi::{Handle, In, Owned, ibv_counters, ibv_flow, ibv_flow_attr, ibv_qp};
use hca::Qp;
use profiles::Feature;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::slice;
use std::sync::Arc;
use transport::Kind;
use wire::flow::{Action, FlowPart, RuleKind, SpecError};

/// The most specifications of a flow, as kernels have it.
const MAX_SPECS: u8 = 10;

/// What every specification begins with: its type and its size.
const SPEC_HEADER: usize = 8;

/// A flow.
#[repr(C)]
pub struct Flow {
    base: ibv_flow,
    opened: Arc<OpenDevice>,
    qp: Arc<Qp>,
    id: u32,
    counters: *mut ibv_counters,
}

// SAFETY: `base` is the first field of a `repr(C)` structure, and C gets boxed ones only.
unsafe impl Object for Flow {
    type C = ibv_flow;

    fn has_its_handle(&self) -> bool {
        program_field!(self.base, handle) == self.id
    }
}

impl From<SpecError> for Errno {
    fn from(error: SpecError) -> Errno {
        let errno = match error {
            SpecError::NotOffered(_) => Errno::UNSUPPORTED,
            _ => Errno::INVALID,
        };
        errno.with_reason(&error)
    }
}

/// The specifications behind the attributes of a flow.
///
/// # Safety
/// Behind `attributes` are as many specifications as it says, each as long as it says.
unsafe fn parts(attributes: *const ibv_flow_attr, count: u8) -> Result<Vec<FlowPart>, Errno> {
    let mut next: *const u8 = attributes.wrapping_add(1).cast();
    let mut parts = Vec::new();
    for _ in 0..count {
        // SAFETY: a specification is at least its type and its size.
        let header = unsafe { slice::from_raw_parts(next, SPEC_HEADER) };
        let size = u16::from_ne_bytes([header[4], header[5]]).into();
        refuse_if!(size < SPEC_HEADER, Errno::invalid("a flow specification says that it is shorter than its header"));
        // SAFETY: it is as long as it says.
        parts.push(FlowPart::parse(unsafe { slice::from_raw_parts(next, size) })?);
        next = next.wrapping_add(size);
    }
    Ok(parts)
}

/// What the attributes ask for, without the specifications behind them.
fn kind_of(pair: &QueuePair, attributes: &ibv_flow_attr) -> Result<RuleKind, Errno> {
    let dont_trap = abi::IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
    let kind = RuleKind::from_code(attributes.type_).ok_or_else(|| Errno::invalid("no such type of flow"))?;
    match pair.qp.kind() {
        Kind::RawPacket => {}
        Kind::UnreliableDatagram => return Err(Errno::unsupported("flows of datagram queue pairs are not offered")),
        _ => return Err(Errno::invalid("only raw packet queue pairs have flows")),
    }
    refuse_if!(attributes.comp_mask != 0, Errno::invalid("comp_mask is not 0"));
    port_of(pair.opened.device(), attributes.port.into())?;
    refuse_if!(attributes.num_of_specs > MAX_SPECS, Errno::invalid("a flow has 10 specifications at most"));
    if attributes.flags & !(dont_trap | abi::IBV_FLOW_ATTR_FLAGS_EGRESS) != 0 {
        return Err(Errno::invalid("flags has bits that are not known"));
    }
    if attributes.flags & abi::IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(Errno::unsupported("flows of what is sent are not offered"));
    }
    if attributes.flags & dont_trap != 0 && kind != RuleKind::Normal {
        return Err(Errno::invalid("only normal flows may let frames pass (DONT_TRAP)"));
    }
    Ok(kind)
}

/// The specifications lie behind the attributes: C has no type for that.
pub(crate) extern "C" fn create_flow(qp: Handle<'_, ibv_qp>, attributes: In<'_, ibv_flow_attr>) -> *mut ibv_flow {
    object("ibv_create_flow", || {
        let pair = QueuePair::by_handle(qp)?;
        pair.opened.device().offers(Feature::CreateFlow)?;
        let place = attributes.as_ptr();
        let attributes = attributes.as_ref().ok_or_else(Errno::null)?;
        let kind = kind_of(pair, attributes)?;
        // SAFETY: the manual page demands so many specifications behind the attributes.
        let parts = unsafe { parts(place, attributes.num_of_specs) }?;
        let (mut matches, mut tag, mut drops) = (Vec::new(), None, false);
        let mut counters: *mut ibv_counters = null_mut();
        for part in parts {
            match part {
                FlowPart::Match(condition) => matches.push(condition),
                FlowPart::Action(Action::Tag(value)) if tag.is_none() => tag = Some(value),
                FlowPart::Action(Action::Drop) if !drops => drops = true,
                FlowPart::Action(Action::Count(address)) if counters.is_null() => {
                    counters = address as *mut ibv_counters;
                    refuse_if!(counters.is_null(), Errno::null());
                }
                FlowPart::Action(_) => return Err(Errno::invalid("a flow has each action once at most")),
            }
        }
        refuse_if!(drops && tag.is_some(), Errno::invalid("a flow that drops has nothing to tag"));
        // SAFETY: null, or what the manual page wants in the specification of a count.
        let found = Counters::of(unsafe { Handle::new(counters) }).ok();
        let passes = attributes.flags & abi::IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0;
        let flow = hca::Flow {
            kind,
            priority: attributes.priority,
            passes,
            matches,
            tag: tag.unwrap_or(0),
            drops,
            counters: found.map(|found| Arc::clone(&found.counters)),
        };
        let id = pair.qp.add_flow(&pair.opened.nic, flow)?;
        if let Some(found) = found {
            found.users.join();
        }
        let base = ibv_flow { comp_mask: 0, context: pair.context_in_c(), handle: id };
        let (opened, qp) = (Arc::clone(&pair.opened), Arc::clone(&pair.qp));
        Ok(Box::new(Flow { base, opened, qp, id, counters }).into_c())
    })
}

pub(crate) extern "C" fn destroy_flow(flow: Owned<'_, ibv_flow>) -> c_int {
    status("ibv_destroy_flow", || {
        Flow::given_back(&flow)?;
        let flow = Flow::from_c(flow)?;
        flow.qp.remove_flow(&flow.opened.nic, flow.id);
        // SAFETY: null, or what it was made with, which is not destroyed before it.
        if let Ok(counters) = Counters::of(unsafe { Handle::new(flow.counters) }) {
            counters.users.leave();
        }
        Ok(())
    })
}
