//! Agents: what a program registers for, and when that is refused.

use crate::class;
use crate::limits;
use crate::manager::PortId;
use alloc::collections::BTreeMap;
use wire::mad::MadHeader;
use wire::refuse_if;

/// What an agent wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registration {
    /// On queue pair 0, which no RoCE port has.
    pub subnet_management: bool,
    /// The class; 0 for an agent that only sends and hears the answers.
    pub class: u8,
    /// The version of the class.
    pub version: u8,
    /// The vendor, in classes that have one.
    pub oui: u32,
    /// A bit for each method of requests that are for this agent.
    pub methods: u128,
    /// 1 if the library is to segment messages, else 0.
    pub rmpp_version: u8,
    /// The program does that itself.
    pub user_rmpp: bool,
}

/// Why an agent was not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such port.
    #[error("the port is not open")]
    NoPort,
    /// As many agents as a port may have.
    #[error("a port has at most {} agents", limits::MAX_AGENTS)]
    TooMany,
    /// A version of RMPP that does not exist, or a class that has none.
    #[error("the class has no segmented messages, or the version of RMPP is not 1")]
    Rmpp,
    /// A class or version that does not exist.
    #[error("there is no such management class or version")]
    Class,
    /// A vendor's class without vendor.
    #[error("the class needs a vendor's number (OUI)")]
    Vendor,
    /// Subnet management is queue pair 0's, the rest is queue pair 1's.
    #[error("the class does not belong to this queue pair")]
    WrongQueuePair,
    /// A RoCE port has no queue pair 0.
    #[error("the port has no subnet management interface (queue pair 0)")]
    NoSubnetManagement,
    /// Another agent has one of the methods.
    #[error("another agent has one of the methods of this class")]
    Taken,
}

impl Registration {
    /// Whether it could be registered at all, on a port of RoCE.
    pub fn check(&self) -> Result<(), Refusal> {
        refuse_if!(self.rmpp_version > 1, Refusal::Rmpp);
        if self.class != 0 {
            if self.version >= class::CLASS_VERSION_END
                || self.class >= class::CLASS_NUMBER_END && self.class != MadHeader::CLASS_SUBNET_DIRECTED
            {
                return Err(Refusal::Class);
            }
            refuse_if!(class::has_oui(self.class) && self.oui == 0, Refusal::Vendor);
            refuse_if!(self.rmpp_version != 0 && !class::has_rmpp(self.class), Refusal::Rmpp);
            refuse_if!(self.subnet_management != class::is_subnet_management(self.class), Refusal::WrongQueuePair);
        }
        refuse_if!(self.subnet_management, Refusal::NoSubnetManagement);
        // The connection manager has it.
        let send = 1 << MadHeader::METHOD_SEND;
        if self.class == MadHeader::CLASS_CM && self.version == wire::cm::CLASS_VERSION && self.methods & send != 0 {
            return Err(Refusal::Taken);
        }
        Ok(())
    }

    /// What it is registered for; none if no request is.
    pub fn key(&self, interface: u32) -> Option<Key> {
        let oui = if class::has_oui(self.class) { self.oui } else { 0 };
        (self.class != 0 && self.methods != 0).then_some(Key {
            interface,
            class: self.class,
            version: self.version,
            oui,
        })
    }

    /// Whether the library segments messages for it.
    pub fn has_rmpp(&self) -> bool {
        self.rmpp_version == 1 && !self.user_rmpp
    }
}

/// A class on a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// The interface of the port's device.
    pub interface: u32,
    /// The class.
    pub class: u8,
    /// Its version.
    pub version: u8,
    /// The vendor, or 0.
    pub oui: u32,
}

/// An agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agent {
    pub port: PortId,
    /// Its number on the port.
    pub id: u8,
    pub registration: Registration,
}

/// Which agent has which methods of a class.
#[derive(Debug, Default)]
pub(crate) struct Classes(BTreeMap<Key, alloc::vec::Vec<(u128, u32)>>);

impl Classes {
    /// Whether nobody has one of the methods.
    pub fn are_free(&self, key: Key, methods: u128) -> bool {
        self.0.get(&key).is_none_or(|agents| agents.iter().all(|(others, _)| others & methods == 0))
    }

    pub fn insert(&mut self, key: Key, methods: u128, agent: u32) {
        self.0.entry(key).or_default().push((methods, agent));
    }

    /// Removes an agent; true if the class has none any more.
    pub fn remove(&mut self, key: Key, agent: u32) -> bool {
        let Some(agents) = self.0.get_mut(&key) else { return false };
        agents.retain(|(_, other)| *other != agent);
        let empty = agents.is_empty();
        if empty {
            self.0.remove(&key);
        }
        empty
    }

    pub fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// The agent for a method.
    pub fn find(&self, key: Key, method: u8) -> Option<u32> {
        let bit = 1u128 << (method & !MadHeader::RESPONSE);
        self.0.get(&key)?.iter().find(|(methods, _)| methods & bit != 0).map(|(_, agent)| *agent)
    }
}
