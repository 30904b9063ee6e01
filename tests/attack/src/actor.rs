//! A process that plays a part, and what it and the director say to each other: lines that begin with a word. A victim
//! that sees something it must not see says `hurt` at once; the director keeps these lines apart.

use std::collections::VecDeque;
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What comes of a role.
pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a process may take to answer. On a machine with more work than processors nothing is fast.
pub const ACTOR_REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Says something to the director.
pub fn say(word: &str, text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    // A director that has gone hears nothing.
    let _ = writeln!(out, "{word} {text}").and_then(|()| out.flush());
}

/// The lines that the director says, until it wants nothing more.
pub fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map_while(Result::ok)
}

/// The next line, which must begin with `word`: the rest of it.
pub fn hear(word: &str) -> Outcome<String> {
    let line = lines().next().ok_or_else(|| format!("nobody says {word:?}"))?;
    Ok(line.strip_prefix(word).ok_or_else(|| format!("expected {word:?}, heard {line:?}"))?.trim().to_owned())
}

/// A process that plays a part. It is killed when this is dropped.
pub struct Actor {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    hurts: VecDeque<String>,
}

impl Actor {
    /// Starts it.
    pub fn start(name: &str, command: &mut Command) -> Outcome<Actor> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().ok_or("its output is no pipe")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Actor { name: name.to_owned(), child, stdin, lines, hurts: VecDeque::new() })
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says something to it. A process that has gone does not hear.
    pub fn say(&mut self, word: &str, text: impl std::fmt::Display) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{word} {text}");
        }
    }

    /// Waits for it to say something that begins with `word`, and answers the rest.
    pub fn hear(&mut self, word: &str) -> Outcome<String> {
        self.hear_within(word, ACTOR_REPLY_TIMEOUT)
    }

    /// Waits for it to say something that begins with `word`, for so long.
    pub fn hear_within(&mut self, word: &str, patience: Duration) -> Outcome<String> {
        let heard = self.try_hear(word, patience)?;
        heard.ok_or_else(|| format!("{}: no {word:?} within {patience:?}", self.name).into())
    }

    /// What it says after `word`; nothing if it says nothing in that time.
    pub fn try_hear(&mut self, word: &str, patience: Duration) -> Outcome<Option<String>> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("hurt ") => self.hurts.push_back(line[5..].to_owned()),
                Ok(line) => match line.strip_prefix(word) {
                    Some(rest) => return Ok(Some(rest.trim().to_owned())),
                    None => return Err(format!("{}: expected {word:?}, heard {line:?}", self.name).into()),
                },
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => {
                    let why = self.hurts.back().map(|why| format!(": {why}")).unwrap_or_default();
                    return Err(format!("{}: ended without {word:?}{why}", self.name).into());
                }
            }
        }
    }

    /// Asks it something.
    pub fn ask(&mut self, word: &str, text: impl std::fmt::Display, answer: &str) -> Outcome<String> {
        self.say(word, text);
        self.hear(answer)
    }

    /// The first thing that hurt it, as far as it was heard.
    pub fn hurt(&self) -> Option<String> {
        self.hurts.front().map(|what| format!("{}: {what}", self.name))
    }

    /// Whether its process runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends it a signal, if it is still there.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Its memory in KiB and its open descriptors.
    pub fn size(&self) -> Outcome<(u64, usize)> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        let memory = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok((memory, std::fs::read_dir(format!("/proc/{}/fd", self.id()))?.count()))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}
