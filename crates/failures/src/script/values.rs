//! Texts of values: times, sizes, speeds, chances.

use crate::script::{Chance, Nanos};

/// No time is longer: a day.
pub const MAX_NANOS: Nanos = 86_400_000_000_000;

const TIMES: &[(&str, f64)] = &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("min", 60e9), ("h", 3600e9)];

const SIZES: &[(&str, f64)] = &[("", 1.0), ("K", 1024.0), ("M", 1_048_576.0), ("G", 1_073_741_824.0)];

const SPEEDS: &[(&str, f64)] = &[("", 1.0), ("K", 1e3), ("M", 1e6), ("G", 1e9)];

/// `2s`, `1.5ms`.
pub fn time(text: &str) -> Option<Nanos> {
    scaled(text, TIMES, MAX_NANOS as f64)
}

/// A bound of times for people.
pub fn shown(nanos: Nanos) -> &'static str {
    match nanos {
        0 => "0s",
        1 => "1ns",
        _ => "1ms",
    }
}

/// `64K`, `1M`: in powers of 1024.
pub fn size(text: &str) -> Option<u64> {
    scaled(text, SIZES, 1e18)
}

/// `25G`, `100 Mbit/s`: in powers of 1000.
pub fn speed(text: &str) -> Option<u64> {
    let text = text.strip_suffix("bit/s").unwrap_or(text);
    scaled(text, SPEEDS, 1e13).filter(|speed| *speed > 0)
}

/// `1%`, `0.01`.
pub fn chance(text: &str) -> Option<Chance> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits.trim_end(), 100.0));
    let value = decimal(digits)? / scale;
    (0.0..=1.0).contains(&value).then_some(Chance(value))
}

fn scaled(text: &str, units: &[(&str, f64)], most: f64) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|letter: char| !(letter.is_ascii_digit() || letter == '.')).unwrap_or(text.len());
    let (digits, unit) = text.split_at_checked(end)?;
    let (_, scale) = units.iter().find(|(name, _)| *name == unit.trim())?;
    let value = decimal(digits)? * scale;
    (value <= most).then_some(value as u64)
}

/// A number without sign, exponent or names such as `inf`, which the library's parser knows too.
fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_units() {
        assert_eq!(time("2s"), Some(2_000_000_000));
        assert_eq!(time("1.5 ms"), Some(1_500_000));
        assert_eq!(time("0s"), Some(0));
        assert_eq!(time("24h"), Some(MAX_NANOS));
        assert_eq!(size("1M"), Some(1 << 20));
        assert_eq!(size("4096"), Some(4096));
        assert_eq!(speed("25G"), Some(25_000_000_000));
        assert_eq!(speed("100 Mbit/s"), Some(100_000_000));
        assert_eq!(chance("1%"), Some(Chance(0.01)));
        assert_eq!(chance("1"), Some(Chance(1.0)));
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for text in ["", "s", "2", "-2s", "2 S", "1e3s", "infs", "25h", "..s", "2s2s"] {
            assert_eq!(time(text), None, "{text}");
        }
        for text in ["", "101%", "-1%", "nan", "inf", "1.1", "%"] {
            assert_eq!(chance(text), None, "{text}");
        }
        for text in ["0", "99999G", "fast", "1T"] {
            assert_eq!(speed(text), None, "{text}");
        }
        assert_eq!(size("1T"), None);
    }
}
