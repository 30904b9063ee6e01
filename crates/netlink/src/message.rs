//! Messages and attributes as bytes, in the byte order of the machine. A message is a header of 16 bytes and
//! attributes; an attribute is its length, its type and its value; both are filled up to multiples of four.

/// The length of a message's header.
pub const MESSAGE_HEADER_BYTES: usize = 16;

/// A message is no longer than this: programs read into a page, and what does not fit is lost to them.
pub const MAX_MESSAGE_BYTES: usize = 3840;

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Its length with the header.
    pub length: u32,
    /// Its type.
    pub kind: u16,
    /// Flags.
    pub flags: u16,
    /// The number that its answers carry.
    pub sequence: u32,
    /// The sender's port.
    pub port: u32,
}

impl Header {
    /// The header in front of some bytes; none if there are too few, or it is longer than they are.
    pub fn parse(bytes: &[u8]) -> Option<Header> {
        let (header, _) = bytes.split_first_chunk::<MESSAGE_HEADER_BYTES>()?;
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *header;
        let length = u32::from_ne_bytes([a, b, c, d]);
        let fits = (MESSAGE_HEADER_BYTES..=bytes.len()).contains(&(length as usize));
        fits.then_some(Header {
            length,
            kind: u16::from_ne_bytes([e, f]),
            flags: u16::from_ne_bytes([g, h]),
            sequence: u32::from_ne_bytes([i, j, k, l]),
            port: u32::from_ne_bytes([m, n, o, p]),
        })
    }
}

/// Rounds up to a multiple of four.
pub const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// A message being written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message(Vec<u8>);

impl Message {
    /// A message with nothing in it yet.
    pub fn new(kind: u16, flags: u16, sequence: u32, port: u32) -> Message {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        Message(bytes)
    }

    /// Appends bytes that are no attribute.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Message {
        self.0.extend(bytes);
        self.0.resize(aligned(self.0.len()), 0);
        self
    }

    /// Appends an attribute.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Message {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.raw(value)
    }

    /// Appends a byte.
    pub fn u8(&mut self, kind: u16, value: u8) -> &mut Message {
        self.bytes(kind, &[value])
    }

    /// Appends a number of 32 bits.
    pub fn u32(&mut self, kind: u16, value: u32) -> &mut Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a number of 64 bits.
    pub fn u64(&mut self, kind: u16, value: u64) -> &mut Message {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a text, with the zero behind it; one that has a zero in it ends there.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Message {
        let text = value.split('\0').next().unwrap_or_default();
        self.bytes(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Appends an attribute of attributes.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Message)) -> &mut Message {
        let at = self.0.len();
        self.bytes(kind, &[]);
        fill(self);
        let length = (self.0.len() - at) as u16;
        if let Some(place) = self.0.get_mut(at..at + 2) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        self
    }

    /// How long it is so far.
    pub fn length(&self) -> usize {
        self.0.len()
    }

    /// What it has after its header.
    pub fn attributes(&self) -> &[u8] {
        self.0.get(MESSAGE_HEADER_BYTES..).unwrap_or_default()
    }

    /// The message, with its length.
    pub fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        if let Some(place) = self.0.get_mut(..4) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        self.0
    }
}

/// The attributes in some bytes: type and value. What does not fit ends them, as in the kernel.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        /// Says that it is of attributes, or of numbers in network order.
        const FLAGS: u16 = 0xc000;
        let (&[a, b, c, d], _) = self.0.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & !FLAGS, value))
    }
}
