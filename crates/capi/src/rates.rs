//! Rates: the encoding of `ibv_rate`, multiples of 2.5 Gbit/s, and Mbit/s.

use abi::*;
use std::ffi::{c_int, c_uint};

/// Encoding, multiple of 2.5 Gbit/s (0 where it is none), Mbit/s.
const RATE_TABLE: &[(u32, c_int, c_int)] = &[
    (IBV_RATE_2_5_GBPS, 1, 2_500),
    (IBV_RATE_5_GBPS, 2, 5_000),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, 0, 14_062),
    (IBV_RATE_56_GBPS, 0, 56_250),
    (IBV_RATE_112_GBPS, 0, 112_500),
    (IBV_RATE_168_GBPS, 0, 168_750),
    (IBV_RATE_25_GBPS, 0, 25_781),
    (IBV_RATE_100_GBPS, 0, 103_125),
    (IBV_RATE_200_GBPS, 0, 206_250),
    (IBV_RATE_300_GBPS, 0, 309_375),
    (IBV_RATE_28_GBPS, 0, 28_125),
    (IBV_RATE_50_GBPS, 0, 53_125),
    (IBV_RATE_400_GBPS, 0, 425_000),
    (IBV_RATE_600_GBPS, 0, 637_500),
    (IBV_RATE_800_GBPS, 0, 850_000),
    (IBV_RATE_1200_GBPS, 0, 1_275_000),
];

/// The multiple of 2.5 Gbit/s, or -1 for a rate that is none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_uint) -> c_int {
    RATE_TABLE
        .iter()
        .find(|(code, multiple, _)| *code == rate && *multiple > 0)
        .map_or(-1, |(_, multiple, _)| *multiple)
}

/// The rate that is this multiple of 2.5 Gbit/s; the largest for others.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> c_uint {
    let found = RATE_TABLE.iter().find(|(_, other, _)| *other == multiple && multiple > 0);
    found.map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

/// The rate in Mbit/s, or -1 for none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_uint) -> c_int {
    RATE_TABLE.iter().find(|(code, ..)| *code == rate).map_or(-1, |(.., mbps)| *mbps)
}

/// The rate of so many Mbit/s; the largest for others.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_uint {
    RATE_TABLE.iter().find(|(.., other)| *other == mbps).map_or(IBV_RATE_MAX, |(code, ..)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_comes_back() {
        for (code, multiple, mbps) in RATE_TABLE {
            assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(*code)), *code);
            assert_eq!(ibv_rate_to_mbps(*code), *mbps);
            if *multiple > 0 {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(*code)), *code);
            } else {
                assert_eq!(ibv_rate_to_mult(*code), -1);
            }
        }
    }

    #[test]
    fn what_is_no_rate_is_none() {
        assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), -1);
        assert_eq!(ibv_rate_to_mbps(99), -1);
        assert_eq!(mult_to_ibv_rate(0), IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(1), IBV_RATE_MAX);
    }
}
