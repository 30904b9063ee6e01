//! Receiving frames. A frame comes with a header that says what the kernel left to a device (`virtio_net_hdr`), and
//! with a note that has the tag it took out (`tpacket_auxdata`). It also hears what the host sends, as far as the NIC
//! would loop that back ([`LoopFilter`]).

use super::loop_filter::LoopFilter;
use super::{ALL_PROTOCOLS, bind, check, set, socket};
use crate::udp::call::receive_many;
use ::host::descriptor::Descriptor;
use ::host::steering::program::SocketFilter;
use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use wire::flow::{Layers, Offload, OffloadKind, Origin, complete_checksum, each_segment, insert_tag};

/// Frames that one call receives.
const FRAMES_PER_CALL: usize = 16;
/// The longest that the kernel hands over, with the header in front of it.
const MAX_FRAME_BYTES: usize = (1 << 16) + 256;
/// The header in front: what is left to a device.
const OFFLOAD_HEADER: usize = 10;
/// Room for the note: a header and twenty bytes, aligned.
const FRAME_NOTE_BYTES: usize = 64;
/// What the socket holds while no thread looks; the kernel may give less.
const SOCKET_BUFFER_BYTES: libc::c_int = 8 << 20;

/// Bits of the header's first byte.
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_VALID: u8 = 2;
/// Its second byte, without the bit for ECN_BIT.
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP_SEGMENTS: u8 = 5;
const ECN_BIT: u8 = 0x80;

/// A frame that came, as it was on the wire.
#[derive(Debug)]
pub struct FrameIn<'a> {
    /// All of it, from the destination address on, with its tag.
    pub bytes: &'a [u8],
    /// Where it comes from.
    pub origin: Origin,
    /// The kernel has found the checksums to be right, or made them.
    pub checksums_known: bool,
}

/// Which addresses the interface lets through besides its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Frames to this one.
    Address([u8; 6]),
    /// Frames to all groups.
    AllMulticast,
    /// All frames.
    Promiscuous,
}

/// A socket that receives the frames of an interface.
#[derive(Debug)]
pub struct Receiver {
    socket: Descriptor,
    interface: u32,
    buffers: Vec<u8>,
    frame: Vec<u8>,
    scratch: Vec<u8>,
    sent: LoopFilter,
}

#[repr(align(8))]
struct Notes([[u8; FRAME_NOTE_BYTES]; FRAMES_PER_CALL]);

