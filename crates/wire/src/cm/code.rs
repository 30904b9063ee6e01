//! Code tables of the messages: an enum of the assigned codes that keeps any other as it came.

/// Defines an enum over the codes of a field of `$bits` bits.
macro_rules! codes {
    ($(#[$doc:meta])* $name:ident($repr:ty), bits $bits:literal, {
        $($(#[$case_doc:meta])* $case:ident = $code:literal $text:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $(#[doc = $text] $case,)*
            /// Not assigned.
            Other($repr),
        }

        impl $name {
            const MASK: $repr = <$repr>::MAX >> (<$repr>::BITS - $bits);

            /// Every assigned one.
            pub const ALL: &'static [$name] = &[$($name::$case),*];

            /// From the low bits of `code`.
            pub const fn from_code(code: $repr) -> $name {
                match code & $name::MASK {
                    $($code => $name::$case,)*
                    other => $name::Other(other),
                }
            }

            /// The code on the wire.
            pub const fn code(self) -> $repr {
                match self {
                    $($name::$case => $code,)*
                    $name::Other(other) => other & $name::MASK,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self {
                    $($name::$case => f.write_str($text),)*
                    $name::Other(other) => write!(f, "unassigned code {other}"),
                }
            }
        }
    };
}

pub(super) use codes;
