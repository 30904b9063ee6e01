//! Profiles that come with ubiverbs: `ubiverbs run --nic NAME`.

/// A profile that comes with ubiverbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shipped {
    /// What it is asked for by.
    pub name: &'static str,
    /// The profile.
    pub text: &'static str,
}

/// Names, each of which is also a file.
macro_rules! shipped {
    ($($name:literal,)*) => {
        /// All of them: cards, software, surroundings, and what the specification promises.
        pub const PROFILES: &[Shipped] =
            &[$(Shipped { name: $name, text: include_str!(concat!("../data/", $name, ".toml")) },)*];

        /// Their names.
        pub const NAMES: &[&str] = &[$($name,)*];
    };
}

shipped! {
    "cx5",
    "cx7",
    "bnxt",
    "ionic",
    "irdma",
    "iwarp",
    "efa",
    "mana",
    "apple",
    "rxe",
    "siw",
    "pod",
    "strict",
    "weakest",
}

impl Shipped {
    /// The one of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Shipped> {
        PROFILES.iter().find(|profile| profile.name == name).copied()
    }
}