impl Receiver {
    /// One for an interface. It receives nothing before [`start`](Receiver::start).
    pub fn open(interface: u32) -> io::Result<Receiver> {
        let socket = socket(interface, 0)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        // Beyond the usual limit with the right to it, up to that without.
        if set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER_BYTES).is_err() {
            set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, SOCKET_BUFFER_BYTES)?;
        }
        let address = link_address(&socket)?;
        let [a, b, c, d, e, f, ..] = address.sll_addr;
        let comes_back = address.sll_hatype == libc::ARPHRD_LOOPBACK;
        let sent = LoopFilter::new((!comes_back).then_some([a, b, c, d, e, f]));
        let receiver =
            Receiver { socket, interface, buffers: Vec::new(), frame: Vec::new(), scratch: Vec::new(), sent };
        receiver.filter()?;
        Ok(receiver)
    }

    /// Receives from now on.
    pub fn start(&self) -> io::Result<()> {
        bind(&self.socket, self.interface, ALL_PROTOCOLS)
    }

    /// Whether it receives all that this host sends, and not only what a NIC would loop back.
    pub fn hear_outgoing(&mut self, hears: bool) -> io::Result<()> {
        if self.sent.hear_all(hears) { self.filter() } else { Ok(()) }
    }

    /// What this host sends to an address is received from now on, as the NIC is to receive it.
    pub fn loop_back(&mut self, address: [u8; 6]) -> io::Result<()> {
        if self.sent.name(address) { self.filter() } else { Ok(()) }
    }

    /// Has the kernel leave out what is not wanted of what this host sends.
    fn filter(&self) -> io::Result<()> {
        let program = self.sent.program();
        let ignores = libc::c_int::from(!self.sent.hears_any());
        set(&self.socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, ignores)?;
        let filter = SocketFilter::new(program.len() as u16, program.as_ptr());
        set(&self.socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, filter)
    }

    /// The descriptor to wait for.
    pub fn raw_fd(&self) -> RawFd {
        self.socket.raw()
    }

    /// Has the interface let more through, or no longer. The kernel counts.
    pub fn member(&self, membership: Membership, joins: bool) -> io::Result<()> {
        let own = link_address(&self.socket).map(|address| address.sll_addr);
        if let (Membership::Address(address), Ok(own)) = (membership, own)
            && own.starts_with(&address)
        {
            return Ok(());
        }
        let option = if joins { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        let (kind, address) = match membership {
            Membership::Address(address) if address[0] & 1 != 0 => (libc::PACKET_MR_MULTICAST, address),
            Membership::Address(address) => (libc::PACKET_MR_UNICAST, address),
            Membership::AllMulticast => (libc::PACKET_MR_ALLMULTI, [0; 6]),
            Membership::Promiscuous => (libc::PACKET_MR_PROMISC, [0; 6]),
        };
        let [a, b, c, d, e, f] = address;
        let request = libc::packet_mreq {
            mr_ifindex: self.interface as i32,
            mr_type: kind as u16,
            mr_alen: 6,
            mr_address: [a, b, c, d, e, f, 0, 0],
        };
        set(&self.socket, libc::SOL_PACKET, option, request)
    }

    /// How many frames the kernel has dropped since the last call, because no thread took them in time.
    pub fn overflowed(&self) -> u64 {
        let mut statistics = [0u32; 2];
        let mut length = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: a live array of that length, which the kernel writes to.
        let answer = check(unsafe {
            let (to, length) = (statistics.as_mut_ptr().cast(), &raw mut length);
            libc::getsockopt(self.socket.raw(), libc::SOL_PACKET, libc::PACKET_STATISTICS, to, length)
        });
        if answer.is_ok() { statistics[1].into() } else { 0 }
    }

    /// Takes what has come, a batch at most, without waiting. Returns how much that was.
    pub fn receive(&mut self, mut take: impl FnMut(&FrameIn<'_>)) -> usize {
        self.buffers.resize(FRAMES_PER_CALL * MAX_FRAME_BYTES, 0);
        let mut pieces = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; FRAMES_PER_CALL];
        let mut notes = Notes([[0; FRAME_NOTE_BYTES]; FRAMES_PER_CALL]);
        // SAFETY: plain data, for which zeros are values.
        let (mut messages, mut addresses): ([libc::mmsghdr; FRAMES_PER_CALL], [libc::sockaddr_ll; FRAMES_PER_CALL]) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let places =
            self.buffers.chunks_exact_mut(MAX_FRAME_BYTES).zip(&mut pieces).zip(&mut notes.0).zip(&mut addresses);
        for ((((buffer, piece), note), address), message) in places.zip(&mut messages) {
            *piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: MAX_FRAME_BYTES };
            let header = &mut message.msg_hdr;
            (header.msg_iov, header.msg_iovlen) = (piece, 1);
            (header.msg_control, header.msg_controllen) = (note.as_mut_ptr().cast(), FRAME_NOTE_BYTES as _);
            header.msg_name = std::ptr::from_mut(address).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each message has a piece, an address and a note of the lengths it says, all of them live.
        let received =
            unsafe { receive_many(self.socket.raw(), messages.as_mut_ptr(), FRAMES_PER_CALL as libc::c_uint, flags) };
        let count = usize::try_from(received).unwrap_or(0);
        let Receiver { buffers, frame, scratch, sent, .. } = self;
        let came = messages.iter().zip(buffers.chunks_exact(MAX_FRAME_BYTES)).zip(&addresses).take(count);
        for ((message, buffer), address) in came {
            let length = message.msg_len as usize;
            // Longer than the kernel makes them: there is none.
            let Some(bytes) = buffer.get(..length) else { continue };
            let tag = tag_of(&message.msg_hdr);
            let is_sent = address.sll_pkttype == libc::PACKET_OUTGOING;
            restore(bytes, tag, frame, scratch, |bytes, checksums_known| {
                let origin = if is_sent { Origin::Host(sent.loopback(bytes)) } else { Origin::Wire };
                take(&FrameIn { bytes, origin, checksums_known });
            });
        }
        count
    }
}

