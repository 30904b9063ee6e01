//! The acts of the demo, and what alice and bob both know beforehand.

use serde::{Deserialize, Serialize};

/// What alice and bob do, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    Send,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
    CompareSwap,
    Datagram,
    WrongKey,
}

impl Act {
    pub const ALL: [Act; 8] = [
        Act::Send,
        Act::Write,
        Act::WriteImmediate,
        Act::Read,
        Act::FetchAdd,
        Act::CompareSwap,
        Act::Datagram,
        Act::WrongKey,
    ];
}

/// Things both sides know beforehand, so that each can check what it gets.
pub mod known {
    /// How many bytes are written and read at once.
    pub const SIZE: usize = 1 << 20;
    /// Where in bob's memory the counter stands, behind them.
    pub const COUNTER_AT: usize = SIZE;
    /// All of bob's memory.
    pub const REGION: usize = SIZE + 64;
    pub const COUNTER: u64 = 37;
    pub const ADDED: u64 = 5;
    pub const SWAPPED: u64 = 1000;
    pub const IMMEDIATE: u32 = 2026;
    pub const SHORT: usize = 5000;
    pub const GREETING: &[u8] = b"hello, bob";
    pub const REPLY: &[u8] = b"hello, alice";
    pub const DATAGRAM: usize = 1000;
    /// How many datagrams bob is prepared for.
    pub const TRIES: usize = 16;

    /// Bytes that look random and that both sides can compute: one kind per act.
    pub fn bytes(kind: u64, length: usize) -> Vec<u8> {
        let mut state = kind.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }
}
