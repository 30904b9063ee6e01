//! What victims send each other: every message says which flow it belongs to and which one of that flow it is, and all
//! its bytes follow from that. A message that was forged, doubled, damaged or lost is seen.

/// The flows of a pair of victims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Flow {
    /// A reliable queue pair.
    Reliable = b'R',
    /// An unreliable one.
    Unreliable = b'U',
    /// Datagrams.
    Datagram = b'D',
    /// A reliable queue pair that the connection manager made.
    Connection = b'C',
}

/// Asks the server to compare its memory with what message number so-and-so wrote.
const CHECK: u64 = 1 << 63;

/// Front: flow and number.
const FRONT: usize = 9;

/// Bytes that follow from `seed`.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The message with this number. Reliable flows have a long one now and then.
pub fn message(flow: Flow, number: u64, check: bool) -> Vec<u8> {
    let reliable = matches!(flow, Flow::Reliable | Flow::Connection);
    let length = if reliable && number % 32 == 7 { 20_000 } else { 16 + number as usize * 37 % 900 };
    let word = if check { number | CHECK } else { number };
    let mut bytes = vec![flow as u8];
    bytes.extend(word.to_be_bytes());
    bytes.extend(pattern(word ^ u64::from(flow as u8) << 40, length));
    bytes
}

/// The number of a message, and whether it asks for a check; or what is wrong with it.
pub fn read(flow: Flow, bytes: &[u8]) -> Result<(u64, bool), String> {
    let forged = || {
        let front: Vec<String> = bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("{flow:?}: {} bytes that no peer sent: {}", bytes.len(), front.concat())
    };
    let word = bytes.get(1..FRONT).and_then(|word| word.first_chunk()).map(|word| u64::from_be_bytes(*word));
    let word = word.ok_or_else(forged)?;
    let (number, check) = (word & !CHECK, word & CHECK != 0);
    // A number that was never sent is never a reason for much work.
    if number >> 32 != 0 || message(flow, number, check) != bytes { Err(forged()) } else { Ok((number, check)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_they_were_written() {
        for (flow, number, check) in [(Flow::Reliable, 7, true), (Flow::Datagram, 1000, false)] {
            let bytes = message(flow, number, check);
            assert_eq!(read(flow, &bytes), Ok((number, check)));
            assert!(read(Flow::Unreliable, &bytes).is_err());
            let mut damaged = bytes.clone();
            *damaged.last_mut().unwrap() ^= 1;
            assert!(read(flow, &damaged).is_err());
        }
        assert!(read(Flow::Reliable, b"").is_err());
        assert!(read(Flow::Reliable, &[0xff; 64]).is_err());
    }
}
