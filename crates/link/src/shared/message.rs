//! What two processes say to each other about a link, beside the packets that travel on such connections (see
//! [`forward`](crate::forward)): eight bytes that begin like those, with descriptors.

const MAGIC: [u8; 4] = *b"UbiF";
const VERSION: u8 = 1;

/// "Read this ring", with its memory. The first message of a connection.
pub(crate) const OFFER: u8 = 2;
/// "I do; ring here", with the memory and the bells of its face.
pub(crate) const WELCOME: u8 = 3;
/// "I do not."
pub(crate) const REFUSAL: u8 = 4;
/// "There is room again."
pub(crate) const ROOM: u8 = 5;
/// "If I die, read this", with the memory of a will. The connection stays as long as its process lives.
pub(crate) const WILL: u8 = 6;

/// The message of that kind.
pub(crate) fn of(kind: u8) -> [u8; 8] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, kind, 0, 0]
}

/// The kind of a message, if it is one of these.
pub(crate) fn kind(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [magic @ .., VERSION, kind @ OFFER..=WILL, 0, 0] if *magic == MAGIC => Some(*kind),
        _ => None,
    }
}
