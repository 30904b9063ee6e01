//! How a report is written down: numbers in little-endian order, texts and lists behind their length. Readers take
//! nothing for granted: what is read comes as a stream, a length that is told allocates nothing, and records are counted
//! against a [`Reader`]'s allowance.

use std::io::{self, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use transport::Counters;
use transport::packet_counters::{EngineWakes, Incidents, Traffic};

/// The longest text: why a queue pair stopped.
const MAX_TEXT: usize = 160;

/// Numbers of one kind that a version of this program may count.
const MAX_COUNTED: u32 = 256;

/// Something that can be written down and read again.
pub trait Field: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes what comes next; none if that is not one.
    fn take(from: &mut Reader<'_>) -> Option<Self>;
}

/// Where records are read from, and how many of them may be.
#[derive(Debug)]
pub struct Reader<'a> {
    source: BufReader<Source<'a>>,
    /// Records that may still be read.
    pub allowance: usize,
}

struct Source<'a>(&'a mut dyn Read);

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl std::fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Source")
    }
}

impl<'a> Reader<'a> {
    /// Reads so many records at most.
    pub fn new(source: &'a mut dyn Read, allowance: usize) -> Reader<'a> {
        Reader { source: BufReader::with_capacity(64 << 10, Source(source)), allowance }
    }

    /// Whether that was all.
    pub fn is_at_end(&mut self) -> bool {
        self.chunk::<1>().is_none()
    }

    pub(crate) fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(from: &mut Reader<'_>) -> Option<$type> {
                from.chunk().map(<$type>::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64);

impl Field for [u8; 16] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(from: &mut Reader<'_>) -> Option<[u8; 16]> {
        from.chunk()
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        let text = &self[..self.floor_char_boundary(MAX_TEXT)];
        (text.len() as u16).put(out);
        out.extend(text.as_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Option<String> {
        let length = usize::from(u16::take(from)?);
        let mut text = [0; MAX_TEXT];
        let text = text.get_mut(..length)?;
        from.source.read_exact(text).ok()?;
        str::from_utf8(text).ok().map(str::to_owned)
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(self.is_some()).put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(from: &mut Reader<'_>) -> Option<Option<T>> {
        match u8::take(from)? {
            0 => Some(None),
            1 => T::take(from).map(Some),
            _ => None,
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    /// A list grows as it is read, so that its length alone costs nothing.
    fn take(from: &mut Reader<'_>) -> Option<Vec<T>> {
        let count = u32::take(from)?;
        let mut items = Vec::new();
        for _ in 0..count {
            from.allowance = from.allowance.checked_sub(1)?;
            items.push(T::take(from)?);
        }
        Some(items)
    }
}

impl Field for SocketAddr {
    fn put(&self, out: &mut Vec<u8>) {
        match self.ip() {
            IpAddr::V4(ip) => {
                4_u8.put(out);
                out.extend(ip.octets());
            }
            IpAddr::V6(ip) => {
                6_u8.put(out);
                out.extend(ip.octets());
            }
        }
        self.port().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Option<SocketAddr> {
        let ip: IpAddr = match u8::take(from)? {
            4 => from.chunk::<4>()?.into(),
            6 => from.chunk::<16>()?.into(),
            _ => return None,
        };
        u16::take(from).map(|port| SocketAddr::new(ip, port))
    }
}

/// Another version of this program may count more, or less: what is missing is 0.
impl Field for Counters {
    fn put(&self, out: &mut Vec<u8>) {
        self.traffic.values().collect::<Vec<_>>().put(out);
        self.incidents.values().collect::<Vec<_>>().put(out);
        // Queue pairs have none.
        let engine_wakes = (self.engine_wakes != EngineWakes::default()).then_some(self.engine_wakes);
        engine_wakes.iter().flat_map(EngineWakes::values).collect::<Vec<_>>().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Option<Counters> {
        let traffic = Traffic::from_values(&mut numbers(from)?.into_iter());
        let incidents = Incidents::from_values(&mut numbers(from)?.into_iter());
        let engine_wakes = EngineWakes::from_values(&mut numbers(from)?.into_iter());
        Some(Counters { traffic, incidents, engine_wakes })
    }
}

/// Numbers, which are no records.
fn numbers(from: &mut Reader<'_>) -> Option<Vec<u64>> {
    let count = u32::take(from).filter(|count| *count <= MAX_COUNTED)?;
    (0..count).map(|_| u64::take(from)).collect()
}

/// Structures whose fields are written one after the other.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::encoding::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(from: &mut $crate::encoding::Reader<'_>) -> Option<$name> {
                Some($name { $($field: $crate::encoding::Field::take(from)?,)* })
            }
        }
    )*};
}

pub(crate) use records;
