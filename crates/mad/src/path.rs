//! The way to an address, for programs that ask subnet administration for it. RoCE has no subnet administrator and no
//! LIDs. Programs such as `ibping` know only LIDs, or a port's GUID that they have an administrator turn into a LID;
//! on a kernel's RoCE port their question is refused, and they reach nobody. Here the port answers its own programs:
//! a GID gets a LID, which means something to this process only, and what is sent to that LID goes to the GID. The
//! port does not say that it has an administrator (`sm_lid` is 0, as on all RoCE): a program must be told to ask one,
//! at any LID.

use alloc::vec::Vec;
use core::net::Ipv6Addr;
use wire::Gid;
use wire::mad::{MAD_LEN, MadHeader};

/// LIDs that are given out.
const MAX_LIDS: usize = 4096;

/// The attribute of a path, and the version of the class.
const PATH_RECORD: u16 = 0x35;
const CLASS_VERSION: u8 = 2;

/// The bit of the component mask for the destination.
const DESTINATION_BIT: u64 = 1 << 2;

/// The status of a question that says too little: of subnet administration, "invalid request".
const INVALID_REQUEST: u16 = 2 << 8;
/// "No resources", and "no records".
const NO_RESOURCES: u16 = 1 << 8;

/// Where things are in a datagram of subnet administration.
const ATTRIBUTE_OFFSET: usize = 44;
const COMPONENT_MASK_OFFSET: usize = 48;
const RECORD_OFFSET: usize = 56;

/// The addresses that have a LID.
#[derive(Debug, Default)]
pub struct Lids(Vec<Gid>);

impl Lids {
    /// The address behind a LID.
    pub fn gid(&self, lid: u16) -> Option<Gid> {
        self.0.get(usize::from(lid).checked_sub(1)?).copied()
    }

    /// The LID of an address, which gets one if it has none; none if all are given out.
    pub fn lid(&mut self, gid: Gid) -> Option<u16> {
        let at = self.0.iter().position(|known| *known == gid).or_else(|| {
            (self.0.len() < MAX_LIDS).then(|| {
                self.0.push(gid);
                self.0.len() - 1
            })
        })?;
        u16::try_from(at + 1).ok()
    }
}

/// The address that a GID means. A program that builds one from a GUID puts the prefix of its own port before it, or
/// the one of link-local addresses: the GUID of an IPv4 address, which begins with `0000:ffff` as no other does, is
/// then not recognised as one.
fn meant(gid: Gid) -> Gid {
    let low = gid.octets().last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    match low >> 32 == 0xffff {
        true => Gid::from_ipv6(Ipv6Addr::from_bits(low.into())),
        false => gid,
    }
}

/// The answer to a question to subnet administration.
pub fn answer(lids: &mut Lids, bytes: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let (header, _) = MadHeader::parse(bytes).ok()?;
    if header.management_class != MadHeader::CLASS_SUBNET_ADMINISTRATION || header.is_response() {
        return None;
    }
    let mut answer = *bytes;
    let number = |at: usize| bytes.get(at..at + 8)?.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes));
    let gid = |at: usize| bytes.get(at..at + 16)?.first_chunk::<16>().map(|bytes| Gid::new(*bytes));
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = answer.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    let asks = header.method == MadHeader::METHOD_GET && header.attribute_id == PATH_RECORD;
    let status = match (asks, header.class_version) {
        (true, CLASS_VERSION) if number(COMPONENT_MASK_OFFSET)? & DESTINATION_BIT != 0 => {
            let destination = meant(gid(RECORD_OFFSET + 8)?);
            match lids.lid(destination) {
                Some(_) if destination.is_zero() || destination.is_multicast() => INVALID_REQUEST,
                Some(lid) => {
                    put(RECORD_OFFSET + 8, &destination.octets());
                    put(RECORD_OFFSET + 40, &lid.to_be_bytes());
                    // No LID of our own; 64 hops; reversible, one path; the default partition; 4096 bytes and 100
                    // Gbit/s exactly, and no time of its own.
                    put(RECORD_OFFSET + 42, &[0, 0, 0, 0, 0, 64, 0, 0x81, 0xff, 0xff, 0, 0, 0x85, 0x90, 0x80, 0]);
                    put(ATTRIBUTE_OFFSET, &8u16.to_be_bytes());
                    0
                }
                None => NO_RESOURCES,
            }
        }
        (true, CLASS_VERSION) => INVALID_REQUEST,
        _ => MadHeader::STATUS_UNSUPPORTED,
    };
    put(3, &[header.method | MadHeader::RESPONSE]);
    if header.method == MadHeader::METHOD_SET {
        put(3, &[MadHeader::METHOD_GET_RESPONSE]);
    }
    put(4, &status.to_be_bytes());
    Some(answer)
}
