//! What two processes say to each other about a link, beside the packets that travel on such connections (see
//! [`forward`](crate::forward)): eight bytes that begin like those, with descriptors.

const GREETING_MAGIC: [u8; 4] = *b"UbiF";
const GREETING_VERSION: u8 = 1;

/// "Read this ring", with its memory. The first message of a connection.
pub const RING_OFFER: u8 = 2;
/// "I do; ring here", with the memory and the bells of its face.
pub const RING_WELCOME: u8 = 3;
/// "I do not."
pub const RING_REFUSAL: u8 = 4;
/// "There is room again."
pub const ROOM_NOTICE: u8 = 5;
/// "When I end, read this", with the memory of the connection records. The connection stays until its process ends.
pub const CONNECTION_RECORDS: u8 = 6;

/// "What do you have?" The first message of a connection. 7 is a packet's, see [`forward`](crate::forward).
pub const REPORT_INQUIRY: u8 = 8;
/// "This", with sealed memory.
pub const REPORT_ANSWER: u8 = 9;

/// "Memory of this number", with its descriptor; the number follows. On the connection of a ring, from its writer.
pub const MEMORY_DESCRIPTOR: u8 = 10;

/// "May I reach your memory without you?" From the writer of a ring, and so is the proof.
pub const DIRECT_INQUIRY: u8 = 11;
/// "If the kernel lets you look here", with the number of a descriptor of the process. From the reader of a ring.
pub const DIRECT_PLACE: u8 = 12;
/// "It did", with the number that stands there.
pub const DIRECT_PROOF: u8 = 13;
/// "You may", with the descriptor of the memory and the number of the grant.
pub const DIRECT_GRANT: u8 = 14;

/// "Let this happen to you", with sealed memory that says what; from a process of the own user. The first message of a
/// connection; a report answers what came of it.
pub const INJECTION: u8 = 15;

/// The message of that kind which says a number.
pub fn numbered(kind: u8, number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&of(kind));
    bytes[8..].copy_from_slice(&number.to_ne_bytes());
    bytes
}

/// The kind of a message which says a number, and the number.
pub fn number(bytes: &[u8; 16]) -> Option<(u8, u64)> {
    let (first, number) = bytes.split_at(8);
    let kind @ MEMORY_DESCRIPTOR..=DIRECT_GRANT = *bytes.get(5)? else { return None };
    (first == of(kind)).then(|| number.try_into().ok().map(|number| (kind, u64::from_ne_bytes(number))))?
}

/// The message of that kind.
pub fn of(kind: u8) -> [u8; 8] {
    let [a, b, c, d] = GREETING_MAGIC;
    [a, b, c, d, GREETING_VERSION, kind, 0, 0]
}

/// The kind of a message, if it is one of these.
pub fn kind(bytes: &[u8]) -> Option<u8> {
    match bytes {
        [
            magic @ ..,
            GREETING_VERSION,
            kind @ (RING_OFFER..=CONNECTION_RECORDS | REPORT_INQUIRY | REPORT_ANSWER | INJECTION),
            0,
            0,
        ] if *magic == GREETING_MAGIC => Some(*kind),
        _ => None,
    }
}
