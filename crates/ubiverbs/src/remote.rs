//! A peer's memory, by name.

use seam::Error;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use transport::Remote;
use wire::{Key, refuse_if};

/// Names bytes of a peer: the target of WRITEs, READs and atomic operations.
///
/// It comes from the peer's [`SharedRegion::remote_slice`](crate::SharedRegion::remote_slice), or that of a
/// [`DeviceRegion`](crate::DeviceRegion), as 24 bytes or as text, over whatever channel the two programs have. Holding
/// one gives no right by itself: the peer's NIC checks every access.
///
/// ```
/// # use ubiverbs::{Access, RemoteSlice};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let region = pd.share(100, Access::REMOTE_READ)?;
/// let there = RemoteSlice::from_bytes(&region.remote_slice().to_bytes())?;
/// assert_eq!(there.slice(10..30)?.len(), 20);
/// there.slice(90..101).unwrap_err();
/// // The same as text, for copying and pasting.
/// assert_eq!(there.to_string().parse::<RemoteSlice>()?, there);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteSlice {
    address: u64,
    length: u64,
    key: Key,
}

const SLICE_VERSION: u8 = 1;
const SLICE_NOUN: &str = "a remote slice";

impl RemoteSlice {
    /// How many bytes its encoding takes.
    pub const ENCODED: usize = 24;

    /// From the parts that other libraries exchange: address, length and R_Key.
    pub fn new(address: u64, length: u64, key: Key) -> RemoteSlice {
        // No memory reaches over the end of the address space, and nothing below must.
        RemoteSlice { address, length: length.min(u64::MAX - address), key }
    }

    /// The address of the first byte, as the peer counts.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The R_Key.
    pub fn key(&self) -> Key {
        self.key
    }

    /// A part of it.
    pub fn slice(&self, range: Range<u64>) -> Result<RemoteSlice, Error> {
        if range.start > range.end || range.end > self.length {
            let length = range.end.saturating_sub(range.start);
            return Err(Error::OutOfBounds { offset: range.start, length, size: self.length });
        }
        Ok(RemoteSlice { address: self.address + range.start, length: range.end - range.start, key: self.key })
    }

    /// Its encoding: version, three zeroes, key, address, length; all big-endian.
    pub fn to_bytes(&self) -> [u8; RemoteSlice::ENCODED] {
        let mut bytes = [0; RemoteSlice::ENCODED];
        bytes[0] = SLICE_VERSION;
        bytes[4..8].copy_from_slice(&self.key.value().to_be_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_be_bytes());
        bytes[16..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }

    /// Reads its encoding.
    pub fn from_bytes(bytes: &[u8]) -> Result<RemoteSlice, Error> {
        let bad = |why| Error::Encoding { what: SLICE_NOUN, why };
        let bytes: &[u8; RemoteSlice::ENCODED] = bytes.try_into().map_err(|_| bad("it is not 24 bytes long"))?;
        let [version, z0, z1, z2, rest @ ..] = *bytes;
        refuse_if!(version != SLICE_VERSION || [z0, z1, z2] != [0; 3], bad("its version is not known"));
        let [k0, k1, k2, k3, rest @ ..] = rest;
        let [a0, a1, a2, a3, a4, a5, a6, a7, length @ ..] = rest;
        let key = Key::new(u32::from_be_bytes([k0, k1, k2, k3]));
        let address = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let length = u64::from_be_bytes(length);
        refuse_if!(address.checked_add(length).is_none(), bad("it reaches beyond the end of the address space"));
        Ok(RemoteSlice { address, length, key })
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote { address: self.address, key: self.key }
    }
}

/// `address+length@key`, all in hexadecimal.
impl fmt::Display for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}@{:#x}", self.address, self.length, self.key.value())
    }
}

impl fmt::Debug for RemoteSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteSlice({self})")
    }
}

impl FromStr for RemoteSlice {
    type Err = Error;

    fn from_str(text: &str) -> Result<RemoteSlice, Error> {
        let bad = || Error::Encoding { what: SLICE_NOUN, why: "it should read like 0x7f0000001000+0x40@0x1234" };
        let number = |text: &str| {
            let digits = text.strip_prefix("0x").ok_or_else(bad)?;
            u64::from_str_radix(digits, 16).map_err(|_| bad())
        };
        let (address, rest) = text.trim().split_once('+').ok_or_else(bad)?;
        let (length, key) = rest.split_once('@').ok_or_else(bad)?;
        let (address, length) = (number(address)?, number(length)?);
        let key = u32::try_from(number(key)?).map_err(|_| bad())?;
        address.checked_add(length).ok_or_else(bad)?;
        Ok(RemoteSlice { address, length, key: Key::new(key) })
    }
}
