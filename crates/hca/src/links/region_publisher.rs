//! Registered memory of this process, published for peers that reach it without a packet.

use link::shared::direct::{Published, PublishedRegion, SharedFile};
use memory::{FilePart, PublicTerms, Publisher};
use std::sync::Arc;
use wire::Key;

/// Publishes regions as they come and go.
pub(crate) struct RegionPublisher(pub Arc<Published>);

impl Publisher for RegionPublisher {
    fn publish(&self, key: Key, terms: &PublicTerms) {
        let PublicTerms { domain, access, start, length, base, file } = *terms;
        let file = file.and_then(|FilePart { descriptor, inode, offset }| {
            Some(SharedFile { descriptor: u32::try_from(descriptor).ok()?, inode: inode as u32, offset })
        });
        self.0.publish_region(key, &PublishedRegion { domain, access, start, length, base, file });
    }

    fn withdraw(&self, key: Key) {
        self.0.withdraw_region(key);
    }
}
