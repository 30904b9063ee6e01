//! What JSON says of every event, in tables that serve both directions: what [`JsonLines`](crate::JsonLines) writes,
//! [`JsonReader`](crate::JsonReader) reads. The names are a promise; `json_lines` documents them.

use std::fmt::Display;
use std::string::String;
use std::vec::Vec;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Map, Value as Json};
use wire::access::{Access, Range, Refusal, RefusalCause};
use wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Headers, Key, Msn, NakCode, Opcode, Pkey, Placement, Psn, Qkey,
    Qpn, Reth, Selectivity, Srqn, Syndrome,
};

use crate::call::{Call, Piece, Pieces};
use crate::event::Kind;
use crate::failure::Failure;
use crate::peer_reason::PeerReason;
use crate::reason::{ConnectionEnd, DropReason, Queue, RequestFault, RetryCause, StateCause, Timer, WindowCause};
use crate::tables::{with_numbers, with_structures, with_variants, with_words};
use crate::text::Text;
use crate::words::intern;

/// An object that was read.
pub(crate) struct Object<'a>(pub &'a Map<String, Json>);

impl<'a> Object<'a> {
    pub fn value(&self, name: &str) -> Option<&'a Json> {
        self.0.get(name)
    }

    pub fn word(&self, name: &str) -> Option<&'a str> {
        self.value(name)?.as_str()
    }

    /// A field that must be there, or may be absent if `T` is an `Option`.
    pub fn get<T: Field>(&self, name: &str) -> Option<T> {
        T::read(self, name)
    }
}

/// A type that a field of an object may have. Some add fields beside their own, or others in its place.
pub(crate) trait Field: Sized {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error>;

    /// `None` where the object has no such field of this type.
    fn read(object: &Object<'_>, name: &str) -> Option<Self>;
}

/// A type that has fields itself.
pub(crate) trait Fields: Sized {
    fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error>;

    /// `None` where one is missing or of another type.
    fn read_fields(object: &Object<'_>) -> Option<Self>;
}

/// Types whose fields are named in JSON as they are here.
macro_rules! structures {
    ($( $Type:ident { $( $field:ident ),+ } )+) => {$(
        impl Fields for $Type {
            fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
                $( self.$field.write(stringify!($field), object)?; )+
                Ok(())
            }

            fn read_fields(object: &Object<'_>) -> Option<Self> {
                Some(Self { $( $field: object.get(stringify!($field))? ),+ })
            }
        }
    )+};
}

/// The name of a field in JSON: another one where the table has it.
macro_rules! field_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// Types whose variants have a name, which stands in the field `$tag`, and fields. `text` adds the sentence of a field,
/// or of the whole, for people; it is not read.
macro_rules! variants {
    ($(
        $Type:ident by $tag:literal $(and $whole:literal)? {
            $( $word:literal =>
                $Variant:ident $({ $( $field:ident $(as $name:literal)? ),+ })? $(( $inner:ident ))? $(text $shown:ident)?,
            )+
        }
    )+) => {$(
        impl Fields for $Type {
            fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
                object.serialize_entry($tag, self.name())?;
                match self {
                    $( Self::$Variant $({ $( $field ),+ })? $(( $inner ))? => {
                        $( $( $field.write(field_name!($field $($name)?), object)?; )+ )?
                        $( $inner.write(stringify!($inner), object)?; )?
                        $( object.serialize_entry("text", &Shown($shown))?; )?
                    } )+
                }
                $( object.serialize_entry($whole, &Shown(self))?; )?
                Ok(())
            }

            fn read_fields(object: &Object<'_>) -> Option<Self> {
                Some(match object.word($tag)? {
                    $( $word => {
                        $( $( let $field = object.get(field_name!($field $($name)?))?; )+ )?
                        $( let $inner = object.get(stringify!($inner))?; )?
                        Self::$Variant $({ $( $field ),+ })? $(( $inner ))?
                    } )+
                    _ => return None,
                })
            }
        }
    )+};
}

