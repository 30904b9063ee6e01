//! What a port answers itself, as nobody else does: counters to performance management (specification 16.1), and
//! "unsupported" to whatever else is asked or set.

use wire::mad::{MAD_LEN, MadHeader};

/// The counters of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the names are those of the specification's counters")]
pub struct Counters {
    /// In bytes.
    pub xmit_bytes: u64,
    /// In bytes.
    pub rcv_bytes: u64,
    pub xmit_packets: u64,
    pub rcv_packets: u64,
    pub multicast_xmit_packets: u64,
    pub multicast_rcv_packets: u64,
    pub rcv_errors: u64,
    pub xmit_discards: u64,
    pub rcv_constraint_errors: u64,
    pub link_downed: u64,
    pub xmit_wait: u64,
}

/// The attributes that are answered.
const PORT_COUNTERS: u16 = 0x12;
const PORT_COUNTERS_EXTENDED: u16 = 0x1d;

/// The capabilities: extended counters, and "all ports" as the number of a port.
const EXTENDED_WIDTH: u16 = 1 << 9;
const ALL_PORT_SELECT: u16 = 1 << 8;

/// Where the attributes of performance management begin.
const ATTRIBUTE_OFFSET: usize = 64;

/// The number that means all ports.
const ALL_PORTS: u8 = 0xff;

/// The answer to a request that no agent took; none if it asks nothing.
pub fn answer(bytes: &[u8; MAD_LEN], counters: impl FnOnce() -> Counters) -> Option<[u8; MAD_LEN]> {
    let (header, _) = MadHeader::parse(bytes).ok()?;
    if header.is_response() || !matches!(header.method, MadHeader::METHOD_GET | MadHeader::METHOD_SET) {
        return None;
    }
    let mut answer = *bytes;
    let status = performance(&header, &mut answer, counters).unwrap_or(MadHeader::STATUS_UNSUPPORTED);
    let answered = MadHeader { method: MadHeader::METHOD_GET_RESPONSE, status, ..header };
    answered.encode(&mut answer).ok()?;
    Some(answer)
}

/// Whether a request that no agent took asks for counters.
pub fn asks_for_counters(bytes: &[u8; MAD_LEN]) -> bool {
    let mut asked = false;
    answer(bytes, || {
        asked = true;
        Counters::default()
    });
    asked
}

/// Fills in an attribute of performance management; none if it is none that we have. Counters are not set: they are the
/// host's, and strangers may ask.
fn performance(header: &MadHeader, answer: &mut [u8; MAD_LEN], counters: impl FnOnce() -> Counters) -> Option<u16> {
    let is_ours = header.management_class == MadHeader::CLASS_PERFORMANCE && header.class_version == 1;
    if !is_ours || header.method != MadHeader::METHOD_GET {
        return None;
    }
    let data = answer.get_mut(ATTRIBUTE_OFFSET..)?;
    let mut writer = Fields { bytes: data, at: 0 };
    if header.attribute_id == MadHeader::ATTRIBUTE_CLASS_PORT_INFO {
        writer.clear();
        writer.put(&[1, 1]);
        writer.put(&(EXTENDED_WIDTH | ALL_PORT_SELECT).to_be_bytes());
        // No more capabilities; an answer comes within 4.096 us times 2 to the 18th.
        writer.put(&[0, 0, 0, 18]);
        return Some(0);
    }
    let &[_, port, select @ ..] = writer.bytes.first_chunk::<4>()?;
    if !matches!(header.attribute_id, PORT_COUNTERS | PORT_COUNTERS_EXTENDED) {
        return None;
    }
    if port != 1 && port != ALL_PORTS {
        return Some(MadHeader::STATUS_INVALID_FIELD);
    }
    let counters = counters();
    writer.clear();
    writer.put(&[0, port]);
    writer.put(&select);
    match header.attribute_id {
        PORT_COUNTERS => short(&mut writer, &counters),
        _ => extended(&mut writer, &counters),
    }
    Some(0)
}

/// The counters of old, which stop at their largest value.
fn short(writer: &mut Fields<'_>, counters: &Counters) {
    let byte = |value: u64| [value.min(0xff) as u8];
    let half = |value: u64| (value.min(0xffff) as u16).to_be_bytes();
    let word = |value: u64| (value.min(0xffff_ffff) as u32).to_be_bytes();
    // Symbol errors, recoveries of the link.
    writer.put(&[0, 0, 0]);
    writer.put(&byte(counters.link_downed));
    writer.put(&half(counters.rcv_errors));
    // Physical errors elsewhere, errors of switches.
    writer.put(&[0; 4]);
    writer.put(&half(counters.xmit_discards));
    writer.put(&byte(0));
    writer.put(&byte(counters.rcv_constraint_errors));
    // Reserved; integrity and overruns of the link; reserved; dropped in virtual lane 15.
    writer.put(&[0; 6]);
    writer.put(&word(counters.xmit_bytes / 4));
    writer.put(&word(counters.rcv_bytes / 4));
    writer.put(&word(counters.xmit_packets));
    writer.put(&word(counters.rcv_packets));
    writer.put(&word(counters.xmit_wait));
}

/// Those of 64 bits.
fn extended(writer: &mut Fields<'_>, counters: &Counters) {
    writer.put(&[0; 4]);
    let Counters { xmit_packets, rcv_packets, multicast_xmit_packets, multicast_rcv_packets, .. } = *counters;
    for value in [
        counters.xmit_bytes / 4,
        counters.rcv_bytes / 4,
        xmit_packets,
        rcv_packets,
        xmit_packets.saturating_sub(multicast_xmit_packets),
        rcv_packets.saturating_sub(multicast_rcv_packets),
        multicast_xmit_packets,
        multicast_rcv_packets,
    ] {
        writer.put(&value.to_be_bytes());
    }
}

/// Fields one after the other.
struct Fields<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Fields<'_> {
    fn clear(&mut self) {
        self.bytes.fill(0);
    }

    fn put(&mut self, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + value.len()) {
            place.copy_from_slice(value);
        }
        self.at += value.len();
    }
}
