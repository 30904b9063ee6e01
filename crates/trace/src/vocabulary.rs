//! One table per closed set of words: a variant, its stable name for machines, its sentence for people. Adding a
//! word is adding a line. Not for sets whose members carry values; those are written out where they belong.

/// Declares a unit enum whose variants each have a stable `name()` and a `Display` sentence, which is also the
/// variant's documentation.
macro_rules! vocabulary {
    (
        $(#[$meta:meta])*
        pub enum $Name:ident {
            $( $Variant:ident = $name:literal : $sentence:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $Name {
            $( #[doc = $sentence] $Variant, )+
        }

        impl $Name {
            /// Every word of this set, in the order of declaration.
            pub const ALL: &'static [Self] = &[$( Self::$Variant, )+];

            /// The stable name: what JSON lines and counters say.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$Variant => $name, )+
                }
            }

            /// The sentence for people.
            #[must_use]
            pub const fn sentence(self) -> &'static str {
                match self {
                    $( Self::$Variant => $sentence, )+
                }
            }

            /// The word of that stable name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|word| word.name() == name)
            }
        }

        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.sentence())
            }
        }
    };
}

pub(crate) use vocabulary;
