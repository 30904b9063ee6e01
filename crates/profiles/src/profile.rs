//! A profile, and what it answers to a NIC that asks.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

#[cfg(feature = "parse")]
use crate::ProfileError;
use crate::completions::Completions;
use crate::order::Order;
use crate::registration::Registration;
use crate::schema::{ACCESS_FLAGS, Atomics, Feature, Grant, Limit};
use crate::timers::Timers;

/// The system's errors for what a profile refuses without a word of its own.
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;

/// What a device is, as `ibv_device` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeType {
    /// A channel adapter: InfiniBand and RoCE.
    Ca,
    /// An iWARP NIC.
    Rnic,
    /// Something that has no number in the InfiniBand specification, as EFA.
    Unspecified,
}

/// How large what is granted becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granting {
    /// As large as was asked for.
    Exact,
    /// The next power of two.
    PowerOfTwo,
    /// The power of two above what was asked for.
    PowerOfTwoAbove,
    /// One less than a power of two.
    PowerOfTwoLessOne,
    /// The next multiple.
    Multiple(u64),
    /// So much, and what was asked for if that is more.
    AtLeast(u64),
    /// All there is.
    Most,
    /// Inline data lies where pieces do: each has the room of both, as in kernel Soft-RoCE.
    SharedWithPieces,
}

/// A family of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6, but for what is link-local.
    Ipv6,
    /// IPv6 of the link alone.
    LinkLocal,
}

/// The GID table of a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Addresses {
    /// Entries that are empty come between those that are not, and the first is empty.
    pub sparse: bool,
    /// Which of the interface's addresses it has, in this order; all, in the usual order, if there are none here.
    pub families: Vec<Family>,
    /// Each address has an entry of RoCE version 1 in front of that of version 2.
    pub roce_v1: bool,
    /// The table has one entry, made of the hardware address, as with iWARP.
    pub hardware: bool,
    /// The entries move each time that so many nanoseconds have passed: none of their indexes may be kept.
    pub moves: Option<u64>,
}

/// One value that a profile says: for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Said {
    /// The table.
    pub table: String,
    /// The key.
    pub key: &'static str,
    /// The value, as it is written; `unknown` where nobody could say.
    pub value: String,
    /// Where it comes from.
    pub source: Option<String>,
    /// The profile that says it: this one, or one that it inherits from.
    pub profile: String,
}

/// What a card tells, grants and refuses. What it does not say is as without a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What card it is, in one sentence.
    pub about: Option<String>,
    /// What devices are called; `{n}` in it becomes the number of the device.
    pub device_name: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// What it is.
    pub node_type: Option<NodeType>,
    /// `device_cap_flags`.
    pub flags: Option<u32>,
    /// How far atomic operations are atomic.
    pub atomics: Option<Atomics>,
    /// Whether memory may be registered that is brought in on demand.
    pub on_demand: Option<bool>,
    /// Whether completions carry the time.
    pub timestamps: Option<bool>,
    /// Keys and addresses of regions.
    pub registration: Registration,
    /// How it fills in `ibv_wc`.
    pub completions: Completions,
    /// How it rounds times.
    pub timers: Timers,
    /// Messages of a device to itself arrive.
    pub loopback: bool,
    /// The GID table.
    pub addresses: Addresses,
    /// What failed work says in `vendor_err`: by the number of its status.
    pub vendor_errors: Vec<(u32, u32)>,
    /// Order and time.
    pub order: Order,
    /// Everything it says, for people.
    pub said: Vec<Said>,
    pub(crate) limits: Vec<Option<u64>>,
    pub(crate) exceeded: Vec<Option<i32>>,
    pub(crate) refused: Vec<Option<i32>>,
    pub(crate) granted: Vec<Option<Granting>>,
    /// The names of work requests that are refused, and with which errno.
    pub(crate) work: Vec<(&'static str, i32)>,
    /// The names of work requests that are taken and then fail, and with which status, by features.
    pub(crate) failing: Vec<Option<u32>>,
    pub(crate) failing_work: Vec<(&'static str, u32)>,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            name: String::new(),
            about: None,
            device_name: None,
            firmware: None,
            node_type: None,
            flags: None,
            atomics: None,
            on_demand: None,
            timestamps: None,
            registration: Registration::default(),
            completions: Completions::default(),
            timers: Timers::default(),
            loopback: true,
            addresses: Addresses::default(),
            vendor_errors: Vec::new(),
            order: Order::default(),
            said: Vec::new(),
            limits: alloc::vec![None; Limit::ALL.len()],
            exceeded: alloc::vec![None; Limit::ALL.len()],
            refused: alloc::vec![None; Feature::ALL.len()],
            granted: alloc::vec![None; Grant::ALL.len()],
            work: Vec::new(),
            failing: alloc::vec![None; Feature::ALL.len()],
            failing_work: Vec::new(),
        }
    }
}

impl Profile {
    /// Reads a profile of that name, which may inherit from those of the library.
    #[cfg(feature = "parse")]
    pub fn parse(name: &str, text: impl AsRef<[u8]>) -> Result<Profile, ProfileError> {
        crate::reader::parse(name, text.as_ref(), 0)
    }

