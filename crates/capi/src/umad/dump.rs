//! What programs print of datagrams while they are debugged, in the words of the original.

use crate::boundary::unreported;
use abi::{ib_mad_addr, ib_user_mad};
use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::sync::atomic::{AtomicI32, Ordering};

/// How much is printed.
static DUMP_LEVEL: AtomicI32 = AtomicI32::new(0);

/// How much is printed.
pub(super) fn level() -> c_int {
    DUMP_LEVEL.load(Ordering::Relaxed)
}

/// Sets how much is printed, unless it is negative; answers it.
#[unsafe(export_name = "ubiverbs_umad_debug")]
pub extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        DUMP_LEVEL.store(level, Ordering::Relaxed);
    }
    self::level()
}

/// A line on standard error that says which function it is from.
fn warn(function: &str, text: &str) {
    let line = format!("ibwarn: [{}] {function}: {text}\n", std::process::id());
    // SAFETY: as many bytes as the line has. Where standard error is closed, nobody reads it.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Prints an address.
///
/// # Safety
/// `address` is null or an address.
#[unsafe(export_name = "ubiverbs_umad_addr_dump")]
pub unsafe extern "C" fn umad_addr_dump(address: *mut ib_mad_addr) {
    unreported("umad_addr_dump", || {
        // SAFETY: null, or an address.
        if let Some(address) = unsafe { address.as_ref() } {
            print_address(address);
        }
        Ok(())
    });
}

fn print_address(address: &ib_mad_addr) {
    let mut gid = String::new();
    address.gid.iter().for_each(|byte| {
        let _ = write!(gid, "{byte:02x}");
    });
    let text = format!(
        "qpn {} qkey 0x{:x} lid {} sl {}\ngrh_present {} gid_index {} hop_limit {} traffic_class {} flow_label 0x{:x} \
         pkey_index 0x{:x}\nGid 0x{gid}",
        u32::from_be(address.qpn) as i32,
        u32::from_be(address.qkey),
        u16::from_be(address.lid),
        address.sl,
        address.grh_present,
        address.gid_index,
        address.hop_limit,
        address.traffic_class,
        address.flow_label,
        address.pkey_index,
    );
    warn("umad_addr_dump", &text);
}

/// Prints what stands before a datagram.
///
/// # Safety
/// `umad` is null or a buffer.
#[unsafe(export_name = "ubiverbs_umad_dump")]
pub unsafe extern "C" fn umad_dump(umad: *mut c_void) {
    unreported("umad_dump", || {
        // SAFETY: null, or a buffer.
        if let Some(umad) = unsafe { umad.cast::<ib_user_mad>().as_ref() } {
            print(umad);
        }
        Ok(())
    });
}

pub(super) fn print(umad: &ib_user_mad) {
    let ib_user_mad { agent_id, status, timeout_ms, .. } = *umad;
    let text = format!("agent id {} status {status:x} timeout {}", agent_id as i32, timeout_ms as i32);
    warn("umad_dump", &text);
    print_address(&umad.addr);
}
