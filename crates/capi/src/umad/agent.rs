//! Agents: which datagrams a program wants.

use super::port;
use crate::boundary::{caught, report};
use crate::errno::Errno;
use abi::{InOut, Out, umad_reg_attr};
use hca::gsi::{RegisterError, Registration};
use std::error::Error;
use std::ffi::{c_int, c_long};

/// The vendor of the classes of OpenIB, for agents that name none.
const OPENIB_OUI: u32 = 0x00_1405;

/// Bytes of a mask of methods.
const METHOD_MASK_BYTES: usize = 16;

fn errno_of(error: &RegisterError) -> Errno {
    use hca::gsi::Refusal;
    let errno = match error {
        RegisterError::Refused(Refusal::TooMany) => Errno::NO_MEMORY,
        RegisterError::Refused(Refusal::NoSubnetManagement) => Errno::of(libc::EPROTONOSUPPORT),
        RegisterError::System(error) => Errno::of(error.raw_os_error().unwrap_or(libc::EIO)),
        _ => Errno::INVALID,
    };
    errno.with_reason(error as &dyn Error)
}

/// The mask behind a pointer from C.
///
/// # Safety
/// It is null or has 16 bytes.
unsafe fn methods(mask: *const c_long) -> u128 {
    if mask.is_null() {
        return 0;
    }
    // SAFETY: not null, so 16 bytes; the alignment is that of a long, or less.
    let [low, high] = unsafe { mask.cast::<[u8; METHOD_MASK_BYTES]>().read_unaligned() }
        .as_chunks::<8>()
        .0
        .first_chunk::<2>()
        .map_or([0; 2], |words| words.map(u64::from_ne_bytes));
    u128::from(high) << 64 | u128::from(low)
}

/// A number, or a negative errno: what the manual page says of a port that is none, and -EPERM for what else is
/// refused. errno has the reason.
fn registered(call: &'static str, fd: c_int, wanted: &Registration) -> c_int {
    let answer = caught(call, || {
        let port = match port::of(fd) {
            Ok(port) => port,
            Err(error) => return Ok(Err((error, error))),
        };
        Ok(port.register(wanted).map_err(|error| (errno_of(&error), Errno::of(libc::EPERM))))
    });
    match answer {
        Ok(Ok(agent)) => agent.into(),
        Ok(Err((reason, answer))) => {
            report(reason);
            -answer.code()
        }
        Err(error) => -report(error),
    }
}

/// Registers an agent for a class. A class of subnet management is refused: no RoCE port has queue pair 0.
///
/// # Safety
/// `mask` is null or has 16 bytes.
#[unsafe(export_name = "ubiverbs_umad_register")]
pub unsafe extern "C" fn umad_register(
    fd: c_int,
    class: c_int,
    version: c_int,
    rmpp_version: u8,
    mask: *const c_long,
) -> c_int {
    let wanted = Registration {
        subnet_management: matches!(class, 0x01 | 0x81),
        class: class as u8,
        version: version as u8,
        oui: OPENIB_OUI,
        // SAFETY: the mask is null or has 16 bytes.
        methods: unsafe { methods(mask) },
        rmpp_version,
        user_rmpp: false,
    };
    registered("umad_register", fd, &wanted)
}

/// Registers an agent for a vendor's class.
///
/// # Safety
/// `oui` is null or has three bytes; `mask` is null or has 16.
#[unsafe(export_name = "ubiverbs_umad_register_oui")]
pub unsafe extern "C" fn umad_register_oui(
    fd: c_int,
    class: c_int,
    rmpp_version: u8,
    oui: *const u8,
    mask: *const c_long,
) -> c_int {
    if !(0x30..=0x4f).contains(&class) || oui.is_null() {
        return -report(Errno::INVALID);
    }
    // SAFETY: not null, so three bytes.
    let [a, b, c] = unsafe { oui.cast::<[u8; 3]>().read() };
    let wanted = Registration {
        subnet_management: false,
        class: class as u8,
        version: 1,
        oui: u32::from_be_bytes([0, a, b, c]),
        // SAFETY: the mask is null or has 16 bytes.
        methods: unsafe { methods(mask) },
        rmpp_version,
        user_rmpp: false,
    };
    registered("umad_register_oui", fd, &wanted)
}

/// Registers an agent; 0, or an errno. Of flags that there are not, those that there are come back.
#[unsafe(export_name = "ubiverbs_umad_register2")]
pub extern "C" fn umad_register2(fd: c_int, attributes: InOut<'_, umad_reg_attr>, mut agent: Out<'_, u32>) -> c_int {
    crate::boundary::status("umad_register2", || {
        let attributes = attributes.as_mut().filter(|_| !agent.is_null()).ok_or_else(Errno::null)?;
        let port = port::of(fd)?;
        let has_vendor = (0x30..=0x4f).contains(&attributes.mgmt_class);
        if attributes.oui >> 24 != 0 || has_vendor && attributes.oui == 0 {
            return Err(Errno::invalid("the vendor's number (OUI) has 24 bits and is not 0"));
        }
        if attributes.flags & !abi::UMAD_USER_RMPP != 0 {
            attributes.flags = abi::UMAD_USER_RMPP;
            return Err(Errno::invalid("there is one flag, UMAD_USER_RMPP"));
        }
        let [low, high] = attributes.method_mask;
        let wanted = Registration {
            subnet_management: matches!(attributes.mgmt_class, 0x01 | 0x81),
            class: attributes.mgmt_class,
            version: attributes.mgmt_class_version,
            oui: attributes.oui,
            methods: u128::from(high) << 64 | u128::from(low),
            rmpp_version: attributes.rmpp_version,
            user_rmpp: attributes.flags & abi::UMAD_USER_RMPP != 0,
        };
        let id = port.register(&wanted).map_err(|error| errno_of(&error))?;
        agent.write(id.into());
        Ok(())
    })
}

/// Ends an agent, and what it has under way.
#[unsafe(export_name = "ubiverbs_umad_unregister")]
pub extern "C" fn umad_unregister(fd: c_int, agent: c_int) -> c_int {
    super::negative("umad_unregister", || {
        let agent = u8::try_from(agent).map_err(|_| Errno::INVALID)?;
        port::of(fd)?.unregister(agent).map_err(|_| Errno::INVALID)?;
        Ok(0)
    })
}
