//! A process of a round: how it is started, what it says at its end, and what can be learnt of it when it does not end.

use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A side of a round, or a bystander.
pub struct Side {
    pub name: String,
    child: Child,
    log: PathBuf,
    /// The signal we ended it with.
    killed: bool,
    status: Option<ExitStatus>,
}

/// What a side said last.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub operations: u64,
    pub bytes: u64,
    pub rounds: u64,
    pub verdict: String,
}

impl Side {
    /// Starts it; what it says goes to `log`, behind the command itself.
    pub fn start(name: &str, words: &[String], variables: &[(&str, String)], log: &Path) -> Result<Side, String> {
        let failed = |e: std::io::Error| format!("{name} did not start: {e}");
        let mut shown = variables.iter().fold(String::new(), |text, (name, value)| format!("{text}{name}='{value}' "));
        shown.push_str(&words.join(" "));
        fs::write(log, format!("{shown}\n")).map_err(failed)?;
        let file = File::options().append(true).open(log).map_err(failed)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        for name in ["UBIVERBS_FAULTS", "UBIVERBS_LINK", "UBIVERBS_LOG", "UBIVERBS_PCAP", "UBIVERBS_DEVICE"] {
            command.env_remove(name);
        }
        for (name, value) in variables {
            command.env(name, value);
        }
        command.stdout(file.try_clone().map_err(failed)?).stderr(file);
        let child = command.spawn().map_err(failed)?;
        Ok(Side { name: name.to_owned(), child, log: log.to_owned(), killed: false, status: None })
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    fn signal(&mut self, signal: Signal) {
        if !self.has_ended() {
            // It is our own child and has not been waited for, so the number is its.
            let _ = kill_process(Pid::from_child(&self.child), signal);
        }
    }

    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&mut self) {
        if !self.has_ended() {
            self.killed = true;
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// What it said, or what is wrong with how it ended.
    pub fn verdict(&mut self) -> Result<Report, String> {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        if let Some(line) = text.lines().find(|line| line.contains("FAIL")) {
            return Err(format!("the {}: {line}", self.name));
        }
        let Some(status) = self.status else { return Err(format!("the {} does not end", self.name)) };
        if self.killed && status.signal() == Some(9) {
            return Ok(Report { verdict: "killed".into(), ..Report::default() });
        }
        if !status.success() {
            let last = text.lines().last().unwrap_or_default();
            return Err(format!("the {} ended with {status}: {last}", self.name));
        }
        let value: serde_json::Value =
            text.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
        let number = |name: &str| value[name].as_u64();
        let report = Report {
            operations: number("operations").unwrap_or_default(),
            bytes: number("bytes").unwrap_or_default(),
            rounds: number("rounds").unwrap_or_default(),
            verdict: value["verdict"].as_str().unwrap_or_default().to_owned(),
        };
        match report.verdict.as_str() {
            "ok" if report.operations == 0 => Err(format!("the {} did nothing", self.name)),
            "ok" | "peer died" => Ok(report),
            _ => Err(format!("the {} ended well without its report", self.name)),
        }
    }

    /// Writes down where each of its threads is.
    pub fn diagnose(&mut self) {
        if self.has_ended() {
            return;
        }
        let id = self.child.id();
        let mut text = format!("\n==> where {} ({id}) is\n", self.name);
        let tasks = fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let _ = write!(text, "thread {}:", task.file_name().to_string_lossy());
            for name in ["comm", "wchan", "syscall", "stack"] {
                let said = fs::read_to_string(task.path().join(name)).unwrap_or_else(|e| e.to_string());
                let _ = write!(text, " {name}: {}", said.trim());
            }
            text.push('\n');
        }
        for program in [&["gdb", "-batch", "-ex", "thread apply all bt", "-p"][..], &["eu-stack", "-p"][..]] {
            let output = Command::new(program[0]).args(&program[1..]).arg(id.to_string()).stdin(Stdio::null()).output();
            if let Ok(output) = output {
                text.push_str(&String::from_utf8_lossy(&output.stdout));
                break;
            }
        }
        let _ = fs::write(self.log.with_extension("stuck.log"), text);
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.kill();
    }
}
