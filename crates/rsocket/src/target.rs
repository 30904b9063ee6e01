//! Places in memory, as the two sides tell each other of them.

use wire::Key;

/// Where something begins, and the key to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    /// The first byte.
    pub address: u64,
    /// The key.
    pub key: Key,
}

/// A piece of memory that may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Target {
    /// Where it begins, and the key.
    pub place: Span,
    /// How many bytes it has.
    pub length: u32,
}

/// In which order a side keeps the bytes of its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ByteOrder {
    Big,
    Little,
}

impl ByteOrder {
    /// This machine's.
    pub const HERE: ByteOrder = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

    fn u64(self, value: u64) -> [u8; 8] {
        match self {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        }
    }

    fn u32(self, value: u32) -> [u8; 4] {
        match self {
            ByteOrder::Big => value.to_be_bytes(),
            ByteOrder::Little => value.to_le_bytes(),
        }
    }

    pub fn put_u64(self, out: &mut [u8], at: usize, value: u64) {
        put(out, at, &self.u64(value));
    }

    pub fn get_u64(self, bytes: &[u8], at: usize) -> u64 {
        let raw = get::<8>(bytes, at);
        match self {
            ByteOrder::Big => u64::from_be_bytes(raw),
            ByteOrder::Little => u64::from_le_bytes(raw),
        }
    }

    fn get_u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = get::<4>(bytes, at);
        match self {
            ByteOrder::Big => u32::from_be_bytes(raw),
            ByteOrder::Little => u32::from_le_bytes(raw),
        }
    }
}

/// Copies `bytes` to `out[at..]`, as far as there is room.
pub(crate) fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// The bytes at `at`; zeros where there are none.
pub(crate) fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|found| found.try_into().ok()).unwrap_or([0; N])
}

impl Target {
    /// Bytes of an entry of a list of targets.
    pub const LENGTH: usize = 16;

    pub(crate) fn encode(&self, order: ByteOrder) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        order.put_u64(&mut out, 0, self.place.address);
        put(&mut out, 8, &order.u32(self.place.key.value()));
        put(&mut out, 12, &order.u32(self.length));
        out
    }

    pub(crate) fn decode(order: ByteOrder, bytes: &[u8]) -> Target {
        let place = Span { address: order.get_u64(bytes, 0), key: Key::new(order.get_u32(bytes, 8)) };
        Target { place, length: order.get_u32(bytes, 12) }
    }
}
