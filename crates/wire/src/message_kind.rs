//! Which messages of connection management there are. Errors name the message that they are about, so this stands below
//! what reads and writes messages.

use core::fmt;

/// Makes the enum and what goes through all of it.
macro_rules! kinds {
    ($($(#[$doc:meta])* $message:ident = $attribute:literal, $name:literal;)*) => {
        /// Which message it is.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum MessageKind {
            $($(#[$doc])* $message = $attribute,)*
        }

        impl MessageKind {
            /// Every one.
            pub const ALL: &'static [MessageKind] = &[$(MessageKind::$message),*];

            /// The message with this MAD attribute.
            pub const fn from_attribute_id(attribute: u16) -> Option<MessageKind> {
                match attribute {
                    $($attribute => Some(MessageKind::$message),)*
                    _ => None,
                }
            }

            /// Its name in the specification.
            pub const fn name(self) -> &'static str {
                match self {
                    $(MessageKind::$message => $name,)*
                }
            }

            pub(crate) const fn header_name(self) -> &'static str {
                match self {
                    $(MessageKind::$message => concat!("CM ", $name),)*
                }
            }
        }
    };
}

kinds! {
    /// Request for a connection.
    Req = 0x10, "REQ";
    /// Message receipt acknowledgement: the answer will take a while.
    Mra = 0x11, "MRA";
    /// Rejection.
    Rej = 0x12, "REJ";
    /// Reply to a request.
    Rep = 0x13, "REP";
    /// Ready to use.
    Rtu = 0x14, "RTU";
    /// Request to disconnect.
    Dreq = 0x15, "DREQ";
    /// Reply to a disconnection.
    Drep = 0x16, "DREP";
    /// Request for the queue pair behind a service id.
    SidrReq = 0x17, "SIDR_REQ";
    /// Reply to a service id resolution.
    SidrRep = 0x18, "SIDR_REP";
    /// Load alternate path.
    Lap = 0x19, "LAP";
    /// Alternate path response.
    Apr = 0x1a, "APR";
}

impl MessageKind {
    /// The MAD attribute that announces it.
    pub const fn attribute_id(self) -> u16 {
        self as u16
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
