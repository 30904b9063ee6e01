//! `ibv_wc` as a card fills it in that the device is like: what the card leaves out stays as the program left it, or
//! becomes zero. Programs that read it are told nothing, as on the card; MemorySanitizer tells them.

use abi::ibv_wc;
use profiles::{Class, Completions, Field};
use transport::{Completion, CompletionKind, Queue, Status};

/// Which completions the card fills in as it does this one.
fn class(completion: &Completion) -> Class {
    match (completion.status, completion.queue, completion.kind) {
        (
            Status::Success,
            Queue::Send,
            CompletionKind::Read | CompletionKind::CompareSwap | CompletionKind::FetchAdd,
        ) => Class::Reads,
        (Status::Success, Queue::Send, _) => Class::Sends,
        // Of a connected queue pair no GRH is told.
        (Status::Success, _, _) if completion.grh => Class::Datagrams,
        (Status::Success, ..) => Class::Receives,
        _ => Class::Errors,
    }
}

/// Writes the fields of `whole` to `place` that the card fills.
///
/// # Safety
/// `place` is valid for writes of an `ibv_wc`.
pub(crate) unsafe fn write(place: *mut ibv_wc, completion: &Completion, whole: &ibv_wc, card: &Completions) {
    let class = class(completion);
    let mut whole = *whole;
    if class == Class::Receives && card.own_source {
        whole.src_qp = whole.qp_num;
    }
    if class == Class::Receives && card.grh_of_all {
        whole.wc_flags |= abi::IBV_WC_GRH;
    }
    let filled = card.filled(class);
    macro_rules! each {
        ($($field:ident: $word:ident),*) => {
            $(
                let value = if filled.has(Field::$word) { Some(whole.$field) } else { card.zeroes.then(Default::default) };
                if let Some(value) = value {
                    // SAFETY: a field of a place that is valid for writes.
                    unsafe { (&raw mut (*place).$field).write(value) };
                    // SAFETY: as above; nothing is read.
                    latch::sanitizer::initialised(unsafe { (&raw const (*place).$field).cast() }, size_of_val(&value));
                }
            )*
        };
    }
    each!(
        wr_id: WrId,
        status: Status,
        opcode: Opcode,
        vendor_err: VendorErr,
        byte_len: ByteLen,
        imm_data: ImmData,
        qp_num: QpNum,
        src_qp: SrcQp,
        wc_flags: WcFlags,
        pkey_index: PkeyIndex,
        slid: Slid,
        sl: Sl,
        dlid_path_bits: DlidPathBits
    );
}