/// Types with fields that are objects of their own in JSON.
macro_rules! nested {
    ($($Type:ident),+ $(,)?) => {
        $(impl Field for $Type {
            fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
                object.serialize_entry(name, &Nested(self))
            }

            fn read(object: &Object<'_>, name: &str) -> Option<Self> {
                Self::read_fields(&Object(object.value(name)?.as_object()?))
            }
        })+
    };
}

/// Types with fields that stand among those of the object they are in.
macro_rules! flat {
    ($($Type:ident),+ $(,)?) => {
        $(impl Field for $Type {
            fn write<M: SerializeMap>(&self, _: &'static str, object: &mut M) -> Result<(), M::Error> {
                self.write_fields(object)
            }

            fn read(object: &Object<'_>, _: &str) -> Option<Self> {
                Self::read_fields(object)
            }
        })+
    };
}

/// Words of a closed list.
macro_rules! words {
    ($($Type:ident),+ $(,)?) => {
        $(impl Field for $Type {
            fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
                object.serialize_entry(name, self.name())
            }

            fn read(object: &Object<'_>, name: &str) -> Option<Self> {
                Self::named(object.word(name)?)
            }
        })+
    };
}

/// Types that are numbers in JSON: how they are made of one, and what number they are.
macro_rules! numbers {
    ($($Type:ty => $make:expr, $value:expr;)+) => {
        $(impl Field for $Type {
            fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
                object.serialize_entry(name, &$value(*self))
            }

            fn read(object: &Object<'_>, name: &str) -> Option<Self> {
                Some($make(object.value(name)?.as_u64()?.try_into().ok()?))
            }
        })+
    };
}

with_variants!(variants);

with_structures!(structures);

nested! { Headers, Deth, Reth, Feth, AtomicEth, Aeth, AtomicAckEth, Failure, PeerReason, Refusal, Pieces }
flat! { StateCause, RefusalCause, Range, Call, Syndrome }
with_words!(words);

with_numbers!(numbers);

impl<T: Field> Field for Option<T> {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        self.as_ref().map_or(Ok(()), |value| value.write(name, object))
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        if object.value(name).is_some() { T::read(object, name).map(Some) } else { Some(None) }
    }
}

impl Field for bool {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry(name, self)
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        object.value(name)?.as_bool()
    }
}

impl Field for i32 {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry(name, self)
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        object.value(name)?.as_i64()?.try_into().ok()
    }
}

impl Field for &'static str {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry(name, self)
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        intern(object.word(name)?)
    }
}

impl Field for Access {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry(name, &Shown(self))
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        let mut rights = Access::empty();
        for name in object.word(name)?.split('|').take(32) {
            rights |= match name.strip_prefix("0x") {
                Some(bits) => Access::from_bits_retain(u32::from_str_radix(bits, 16).ok()?),
                None if name == "LOCAL_READ" => Access::empty(),
                None => Access::from_name(name)?,
            };
        }
        Some(rights)
    }
}

impl Fields for Syndrome {
    fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry("syndrome", &self.byte())?;
        object.serialize_entry("text", &Shown(self))
    }

    fn read_fields(object: &Object<'_>) -> Option<Self> {
        object.get("syndrome").map(Self::from_byte)
    }
}

impl Fields for RefusalCause {
    fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry("cause", self.name())?;
        match self {
            Self::OutOfBounds { start, length } => {
                start.write("region_start", object)?;
                length.write("region_length", object)
            }
            Self::GpuFailed { error } => error.write("gpu_error", object),
            _ => Ok(()),
        }
    }

    fn read_fields(object: &Object<'_>) -> Option<Self> {
        let name = object.word("cause")?;
        Some(match Self::ALL.iter().find(|cause| cause.name() == name)? {
            Self::OutOfBounds { .. } => {
                Self::OutOfBounds { start: object.get("region_start")?, length: object.get("region_length")? }
            }
            Self::GpuFailed { .. } => Self::GpuFailed { error: object.get("gpu_error")? },
            cause => *cause,
        })
    }
}

