//! Work that failed on this side: its own memory, its own lengths, its own queue pair.

use alloc::format;

use wire::access::{Refusal, RefusalCause};

use super::{Failed, all};
use crate::finding::{Finding, Subject};
use crate::naming;
use crate::rule::Number;
use crate::rule::catalogue::events::INJECTED;
use crate::rule::catalogue::work::*;

/// A piece of its scatter/gather list was refused.
pub(super) fn refused(rule: Number, failed: &Failed<'_>, refusal: &Refusal) -> Finding {
    let (key, address, length) = (refusal.range.key, refusal.range.address, refusal.range.length);
    let piece = format!("the NIC may not use the {length} bytes at {address:#x} with lkey {key}");
    let seen = naming::memory(failed.model, key, address, length, failed.at);
    let region = failed.model.region_named(key);
    let domain = failed.pair.map_or(0, |pair| pair.pd);
    let (cause, advice) = match rule {
        LOCAL_OUT_OF_BOUNDS => {
            let cause = match refusal.cause {
                RefusalCause::OutOfBounds { start, length: size } => {
                    let past = address.saturating_add(length).saturating_sub(start.saturating_add(size));
                    let before = start.saturating_sub(address);
                    let which = if past > 0 {
                        format!("{past} bytes past its end")
                    } else {
                        format!("{before} bytes before it")
                    };
                    format!("the region of key {key} is [{start:#x}, +{size}), and the piece reaches {which}")
                }
                _ => format!("{}", refusal.cause),
            };
            (
                cause,
                "make sge.addr and sge.length lie inside the region, or register more memory with ibv_reg_mr".into(),
            )
        }
        LOCAL_OTHER_DOMAIN => {
            let of = region.map_or_else(|| "another one".into(), |region| format!("PD {}", region.pd));
            let cause = format!("the region is in {of}, the queue pair in PD {domain}");
            (cause, "register the memory with the ibv_pd that the queue pair was created with".into())
        }
        LOCAL_NOT_WRITABLE => {
            let cause = format!("the NIC must write there, and the region does not grant {}", refusal.access);
            (
                cause,
                "add IBV_ACCESS_LOCAL_WRITE to the access flags of ibv_reg_mr: receives, READs and atomics write"
                    .into(),
            )
        }
        LOCAL_NOT_THERE => {
            let cause = "the program unmapped the memory, or took the right to it away, while it was registered".into();
            (cause, "keep the memory mapped until its region was deregistered with ibv_dereg_mr".into())
        }
        LOCAL_GPU => {
            let error = match refusal.cause {
                RefusalCause::GpuFailed { error } => error,
                _ => 0,
            };
            (format!("the GPU's driver says {error}: {}", naming::gpu_error(error)), naming::gpu_advice(error).into())
        }
        _ => {
            let cause = match region {
                Some(region) if region.gone_at.is_some() => {
                    format!("the memory of key {key} was deregistered before the work was done")
                }
                _ => format!("{}", refusal.cause),
            };
            (
                cause,
                format!(
                    "put the lkey of a region that is registered and holds the buffer into sge.lkey, in place of {key}"
                ),
            )
        }
    };
    all(failed.finding(rule, &piece, advice).because(cause), seen)
}

/// Work that binds a window, or invalidates a key.
pub(super) fn window(failed: &Failed<'_>, refusal: &Refusal) -> Finding {
    let key = refusal.range.key;
    let advice = match refusal.cause {
        RefusalCause::NotPermitted => {
            "register the region with IBV_ACCESS_MW_BIND, and with every right that the window is to grant"
        }
        RefusalCause::WrongProtectionDomain => "make window, region and queue pair with one protection domain",
        RefusalCause::OutOfBounds { .. } => "let the window lie inside its region",
        RefusalCause::WindowsBound => "invalidate or free the windows of the region before its key",
        RefusalCause::WrongKind => {
            "bind windows of type 1 with ibv_bind_mw and those of type 2 with IBV_WR_BIND_MW, and invalidate only the \
             latter"
        }
        _ => "give the key of a window, or of a region, that exists and is in the state that the work needs",
    };
    let what = format!("the window or region of key {key} does not allow it");
    all(
        failed.finding(WINDOW_REFUSED, &what, advice).because(format!("{}", refusal.cause)),
        naming::memory(failed.model, key, refusal.range.address, refusal.range.length, failed.at),
    )
}