    /// A number that the device tells; none if it is the usual one. What a refused feature would need is 0.
    #[must_use]
    pub fn limit(&self, limit: Limit) -> Option<u64> {
        let is_refused = limit.needs().is_some_and(|feature| self.refused[feature as usize].is_some());
        let said = self.limits[limit as usize];
        let of_all = match limit {
            Limit::MaxSendWr | Limit::MaxRecvWr => Some(Limit::MaxQpWr),
            Limit::MaxSendSge | Limit::MaxRecvSge => Some(Limit::MaxSge),
            _ => None,
        };
        if is_refused { Some(0) } else { said.or_else(|| of_all.and_then(|of_all| self.limits[of_all as usize])) }
    }

    /// Whether so much is within a limit.
    pub fn at_most(&'static self, limit: Limit, asked: u64) -> Result<(), Refusal> {
        let Some(most) = self.limit(limit).filter(|most| asked > *most) else { return Ok(()) };
        limit.needs().map_or(Ok(()), |feature| self.offers(feature))?;
        let usual = if limit.counts_objects() { ENOMEM } else { EINVAL };
        let errno = self.exceeded[limit as usize].unwrap_or(usual);
        Err(Refusal { profile: &self.name, errno, what: What::Limit { limit, most, asked } })
    }

    /// Whether the device refuses it.
    #[must_use]
    pub fn refuses(&self, feature: Feature) -> bool {
        self.refused[feature as usize].is_some()
    }

    /// Whether the device has it.
    pub fn offers(&'static self, feature: Feature) -> Result<(), Refusal> {
        match self.refused[feature as usize] {
            None => Ok(()),
            Some(errno) => Err(Refusal { profile: &self.name, errno, what: What::Feature(feature) }),
        }
    }

    /// Whether memory can be registered with these access flags of `verbs.h`.
    pub fn offers_access(&'static self, flags: u32) -> Result<(), Refusal> {
        ACCESS_FLAGS.iter().filter(|(flag, _)| flags & flag != 0).try_for_each(|(_, feature)| self.offers(*feature))
    }

    /// Whether regions of that length can be registered.
    pub fn admits_length(&'static self, length: u64) -> Result<(), Refusal> {
        match length == 0 && self.registration.refuses_empty {
            false => Ok(()),
            true => Err(Refusal { profile: &self.name, errno: EINVAL, what: What::Rule("regions of no bytes") }),
        }
    }

    /// Whether memory at `address` can be registered under the addresses from `iova` on.
    pub fn admits_iova(&'static self, address: u64, iova: u64) -> Result<(), Refusal> {
        match self.registration.admits(address, iova) {
            true => Ok(()),
            false => Err(Refusal {
                profile: &self.name,
                errno: EINVAL,
                what: What::Rule("an iova at another place of a page"),
            }),
        }
    }

    /// The names of work requests that it refuses, and with which errno.
    #[must_use]
    pub fn refused_work(&self) -> &[(&'static str, i32)] {
        &self.work
    }

    /// The names of work requests that it takes, and which fail with this status.
    #[must_use]
    pub fn failing_work(&self) -> &[(&'static str, u32)] {
        &self.failing_work
    }

    /// How it is granted; none where as without a profile.
    #[must_use]
    pub fn granting(&self, grant: Grant) -> Option<Granting> {
        self.granted[grant as usize]
    }

    /// What failed work of this status says in `vendor_err`, if it is known.
    #[must_use]
    pub fn vendor_error(&self, status: u32) -> Option<u32> {
        self.vendor_errors.iter().find(|(known, _)| *known == status).map(|(_, code)| *code)
    }

    /// How much is granted where so much is asked for, up to `most`; none where it is granted as without a profile.
    #[must_use]
    pub fn grant(&self, grant: Grant, asked: u64, most: u64) -> Option<u64> {
        let granted = match self.granted[grant as usize]? {
            Granting::Exact => asked,
            Granting::PowerOfTwo => asked.max(1).checked_next_power_of_two()?,
            Granting::PowerOfTwoAbove => asked.checked_add(1)?.checked_next_power_of_two()?,
            Granting::PowerOfTwoLessOne => asked.checked_add(1)?.checked_next_power_of_two()? - 1,
            Granting::Multiple(of) => asked.checked_next_multiple_of(of)?,
            Granting::AtLeast(least) => asked.max(least),
            Granting::Most => most,
            Granting::SharedWithPieces => asked,
        };
        Some(granted.min(most).max(asked))
    }
}

/// What a profile refuses, and with which error of the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The name of the profile.
    pub profile: &'static str,
    /// What C programs get.
    pub errno: i32,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Limit { limit: Limit, most: u64, asked: u64 },
    Feature(Feature),
    Rule(&'static str),
}

impl Refusal {
    /// What it refuses, in the words of profiles.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.what {
            What::Limit { limit, .. } => limit.word(),
            What::Feature(feature) => feature.word(),
            What::Rule(rule) => rule,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.profile;
        match self.what {
            What::Limit { limit, most, asked } => {
                write!(f, "the NIC's profile {profile} has {limit} {most}, and {asked} is asked for")
            }
            What::Feature(feature) => write!(f, "the NIC's profile {profile} refuses {feature}"),
            What::Rule(rule) => write!(f, "the NIC's profile {profile} refuses {rule}"),
        }
    }
}

impl core::error::Error for Refusal {}
