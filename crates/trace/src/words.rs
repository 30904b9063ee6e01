//! Words that are read: events carry them as `&'static str`.

use std::boxed::Box;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// How many different words logs may bring.
const MAX_WORDS: usize = 4096;
/// The longest of them.
pub(crate) const MAX_WORD: usize = 120;

/// A word that events carry as `&'static str`: kept once for the life of the process, unless there are too many.
pub(crate) fn intern(word: &str) -> Option<&'static str> {
    static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    if word.len() > MAX_WORD {
        return None;
    }
    let mut words = WORDS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(known) = words.get(word) {
        return Some(known);
    }
    if words.len() >= MAX_WORDS {
        return None;
    }
    let kept: &'static str = Box::leak(Box::from(word));
    words.insert(kept);
    Some(kept)
}
