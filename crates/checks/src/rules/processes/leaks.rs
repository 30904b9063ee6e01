//! Objects that are left when the program ends: UV-0611 to UV-0619, UV-0621. One finding for each kind.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Display;

use trace::{Call, Kind};

use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Set;
use crate::model::Model;
use crate::rule::Number;
use crate::rule::catalogue::processes::*;
use crate::witness::Witness;

/// How many of a kind are named.
const MAX_NAMED_OBJECTS: usize = 8;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Leaks {
    /// Event channels of the connection manager. Its ids have a rule in its own family.
    event_channels: Set<u64>,
}

impl Examine for Leaks {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, _out: &mut Out<'_>) {
        let Kind::Called { call: Call::CmCall { function, id, .. }, .. } = moment.event.kind else { return };
        match function {
            "rdma_create_event_channel" => {
                self.event_channels.insert(id);
            }
            "rdma_destroy_event_channel" => {
                self.event_channels.remove(&id);
            }
            _ => {}
        }
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        let contexts = model.contexts.values().map(|context| context.device);
        tell(out, LEAKED_CONTEXTS, "devices are open", contexts, "ibv_close_device");
        let regions = model.regions.values().map(|region| {
            let (key, length) = (region.key.value(), region.length);
            format!("[{:#x}, +{length}) with key {key:#010x}", region.address)
        });
        let pairs = model.pairs.values().filter(|pair| !pair.kind.is_empty());
        let pairs = pairs.map(|pair| format!("QP {} ({}, {})", pair.qpn, pair.kind, pair.state));
        let number = |kind: &'static str| move |number: &u32| format!("{kind} {number}");
        let key = |key: &u32| format!("{key:#010x}");
        let pointer = |id: &u64| format!("{id:#x}");
        let domains = model.domains.keys().map(number("PD"));
        tell(out, LEAKED_DOMAINS, "protection domains are left", domains, "ibv_dealloc_pd");
        tell(out, LEAKED_REGIONS, "memory regions are registered", regions, "ibv_dereg_mr");
        tell(out, LEAKED_WINDOWS, "memory windows are left", model.windows.keys().map(key), "ibv_dealloc_mw");
        let channels = model.channels.keys().map(number("channel"));
        tell(out, LEAKED_CHANNELS, "completion channels are left", channels, "ibv_destroy_comp_channel");
        let cqs = model.cqs.keys().map(number("CQ"));
        tell(out, LEAKED_CQS, "completion queues are left", cqs, "ibv_destroy_cq");
        let srqs = model.srqs.keys().map(number("SRQ"));
        tell(out, LEAKED_SRQS, "shared receive queues are left", srqs, "ibv_destroy_srq");
        tell(out, LEAKED_PAIRS, "queue pairs are left", pairs, "ibv_destroy_qp");
        let handles = model.handles.values().map(|pd| format!("one in PD {pd}"));
        tell(out, LEAKED_HANDLES, "address handles are left", handles, "ibv_destroy_ah");
        let channels = self.event_channels.iter().map(pointer);
        let what = "event channels of the connection manager are left";
        tell(out, LEAKED_EVENT_CHANNELS, what, channels, "rdma_destroy_event_channel");
    }
}

fn tell(out: &mut Out<'_>, rule: Number, what: &str, left: impl Iterator<Item = impl Display>, call: &str) {
    let (mut count, mut named) = (0, Vec::<String>::new());
    for one in left {
        count += 1;
        if named.len() < MAX_NAMED_OBJECTS {
            named.push(format!("{one}"));
        }
    }
    if count == 0 {
        return;
    }
    let more =
        if count > MAX_NAMED_OBJECTS { format!(" and {} more", count - MAX_NAMED_OBJECTS) } else { String::new() };
    out.tell(
        Finding::new(
            rule,
            Subject::Process,
            format!("the program ends, and {count} {what}: {}{more}", named.join(", ")),
            format!("call {call} for each, in the opposite order of making, and look at what it returns"),
        )
        .because("the system takes them back with the process; in one that runs on, each is a leak"),
    );
}
