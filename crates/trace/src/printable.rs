//! Text that another user or program has chosen, on its way to a terminal or a log: the name of a process, what a peer
//! says of itself, a file that came from elsewhere.

use core::fmt::{self, Write};

/// Shows the text with everything escaped that a terminal would obey: control characters, line ends among them, and
/// marks that turn the direction of writing. All text that others have named is shown so.
///
/// ```
/// assert_eq!(trace::printable("a\x1b[2Jb\n").to_string(), r"a\u{1b}[2Jb\n");
/// ```
pub fn printable(text: &str) -> impl fmt::Display + '_ {
    Printable(text)
}

struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            letter if letter.is_control() => write!(f, "{}", letter.escape_default()),
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                write!(f, "{}", letter.escape_unicode())
            }
            letter => f.write_char(letter),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::printable;
    use alloc::string::ToString;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        for (text, shown) in [
            ("rping", "rping"),
            ("größer 的", "größer 的"),
            ("\u{1b}]0;owned\u{7}", "\\u{1b}]0;owned\\u{7}"),
            ("\u{9b}2J\r\n\t\0\u{7f}", "\\u{9b}2J\\r\\n\\t\\u{0}\\u{7f}"),
            ("a\u{202e}b\u{2066}", "a\\u{202e}b\\u{2066}"),
        ] {
            assert_eq!(printable(text).to_string(), shown);
        }
    }
}
