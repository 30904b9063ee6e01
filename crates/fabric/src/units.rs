//! Quantities as people write them: `100G`, `1MiB`, `1.5us`, `0.1%`.

/// A rate in bit/s: `100G`, `2.5Gbit/s`, `400000000`.
pub fn rate(text: &str) -> Option<u64> {
    let text = text.strip_suffix("bit/s").or(text.strip_suffix("bps")).unwrap_or(text);
    scaled(text, &[("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3), ("k", 1e3)])
}

/// A number of bytes; units are powers of 1024: `64K`, `1MiB`, `1500`.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.strip_suffix("iB").or(text.strip_suffix('B')).unwrap_or(text);
    scaled(text, &[("G", 1024.0 * 1024.0 * 1024.0), ("M", 1024.0 * 1024.0), ("K", 1024.0), ("k", 1024.0)])
}

/// A span of time in nanoseconds: `600ns`, `1.5us`, `2ms`, `1s`.
pub fn span(text: &str) -> Option<u64> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    if text == "0" {
        return Some(0);
    }
    // Without a unit it could be anything.
    units.iter().find(|(unit, _)| text.ends_with(unit)).and_then(|_| scaled(text, &units))
}

/// A part of one: `0.01`, `1%`.
pub fn probability(text: &str) -> Option<f64> {
    let value = match text.strip_suffix('%') {
        Some(percent) => number(percent)? / 100.0,
        None => number(text)?,
    };
    (0.0..=1.0).contains(&value).then_some(value)
}

fn scaled(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let (digits, factor) = units
        .iter()
        .find_map(|(unit, factor)| text.strip_suffix(unit).map(|digits| (digits, *factor)))
        .unwrap_or((text, 1.0));
    let value = number(digits)? * factor;
    // What is larger loses digits, and is no quantity of a network.
    (0.0..=9e15).contains(&value).then_some(value.round() as u64)
}

/// Digits with at most one point: no signs, exponents or names of numbers.
fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain && text.bytes().any(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// A span for people.
pub fn show_span(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.2} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanos as f64 / 1e6),
        _ => format!("{:.3} s", nanos as f64 / 1e9),
    }
}

/// A number of bytes for people.
pub fn show_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// A rate for people.
pub fn show_rate(bits_per_second: f64) -> String {
    match bits_per_second {
        rate if rate >= 1e12 => format!("{:.2} Tbit/s", rate / 1e12),
        rate if rate >= 1e9 => format!("{:.2} Gbit/s", rate / 1e9),
        rate if rate >= 1e6 => format!("{:.2} Mbit/s", rate / 1e6),
        rate => format!("{:.0} kbit/s", rate / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_people_write_them() {
        assert_eq!(
            ["100G", "2.5Gbit/s", "40Gbps", "9"].map(rate),
            [100_000_000_000, 2_500_000_000, 40_000_000_000, 9].map(Some)
        );
        assert_eq!(["64K", "1MiB", "1500", "1500B"].map(bytes), [65_536, 1_048_576, 1_500, 1_500].map(Some));
        assert_eq!(["600ns", "1.5us", "2ms", "1s", "0"].map(span), [600, 1_500, 2_000_000, 1_000_000_000, 0].map(Some));
        assert_eq!(["0.01", "1%", "1"].map(probability), [0.01, 0.01, 1.0].map(Some));
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in ["", "G", "-1G", "1e9", "NaN", "inf", "1..2", "1 G", "99999999G", "1X"] {
            assert_eq!((rate(text), bytes(text), span(text)), (None, None, None), "{text:?}");
        }
        assert_eq!([span("5"), span("1m")], [None, None]);
        assert_eq!([probability("1.01"), probability("101%"), probability("-0.1")], [None, None, None]);
    }
}
