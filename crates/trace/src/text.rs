//! Short text without the heap, so that an event can be copied.

use core::fmt::{self, Write};

/// At most `N` bytes of text; what is longer is cut at a character.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    length: u8,
}

impl<const N: usize> Text<N> {
    /// What `shown` shows, as far as it fits.
    #[must_use]
    pub fn of(shown: impl fmt::Display) -> Self {
        let mut text = Self { bytes: [0; N], length: 0 };
        // Too long is no error: what fitted is there.
        let _ = write!(text, "{shown}");
        text
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let used = usize::from(self.length);
        let room = N.min(usize::from(u8::MAX)) - used;
        let taken = more.floor_char_boundary(room);
        self.bytes[used..used + taken].copy_from_slice(&more.as_bytes()[..taken]);
        self.length += taken as u8;
        if taken == more.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may come from a log of another host.
        write!(f, "{}", crate::printable(self.as_str()))
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}
