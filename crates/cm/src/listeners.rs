//! Who listens for what. A request goes to the listener that says most about it: first by how much of the service id it
//! asks for, then by whether it asks for the address.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::IpAddr;

use wire::cm::{CommId, ServiceId};

use crate::{Listen, ListenError, ListenerId};
use wire::refuse_if;

/// One listener.
pub(crate) struct Listener {
    pub listen: Listen,
    /// Requests that the program has not taken yet.
    pub waiting: BTreeSet<CommId>,
}

impl Listener {
    pub fn has_room(&self) -> bool {
        self.waiting.len() < self.listen.backlog as usize
    }
}

/// All of them.
#[derive(Default)]
pub(crate) struct Listeners {
    listeners: BTreeMap<ListenerId, Listener>,
    /// By mask, the one with most bits first, then by the bits that count. There are few masks.
    services: BTreeMap<(Reverse<u32>, u64), BTreeMap<u64, Vec<ListenerId>>>,
    next: u64,
}

impl Listeners {
    pub fn add(&mut self, listen: Listen) -> Result<ListenerId, ListenError> {
        let here = self.services.entry(mask_key(listen.mask)).or_default().entry(listen.service.value() & listen.mask);
        let here = here.or_default();
        let taken = here.iter().filter_map(|id| self.listeners.get(id)).any(|other| match listen.address {
            Some(address) => other.listen.address == Some(address),
            None => other.listen.address.is_none() && other.listen.families.overlaps(listen.families),
        });
        refuse_if!(taken, ListenError::InUse);
        let id = ListenerId(self.next);
        self.next += 1;
        here.push(id);
        self.listeners.insert(id, Listener { listen, waiting: BTreeSet::new() });
        Ok(id)
    }

    pub fn remove(&mut self, id: ListenerId) -> Option<Listener> {
        let listener = self.listeners.remove(&id)?;
        let (mask, service) = (mask_key(listener.listen.mask), listener.listen.service.value() & listener.listen.mask);
        if let Some(masked) = self.services.get_mut(&mask) {
            if let Some(here) = masked.get_mut(&service) {
                here.retain(|other| *other != id);
                if here.is_empty() {
                    masked.remove(&service);
                }
            }
            if masked.is_empty() {
                self.services.remove(&mask);
            }
        }
        Some(listener)
    }

    pub fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        self.listeners.get_mut(&id)
    }

    /// Who hears requests for this service at this address.
    pub fn find(&self, service: ServiceId, address: IpAddr) -> Option<ListenerId> {
        self.services.iter().find_map(|(&(_, mask), masked)| {
            let here = masked.get(&(service.value() & mask))?;
            let hears = |wanted: Option<IpAddr>| {
                here.iter().copied().find(|id| {
                    self.listeners.get(id).is_some_and(|listener| {
                        let listen = &listener.listen;
                        listen.address == wanted && (wanted.is_some() || listen.families.holds(address))
                    })
                })
            };
            hears(Some(address)).or_else(|| hears(None))
        })
    }
}

fn mask_key(mask: u64) -> (Reverse<u32>, u64) {
    (Reverse(mask.count_ones()), mask)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Families;
    use wire::cm::PortSpace;

    const V4: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 2));
    const V6: IpAddr = IpAddr::V6(core::net::Ipv6Addr::LOCALHOST);

    fn service() -> ServiceId {
        ServiceId::ip(PortSpace::Tcp, 7174)
    }

    #[test]
    fn the_most_specific_listener_hears() {
        let mut listeners = Listeners::default();
        let any = listeners.add(Listen::new(service())).unwrap();
        let one = listeners.add(Listen { address: Some(V4), ..Listen::new(service()) }).unwrap();
        let space = Listen { mask: 0xffff_ffff_ffff_0000, ..Listen::new(service()) };
        let range = listeners.add(space).unwrap();
        assert_eq!(listeners.find(service(), V4), Some(one));
        assert_eq!(listeners.find(service(), OTHER), Some(any));
        assert_eq!(listeners.find(service(), V6), Some(any));
        assert_eq!(listeners.find(ServiceId::ip(PortSpace::Tcp, 1), V4), Some(range));
        assert_eq!(listeners.find(ServiceId::ip(PortSpace::Udp, 1), V4), None);
        listeners.remove(one);
        assert_eq!(listeners.find(service(), V4), Some(any));
        listeners.remove(any);
        assert_eq!(listeners.find(service(), V4), Some(range));
        listeners.remove(range);
        assert_eq!(listeners.find(service(), V4), None);
        assert!(listeners.services.is_empty());
    }

    #[test]
    fn families_are_kept_apart_and_overlaps_are_refused() {
        let mut listeners = Listeners::default();
        let of = |families| Listen { families, ..Listen::new(service()) };
        let four = listeners.add(of(Families::V4)).unwrap();
        let six = listeners.add(of(Families::V6)).unwrap();
        assert_eq!(listeners.add(of(Families::Both)), Err(ListenError::InUse));
        assert_eq!(listeners.add(of(Families::V4)), Err(ListenError::InUse));
        assert_eq!((listeners.find(service(), V4), listeners.find(service(), V6)), (Some(four), Some(six)));
        let one = Listen { address: Some(V4), ..Listen::new(service()) };
        listeners.add(one).unwrap();
        assert_eq!(listeners.add(one), Err(ListenError::InUse));
    }
}