/// The address of the interface that a socket is bound to, and what kind of interface that is.
fn link_address(socket: &Descriptor) -> io::Result<libc::sockaddr_ll> {
    // SAFETY: plain data, for which zeros are a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a live address of that length, which the kernel writes to.
    check(unsafe { libc::getsockname(socket.raw(), (&raw mut address).cast(), &raw mut length) })?;
    Ok(address)
}

/// The tag that the kernel took out of a frame: its kind, and priority and number.
fn tag_of(header: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled in the note and its length, and the header is live.
    let note: libc::tpacket_auxdata = unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        loop {
            let control = next.as_ref()?;
            let is_note = (control.cmsg_level, control.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
            let length = libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as _) as usize;
            if is_note && control.cmsg_len as usize >= length {
                break libc::CMSG_DATA(next).cast::<libc::tpacket_auxdata>().read_unaligned();
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    };
    let has = |bit: u32| note.tp_status & bit != 0;
    let kind = if has(libc::TP_STATUS_VLAN_TPID_VALID) { note.tp_vlan_tpid } else { 0x8100 };
    has(libc::TP_STATUS_VLAN_VALID).then_some((kind, note.tp_vlan_tci))
}

/// Makes of what the kernel handed over, with its header in front, the frames that a wire would have brought.
pub(super) fn restore(
    bytes: &[u8],
    tag: Option<(u16, u16)>,
    frame: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
    mut take: impl FnMut(&[u8], bool),
) {
    let Some((header, bytes)) = bytes.split_first_chunk::<OFFLOAD_HEADER>() else { return };
    let [flags, kind, _, _, size_low, size_high, start_low, start_high, offset_low, offset_high] = *header;
    let number = |low, high| u16::from_ne_bytes([low, high]);
    if flags == 0 && kind == 0 && tag.is_none() {
        return take(bytes, false);
    }
    frame.clear();
    frame.extend_from_slice(bytes);
    let offload = match kind & !ECN_BIT {
        TCP_V4 | TCP_V6 => Some(OffloadKind::Tcp),
        UDP_SEGMENTS => Some(OffloadKind::Udp),
        _ => None,
    };
    let mut with_tag = |frame: &mut Vec<u8>, known| {
        if let Some((kind, tag)) = tag {
            insert_tag(frame, kind, tag);
        }
        take(frame, known);
    };
    if let Some(kind) = offload {
        let offload = Offload { kind, size: number(size_low, size_high) };
        if each_segment(frame, offload, scratch, |segment| with_tag(segment, true)) {
            return;
        }
    }
    if flags & NEEDS_CHECKSUM != 0 {
        // What Ethernet fills short frames up with is not covered.
        let end = Layers::parse(frame).map_or(0, |layers| layers.outer.end);
        let covered = if end > 0 { end } else { frame.len() };
        let (start, offset) = (number(start_low, start_high), number(offset_low, offset_high));
        complete_checksum(frame.get_mut(..covered).unwrap_or_default(), start.into(), offset.into());
    }
    with_tag(frame, flags & (NEEDS_CHECKSUM | CHECKSUM_VALID) != 0);
}
