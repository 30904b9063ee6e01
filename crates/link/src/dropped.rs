//! What went no further on a link, kept until the driver of the link asks for it: so the paths that packets take have
//! nothing more to carry, and the paths on which they end have a place to say so.

use trace::DropReason;
use wire::Headers;

/// More than this is not kept: a driver asks after every call, and none brings as much.
const MAX_KEPT_DROPS: usize = 4096;

/// A packet, or another message between processes, that went no further.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// Its headers, if it could be read that far.
    pub headers: Option<Headers>,
    /// Why.
    pub reason: DropReason,
}

/// What went no further since the driver last asked.
#[derive(Debug, Default)]
pub(crate) struct Drops(Vec<Dropped>);

impl Drops {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub fn add(&mut self, headers: Option<Headers>, reason: DropReason) {
        if self.0.len() < MAX_KEPT_DROPS {
            self.0.push(Dropped { headers, reason });
        }
    }

    /// A packet, from its BTH on. What is damaged may tell anything of itself: it is shown as it is.
    #[cold]
    pub fn add_packet(&mut self, bytes: &[u8], reason: DropReason) {
        let mut headers = Headers::NONE;
        let read = headers.read(bytes).is_ok();
        self.add(read.then_some(headers), reason);
    }

    /// Adds so many packets that were dropped for this reason, and of which nothing else is known.
    #[cold]
    pub fn add_some(&mut self, count: u64, reason: DropReason) {
        for _ in 0..count.min(MAX_KEPT_DROPS as u64) {
            self.add(None, reason);
        }
    }

    #[cold]
    pub fn append(&mut self, more: Vec<Dropped>) {
        self.0.extend(more.into_iter().take(MAX_KEPT_DROPS.saturating_sub(self.0.len())));
    }

    #[cold]
    pub fn take(&mut self) -> Vec<Dropped> {
        std::mem::take(&mut self.0)
    }
}
