//! How a report is written down: numbers in little-endian order, texts and lists behind their length. Readers take
//! nothing for granted.

use std::net::{IpAddr, SocketAddr};
use transport::Counters;
use transport::packet_counters::{Incidents, Traffic};

/// Something that can be written down and read again.
pub trait Field: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes it from the front; none if that is not one.
    fn take(bytes: &mut &[u8]) -> Option<Self>;
}

fn chunk<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Field for $type {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn take(bytes: &mut &[u8]) -> Option<$type> {
                chunk(bytes).map(<$type>::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64);

impl Field for [u8; 16] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend(self);
    }

    fn take(bytes: &mut &[u8]) -> Option<[u8; 16]> {
        chunk(bytes)
    }
}

impl Field for String {
    fn put(&self, out: &mut Vec<u8>) {
        let bytes = self.as_bytes();
        let bytes = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
        (bytes.len() as u16).put(out);
        out.extend(bytes);
    }

    fn take(bytes: &mut &[u8]) -> Option<String> {
        let length = usize::from(u16::take(bytes)?);
        let (text, rest) = bytes.split_at_checked(length)?;
        *bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

impl<T: Field> Field for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(self.is_some()).put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(bytes: &mut &[u8]) -> Option<Option<T>> {
        match u8::take(bytes)? {
            0 => Some(None),
            1 => T::take(bytes).map(Some),
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
    fn take(bytes: &mut &[u8]) -> Option<Vec<T>> {
        let count = u32::take(bytes)?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::take(bytes)?);
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

    fn take(bytes: &mut &[u8]) -> Option<SocketAddr> {
        let ip: IpAddr = match u8::take(bytes)? {
            4 => chunk::<4>(bytes)?.into(),
            6 => chunk::<16>(bytes)?.into(),
            _ => return None,
        };
        u16::take(bytes).map(|port| SocketAddr::new(ip, port))
    }
}

/// Another version of this program may count more, or less: what is missing is 0.
impl Field for Counters {
    fn put(&self, out: &mut Vec<u8>) {
        self.traffic.values().collect::<Vec<_>>().put(out);
        self.incidents.values().collect::<Vec<_>>().put(out);
    }

    fn take(bytes: &mut &[u8]) -> Option<Counters> {
        let traffic = Traffic::from_values(&mut Vec::take(bytes)?.into_iter());
        let incidents = Incidents::from_values(&mut Vec::take(bytes)?.into_iter());
        Some(Counters { traffic, incidents })
    }
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

            fn take(bytes: &mut &[u8]) -> Option<$name> {
                Some($name { $($field: $crate::encoding::Field::take(bytes)?,)* })
            }
        }
    )*};
}

pub(crate) use records;
