//! Open ports: a descriptor that programs wait on, and what goes out and comes in through it.

use super::datagram::HEADER_BYTES;
use super::{dump, negative, resolve};
use crate::boundary::{caught, report};
use crate::errno::{Errno, refuse_if};
use crate::registry::PerProcess;
use abi::{ib_mad_addr, ib_user_mad};
use hca::ManagementPort;
use hca::gsi::{Delivery, Outgoing, Peer, Route, SendError};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::mad::MAD_LEN;
use wire::{Gid, Qpn};

/// The ports that this process has open, by descriptor.
static OPEN_PORTS: PerProcess<HashMap<c_int, Arc<ManagementPort>>> = PerProcess::new();

/// The port behind a descriptor.
pub(super) fn of(fd: c_int) -> Result<Arc<ManagementPort>, Errno> {
    OPEN_PORTS.lock().get(&fd).cloned().ok_or_else(|| Errno::invalid("the descriptor is not that of an open port"))
}

/// Opens a port; its descriptor, or a negative errno.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(export_name = "ubiverbs_umad_open_port")]
pub unsafe extern "C" fn umad_open_port(name: *const c_char, number: c_int) -> c_int {
    negative("umad_open_port", || {
        let (nic, devices) = resolve::devices()?;
        // SAFETY: null or a string, says the caller.
        let wanted = unsafe { resolve::name(name) };
        let device = resolve::device(&devices, wanted, Some(number))?.ok_or(Errno::INVALID)?;
        let port = ManagementPort::open(&nic, &device).map_err(|error| Errno::of(libc::EIO).because(error))?;
        let fd = port.channel().raw_fd();
        OPEN_PORTS.lock().insert(fd, Arc::new(port));
        Ok(fd)
    })
}

/// Opens a port that has a subnet management interface: no RoCE port has one, and the original looks at the port's
/// capabilities, which do not say so. So this opens what [`umad_open_port`] opens, and agents of subnet management are
/// refused when they are registered.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(export_name = "ubiverbs_umad_open_smi_port")]
pub unsafe extern "C" fn umad_open_smi_port(name: *const c_char, number: c_int) -> c_int {
    // SAFETY: the name is null or a C string.
    unsafe { umad_open_port(name, number) }
}

/// Closes a port.
#[unsafe(export_name = "ubiverbs_umad_close_port")]
pub extern "C" fn umad_close_port(fd: c_int) -> c_int {
    negative("umad_close_port", || {
        let port = OPEN_PORTS.lock().remove(&fd).ok_or(Errno::INVALID)?;
        // Without the lock.
        drop(port);
        Ok(0)
    })
}

/// The descriptor of a port, to wait on.
#[unsafe(export_name = "ubiverbs_umad_get_fd")]
pub extern "C" fn umad_get_fd(fd: c_int) -> c_int {
    negative("umad_get_fd", || of(fd).map(|_| fd))
}

/// Sends a datagram of an agent: 0, or a negative errno.
///
/// # Safety
/// `umad` is null or a buffer with room for `length` bytes behind its header.
#[unsafe(export_name = "ubiverbs_umad_send")]
pub unsafe extern "C" fn umad_send(
    fd: c_int,
    agent: c_int,
    umad: *mut c_void,
    length: c_int,
    timeout_ms: c_int,
    retries: c_int,
) -> c_int {
    let answer = caught("umad_send", || {
        // SAFETY: null, or a buffer.
        let Some(buffer) = (unsafe { umad.cast::<ib_user_mad>().as_mut() }) else { return Err(Errno::null()) };
        let port = of(fd)?;
        (buffer.agent_id, buffer.timeout_ms, buffer.retries) = (agent as u32, timeout_ms as u32, retries as u32);
        if dump::level() > 1 {
            dump::print(buffer);
        }
        let agent = u8::try_from(agent).map_err(|_| Errno::INVALID)?;
        let Ok(length) = usize::try_from(length) else { return Ok(Err(SendError::Length)) };
        let address = buffer.addr;
        // SAFETY: as many bytes as the program says, behind the header.
        let bytes = unsafe { std::slice::from_raw_parts(umad.byte_add(HEADER_BYTES).cast::<u8>(), length) };
        Ok(send(&port, agent, &address, bytes, (timeout_ms as u32, retries as u32)))
    });
    match answer {
        Ok(Ok(())) => 0,
        Ok(Err(SendError::NoAgent)) => -report(Errno::INVALID),
        // The reason is in errno.
        Ok(Err(error)) => {
            report(if error == SendError::TooMany { Errno::NO_MEMORY } else { Errno::INVALID });
            -libc::EIO
        }
        Err(error) => -report(error),
    }
}

fn send(
    port: &ManagementPort,
    agent: u8,
    address: &ib_mad_addr,
    bytes: &[u8],
    (timeout_ms, retries): (u32, u32),
) -> Result<(), SendError> {
    let to = match address.grh_present {
        0 => Peer::Lid(u16::from_be(address.lid)),
        _ => {
            let remote = Gid::new(address.gid);
            refuse_if!(remote.is_zero() || remote.is_multicast(), SendError::NoRoute);
            Peer::Address(Route {
                local: port.source(address.gid_index, remote).ok_or(SendError::NoRoute)?,
                remote,
                qpn: Qpn::new(u32::from_be(address.qpn)),
                traffic_class: address.traffic_class,
                hop_limit: address.hop_limit,
                flow_label: u32::from_be(address.flow_label),
            })
        }
    };
    port.send(agent, &Outgoing { bytes, to, pkey_index: address.pkey_index, timeout_ms, retries })
}

// Declared here, since a cancelled thread is unwound from it; that of the crate `libc` is said not to unwind.
unsafe extern "C-unwind" {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int;
}

