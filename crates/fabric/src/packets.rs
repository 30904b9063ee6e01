//! Packets under way. What every hop needs is small and lies together; headers wait elsewhere until the packet arrives.
//! Payload is only a length.

use wire::Headers;

/// No packet, or no port.
pub(crate) const NONE: u32 = u32::MAX;

/// The packet may be marked.
pub(crate) const ECN_CAPABLE: u8 = 1;
/// It is marked.
pub(crate) const MARKED: u8 = 1 << 1;
/// It goes before others, and nothing pauses it: a congestion notification.
pub(crate) const URGENT: u8 = 1 << 2;

/// What a hop needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The next in its queue, or the next free.
    pub next: u32,
    /// The port it is on or waits at.
    pub port: u32,
    /// Where in the list of all paths its way goes on.
    pub path: u32,
    /// The port by which it came to where it waits.
    pub ingress: u32,
    /// Bytes on the wire.
    pub wire: u32,
    pub flags: u8,
}

/// What its receiver needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    pub headers: Headers,
    pub payload: u32,
    /// The host that sent it.
    pub source: u32,
}

/// All packets under way.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    pub hot: Vec<Packet>,
    content: Vec<Content>,
    free: Option<u32>,
}

impl Packets {
    pub fn add(&mut self, packet: Packet, content: Content) -> u32 {
        match self.free {
            Some(number) => {
                let next = self.hot[number as usize].next;
                self.free = (next != NONE).then_some(next);
                self.hot[number as usize] = packet;
                self.content[number as usize] = content;
                number
            }
            None => {
                self.hot.push(packet);
                self.content.push(content);
                (self.hot.len() - 1) as u32
            }
        }
    }

    pub fn content(&self, number: u32) -> &Content {
        &self.content[number as usize]
    }

    pub fn remove(&mut self, number: u32) {
        self.hot[number as usize].next = self.free.unwrap_or(NONE);
        self.free = Some(number);
    }
}

/// The bytes that a packet takes on an Ethernet wire: preamble, headers, payload, both checksums, and the gap after it.
pub(crate) fn wire_bytes(headers: &Headers, payload: u32) -> u32 {
    const PREAMBLE_AND_GAP: u32 = 20;
    const ETHERNET_IP_UDP: u32 = 14 + 20 + 8;
    const ICRC_AND_FCS: u32 = 8;
    let frame = ETHERNET_IP_UDP + headers.len() as u32 + payload.next_multiple_of(4) + ICRC_AND_FCS;
    frame.max(64) + PREAMBLE_AND_GAP
}
