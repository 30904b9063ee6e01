//! Keys, as a terminal sends them: letters, and escape sequences for the others.

/// A key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    Letter(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    Last,
    Enter,
    Escape,
    Erase,
    /// Ctrl-C, a signal that ends programs, or the terminal has gone.
    End,
}

/// The keys in what was read; what is none of these is skipped.
pub fn parse(mut bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let [first, rest @ ..] = bytes {
        let key = match first {
            3 | 4 => Some(Key::End),
            b'\r' | b'\n' => Some(Key::Enter),
            8 | 127 => Some(Key::Erase),
            0x1b => match rest {
                [b'[' | b'O', rest @ ..] => {
                    let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte)).unwrap_or(rest.len());
                    let (sequence, behind) = rest.split_at(rest.len().min(end + 1));
                    bytes = behind;
                    keys.extend(of_sequence(sequence));
                    continue;
                }
                _ => Some(Key::Escape),
            },
            b' '..=b'~' => Some(Key::Letter(char::from(*first))),
            _ => None,
        };
        keys.extend(key);
        bytes = rest;
    }
    keys
}

fn of_sequence(sequence: &[u8]) -> Option<Key> {
    Some(match sequence {
        b"A" => Key::Up,
        b"B" => Key::Down,
        b"5~" => Key::PageUp,
        b"6~" => Key::PageDown,
        b"H" | b"1~" => Key::Home,
        b"F" | b"4~" => Key::Last,
        b"M" => Key::Enter,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_terminals_send_them() {
        let all = parse(b"q\x1b[A\x1bOB\x1b[5~\x1b[1;5C\r\x7f\x1b");
        let expected = [Key::Letter('q'), Key::Up, Key::Down, Key::PageUp, Key::Enter, Key::Erase, Key::Escape];
        assert_eq!(all, expected);
        assert_eq!(parse(b"\x03"), [Key::End]);
        assert_eq!(parse("ü\x1b[999999".as_bytes()), []);
        for byte in 0..=u8::MAX {
            parse(&[0x1b, byte, byte, 0x1b, b'[', byte]);
        }
    }
}