/// Waits for a descriptor to be readable: 0, or a negative errno.
///
/// # Safety
/// A cancelled thread is unwound from here: the caller's frames, up to the program's, have nothing to drop.
unsafe fn wait(fd: c_int, timeout_ms: c_int) -> c_int {
    let mut asked = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    match unsafe { poll(&raw mut asked, 1, timeout_ms) } {
        1 => 0,
        0 => -libc::ETIMEDOUT,
        _ => -libc::EIO,
    }
}

/// Waits for a datagram: 0, or a negative errno.
#[unsafe(export_name = "ubiverbs_umad_poll")]
pub extern "C-unwind" fn umad_poll(fd: c_int, timeout_ms: c_int) -> c_int {
    match negative("umad_poll", || of(fd).map(|_| 0)) {
        // SAFETY: this frame has nothing to drop.
        0 => unsafe { wait(fd, timeout_ms) },
        error => error,
    }
}

/// What a look for a datagram found.
enum DatagramPoll {
    /// The answer to the program.
    Done(c_int),
    /// Nothing yet.
    Nothing,
}

/// Receives a datagram: the number of the agent that it is for, or a negative errno. With a timeout of 0 it does not
/// wait; with one below 0 it waits for ever.
///
/// # Safety
/// `umad` is null or a buffer with room for `*length` bytes behind its header.
#[unsafe(export_name = "ubiverbs_umad_recv")]
pub unsafe extern "C-unwind" fn umad_recv(
    fd: c_int,
    umad: *mut c_void,
    length: *mut c_int,
    timeout_ms: c_int,
) -> c_int {
    let until = Instant::now() + Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
    loop {
        // SAFETY: null, or a buffer with the room that the length says.
        let look = caught("umad_recv", || unsafe { take(fd, umad, length) });
        let answer = match look {
            Ok(DatagramPoll::Done(answer)) => answer,
            Ok(DatagramPoll::Nothing) if timeout_ms == 0 => -report(Errno::of(libc::EWOULDBLOCK)),
            Ok(DatagramPoll::Nothing) => {
                let left = match timeout_ms {
                    ..0 => -1,
                    // Another thread may have taken what there was: it is not waited for anew.
                    _ => until.saturating_duration_since(Instant::now()).as_micros().div_ceil(1000) as c_int,
                };
                // SAFETY: this frame has nothing to drop.
                match unsafe { wait(fd, left) } {
                    0 => continue,
                    // A signal leaves its errno.
                    timeout if timeout == -libc::ETIMEDOUT => -report(Errno::of(libc::ETIMEDOUT)),
                    other => other,
                }
            }
            Err(error) => -report(error),
        };
        return answer;
    }
}

/// Takes what waits, if it fits.
///
/// # Safety
/// As for [`umad_recv`].
unsafe fn take(fd: c_int, umad: *mut c_void, length: *mut c_int) -> Result<DatagramPoll, Errno> {
    // SAFETY: null, or a number that no other thread uses.
    let Some(length) = (unsafe { length.as_mut() }).filter(|_| !umad.is_null()) else { return Err(Errno::null()) };
    let port = of(fd)?;
    let room = usize::try_from(*length).map_err(|_| Errno::INVALID)?;
    let mut short = None;
    let taken = port.channel().take_if(|delivery: &Delivery| {
        let fits = delivery.bytes.len() <= room;
        if !fits {
            short = Some(delivery.clone());
        }
        fits
    });
    let write = |header: ib_user_mad, bytes: &[u8]| {
        // SAFETY: room for the header, and for as many bytes as `room` behind it.
        unsafe {
            umad.cast::<ib_user_mad>().write_unaligned(header);
            umad.byte_add(HEADER_BYTES).cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    };
    if let Some(delivery) = taken {
        write(header_of(&port, &delivery), &delivery.bytes);
        *length = delivery.bytes.len() as c_int;
        return Ok(DatagramPoll::Done(delivery.agent.into()));
    }
    match short {
        None => Ok(DatagramPoll::Nothing),
        Some(delivery) => {
            *length = delivery.bytes.len() as c_int;
            // Of a message that is too long, the program gets the beginning, which says how long it is.
            match delivery.bytes.get(..MAD_LEN).filter(|_| delivery.bytes.len() > MAD_LEN && room >= MAD_LEN) {
                Some(part) => {
                    write(header_of(&port, &delivery), part);
                    Err(Errno::of(libc::ENOSPC))
                }
                None => Err(Errno::invalid("the datagram does not fit the buffer")),
            }
        }
    }
}

/// What stands before a datagram that was received, or of one that got no answer.
fn header_of(port: &ManagementPort, delivery: &Delivery) -> ib_user_mad {
    let mut header = ib_user_mad::zeroed();
    header.agent_id = delivery.agent.into();
    header.status = if delivery.timed_out { libc::ETIMEDOUT as u32 } else { 0 };
    header.length = (HEADER_BYTES + delivery.bytes.len()) as u32;
    let to = &mut header.addr;
    to.qpn = Qpn::GSI.value().to_be();
    match delivery.peer {
        Peer::Lid(lid) => to.lid = lid.to_be(),
        Peer::Address(route) => {
            to.qpn = route.qpn.value().to_be();
            to.grh_present = 1;
            let index = port.device().port().gids.iter().position(|gid| *gid == Some(route.local));
            to.gid_index = index.and_then(|index| u8::try_from(index).ok()).unwrap_or(0);
            to.hop_limit = route.hop_limit;
            to.traffic_class = route.traffic_class;
            to.gid = route.remote.octets();
            to.flow_label = route.flow_label.to_be();
        }
    }
    header
}
