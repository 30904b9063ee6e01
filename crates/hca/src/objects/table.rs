//! Objects by queue pair number, for every packet that arrives: one read lock of a page, never a lock over all.

use latch::{Rank, RwLock};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use wire::Qpn;

/// Numbers per page, pages per shelf, and shelves: together all numbers there are.
const NUMBERS_PER_PAGE: usize = 256;
const PAGES_PER_SHELF: usize = 256;
const SHELF_COUNT: usize = 256;

/// Pages and shelves are made when they are first needed, and stay.
#[derive(Debug)]
pub(crate) struct Table<T> {
    shelves: Box<[OnceLock<Shelf<T>>]>,
    /// Counts removals.
    version: AtomicU32,
}

type Shelf<T> = Box<[OnceLock<Page<T>>]>;
type Page<T> = RwLock<Box<[Option<Arc<T>>]>>;

fn empty<T>(length: usize) -> Box<[OnceLock<T>]> {
    (0..length).map(|_| OnceLock::new()).collect()
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { shelves: empty(SHELF_COUNT), version: AtomicU32::new(0) }
    }
}

impl<T> Table<T> {
    /// What has this number.
    #[inline]
    pub fn get(&self, qpn: Qpn) -> Option<Arc<T>> {
        let (page, index) = self.page(qpn)?;
        page.read().get(index)?.clone()
    }

    /// Shows what has this number, if anything does, under a lock.
    #[inline]
    pub fn look(&self, qpn: Qpn, f: impl FnOnce(&T)) {
        if let Some((page, index)) = self.page(qpn)
            && let Some(Some(object)) = page.read().get(index)
        {
            f(object);
        }
    }

    #[inline]
    fn page(&self, qpn: Qpn) -> Option<(&Page<T>, usize)> {
        let (shelf, page, index) = place(qpn);
        Some((self.shelves.get(shelf)?.get()?.get(page)?.get()?, index))
    }

    /// Gives something this number.
    pub fn insert(&self, qpn: Qpn, object: Arc<T>) {
        let (shelf, page, index) = place(qpn);
        let shelf = self.shelves[shelf].get_or_init(|| empty(PAGES_PER_SHELF));
        let page =
            shelf[page].get_or_init(|| RwLock::new(Rank::QueuePairs, (0..NUMBERS_PER_PAGE).map(|_| None).collect()));
        page.write()[index] = Some(object);
    }

    /// Shows everything there is, without a lock held.
    pub fn for_each(&self, mut f: impl FnMut(&T)) {
        let shelves = self.shelves.iter().filter_map(OnceLock::get);
        for page in shelves.flatten().filter_map(OnceLock::get) {
            let objects: Vec<Arc<T>> = page.read().iter().flatten().cloned().collect();
            objects.iter().for_each(|object| f(object));
        }
    }

    /// A number that is another after something was removed, for threads that remember what they found.
    #[inline]
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Takes the number away.
    pub fn remove(&self, qpn: Qpn) -> Option<Arc<T>> {
        self.version.fetch_add(1, Ordering::AcqRel);
        let (page, index) = self.page(qpn)?;
        page.write().get_mut(index)?.take()
    }
}

/// Its shelf, its page there, and its place on that.
#[inline]
fn place(qpn: Qpn) -> (usize, usize, usize) {
    let number = qpn.value() as usize;
    (
        number / (NUMBERS_PER_PAGE * PAGES_PER_SHELF),
        number / NUMBERS_PER_PAGE % PAGES_PER_SHELF,
        number % NUMBERS_PER_PAGE,
    )
}
