//! Probes for bpftrace, perf and SystemTap, under the names and with the arguments that the providers of rdma-core have
//! (`rdma_core_rxe:post_send` and others), so that scripts written for those run on this NIC. While nothing is attached
//! a list that is posted costs a look at one word, which the kernel counts up while something is. On x86-64: elsewhere
//! the notes would name other registers, and there are no probes.

use crate::queue_pair::Qp;
#[cfg(target_arch = "x86_64")]
use std::arch::asm;
use std::ffi::CString;
use std::sync::atomic::{AtomicU16, Ordering};
use transport::{Data, Operation, ReceiveRequest, SendRequest};

/// How many tools are attached to the probes: the semaphore of all of them, which the kernel changes.
#[unsafe(link_section = ".probes")]
static PROBE_SEMAPHORE: AtomicU16 = AtomicU16::new(0);

/// Whether a tool listens.
#[inline]
pub(crate) fn are_watched() -> bool {
    cfg!(target_arch = "x86_64") && PROBE_SEMAPHORE.load(Ordering::Relaxed) != 0
}

/// A place that tools can attach to: a `nop`, and a note in the file that says where it is and where its arguments are
/// (<https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>).
#[cfg(target_arch = "x86_64")]
macro_rules! probe {
    ($provider:literal, $name:literal, $places:literal, $($argument:ident),+) => {
        // SAFETY: the code is one instruction that does nothing; the rest goes to sections that no code uses, so the
        // linker is told to retain the base (R).
        unsafe {
            asm!(
                "990: nop",
                ".pushsection .note.stapsdt,\"?\",\"note\"",
                ".balign 4",
                ".4byte 992f-991f, 994f-993f, 3",
                "991: .asciz \"stapsdt\"",
                "992: .balign 4",
                "993: .8byte 990b",
                ".8byte _.stapsdt.base",
                ".8byte {semaphore}",
                concat!(".asciz \"", $provider, "\""),
                concat!(".asciz \"", $name, "\""),
                concat!(".asciz \"", $places, "\""),
                "994: .balign 4",
                ".popsection",
                ".ifndef _.stapsdt.base",
                ".pushsection .stapsdt.base,\"aGR\",\"progbits\",.stapsdt.base,comdat",
                ".weak _.stapsdt.base",
                ".hidden _.stapsdt.base",
                "_.stapsdt.base: .space 1",
                ".size _.stapsdt.base,1",
                ".popsection",
                ".endif",
                semaphore = sym PROBE_SEMAPHORE,
                $($argument = in(reg) $argument,)+
                options(att_syntax, readonly, nostack, preserves_flags)
            )
        }
    };
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! probe {
    ($provider:literal, $name:literal, $places:literal, $($argument:ident),+) => {
        let _ = ($($argument),+);
    };
}

/// The name of an operation, as `ibv_wr_opcode_str` has it.
fn opcode_name(operation: &Operation) -> &'static std::ffi::CStr {
    match operation {
        Operation::Send { immediate: None } => c"send",
        Operation::Send { .. } => c"send-with-imm",
        Operation::SendInvalidate { .. } => c"send-with-inv",
        Operation::Write { immediate: None, .. } => c"rdma-write",
        Operation::Write { .. } => c"rdma-write-with-imm",
        Operation::Read { .. } => c"rdma-read",
        Operation::CompareSwap { .. } => c"atomic-cmp-and-swp",
        Operation::FetchAdd { .. } => c"atomic-fetch-and-add",
        Operation::AtomicWrite { .. } => c"atomic-write",
        Operation::Flush { .. } => c"flush",
        Operation::LocalInvalidate { .. } => c"local-inv",
        Operation::BindWindow(_) => c"bind-mw",
    }
}

/// Work was posted to a send queue.
#[cold]
#[inline(never)]
pub(crate) fn posted_sends(qp: &Qp, requests: &[SendRequest<'_>]) {
    let Ok(device) = CString::new(qp.port_device().name()) else { return };
    for request in requests {
        let opcode = opcode_name(&request.operation);
        let pieces = match request.data {
            Data::Gather(sges) => sges.len() as u32,
            Data::Inline(_) => 1,
        };
        post_send(device.as_ptr(), qp.qpn().value(), opcode.as_ptr(), request.data.length(), pieces);
    }
}

/// Under the name of kernel Soft-RoCE's provider, and under that of mlx5's, which tells pieces where that one tells
/// bytes.
#[inline(never)]
fn post_send(device: *const libc::c_char, qpn: u32, opcode: *const libc::c_char, bytes: u64, pieces: u32) {
    probe!("rdma_core_rxe", "post_send", "8@{device} 4@{qpn:e} 8@{opcode} 8@{bytes}", device, qpn, opcode, bytes);
    probe!("rdma_core_mlx5", "post_send", "8@{device} 4@{qpn:e} 8@{opcode} -4@{pieces:e}", device, qpn, opcode, pieces);
}

/// Receives were posted to a queue pair.
#[cold]
#[inline(never)]
pub(crate) fn posted_receives(qp: &Qp, requests: &[ReceiveRequest<'_>]) {
    let Ok(device) = CString::new(qp.port_device().name()) else { return };
    for request in requests {
        post_receive(device.as_ptr(), request.wr_id, qp.qpn().value(), request.sges.len() as u32);
    }
}

/// Under the name of EFA's provider: Soft-RoCE's and mlx5's have no probe for receives.
#[inline(never)]
fn post_receive(device: *const libc::c_char, wr_id: u64, qpn: u32, pieces: u32) {
    probe!("rdma_core_efa", "post_recv", "8@{device} 8@{wr_id} 4@{qpn:e} -4@{pieces:e}", device, wr_id, qpn, pieces);
}
