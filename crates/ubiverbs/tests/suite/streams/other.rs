//! The second process of a test: this program once more, with one part.

use super::TEST_TIMEOUT;
use std::io::Read;
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The second process; it is killed with this value.
pub struct Other(pub Child);

impl Other {
    pub fn start(part: &str, environment: &[(&str, &str)]) -> Other {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "streams::part", "--ignored", "--nocapture"]).env("STREAMS_PART", part);
        command.env_remove("UBIVERBS_LINK").env_remove("UBIVERBS_FAULTS").envs(environment.iter().copied());
        Other(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Where it listens. What it says afterwards is nobody's business, but it must be able to say it.
    pub fn address(&mut self) -> (SocketAddr, ChildStdout) {
        let mut output = self.0.stdout.take().unwrap();
        let mut said = String::new();
        let mut byte = [0];
        loop {
            assert_eq!(output.read(&mut byte).unwrap(), 1, "it ended without saying where it listens: {said}");
            said.push(char::from(byte[0]));
            let line = said.lines().find_map(|line| line.split_once("listening at "));
            if let (true, Some((_, address))) = (said.ends_with('\n'), line) {
                return (address.trim().parse().unwrap(), output);
            }
        }
    }

    /// Stops it, all its threads.
    pub fn stop(&self) {
        let number = self.0.id().to_string();
        assert!(Command::new("kill").args(["-STOP", &number]).status().unwrap().success());
        let is_stopped = || {
            std::fs::read_dir(format!("/proc/{number}/task")).unwrap().all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
                stat.rsplit_once(')').unwrap().1.trim_start().starts_with('T')
            })
        };
        let deadline = Instant::now() + TEST_TIMEOUT;
        while !is_stopped() {
            assert!(Instant::now() < deadline, "it does not stop");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn succeed(mut self) {
        let mut said = String::new();
        if let Some(mut output) = self.0.stdout.take() {
            output.read_to_string(&mut said).unwrap();
        }
        assert!(self.0.wait().unwrap().success(), "{said}");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
