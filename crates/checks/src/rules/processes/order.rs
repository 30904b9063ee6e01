//! Objects that are destroyed in the wrong order: UV-0622, UV-0623.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use trace::{Call, Kind};

use super::{CLOSED_TOO_EARLY, DESTROY_REFUSED};
use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::Map;
use crate::mistakes::Mistake;
use crate::model::Model;
use crate::witness::Witness;

const EBUSY: i32 = 16;

/// The part.
#[derive(Default, Debug)]
pub(super) struct Order {
    /// Calls that were refused because the object was in use: how often, and what used such objects then.
    refused: Map<&'static str, (u32, String)>,
}

impl Examine for Order {
    fn sees(&self) -> Sort {
        Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let Kind::Called { call, .. } = &moment.event.kind else { return };
        match *call {
            Call::Refused { function, errno: EBUSY, .. } if left(function, moment.model).is_some() => {
                let (count, users) = self.refused.entry(function).or_default();
                *count += 1;
                *users = users_of(function, moment.model);
            }
            Call::CloseDevice { context } => closed(context, moment.model, out),
            _ => {}
        }
    }

    fn finish(&mut self, _now: u64, model: &Model, _witness: &mut dyn Witness, out: &mut Out<'_>) {
        for (function, (times, users)) in &self.refused {
            let Some((kind, count)) = left(function, model).filter(|(_, count)| *count > 0) else { continue };
            out.tell_mistake(
                Finding::new(
                    DESTROY_REFUSED,
                    Subject::Function(function),
                    format!("{function} was refused {times} times with EBUSY, and {count} {kind} are left at the end"),
                    "destroy in the opposite order of making: queue pairs, then memory and queues, then channels and \
                     the protection domain, the device last; look at what each call returns",
                )
                .because(
                    "an object that others use cannot be destroyed; the call that tried it fails and changes nothing",
                )
                .shown_by(users.clone()),
                Mistake::Object(Subject::Function(function)),
            );
        }
    }
}

/// What a call would have destroyed, and how many of that kind there are.
fn left(function: &str, model: &Model) -> Option<(&'static str, usize)> {
    Some(match function {
        "ibv_dealloc_pd" => ("protection domains", model.domains.len()),
        "ibv_destroy_cq" => ("completion queues", model.cqs.len()),
        "ibv_destroy_comp_channel" => ("completion channels", model.channels.len()),
        "ibv_destroy_srq" => ("shared receive queues", model.srqs.len()),
        "ibv_destroy_qp" => ("queue pairs", model.pairs.len()),
        "ibv_dereg_mr" => ("memory regions", model.regions.len()),
        "ibv_dealloc_mw" => ("memory windows", model.windows.len()),
        "ibv_close_device" => ("contexts", model.contexts.len()),
        _ => return None,
    })
}

/// What used objects of that kind.
fn users_of(function: &str, model: &Model) -> String {
    let pairs = model.pairs.len();
    match function {
        "ibv_dealloc_pd" => format!(
            "at that moment there were {pairs} queue pairs, {} memory regions, {} memory windows, {} shared receive \
             queues and {} address handles",
            model.regions.len(),
            model.windows.len(),
            model.srqs.len(),
            model.handles.len()
        ),
        "ibv_destroy_comp_channel" => {
            let cqs = model.cqs.values().filter(|queue| queue.channel.is_some()).count();
            format!("at that moment {cqs} completion queues reported to channels")
        }
        "ibv_dereg_mr" => format!("at that moment there were {} memory windows", model.windows.len()),
        _ => format!("at that moment there were {pairs} queue pairs"),
    }
}

/// A context is closed.
fn closed(context: u32, model: &Model, out: &mut Out<'_>) {
    let domains: Vec<u32> =
        model.domains.iter().filter(|(_, domain)| domain.context == context).map(|(pd, _)| *pd).collect();
    let pairs = model.pairs.values().filter(|pair| pair.context == context && !pair.kind.is_empty()).count();
    if domains.is_empty() && pairs == 0 {
        return;
    }
    let regions = model.regions.values().filter(|region| domains.contains(&region.pd)).count();
    let device = model.contexts.get(&context).map_or("", |context| context.device.as_str());
    out.tell(
        Finding::new(
            CLOSED_TOO_EARLY,
            Subject::Process,
            format!(
                "ibv_close_device closed {device} (context {context}) with {} protection domains, {regions} memory \
                 regions and {pairs} queue pairs inside",
                domains.len()
            ),
            "destroy everything that was made in the context first, then close it",
        )
        .because(
            "closing frees nothing in the library, and whatever is done with those objects afterwards reaches into \
             memory that is gone",
        ),
    );
}
