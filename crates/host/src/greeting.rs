//! What two processes say to each other about a link, beside the packets that travel on such connections (see
//! [`forward`](crate::forward)): eight bytes that begin like those, with descriptors.

const MAGIC: [u8; 4] = *b"UbiF";
const VERSION: u8 = 1;

/// "Read this ring", with its memory. The first message of a connection.
pub const OFFER: u8 = 2;
/// "I do; ring here", with the memory and the bells of its face.
pub const WELCOME: u8 = 3;
/// "I do not."
pub const REFUSAL: u8 = 4;
/// "There is room again."
pub const ROOM: u8 = 5;
/// "When I end, read this", with the memory of the connection records. The connection stays until its process ends.
pub const CONNECTION_RECORDS: u8 = 6;

/// "What do you have?" The first message of a connection. 7 is a packet's, see [`forward`](crate::forward).
pub const INQUIRY: u8 = 8;
/// "This", with sealed memory.
pub const REPORT: u8 = 9;

/// The message of that kind.
pub fn of(kind: u8) -> [u8; 8] {
    let [a, b, c, d] = MAGIC;
    [a, b, c, d, VERSION, kind, 0, 0]
}

/// The kind of a message, if it is one of these.
pub fn kind(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [magic @ .., VERSION, kind @ (OFFER..=CONNECTION_RECORDS | INQUIRY | REPORT), 0, 0] if *magic == MAGIC => {
            Some(*kind)
        }
        _ => None,
    }
}
