//! Scripts that come with ubiverbs: disasters that happen, each in a few lines. `ubiverbs run --script NAME` lets one
//! strike, `ubiverbs torture` all of them.

/// A script that comes with ubiverbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disaster {
    /// What it is called for.
    pub name: &'static str,
    /// The script.
    pub text: &'static str,
}

/// Names, each of which is also a file.
macro_rules! disasters {
    ($($name:literal,)*) => {
        /// All of them: ports and devices, queue pairs, calls, connections, the network, processes.
        pub const DISASTERS: &[Disaster] =
            &[$(Disaster { name: $name, text: include_str!(concat!("../library/", $name, ".toml")) },)*];

        /// Their names.
        pub const NAMES: &[&str] = &[$($name,)*];
    };
}

disasters! {
    "flap",
    "port-down",
    "port-dead",
    "nic-gone",
    "nic-replugged",
    "device-fatal",
    "slow-nic",
    "gid-gone",
    "fabric-events",
    "retry-exceeded",
    "rnr-storm",
    "access-refused",
    "qp-error",
    "lost-completion",
    "late-completion",
    "cq-overrun",
    "srq-error",
    "memory-refused",
    "memory-refused-later",
    "slow-memory",
    "no-qp",
    "post-refused",
    "cm-timeout",
    "addr-error",
    "route-error",
    "reject",
    "lost-request",
    "lost-rtu",
    "lost-dreq",
    "addr-change",
    "lossy-cable",
    "damaged-cable",
    "long-cable",
    "black-hole",
    "one-way",
    "peer-killed",
    "peer-stopped",
    "slow-host",
    "gpu-copy-fails",
}

impl Disaster {
    /// The one of this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Disaster> {
        DISASTERS.iter().find(|disaster| disaster.name == name).copied()
    }
}

#[cfg(all(test, feature = "parse"))]
mod tests {
    use super::*;
    use crate::Script;
    use alloc::vec::Vec;

    #[test]
    fn every_disaster_is_a_script_that_says_what_it_is_about() {
        for disaster in DISASTERS {
            let script = Script::parse(disaster.text).unwrap_or_else(|error| panic!("{}: {error}", disaster.name));
            assert!(script.about.is_some_and(|about| !about.is_empty()), "{}", disaster.name);
            assert_eq!(Disaster::find(disaster.name), Some(*disaster));
        }
    }

    #[test]
    fn names_are_different() {
        let mut names: Vec<&str> = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DISASTERS.len());
    }
}
