//! Trains as headers: a run of consecutive packets of one message, written down as if the path MTU were large enough
//! for a single packet. Here is what each of the packets looks like by itself.

use crate::{HeaderSet, Headers, Opcode, Packet, Position, Tail};

/// Headers of packet `index` of a train of `count`: the opcode loses the ends the packet does not have, and with them
/// the extended headers. `payload` is the length of the whole train's, `mtu` that of every packet's but the last.
pub fn packet_of(train: &Headers, count: u32, index: u32, payload: u32, mtu: u32) -> Headers {
    let mut headers = *train;
    headers.bth.psn = train.bth.psn.add(index);
    let last = index + 1 >= count;
    let length = if last { payload.saturating_sub(mtu.saturating_mul(index)) } else { mtu };
    headers.bth.pad = Packet::pad(length as usize);
    if count == 1 {
        return headers;
    }
    let whole = train.bth.opcode;
    let position = Position::of(whole.starts() && index == 0, whole.ends() && last);
    let tail = if position.ends() { whole.tail() } else { Tail::Plain };
    // Only SENDs, WRITEs and READ responses make trains of several packets, and those have all four positions.
    headers.bth.opcode = Opcode::of(whole.transport(), whole.operation(), position, tail).unwrap_or(whole);
    if !last {
        headers.bth.ack_req = false;
        headers.bth.solicited = false;
    }
    trim(&mut headers);
    headers
}

/// Where packet `index` of a train of `count` finds its payload inside the train's: offset and length.
pub fn slice_of(count: u32, index: u32, payload: u32, mtu: u32) -> (u32, u32) {
    let from = index.saturating_mul(mtu).min(payload);
    let length = payload - from;
    (from, if index + 1 < count { length.min(mtu) } else { length })
}

/// Forgets the extended headers that the opcode does not carry.
fn trim(headers: &mut Headers) {
    let set = headers.bth.opcode.headers();
    if !set.contains(HeaderSet::RETH) {
        headers.reth = None;
    }
    if !set.contains(HeaderSet::AETH) {
        headers.aeth = None;
    }
    if !set.contains(HeaderSet::IMMEDIATE) {
        headers.immediate = None;
    }
    if !set.contains(HeaderSet::IETH) {
        headers.invalidate = None;
    }
}
