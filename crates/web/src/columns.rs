//! Columns of numbers as bytes: each number is written as its difference from the one before it in the same group, so
//! that what grows steadily, or stays, packs into almost nothing. `page/data.js` is the other half.

use serde::Serialize;

/// Numbers below this are exact in a number of JavaScript with room for a difference; a column with larger ones is read
/// as `BigInt`.
const EXACT_NUMBER_MAX: u64 = 1 << 51;

/// Where a column is, and what it is read into.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Column {
    /// How many numbers.
    count: usize,
    /// Bytes of each number when it is read: 0 if all are `constant`, 1, 2, 4, 8 (a float), or 9: a `BigInt` of 8 bytes.
    width: u8,
    /// The number that all are, in decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    constant: Option<String>,
    /// Where it begins in the bytes.
    offset: usize,
    /// Whether differences are those within a group; groups are the numbers of another column.
    grouped: bool,
}

/// All columns of a page.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) bytes: Vec<u8>,
}

impl Columns {
    /// Adds a column whose differences are those from the number before.
    pub(crate) fn add(&mut self, values: &[u64]) -> Column {
        self.write(values, None)
    }

    /// Adds a column whose differences are those from the last number of the same group.
    pub(crate) fn add_grouped(&mut self, values: &[u64], groups: &[u32]) -> Column {
        self.write(values, Some(groups))
    }

    fn write(&mut self, values: &[u64], groups: Option<&[u32]>) -> Column {
        let mut column = Column {
            count: values.len(),
            width: 0,
            constant: None,
            offset: self.bytes.len(),
            grouped: groups.is_some(),
        };
        let first = values.first().copied().unwrap_or_default();
        if values.iter().all(|value| *value == first) {
            column.constant = Some(first.to_string());
            return column;
        }
        column.width = match values.iter().copied().max().unwrap_or_default() {
            0..=0xFF => 1,
            0x100..=0xFFFF => 2,
            0x1_0000..=0xFFFF_FFFF => 4,
            0x1_0000_0000..EXACT_NUMBER_MAX => 8,
            _ => 9,
        };
        let mut before = vec![0; 1 + groups.map_or(0, |groups| groups.iter().copied().max().unwrap_or(0) as usize)];
        for (place, &value) in values.iter().enumerate() {
            let group = groups.map_or(0, |groups| groups[place] as usize);
            let difference = value.wrapping_sub(before[group]) as i64;
            before[group] = value;
            self.number(((difference << 1) ^ (difference >> 63)) as u64);
        }
        column
    }

    /// Seven bits a byte, the lowest first; the highest bit says that more follow.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_or_grows_steadily_is_small() {
        let mut columns = Columns::default();
        let constant = columns.add(&[7; 1_000]);
        assert_eq!((constant.width, constant.constant.as_deref(), columns.bytes.len()), (0, Some("7"), 0));
        let steady: Vec<u64> = (0..1_000).map(|n| (1 << 40) + n * 10).collect();
        assert_eq!(columns.add(&steady).width, 8);
        assert_eq!(columns.bytes.len(), 6 + 999);
    }

    #[test]
    fn differences_of_groups_that_alternate_are_small() {
        let values: Vec<u64> = (0..1_000).map(|n| (n % 2) * 1_000_000 + n).collect();
        let groups: Vec<u32> = (0..1_000).map(|n| n % 2).collect();
        let mut columns = Columns::default();
        assert!(columns.add_grouped(&values, &groups).grouped);
        assert_eq!(columns.bytes.len(), 1 + 3 + 998);
    }

    #[test]
    fn the_largest_numbers_are_written_whole() {
        let mut columns = Columns::default();
        assert_eq!(columns.add(&[u64::MAX, 0, EXACT_NUMBER_MAX]).width, 9);
        assert_eq!(columns.add(&[EXACT_NUMBER_MAX - 1, 0]).width, 8);
    }
}
