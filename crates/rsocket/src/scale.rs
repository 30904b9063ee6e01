//! A number in eight bits, exact up to 128 and rounded down above: how connection data says how many I/O mappings
//! there are.

/// The highest of the eight bits: set in numbers that are scaled.
const SCALED_BIT: u32 = 1 << 7;

/// Writes a number in eight bits. What does not fit is rounded down.
pub fn value_to_scale(value: u32) -> u8 {
    if value <= SCALED_BIT { value as u8 } else { (SCALED_BIT | (value >> 8).min(SCALED_BIT - 1)) as u8 }
}

/// Reads it back.
pub fn scale_to_value(scale: u8) -> u16 {
    let scale = u32::from(scale);
    if scale <= SCALED_BIT { scale as u16 } else { ((scale & !SCALED_BIT) << 8) as u16 }
}
