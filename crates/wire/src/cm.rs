//! The messages of connection management (specification chapter 12), one file each. A message is a plain struct with
//! every field of its table; reserved bits are dropped on the way in and zero on the way out. When to send which is not
//! known here.

use crate::mad::{MAD_LEN, MadHeader};
use crate::numbers::number;
use crate::{EncodeError, Header, ParseError};

mod alternate_path;
mod code;
mod data;
mod disconnect;
mod fields;
mod ip_cm;
mod mra;
mod path;
mod rej;
mod rep;
mod req;
mod rtu;
mod sidr;

pub use crate::message_kind::MessageKind;
pub use alternate_path::{ApStatus, Apr, Lap};
pub use data::Data;
pub use disconnect::{Drep, Dreq};
pub use ip_cm::{IpCm, PortSpace, ServiceId};
pub use mra::{Mra, ReceivedMessage};
pub use path::Path;
pub use rej::{Rej, RejectReason, RejectedMessage};
pub use rep::{Failover, Rep};
pub use req::{Req, TransportService};
pub use rtu::Rtu;
pub use sidr::{SidrRep, SidrReq, SidrStatus};

/// The length of a message behind the MAD header.
pub const BODY_LEN: usize = MAD_LEN - MadHeader::LEN;

/// The version of the class that these messages are of.
pub const CLASS_VERSION: u8 = 2;

number! {
    /// A communication id: how one side names a connection, or a request for a service id.
    CommId(u32), mask 0xffff_ffff, show "{:#x}", derive PartialOrd, derive Ord
}

/// A management datagram of connection management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CmDatagram {
    /// The header of the datagram.
    pub header: MadHeader,
    /// The message.
    pub message: Message,
}

impl CmDatagram {
    /// A datagram with this message; `transaction_id` is the sender's to choose.
    pub const fn new(transaction_id: u64, message: Message) -> CmDatagram {
        CmDatagram {
            header: MadHeader {
                base_version: MadHeader::BASE_VERSION,
                management_class: MadHeader::CLASS_CM,
                class_version: CLASS_VERSION,
                method: MadHeader::METHOD_SEND,
                status: 0,
                class_specific: 0,
                transaction_id,
                attribute_id: message.kind().attribute_id(),
                attribute_modifier: 0,
            },
            message,
        }
    }

    /// Reads a datagram, which is [`MAD_LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<CmDatagram, ParseError> {
        let (header, body) = MadHeader::parse(bytes)?;
        let checks = [
            ("base version", header.base_version, MadHeader::BASE_VERSION),
            ("class", header.management_class, MadHeader::CLASS_CM),
            ("class version", header.class_version, CLASS_VERSION),
            ("method", header.method, MadHeader::METHOD_SEND),
        ];
        for (field, value, expected) in checks {
            if value != expected {
                let (value, expected) = (value.into(), expected.into());
                return Err(ParseError::Unexpected { header: Header::Mad, field, value, expected });
            }
        }
        let kind = MessageKind::from_attribute_id(header.attribute_id)
            .ok_or(ParseError::UnknownAttribute(header.attribute_id))?;
        Ok(CmDatagram { header, message: Message::parse(kind, body)? })
    }

    /// Writes the datagram to the front of `out`; returns its length, [`MAD_LEN`]. The attribute id is the message's.
    pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        let header = MadHeader { attribute_id: self.message.kind().attribute_id(), ..self.header };
        let at = header.encode(out)?;
        Ok(at + self.message.encode(out.get_mut(at..).unwrap_or_default())?)
    }
}

/// Makes the enum of the messages and what goes through all of them.
macro_rules! messages {
    ($($message:ident),*) => {
        /// One message of connection management.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(clippy::large_enum_variant)] // every one is a datagram of the same size
        pub enum Message {
            $(#[doc = concat!("See [`MessageKind::", stringify!($message), "`].")] $message($message),)*
        }

        impl Message {
            /// Which message it is.
            pub const fn kind(&self) -> MessageKind {
                match self {
                    $(Message::$message(_) => MessageKind::$message,)*
                }
            }

            /// Reads the message `kind` from its [`BODY_LEN`] bytes.
            pub fn parse(kind: MessageKind, body: &[u8]) -> Result<Message, ParseError> {
                match kind {
                    $(MessageKind::$message => $message::parse(body).map(Message::$message),)*
                }
            }

            /// Writes the message to the front of `out`; returns its length, [`BODY_LEN`].
            pub fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
                match self {
                    $(Message::$message(message) => message.encode(out),)*
                }
            }
        }

        $(impl From<$message> for Message {
            fn from(message: $message) -> Message {
                Message::$message(message)
            }
        })*
    };
}

messages! { Req, Mra, Rej, Rep, Rtu, Dreq, Drep, SidrReq, SidrRep, Lap, Apr }
