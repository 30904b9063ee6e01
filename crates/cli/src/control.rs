//! The out-of-band channel between the two processes of a demo or a benchmark: lines of JSON over a stream. A thread
//! reads them, so that the end of the stream, which is the death of the peer, is noticed whatever this process is
//! doing.

use crate::exit::Failure;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a peer that lives may take to answer: on a machine that is very busy a measurement may take as long.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// How long it may take until the stream says of a peer that it is dead, after the NIC has said so.
const DEATH_NOTICE_TIME: Duration = Duration::from_secs(1);

/// The longest line that is read; a sender of more is no peer of ours.
const MAX_LINE_BYTES: u64 = 1 << 16;

/// How many lines are read that nobody has asked for yet.
const LINES_AHEAD: usize = 16;

/// Says that the stream will end now, and that this is right.
const END_OF_STREAM_LINE: &str = "\"farewell\"";

/// What a process does when its peer is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenGone {
    /// It notices, and can still tell what it has.
    Tell,
    /// It has no other purpose than to serve the peer, so it ends, with this exit code, wherever it is.
    Leave(i32),
}

/// One end of the channel.
pub struct Control {
    writer: Box<dyn Write + Send>,
    lines: Receiver<String>,
    gone: Gone,
}

/// Whether the peer is gone.
#[derive(Clone)]
pub struct Gone(Arc<AtomicBool>);

impl Gone {
    pub fn is_so(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Control {
    /// A channel over the two halves of a stream.
    pub fn new(
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
        when_gone: WhenGone,
    ) -> Result<Control, Failure> {
        let gone = Arc::new(AtomicBool::new(false));
        let (sender, lines) = mpsc::sync_channel(LINES_AHEAD);
        let noticed = Arc::clone(&gone);
        thread::Builder::new()
            .name("control".into())
            .spawn(move || {
                let mut reader = BufReader::new(reader);
                let mut bidden_farewell = false;
                while let Some(line) = line(&mut reader) {
                    bidden_farewell = line == END_OF_STREAM_LINE;
                    if bidden_farewell || sender.send(line).is_err() {
                        break;
                    }
                }
                // Before anybody else can notice, and tell it too.
                if let (WhenGone::Leave(code), false) = (when_gone, bidden_farewell) {
                    if code != 0 {
                        eprintln!("ubiverbs: {}", Failure::PeerGone);
                    }
                    std::process::exit(code);
                }
                noticed.store(true, Ordering::Release);
            })
            .map_err(|source| Failure::System { what: "cannot start a thread", source })?;
        Ok(Control { writer: Box::new(writer), lines, gone: Gone(gone) })
    }

    /// Sends a message.
    pub fn tell(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_string(message).map_err(|error| Failure::Nonsense(error.to_string()))?;
        line.push('\n');
        self.send(&line)
    }

    /// Waits for a message.
    pub fn hear<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let line = self.lines.recv_timeout(ANSWER_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => Failure::PeerSilent(ANSWER_TIMEOUT),
            RecvTimeoutError::Disconnected => Failure::PeerGone,
        })?;
        parse(&line)
    }

    /// Waits for a message for as long as the peer lives. None: it said farewell.
    pub fn next<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        self.lines.recv().ok().map(|line| parse(&line)).transpose()
    }

    /// A message that has come already. Costs next to nothing if none has.
    pub fn heard<T: DeserializeOwned>(&self) -> Result<Option<T>, Failure> {
        match self.lines.try_recv() {
            Ok(line) => parse(&line).map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Failure::PeerGone),
        }
    }

    /// Whether the peer is gone, for several threads to see.
    pub fn gone(&self) -> &Gone {
        &self.gone
    }

    /// Whether the peer's end is closed.
    pub fn is_gone(&self) -> bool {
        self.gone.is_so()
    }

    /// Whether a peer that answers no packet any more has gone: if it is dead, the NIC may know that before the stream
    /// says so.
    pub fn turns_out_gone(&self) -> bool {
        let deadline = Instant::now() + DEATH_NOTICE_TIME;
        while !self.is_gone() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(2));
        }
        self.is_gone()
    }

    /// Tells the peer that all is done.
    pub fn farewell(&mut self) {
        // If it does not hear it, it is gone already.
        let _ = self.send(&format!("{END_OF_STREAM_LINE}\n"));
    }

    fn send(&mut self, line: &str) -> Result<(), Failure> {
        self.writer.write_all(line.as_bytes()).and_then(|()| self.writer.flush()).map_err(|_| Failure::PeerGone)
    }
}

/// Of a message: what the other side calls something, as it may be shown.
pub fn printable<'de, D: Deserializer<'de>>(said: D) -> Result<String, D::Error> {
    String::deserialize(said).map(|text| trace::printable(&text).to_string())
}

fn parse<T: DeserializeOwned>(line: &str) -> Result<T, Failure> {
    serde_json::from_str(line).map_err(|_| Failure::Nonsense(line.chars().take(80).collect()))
}

/// The next line, without its end. None at the end of the stream, or if it has none within reason.
fn line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.take(MAX_LINE_BYTES).read_line(&mut line).ok()?;
    line.ends_with('\n').then(|| line.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn pair() -> (Control, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let writer = ours.try_clone().expect("another descriptor");
        (Control::new(ours, writer, WhenGone::Tell).expect("a channel"), theirs)
    }

    #[test]
    fn messages_arrive_in_order_and_the_end_is_noticed() {
        let (mut control, theirs) = pair();
        let mut peer = Control::new(theirs.try_clone().unwrap(), theirs, WhenGone::Tell).unwrap();
        for number in 0..3u32 {
            peer.tell(&number).unwrap();
        }
        assert_eq!([control.hear::<u32>().unwrap(), control.hear().unwrap(), control.hear().unwrap()], [0, 1, 2]);
        control.tell(&"back").unwrap();
        assert_eq!(peer.hear::<String>().unwrap(), "back");
        peer.farewell();
        assert!(control.next::<u32>().unwrap().is_none());
        assert!(control.is_gone());
    }

    #[test]
    fn nonsense_is_an_error_and_a_line_without_end_is_no_line() {
        let (control, mut theirs) = pair();
        theirs.write_all(b"GET / HTTP/1.1\n").unwrap();
        assert!(matches!(control.hear::<u32>(), Err(Failure::Nonsense(_))));
        let endless = thread::spawn(move || theirs.write_all(&vec![b'x'; 1 << 20]));
        assert!(matches!(control.hear::<u32>(), Err(Failure::PeerGone)));
        drop(control);
        let _ = endless.join();
    }
}
