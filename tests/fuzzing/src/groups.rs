//! What members of a group say to each other, and what others say to them.

use cluster::Spoken;

/// Takes the first byte for a kind of saying, the second for the size of the group, and the rest for what is said.
///
/// # Panics
/// If what has a meaning has another one when it is said again, or a terminal would obey what people are shown of it.
pub fn groups(bytes: &[u8]) {
    let [kind, members, said @ ..] = bytes else { return };
    let kind = Spoken::ALL[usize::from(*kind) % Spoken::ALL.len()];
    let size = u32::from(*members) + 1;
    let Some((again, shown)) = kind.again(said, size) else { return };
    assert!(!shown.contains(char::is_control), "{shown:?}");
    let Some((third, shown_again)) = kind.again(&again, size) else { panic!("{kind:?} {again:02x?} has no meaning") };
    assert_eq!(third, again, "{kind:?}");
    // A text that is no text may get longer when it is made one, and is cut off then.
    assert!(
        shown.starts_with(&shown_again) || shown.contains(char::REPLACEMENT_CHARACTER),
        "{shown:?} and {shown_again:?}"
    );
}
