//! Events of the connection manager that people never see, told because a failure script asks for it.

use super::{Body, Cm, EventKind};
use crate::nic::Nic;
use crate::objects::device::Device;
use ::cm::IdKey;
use ::cm::id::IdRecord;
use std::sync::Arc;

impl Cm {
    /// Tells the ids that are wanted of something that did not happen. Returns how many.
    pub fn tell_ids(
        &self,
        nic: &Nic,
        mut wanted: impl FnMut(&IdRecord, Option<&Arc<Device>>) -> bool,
        (kind, status): (EventKind, i32),
    ) -> usize {
        self.with(nic, |inner, _| {
            let device = |key: &IdKey| inner.handles.get(key).and_then(|handle| handle.device.as_ref());
            let keys: Vec<IdKey> = inner
                .ids
                .iter()
                .filter(|(key, record)| record.hears_events() && wanted(record, device(key)))
                .map(|(key, _)| key)
                .collect();
            keys.iter().for_each(|key| inner.push(*key, kind, status, Body::None));
            keys.len()
        })
    }
}
