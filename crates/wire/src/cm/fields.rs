//! Messages whose fields stand one after the other in whole bytes: declared once, and read and written by that.

use super::{ApStatus, CommId, Data, ReceivedMessage, ServiceId, SidrStatus};
use crate::cursor::{Reader, Writer};
use crate::{EncodeError, ParseError, Pkey, Qkey, Qpn, Timeout};

/// A field of such a message. What has fewer bits stands in the high ones, and the others are reserved.
pub(super) trait Field: Sized {
    fn read(reader: &mut Reader<'_>) -> Result<Self, ParseError>;
    fn write(self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// Fields of one number: its width, how the field is made of it, and what number it is.
macro_rules! numbers {
    ($($field:ty: $width:ident, $make:expr, $value:expr;)*) => {$(
        impl Field for $field {
            fn read(reader: &mut Reader<'_>) -> Result<$field, ParseError> {
                reader.$width().map($make)
            }

            fn write(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                writer.$width($value(self))
            }
        }
    )*};
}

numbers! {
    u8: u8, u8::from, u8::from;
    Pkey: u16, Pkey::new, Pkey::value;
    CommId: u32, CommId::new, CommId::value;
    Qkey: u32, Qkey::new, Qkey::value;
    Qpn: u32, |word| Qpn::new(word >> 8), |qpn: Qpn| qpn.value() << 8;
    ServiceId: u64, ServiceId::new, ServiceId::value;
    Timeout: u8, |byte| Timeout::new(byte >> 3), |timeout: Timeout| timeout.value() << 3;
    ReceivedMessage: u8, |byte| ReceivedMessage::from_code(byte >> 6), |kind: ReceivedMessage| kind.code() << 6;
    SidrStatus: u8, SidrStatus::from_code, SidrStatus::code;
    ApStatus: u8, ApStatus::from_code, ApStatus::code;
}

impl<const N: usize> Field for Data<N> {
    fn read(reader: &mut Reader<'_>) -> Result<Data<N>, ParseError> {
        reader.array().map(Data::new)
    }

    fn write(self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.array(*self.bytes())
    }
}

/// Declares a message by its fields, in their order on the wire; `then N reserved` bytes may follow one.
macro_rules! message {
    ($(#[$doc:meta])* $message:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty $(, then $reserved:literal reserved)?;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $message {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $message {
            /// Reads it from the front of `body`.
            pub fn parse(body: &[u8]) -> Result<$message, crate::ParseError> {
                let header = crate::Header::Cm(super::MessageKind::$message);
                let mut reader = crate::cursor::Reader::new(header, super::BODY_LEN, body)?;
                $(
                    let $field = super::fields::Field::read(&mut reader)?;
                    $(let _reserved: [u8; $reserved] = reader.array()?;)?
                )*
                Ok($message { $($field),* })
            }

            /// Writes it to the front of `out`; returns its length.
            pub fn encode(&self, out: &mut [u8]) -> Result<usize, crate::EncodeError> {
                let header = crate::Header::Cm(super::MessageKind::$message);
                let mut writer = crate::cursor::Writer::new(header, super::BODY_LEN, out)?;
                $(
                    super::fields::Field::write(self.$field, &mut writer)?;
                    $(writer.array([0; $reserved])?;)?
                )*
                Ok(writer.finish())
            }
        }
    };
}

pub(super) use message;
