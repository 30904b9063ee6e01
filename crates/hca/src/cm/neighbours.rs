//! The search for neighbours by which peers are reached: in a thread of its own, which is there while something is
//! searched for, since an answer of the network takes its time.

use super::route::DeviceAddress;
use super::{Cm, CmError};
use crate::nic::Nic;
use crate::tuning::NEIGHBOUR_TIMEOUT;
use ::cm::IdKey;
use ::host::neighbours::{Search, Unreachable, Way};
use latch::Rank;
use latch::plain::Mutex;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// An id that waits for what its search finds.
#[derive(Debug)]
struct Waiting {
    search: Search,
    key: IdKey,
    place: DeviceAddress,
}

/// What is searched for; none while no thread searches.
#[derive(Debug)]
pub(crate) struct Searches(Mutex<Option<Vec<Waiting>>>);

impl Default for Searches {
    fn default() -> Searches {
        Searches(Mutex::new(Rank::NeighbourSearches, None))
    }
}

impl Nic {
    /// Begins to search for the neighbour by which a peer is reached; none if it is known, or none is needed.
    pub(crate) fn begin_search(
        &self,
        source: IpAddr,
        destination: IpAddr,
        scope: u32,
        timeout: Duration,
    ) -> Result<Option<Search>, CmError> {
        if destination.is_multicast() || self.ground.host.is_own_address(wire::Gid::from_ip(destination)) {
            return Ok(None);
        }
        Search::begin(Way { source, destination, scope }, timeout).map_err(|error| match error {
            Unreachable::NoRoute(source) => CmError::NoRoute { to: destination, source },
            _ => CmError::NoNeighbour(destination),
        })
    }

    /// Waits until the neighbour is known by which a peer is reached, a second at most. Mostly it is.
    pub fn await_neighbour(&self, source: IpAddr, destination: IpAddr, scope: u32) -> Result<(), CmError> {
        match self.begin_search(source, destination, scope, NEIGHBOUR_TIMEOUT)? {
            Some(search) => search.wait().map_err(|_| CmError::NoNeighbour(destination)),
            None => Ok(()),
        }
    }

    /// Goes on searching for an id, which hears of it.
    pub(super) fn search_for(self: &Arc<Nic>, search: Search, key: IdKey, place: DeviceAddress) {
        let mut searches = self.cm.searches.0.lock();
        let starts = searches.is_none();
        searches.get_or_insert_default().push(Waiting { search, key, place });
        drop(searches);
        let nic = Arc::downgrade(self);
        if starts && ::host::thread::spawn("ubiverbs-search", move || go_on(&nic)).is_err() {
            // Nothing can wait here: packets will tell.
            let waiting = self.cm.searches.0.lock().take();
            for Waiting { key, place, .. } in waiting.into_iter().flatten() {
                self.cm.address_found(self, key, place, Ok(()));
            }
        }
    }
}

/// Searches, as long as there is something to search for.
fn go_on(nic: &Weak<Nic>) {
    let mut open: Vec<Waiting> = Vec::new();
    loop {
        let Some(nic) = nic.upgrade() else { return };
        {
            let mut searches = nic.cm.searches.0.lock();
            open.append(searches.get_or_insert_default());
            if open.is_empty() {
                *searches = None;
                return;
            }
        }
        let now = Instant::now();
        for mut waiting in std::mem::take(&mut open) {
            match if waiting.search.next_look() <= now { waiting.search.poll(now) } else { None } {
                None => open.push(waiting),
                Some(found) => nic.cm.address_found(&nic, waiting.key, waiting.place, found),
            }
        }
        drop(nic);
        let next = open.iter().map(|waiting| waiting.search.next_look()).min();
        if let Some(next) = next {
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

impl Cm {
    /// The neighbour of an id's peer was found, or not. The id may have gone meanwhile.
    pub(super) fn address_found(&self, nic: &Nic, key: IdKey, place: DeviceAddress, found: Result<(), Unreachable>) {
        self.with(nic, |inner, _| match found {
            Ok(()) => {
                if inner.ids.address_resolved(key, place.local())
                    && let Some(handle) = inner.handles.get_mut(&key)
                {
                    handle.device.get_or_insert(place.device);
                }
            }
            Err(error) => inner.ids.address_failed(key, -error.errno()),
        });
    }
}