/// The headers of a packet; only what is there, and of the flags those that are set.
impl Fields for Headers {
    fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        let Self { bth, xrc, deth, feth, reth, atomic, aeth, atomic_ack, immediate, invalidate } = self;
        object.serialize_entry("opcode", bth.opcode.name())?;
        bth.dest_qpn.write("dest_qpn", object)?;
        bth.psn.write("psn", object)?;
        bth.pkey.write("pkey", object)?;
        let flags = [("ack_req", bth.ack_req), ("solicited", bth.solicited), ("fecn", bth.fecn), ("becn", bth.becn)];
        for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
            true.write(name, object)?;
        }
        xrc.write("xrc_srqn", object)?;
        deth.write("deth", object)?;
        feth.write("feth", object)?;
        reth.write("reth", object)?;
        atomic.write("atomic", object)?;
        aeth.write("aeth", object)?;
        atomic_ack.write("atomic_ack", object)?;
        immediate.write("immediate", object)?;
        invalidate.write("invalidate", object)
    }

    fn read_fields(object: &Object<'_>) -> Option<Self> {
        let name = object.word("opcode")?;
        let opcode = *Opcode::ALL.iter().find(|opcode| opcode.name() == name)?;
        let flag = |name| object.get::<Option<bool>>(name).map(Option::unwrap_or_default);
        Some(Self {
            bth: Bth {
                pkey: object.get("pkey")?,
                ack_req: flag("ack_req")?,
                solicited: flag("solicited")?,
                fecn: flag("fecn")?,
                becn: flag("becn")?,
                ..Bth::new(opcode, object.get("dest_qpn")?, object.get("psn")?)
            },
            xrc: object.get("xrc_srqn")?,
            deth: object.get("deth")?,
            feth: object.get("feth")?,
            reth: object.get("reth")?,
            atomic: object.get("atomic")?,
            aeth: object.get("aeth")?,
            atomic_ack: object.get("atomic_ack")?,
            immediate: object.get("immediate")?,
            invalidate: object.get("invalidate")?,
        })
    }
}

impl Fields for Call {
    fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry("call", self.name())?;
        self.write_arguments(object)
    }

    fn read_fields(object: &Object<'_>) -> Option<Self> {
        Self::read(object.word("call")?, object)
    }
}

impl<const N: usize> Field for Text<N> {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry(name, self.as_str())
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        object.word(name).map(Text::of)
    }
}

/// A GID, in 32 digits.
impl Field for [u8; 16] {
    fn write<M: SerializeMap>(&self, name: &'static str, object: &mut M) -> Result<(), M::Error> {
        object.serialize_entry(name, &Shown(format_args!("{:032x}", u128::from_be_bytes(*self))))
    }

    fn read(object: &Object<'_>, name: &str) -> Option<Self> {
        let text = object.word(name)?;
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32)?;
        Some(number.to_be_bytes())
    }
}

impl Fields for Pieces {
    fn write_fields<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        self.count.write("count", object)?;
        self.bytes.write("bytes", object)?;
        let list: Vec<_> = self.kept().iter().map(|piece| (piece.address, piece.length, piece.key.value())).collect();
        object.serialize_entry("list", &list)
    }

    fn read_fields(object: &Object<'_>) -> Option<Self> {
        let list = object.value("list")?.as_array()?;
        let (count, bytes): (u32, u64) = (object.get("count")?, object.get("bytes")?);
        let mut pieces: Pieces = list
            .iter()
            .take(count.min(Pieces::KEPT_PIECES) as usize)
            .map(|piece| {
                let [address, length, key] = piece.as_array()?.as_slice() else { return None };
                let number = |value: &Json| value.as_u64()?.try_into().ok();
                Some(Piece { address: address.as_u64()?, length: number(length)?, key: Key::new(number(key)?) })
            })
            .collect::<Option<Pieces>>()?;
        (pieces.count, pieces.bytes) = (count, bytes);
        Some(pieces)
    }
}

/// Serializes as an object of its own.
struct Nested<'a, T>(&'a T);

impl<T: Fields> Serialize for Nested<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.0.write_fields(&mut map)?;
        map.end()
    }
}

/// Serializes as the text a person would see.
struct Shown<T>(T);

impl<T: Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}
