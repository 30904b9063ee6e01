//! How queue pairs encode spans of time.

/// The local ACK timeout of a queue pair as the specification encodes it: `4.096 us * 2^code`, and never for 0 (IBA
/// 9.7.6.1.3).
pub fn ack_timeout_nanos(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4096u64 << code),
    }
}
