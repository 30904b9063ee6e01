//! A process that plays a part. The test hears what it says line by line, and never waits for it longer than it should
//! take; whatever happens to the test, the process ends.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What comes of a role.
pub type Outcome = Result<(), Box<dyn Error>>;

/// This program.
pub fn program() -> PathBuf {
    std::env::current_exe().expect("a program knows where it is")
}

/// The variable with the user that a process is to be.
pub const USER: &str = "UBIVERBS_TEST_USER";

/// A user who may do nothing that not everybody may.
pub const NOBODY: &str = "65534";

/// Becomes another user, if one was asked for. Before there is a second thread, which would stay who it is.
fn become_user() -> Outcome {
    let Ok(user) = std::env::var(USER) else { return Ok(()) };
    let (uid, gid) = (rustix::process::Uid::from_raw(user.parse()?), rustix::process::Gid::from_raw(user.parse()?));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    // As if that user had started it: others may look at its process as at any other.
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?)
}

/// Plays a role, in the process that was started for it.
pub fn play(roles: &[(&str, fn(&[String]) -> Outcome)], name: &str, arguments: &[String]) -> ExitCode {
    let Some((_, role)) = roles.iter().find(|(known, _)| *known == name) else {
        say("failed", &format!("no role {name}"));
        return ExitCode::FAILURE;
    };
    match become_user().and_then(|()| role(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say("failed", &error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Says something to the test.
pub fn say(word: &str, text: &str) {
    let mut out = std::io::stdout().lock();
    // A test that has gone hears nothing.
    let _ = writeln!(out, "{word} {text}").and_then(|()| out.flush());
}

/// Waits for the test to say something that begins with `word`, and answers the rest.
pub fn hear(word: &str) -> Result<String, Box<dyn Error>> {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    let rest = line.trim().strip_prefix(word).ok_or_else(|| format!("expected {word:?}, heard {line:?}"))?;
    Ok(rest.trim().to_owned())
}

/// Waits until the test wants nothing more.
pub fn wait_for_end() {
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

/// A process that plays a part.
#[derive(Debug)]
pub struct Actor {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// How long it may take to say something.
    pub patience: Duration,
}

impl Actor {
    pub fn start(name: &str, command: &mut Command) -> Actor {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process can be started");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("its output is a pipe");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Actor { name: name.to_owned(), child, stdin, lines, patience: Duration::from_secs(60) }
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Says something to it. One that has gone does not hear.
    pub fn say(&mut self, word: &str, text: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{word} {text}");
        }
    }

    /// Waits for it to say something that begins with `word`, and answers the rest.
    #[track_caller]
    pub fn hear(&mut self, word: &str) -> String {
        match self.lines.recv_timeout(self.patience) {
            Ok(line) => match line.trim_start().strip_prefix(word) {
                Some(rest) => rest.trim().to_owned(),
                None => panic!("{}: expected {word:?}, heard {line:?}", self.name),
            },
            Err(RecvTimeoutError::Timeout) => panic!("{}: no {word:?} within {:?}", self.name, self.patience),
            Err(RecvTimeoutError::Disconnected) => panic!("{}: ended without {word:?}", self.name),
        }
    }

    /// Waits for it to say one of two things: whether it is the first.
    #[track_caller]
    pub fn hears(&mut self, first: &str, second: &str) -> bool {
        match self.lines.recv_timeout(self.patience) {
            Ok(line) if line.trim_start().starts_with(first) => true,
            Ok(line) if line.trim_start().starts_with(second) => false,
            other => panic!("{}: expected {first:?} or {second:?}: {other:?}", self.name),
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).expect("it is our own");
    }

    /// Kills it, in the middle of whatever it does, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("it is our own");
        self.child.wait().expect("it is our own");
    }

    /// Lets it end, which it must do well and soon.
    #[track_caller]
    pub fn end(mut self) {
        let status = self.leave();
        assert!(status.is_some_and(|status| status.success()), "{}: ended with {status:?}", self.name);
    }

    /// Waits for its end.
    fn leave(&mut self) -> Option<ExitStatus> {
        drop(self.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                ended => return ended.ok().flatten(),
            }
        }
        None
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
