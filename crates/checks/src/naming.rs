//! How explanations name things: work, memory, times, with the program's own values.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write;

use trace::Queue;
use wire::access::Access;
use wire::{Key, Qpn};

use crate::model::{Model, Pair, Region, Work};

/// A length of time, short.
pub(crate) fn span(nanos: u64) -> String {
    match nanos {
        0..10_000 => format!("{nanos} ns"),
        10_000..10_000_000 => format!("{} us", nanos / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

/// "QP 17 of ubi_lo".
pub(crate) fn pair(model: &Model, qpn: Qpn) -> String {
    let device = model.pairs.get(&qpn).and_then(|pair| model.contexts.get(&pair.context));
    device.map_or_else(|| format!("QP {qpn}"), |context| format!("QP {qpn} of {}", context.device))
}

/// "work request 7 (RDMA_WRITE, 64 bytes from 0x7f00 with lkey 0x77, to 0x9000 with rkey 0x88) on QP 17 of ubi_lo".
pub(crate) fn work(model: &Model, qpn: Qpn, queue: Queue, wr_id: u64, opcode: &str, known: Option<&Work>) -> String {
    let mut text = format!("{} {wr_id} ({opcode}", if queue == Queue::Send { "work request" } else { "receive" });
    if let Some(work) = known {
        let _ = write!(text, ", {} bytes", work.pieces.bytes);
        match work.pieces.kept() {
            [] => {}
            [piece] if work.inline => {
                let _ = write!(text, " inline from {:#x}", piece.address);
            }
            [piece, ..] => {
                let _ = write!(text, " at {:#x} with lkey {}", piece.address, piece.key);
                if work.pieces.count > 1 {
                    let _ = write!(text, " and {} more pieces", work.pieces.count - 1);
                }
            }
        }
        if let Some((address, key)) = work.remote {
            let _ = write!(text, ", to {address:#x} at the peer with rkey {key}");
        }
        if let Some(to) = work.remote_qpn {
            let _ = write!(text, ", to QP {to}");
        }
    }
    let _ = write!(text, ") on {}", pair(model, qpn));
    text
}

/// "[0x7f00, +4096) in PD 3, registered with LOCAL_WRITE".
pub(crate) fn region(region: &Region) -> String {
    if region.is_null() {
        return format!("the region of ibv_alloc_null_mr in PD {}, which no peer may reach", region.pd);
    }
    format!("[{:#x}, +{}) in PD {}, registered with {}", region.iova, region.length, region.pd, region.access)
}

/// How a range lies to a region: "reaches 64 bytes past its end".
fn lies(region: &Region, address: u64, length: u64) -> String {
    let end = address.saturating_add(length);
    if address >= region.iova && end <= region.end() {
        return "lies inside it".into();
    }
    if end <= region.iova || address >= region.end() {
        return "lies outside it".into();
    }
    if address < region.iova {
        format!("begins {} bytes before it", region.iova - address)
    } else {
        format!("reaches {} bytes past its end", end - region.end())
    }
}

/// The region whose key this one is with its bytes in reverse, where it is no key of a region itself.
fn turned(model: &Model, key: Key) -> Option<&Region> {
    if model.region_named(key).is_some() || model.windows.contains_key(&key.value()) {
        return None;
    }
    model.region_named(Key::new(key.value().swap_bytes()))
}

/// What to do about an `lkey` that a peer shows.
pub(crate) const ADVICE_ON_LOCAL_KEY: &str =
    "send mr->rkey to the peer and not mr->lkey: on some hardware both are the same number, and on others not";

/// The region of this process whose `lkey` a peer shows.
fn shown_as_remote(model: &Model, key: Key) -> Option<&Region> {
    if model.region_ever(key).is_some() || model.windows.contains_key(&key.value()) {
        return None;
    }
    model.region_ever(key.of_region())
}

/// The region of `ibv_alloc_null_mr` that this rkey is of: its lkey, or the 0 that it has instead of an rkey.
fn null_region(model: &Model, rkey: Key) -> Option<&Region> {
    match rkey.value() {
        0 => model.regions.values().find(|region| region.is_null()),
        _ => model.region_named(rkey).filter(|region| region.is_null()),
    }
}

/// What to do about an rkey that the program has turned on the way, it seems, that is of no memory, or that is an lkey.
pub(crate) fn advice_on_rkey(model: &Model, key: Key) -> Option<&'static str> {
    if null_region(model, key).is_some() {
        return Some(
            "give the peer the rkey of memory that ibv_reg_mr has registered: the region of ibv_alloc_null_mr is for the \
             scatter/gather lists of its own process, and has an lkey only",
        );
    }
    if shown_as_remote(model, key).is_some() {
        return Some(ADVICE_ON_LOCAL_KEY);
    }
    let advice = "turn the key to network byte order where it is sent (htonl(mr->rkey)), and back where it is received \
                  (ntohl): its bytes arrive in reverse";
    turned(model, key).map(|_| advice)
}

/// How an address that lies outside a range became what it is, if it lies inside but for a usual mistake.
pub(crate) fn mangled(address: u64, start: u64, size: u64) -> Option<String> {
    let inside = |address: u64| address.checked_sub(start).is_some_and(|offset| offset < size);
    if inside(address) {
        return None;
    }
    let turned = address.swap_bytes();
    if inside(turned) {
        return Some(format!(
            "with its bytes in reverse the address is {turned:#x}, which lies inside: was it sent without htobe64 and \
             be64toh?"
        ));
    }
    let whole = start & !u64::from(u32::MAX) | address & u64::from(u32::MAX);
    let is_short = address <= u64::from(u32::MAX) || address >> 31 == u64::MAX >> 31;
    (is_short && inside(whole)).then(|| {
        format!(
            "its lower 32 bits are those of {whole:#x}, which lies inside: was the address kept or sent in 32 bits, as an \
             int or by htonl?"
        )
    })
}

/// What a queue pair grants its peer. No right at all has no name in verbs.
pub(crate) fn rights(access: Access) -> String {
    if access.is_empty() { "nothing (qp_access_flags 0)".into() } else { format!("{access}") }
}

/// What the process knows of an rkey that its peer has named, and of the range that was asked for behind it.
pub(crate) fn memory_of_peer(model: &Model, rkey: Key, address: u64, length: u64, now: u64) -> Vec<String> {
    let mut seen = memory(model, rkey, address, length, now);
    if let (0, Some(found)) = (rkey.value(), null_region(model, rkey)) {
        seen.insert(0, format!("rkey 0 is that of {}", region(found)));
    }
    if let Some(found) = shown_as_remote(model, rkey).filter(|region| !region.is_null()) {
        seen.insert(0, format!("{rkey} is the lkey of {}; the rkey of that region is {}", region(found), found.key));
    }
    seen
}

/// What the process knows of a key and of the range that was asked for behind it.
pub(crate) fn memory(model: &Model, key: Key, address: u64, length: u64, now: u64) -> Vec<String> {
    let mut seen = Vec::new();
    match model.region_named(key) {
        Some(found) if found.is_null() => seen.push(format!("key {key} is the lkey of {}", region(found))),
        Some(found) if found.gone_at.is_none() => {
            let request = format!("the request for [{address:#x}, +{length}) {}", lies(found, address, length));
            seen.push(format!("key {key} belongs to {}; {request}", region(found)));
            seen.extend(mangled(address, found.iova, found.length));
        }
        Some(found) => {
            let ago = span(now.saturating_sub(found.gone_at.unwrap_or(now)));
            seen.push(format!("key {key} belonged to {}; the program deregistered it {ago} before", region(found)));
        }
        None if model.windows.contains_key(&key.value()) => {
            seen.push(format!("key {key} is that of a memory window"));
        }
        None => {
            // What is surest comes first.
            if let Some(found) = turned(model, key) {
                let (turned, found) = (found.key, region(found));
                seen.push(format!(
                    "with its bytes in reverse it is {turned}, the key of {found}: was it sent without ntohl and htonl?"
                ));
            }
            seen.push(format!("nothing that this process has registered has, or had, key {key}"));
        }
    }
    let holds = |region: &&Region| {
        !region.key.is_named_by(key) && region.address <= address && address - region.address < region.length
    };
    if let Some(other) = model.regions_at(address, length.max(1)).find(holds) {
        let (local, remote) = (other.key.local(), other.key);
        seen.push(format!("the address lies in {}, whose lkey is {local} and whose rkey is {remote}", region(other)));
    }
    seen
}

/// The queue pair of this process that `pair` names as its peer. `true` if it names `pair` in turn.
pub(crate) fn peer_here<'a>(model: &'a Model, pair: &Pair) -> Option<(&'a Pair, bool)> {
    let peer = model.pairs.get(&pair.connection.dest_qpn?)?;
    Some((peer, peer.connection.dest_qpn == Some(pair.qpn)))
}

/// What a number of a GPU's driver says about a copy.
pub(crate) const fn gpu_error(error: u32) -> &'static str {
    match error {
        1 => "there is no such memory (any more): it was freed, or its context destroyed",
        2 => "it has no memory left",
        3 | 4 => "it is not there: in a forked child, or at the end of the program",
        101 | 201 | 709 => "the context of the memory was destroyed",
        700 | 716 | 717 => "a kernel or a copy touched memory that is not there, and the context is broken",
        214 | 710 | 714 | 715 | 718 | 719 => "the GPU or a kernel failed, and the context is broken",
        909 => {
            "it did not answer in time: another call of the program, such as cudaFree, waits in it for kernels to end"
        }
        _ => "the copy failed",
    }
}

/// What to do about it.
pub(crate) const fn gpu_advice(error: u32) -> &'static str {
    match error {
        3 | 4 => "use the GPU in the process that opened it, and before the program ends",
        700 | 710 | 714..=719 | 214 => {
            "find the kernel that failed with compute-sanitizer; the NIC's copies fail since"
        }
        909 => {
            "free no GPU memory, and load no kernels, while kernels wait for the NIC; if kernels run for long \
             otherwise, raise UBIVERBS_GPU_PATIENCE"
        }
        _ => "keep the memory allocated, and its context, until its region was deregistered with ibv_dereg_mr",
    }
}
