//! The terminal: its size, its keys without their echo, and ratatui's cells as escape sequences. It is as it was when this
//! is dropped, and a signal ends the program only then. Nothing here needs a terminal's database: the sequences are those that all terminals of today share.

use super::ending::HeldSignals;
use super::keys::{self, Key};
use anstream::AutoStream;
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::Terminal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, OptionalActions, Termios};
use std::io::{self, Read, Write};
use std::time::Duration;

/// The size of a terminal that does not say it.
const USUAL_SIZE: Size = Size { width: 80, height: 24 };

/// So much of a terminal is drawn on: it says its size itself.
const MAX_WIDTH: u16 = 500;
const MAX_HEIGHT: u16 = 300;

/// Bytes of keys that are read at once.
const KEYS_AT_ONCE: usize = 256;

/// The other screen, so that what was on this one stays; without a cursor.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE_SCREEN: &str = "\x1b[0m\x1b[?25h\x1b[?1049l";

/// The terminal, while it is ours.
pub struct Screen {
    terminal: Terminal<Cells>,
    before: Termios,
    /// Dropped last: the terminal is as it was when they have their effect.
    signals: HeldSignals,
}

impl Screen {
    pub fn take() -> io::Result<Screen> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        let colours = AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
        let terminal = Terminal::new(Cells { out: Vec::new(), colours })?;
        let signals = HeldSignals::hold()?;
        termios::tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        let screen = Screen { terminal, before, signals };
        io::stdout().write_all(ENTER_SCREEN.as_bytes())?;
        io::stdout().flush()?;
        Ok(screen)
    }

    /// Shows what is drawn.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| draw(frame.buffer_mut())).map(|_| ())
    }

    /// The keys that were pressed, as soon as one was; none if none was for so long, or the size changed. A signal that
    /// ends programs is a key, too.
    pub fn keys(&mut self, timeout: Duration) -> io::Result<Vec<Key>> {
        let input = io::stdin();
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut sources = [PollFd::new(&input, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
        match poll(&mut sources, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            ready => ready?,
        };
        if !sources[1].revents().is_empty() {
            return Ok(vec![Key::End]);
        }
        let mut bytes = [0; KEYS_AT_ONCE];
        match input.lock().read(&mut bytes)? {
            0 => Ok(vec![Key::End]),
            length => Ok(keys::parse(&bytes[..length])),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = io::stdout().write_all(LEAVE_SCREEN.as_bytes());
        let _ = io::stdout().flush();
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

/// Writes cells as escape sequences, many at once.
struct Cells {
    out: Vec<u8>,
    colours: bool,
}

impl Cells {
    /// The sequence of a cell's style.
    fn style(&mut self, cell: &Cell) -> io::Result<()> {
        write!(self.out, "\x1b[0")?;
        for (modifier, code) in [(Modifier::BOLD, 1), (Modifier::DIM, 2), (Modifier::REVERSED, 7)] {
            if cell.modifier.contains(modifier) {
                write!(self.out, ";{code}")?;
            }
        }
        let colour = match cell.fg {
            Color::Red => Some(31),
            Color::Green => Some(32),
            Color::Yellow => Some(33),
            Color::Cyan => Some(36),
            _ => None,
        };
        if let Some(colour) = colour.filter(|_| self.colours) {
            write!(self.out, ";{colour}")?;
        }
        write!(self.out, "m")
    }
}

impl Backend for Cells {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut last: Option<(u16, u16, &Cell)> = None;
        for (x, y, cell) in content {
            if last.is_none_or(|(before, row, _)| (before + 1, row) != (x, y)) {
                write!(self.out, "\x1b[{};{}H", y + 1, x + 1)?;
            }
            if last.is_none_or(|(_, _, before)| (before.fg, before.modifier) != (cell.fg, cell.modifier)) {
                self.style(cell)?;
            }
            self.out.extend_from_slice(cell.symbol().as_bytes());
            last = Some((x, y, cell));
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        write!(self.out, "\x1b[{};{}H", y + 1, x + 1)
    }

    fn clear(&mut self) -> io::Result<()> {
        write!(self.out, "\x1b[0m\x1b[2J")
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let said = termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        Ok(said.map_or(USUAL_SIZE, |size| Size::new(size.ws_col.min(MAX_WIDTH), size.ws_row.min(MAX_HEIGHT))))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().write_all(&self.out)?;
        self.out.clear();
        io::stdout().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::style::Style;

    #[test]
    fn cells_become_text_with_colours_only_where_they_are_wanted() {
        let mut cell = Cell::new("x");
        cell.set_style(Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        let draw = |colours| {
            let mut cells = Cells { out: Vec::new(), colours };
            cells.draw([(0, 0, &cell), (1, 0, &cell), (4, 2, &cell)].into_iter()).unwrap();
            String::from_utf8(cells.out).unwrap()
        };
        assert_eq!(draw(true), "\x1b[1;1H\x1b[0;1;31mxx\x1b[3;5Hx");
        assert_eq!(draw(false), "\x1b[1;1H\x1b[0;1mxx\x1b[3;5Hx");
    }
}
