//! The fixed-size fields that messages leave to their users: private data and additional information.

use core::fmt;

use crate::EncodeError;

/// `N` bytes for the user; what the user does not fill is zero, and how much of it counts is for the two users to
/// agree.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Data<const N: usize>([u8; N]);

impl<const N: usize> Data<N> {
    /// How much fits.
    pub const LEN: usize = N;

    /// All of it.
    pub const fn new(bytes: [u8; N]) -> Data<N> {
        Data(bytes)
    }

    /// `bytes` and zeroes behind them.
    pub fn from_slice(bytes: &[u8]) -> Result<Data<N>, EncodeError> {
        let mut data = [0; N];
        match data.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Ok(Data(data))
            }
            None => Err(EncodeError::DataTooLong { have: bytes.len(), room: N }),
        }
    }

    /// All of it.
    pub const fn bytes(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Default for Data<N> {
    fn default() -> Data<N> {
        Data([0; N])
    }
}

impl<const N: usize> fmt::Debug for Data<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        f.write_str("Data(")?;
        for byte in self.0.iter().take(used) {
            write!(f, "{byte:02x}")?;
        }
        write!(f, " of {N})")
    }
}
