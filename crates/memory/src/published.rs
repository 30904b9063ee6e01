//! What a process tells its peers of its regions, where they reach its memory without it: the terms of plain regions
//! that grant a peer something, told when they begin to hold and withdrawn before they end. How peers are told, and how
//! their accesses are ended, is the business of the [`Publisher`]; windows, regions on demand and GPU memory are not
//! told of.

use crate::shareable::{self, FilePart};
use crate::slot::{Kind, Reach, Terms};
use std::fmt;
use std::sync::OnceLock;
use wire::Key;
use wire::access::{Access, ProtectionDomain};

/// On which terms a region is open to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PublicTerms {
    /// Whose it is.
    pub domain: ProtectionDomain,
    /// What may be done.
    pub access: Access,
    /// The first address as keys see it.
    pub start: u64,
    /// How many bytes.
    pub length: u64,
    /// The first address in the process.
    pub base: u64,
    /// The file that it is of, if it is memory that peers may map.
    pub file: Option<FilePart>,
}

/// What peers learn from.
pub trait Publisher: Send + Sync {
    /// These terms hold from now on.
    fn publish(&self, key: Key, terms: &PublicTerms);

    /// Nothing that was published for this key holds any more. When this returns, no peer touches the memory by it.
    fn withdraw(&self, key: Key);
}

/// The publisher of a process, if it has one.
#[derive(Default)]
pub(crate) struct Publication(OnceLock<Box<dyn Publisher>>);

impl Publication {
    pub(crate) fn begin(&self, publisher: Box<dyn Publisher>) {
        let _ = self.0.set(publisher);
    }

    /// Whether it has one.
    pub(crate) fn is_on(&self) -> bool {
        self.0.get().is_some()
    }

    /// The slot of this key was opened on these terms, over memory of the program's file.
    pub(crate) fn opened(&self, key: Key, terms: &Terms, program_file: Option<FilePart>) {
        if let Some(publisher) = self.0.get()
            && let Some(public) = terms.public(program_file)
        {
            publisher.publish(key, &public);
        }
    }

    /// The slot of this key was closed. Afterwards no peer touches the memory without this process.
    pub(crate) fn closed(&self, key: Key) {
        if let Some(publisher) = self.0.get() {
            publisher.withdraw(key);
        }
    }
}

impl fmt::Debug for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.get().is_some() { "Publication(on)" } else { "Publication(off)" })
    }
}

impl Terms {
    /// The terms as peers may know them, where there is something for them.
    fn public(&self, program_file: Option<FilePart>) -> Option<PublicTerms> {
        let plain = self.kind == Kind::Region && self.reach == Reach::Processor && self.length > 0;
        let access = self.access.intersection(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        (plain && !access.is_empty()).then(|| PublicTerms {
            domain: self.domain,
            access,
            start: self.start,
            length: self.length,
            base: self.base.addr() as u64,
            file: program_file.or_else(|| shareable::find(self.base.addr(), self.length)),
        })
    }
}
