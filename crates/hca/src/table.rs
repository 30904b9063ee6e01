//! Objects by queue pair number, for every packet that arrives: one read lock of a page, never a lock over all.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use wire::Qpn;

/// Numbers per page.
const PAGE: usize = 256;

/// Pages are made when they are first needed; the outer lock is written only then.
#[derive(Debug)]
pub(crate) struct Table<T> {
    pages: RwLock<Vec<Option<Arc<Page<T>>>>>,
    /// Counts objects that were removed.
    version: AtomicU32,
}

type Page<T> = RwLock<Vec<Option<Arc<T>>>>;

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { pages: RwLock::new(Vec::new()), version: AtomicU32::new(0) }
    }
}

impl<T> Table<T> {
    /// What has this number.
    pub fn get(&self, qpn: Qpn) -> Option<Arc<T>> {
        let (page, index) = place(qpn);
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let page = pages.get(page)?.as_ref()?.read().unwrap_or_else(PoisonError::into_inner);
        page.get(index)?.clone()
    }

    /// Gives something this number.
    pub fn insert(&self, qpn: Qpn, object: Arc<T>) {
        let (number, index) = place(qpn);
        let page = {
            let mut pages = self.pages.write().unwrap_or_else(PoisonError::into_inner);
            if pages.len() <= number {
                pages.resize(number + 1, None);
            }
            Arc::clone(pages[number].get_or_insert_with(|| Arc::new(RwLock::new(vec![None; PAGE]))))
        };
        page.write().unwrap_or_else(PoisonError::into_inner)[index] = Some(object);
    }

    /// Shows everything there is, without a lock held.
    pub fn for_each(&self, mut f: impl FnMut(&T)) {
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner).clone();
        for page in pages.into_iter().flatten() {
            let objects = page.read().unwrap_or_else(PoisonError::into_inner).clone();
            objects.into_iter().flatten().for_each(|object| f(&object));
        }
    }

    /// A number that is another after something was removed: for those who remember what they found.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Takes the number away.
    pub fn remove(&self, qpn: Qpn) -> Option<Arc<T>> {
        self.version.fetch_add(1, Ordering::AcqRel);
        let (page, index) = place(qpn);
        let pages = self.pages.read().unwrap_or_else(PoisonError::into_inner);
        let mut page = pages.get(page)?.as_ref()?.write().unwrap_or_else(PoisonError::into_inner);
        page.get_mut(index)?.take()
    }
}

fn place(qpn: Qpn) -> (usize, usize) {
    let number = qpn.value() as usize;
    (number / PAGE, number % PAGE)
}
