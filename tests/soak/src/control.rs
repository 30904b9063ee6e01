//! The TCP connections over which the two processes agree: one for the run, one for each thread. Lines of a word and a
//! text.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::options::{Options, Role};
use crate::watch::{Result, Trouble, Watch};

/// So long may the other program take to start.
const START: Duration = Duration::from_secs(40);

pub struct Control {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    partial: Vec<u8>,
    watch: Arc<Watch>,
}

/// The connections of a run: the first is for the run itself.
pub fn meet(options: &Options, watch: &Arc<Watch>) -> Result<Vec<Control>> {
    let deadline = Instant::now() + START;
    let count = options.threads as usize + 1;
    match options.role {
        Role::Server => accept(options, watch, count, deadline),
        Role::Client => (0..count).map(|index| connect(options, watch, index, deadline)).collect(),
    }
}

fn accept(options: &Options, watch: &Arc<Watch>, count: usize, deadline: Instant) -> Result<Vec<Control>> {
    let failed = |e: &dyn std::fmt::Display| Trouble::setup("the control channel", e);
    let listener = TcpListener::bind(options.server()).map_err(|e| failed(&e))?;
    listener.set_nonblocking(true).map_err(|e| failed(&e))?;
    let mut found: Vec<Option<Control>> = (0..count).map(|_| None).collect();
    while found.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                let mut control = Control::new(stream, watch).map_err(|e| failed(&e))?;
                let index: usize = control.hear("channel")?.parse().map_err(|e| failed(&e))?;
                *found.get_mut(index).ok_or_else(|| failed(&"the client has more threads"))? = Some(control);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(&format!("no client: {e}"))),
        }
    }
    Ok(found.into_iter().flatten().collect())
}

fn connect(options: &Options, watch: &Arc<Watch>, index: usize, deadline: Instant) -> Result<Control> {
    let failed = |e: &dyn std::fmt::Display| Trouble::setup("the control channel", e);
    loop {
        match TcpStream::connect(options.server()) {
            Ok(stream) => {
                let mut control = Control::new(stream, watch).map_err(|e| failed(&e))?;
                control.say("channel", &index.to_string())?;
                return Ok(control);
            }
            // The server may not have come so far.
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(e) => return Err(failed(&format!("no server: {e}"))),
        }
    }
}

impl Control {
    fn new(stream: TcpStream, watch: &Arc<Watch>) -> std::io::Result<Control> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let reader = BufReader::new(stream.try_clone()?);
        Ok(Control { stream, reader, partial: Vec::new(), watch: Arc::clone(watch) })
    }

    pub fn say(&mut self, word: &str, text: &str) -> Result<()> {
        let line = format!("{word} {text}\n");
        self.stream.write_all(line.as_bytes()).map_err(|e| Trouble::PeerGone(format!("cannot say {word}: {e}")))
    }

    /// Waits for a line that begins with `word`, and answers the rest.
    pub fn hear(&mut self, word: &str) -> Result<String> {
        let line = self.line(word)?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            (first, rest) if first == word => Ok(rest.to_owned()),
            _ => Err(Trouble::wrong(format!("control channel: expected {word:?}, seen {line:?}"))),
        }
    }

    /// Waits for any line, and answers its word.
    pub fn hear_any(&mut self) -> Result<String> {
        let line = self.line("a line")?;
        Ok(line.split(' ').next().unwrap_or_default().to_owned())
    }

    fn line(&mut self, word: &str) -> Result<String> {
        loop {
            match self.reader.read_until(b'\n', &mut self.partial) {
                Ok(0) => return Err(Trouble::PeerGone(format!("it ended when {word:?} was due"))),
                Ok(_) if !self.partial.ends_with(b"\n") => {}
                Ok(_) => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Trouble::PeerGone(format!("{e} when {word:?} was due"))),
            }
        }
        self.watch.beat();
        Ok(String::from_utf8_lossy(&std::mem::take(&mut self.partial)).trim_end().to_owned())
    }

    /// Says something and hears what the peer says to the same word.
    pub fn exchange(&mut self, word: &str, text: &str) -> Result<String> {
        self.say(word, text)?;
        self.hear(word)
    }

    /// Whether a line waits to be heard.
    pub fn has_line(&mut self) -> Result<bool> {
        if !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        let gone = |e: std::io::Error| Trouble::PeerGone(format!("the control channel broke: {e}"));
        self.stream.set_nonblocking(true).map_err(gone)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).map_err(gone)?;
        match peeked {
            Ok(0) => Err(Trouble::PeerGone("the control channel ended".into())),
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
            Err(e) => Err(gone(e)),
        }
    }

    /// Whether the peer goes within `limit`: what an error of its queue pairs would explain.
    pub fn ends_within(&mut self, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            match self.has_line() {
                Err(Trouble::PeerGone(how)) => return Some(how),
                // What it still said is of no interest any more.
                Ok(true) => {
                    let length = self.reader.buffer().len();
                    self.reader.consume(length);
                    if length == 0 && self.reader.fill_buf().is_err() {
                        return Some("the control channel broke".into());
                    }
                }
                _ => thread::sleep(Duration::from_millis(2)),
            }
        }
        None
    }
}