/// A message did not fit the receive.
pub(super) fn receive_too_short(failed: &Failed<'_>, length: u64, space: u64) -> Finding {
    let what = format!("a message of {length} bytes or more met a receive with room for {space}");
    let advice = format!("post receives of at least {length} bytes, or have the peer send less");
    failed
        .finding(RECEIVE_TOO_SHORT, &what, advice)
        .because("the peer sent more than the scatter/gather list of the receive holds")
        .shown_by("receives are used in the order in which they were posted, whatever the message is")
}

/// A datagram did not fit the MTU.
pub(super) fn datagram_too_long(failed: &Failed<'_>, length: u64, mtu: u64) -> Finding {
    let what = format!("{length} bytes do not fit one packet, and a datagram is one packet");
    failed
        .finding(DATAGRAM_TOO_LONG, &what, format!("send at most {mtu} bytes at a time, or use a connected queue pair"))
        .because(format!("the link carries {mtu} bytes of payload (ibv_port_attr.active_mtu)"))
}

/// An atomic has no room for its answer.
pub(super) fn atomic_too_short(failed: &Failed<'_>, length: u64) -> Finding {
    let what = format!("the 8 bytes of its answer do not fit the {length} bytes of its scatter/gather list");
    failed
        .finding(ATOMIC_TOO_SHORT, &what, "give the atomic one sge of 8 bytes, where the value from before is stored")
        .because("an atomic always works on 8 bytes")
}

/// The queue pair is not made for it.
pub(super) fn unsuitable(failed: &Failed<'_>, what: &'static str) -> Finding {
    let advice = "set max_rd_atomic (RTR to RTS) here and max_dest_rd_atomic (INIT to RTR) at the peer to 1 or more; \
                  with rdma_connect these are initiator_depth and responder_resources";
    failed
        .finding(NO_READS_ALLOWED, what, advice)
        .because("the program allowed no READs and atomics on this queue pair")
}

/// The kind of queue pair does not have the operation.
pub(super) fn not_carried(failed: &Failed<'_>, transport: &'static str) -> Finding {
    let advice = "WRITE needs RC or UC, READ and atomics need RC, and datagrams (UD) can only be sent";
    failed
        .finding(NOT_CARRIED, &format!("{transport} has no such operation"), advice)
        .because("ibv_post_send takes the request, and the NIC finds that it has no packet for it")
}

/// A message was matched, and its data could not be fetched.
pub(super) fn rendezvous(failed: &Failed<'_>) -> Finding {
    let advice = "go on with the message in software: the completion has its tag and its rendezvous header";
    failed
        .finding(TAG_MATCHING, "a message was matched and its data was not fetched", advice)
        .because("the rendezvous READ cannot be done by the NIC")
}

/// A tagged buffer was to be deleted that is not there.
pub(super) fn tag_not_deleted(cq: u32, wr_id: u64, status: &str) -> Finding {
    let short = status.trim_start_matches("IBV_WC_");
    Finding::new(
        TAG_MATCHING,
        Subject::CompletionQueue(cq),
        format!("operation {wr_id} (TAG_DEL) on CQ {cq} failed with {short}: no tagged buffer has its handle"),
        "delete a tag once, and only with the handle of an IBV_WR_TAG_ADD whose message has not come yet",
    )
    .because("the buffer was matched, deleted before, or never added")
}

/// A failure script let it fail.
pub(super) fn injected(failed: &Failed<'_>, line: u32) -> Finding {
    let advice = "nothing: it is no fault of the program, which is to live with it";
    failed
        .finding(INJECTED, "a failure script let it fail", advice)
        .because(format!("injected by line {line} of the script that the finding before this names"))
        .apart_by(&["work", failed.status])
}
