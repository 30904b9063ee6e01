//! qemu moves a running virtual machine to another qemu by RDMA: the memory that arrives is that of the source, byte by
//! byte, and the machine goes on.

use crate::Test;
use crate::guest;
use crate::host::{self, Host};
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, PROGRAM_TIMEOUT, Running, Stage};
use crate::usage::Bounds;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// How often qemu looks for what the guest wrote meanwhile, before it may stop the guest.
const PASSES: u64 = 4;

/// Bytes per second: what cannot copy within a millisecond all that the guest writes, and what takes seconds for all.
const FAST: u64 = 500_000_000;
const SLOW: u64 = 4_000_000;

/// qemu with this guest takes some 80 MB and 50 descriptors.
const BOUNDS: Bounds = Bounds { megabytes: 400, descriptors: 100 };

const ROW: Row = Row {
    program: "`qemu-system-x86_64`, migration by `rdma:`",
    version: Version::Package("qemu-system-x86"),
    what: "a running machine moves, with and without `rdma-pin-all`, while it writes: both memories compared byte by \
        byte, and it goes on; the target killed in the middle: the machine stays where it is; one host by shared \
        memory and UDP, two hosts",
};

pub fn tests() -> Vec<Test> {
    let acts: [(&str, Act); 3] = [
        ("a machine moves by RDMA", |pair| pair.go(false)),
        ("a machine moves by RDMA, all memory registered first", |pair| pair.go(true)),
        ("a machine stays where it is when its target is killed beside another program", |pair| pair.break_off()),
    ];
    let mut tests = Vec::new();
    for (name, act) in acts {
        for link in Link::BOTH {
            let play = move |stage: &Stage| played(stage, [&stage.alone; 2], &link.options(), act);
            tests.push(Test::new(format!("qemu: {name}, {}", link.name()), play).takes_seconds(5));
        }
        let play = move |stage: &Stage| match &stage.joined {
            Some([left, right]) => played(stage, [left, right], &[], act),
            None => Err("there is one host only".into()),
        };
        tests.push(Test::new(format!("qemu: {name}, two hosts"), play).takes_seconds(5).for_root());
    }
    all_of(&ROW, tests)
}

type Act = fn(&mut Pair<'_>) -> Result<(), String>;

/// Starts two machines, and ends those that are left.
fn played(stage: &Stage, [from, to]: [&Host; 2], options: &[String], act: Act) -> Result<(), String> {
    let rom = stage.place.join("guest.rom");
    fs::write(&rom, guest::rom()).map_err(|e| format!("cannot write {}: {e}", rom.display()))?;
    let source = Machine::start(stage, from, options, &rom, "source", "")?;
    let target = Machine::start(stage, to, options, &rom, "target", "-S -incoming defer")?;
    let uri = format!(r#""arguments":{{"uri":"rdma:{}:{}"}}"#, to.address, stage.next_port());
    // Does nothing but live: a process that is killed cannot say so itself, and another of its host does.
    let port = stage.next_port();
    let line = format!("rping -s -a {} -p {port}", to.address);
    let survivor = stage.start("survivor", &mut stage.run_on(to, None, options, &line))?;
    host::wait("the survivor to listen", || host::listens(survivor.id(), port).unwrap_or(false))?;
    let mut pair = Pair { stage, source, target, uri };
    let result = act(&mut pair);
    let Pair { source, mut target, .. } = pair;
    result.map_err(|error| format!("{error}\n{}\n{}", source.running.told(), target.running.told()))?;
    drop(survivor);
    source.quit()?;
    if target.running.has_ended() { Ok(()) } else { target.quit() }
}

/// A machine, and where it is to go.
struct Pair<'a> {
    stage: &'a Stage,
    source: Machine,
    target: Machine,
    uri: String,
}

impl Pair<'_> {
    /// Lets the guest write for a while, and the move begin with so many bytes per second. The guest may not be stopped
    /// for longer than a millisecond: what it writes meanwhile takes longer, so this goes on.
    fn begin(&mut self, bandwidth: u64) -> Result<(), String> {
        let Pair { source, target, uri, .. } = self;
        source.ask(&format!(
            r#""migrate-set-parameters","arguments":{{"downtime-limit":1,"max-bandwidth":{bandwidth}}}"#
        ))?;
        target.ask(&format!(r#""migrate-incoming",{uri}"#)).map_err(|error| {
            let missing = error.contains("unknown migration protocol");
            if missing { format!("this qemu was built without RDMA: {error}") } else { error }
        })?;
        source.wait("the guest to write", |source| Ok(source.rounds()? > 0))?;
        source.ask(&format!(r#""migrate",{uri}"#)).map(drop)
    }

    /// Moves the machine, and compares.
    fn go(&mut self, pinned: bool) -> Result<(), String> {
        if pinned {
            let pin = r#"{"capability":"rdma-pin-all","state":true}"#;
            let pin = format!(r#""migrate-set-capabilities","arguments":{{"capabilities":[{pin}]}}"#);
            self.source.ask(&pin)?;
            self.target.ask(&pin)?;
        }
        self.begin(FAST)?;
        let Pair { stage, source, target, .. } = self;
        source.wait("some passes over the memory", |source| {
            let progress = source.progress(target)?;
            Ok(progress.passes > PASSES || progress.state == State::Complete)
        })?;
        // Now the guest may be stopped for long enough to copy what it wrote since, even on a busy machine.
        source.ask(r#""migrate-set-parameters","arguments":{"downtime-limit":20000}"#)?;
        source.wait("the migration", |source| match source.progress(target)?.state {
            State::Failed => Err("the migration failed".into()),
            state => Ok(state == State::Complete),
        })?;
        target.wait("the target to have it all", |target| {
            Ok(target.ask(r#""query-status""#)?.contains(r#""status": "paused""#))
        })?;
        // Both stand still now.
        let [original, copy] = [source.memory(stage)?, target.memory(stage)?];
        let rounds = guest::judge(&original).map_err(|error| format!("the source has {error}"))?;
        if let Some(at) = original.iter().zip(&copy).position(|(original, copy)| original != copy) {
            return Err(format!("the memory differs at {at:#x}, after {rounds} rounds of the guest"));
        }
        guest::judge(&copy).map_err(|error| format!("the target has {error}"))?;
        target.ask(r#""cont""#)?;
        target.goes_on(stage, rounds)
    }

    /// Kills the target in the middle.
    fn break_off(&mut self) -> Result<(), String> {
        self.begin(SLOW)?;
        let Pair { stage, source, target, .. } = self;
        source.wait("some megabytes to be copied", |source| match source.progress(target)? {
            Progress { state: State::Under, copied, .. } => Ok(copied > 2 << 20),
            Progress { state, .. } => Err(format!("the move is {state:?}")),
        })?;
        // `nsenter` and `ubiverbs run` have become the program.
        let killed = Command::new("kill").args(["-KILL", &target.running.id().to_string()]).status();
        killed.map_err(|e| format!("kill did not start: {e}"))?;
        source.wait("the source to hear of it", |source| match source.progress(target)?.state {
            State::Complete => Err("the move is complete".into()),
            state => Ok(state == State::Failed),
        })?;
        source.wait("the machine to be on its way", |source| {
            Ok(source.ask(r#""query-status""#)?.contains(r#""status": "running""#))
        })?;
        let rounds = source.rounds()?;
        source.goes_on(stage, rounds)
    }
}

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Under,
    Complete,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    state: State,
    /// How often qemu has looked for what the guest wrote.
    passes: u64,
    /// Bytes.
    copied: u64,
}

/// A qemu, and the socket where it answers.
struct Machine {
    running: Running,
    name: &'static str,
    answers: BufReader<UnixStream>,
}

impl Machine {
    fn start(
        stage: &Stage,
        host: &Host,
        options: &[String],
        rom: &Path,
        name: &'static str,
        more: &str,
    ) -> Result<Machine, String> {
        let socket = stage.place.join(format!("{name}.qmp"));
        let _ = fs::remove_file(&socket);
        let line = format!(
            "qemu-system-x86_64 -accel tcg -m {}M -nodefaults -display none -bios {} \
             -qmp unix:{},server=on,wait=off {more}",
            guest::GUEST_MEMORY_BYTES >> 20,
            rom.display(),
            socket.display()
        );
        let mut running = stage.start(name, &mut stage.run_on(host, None, options, &line))?;
        let mut connected = Err("no socket".to_owned());
        host::wait("qemu to listen", || {
            connected = UnixStream::connect(&socket).map_err(|e| e.to_string());
            connected.is_ok() || running.has_ended()
        })
        .and(connected)
        .and_then(|stream| {
            stream.set_read_timeout(Some(PROGRAM_TIMEOUT)).map_err(|e| e.to_string())?;
            Ok(BufReader::new(stream))
        })
        .map_err(|e| format!("{e}\n{}", running.told()))
        .map(|answers| Machine { running, name, answers })
        .and_then(|mut machine| machine.ask(r#""qmp_capabilities""#).map(|_| machine))
    }

    /// Asks qemu, by the text of a command and its arguments; answers its answer.
    fn ask(&mut self, command: &str) -> Result<String, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{} does not answer {command}: {error}", self.name);
        let told = writeln!(self.answers.get_ref(), r#"{{"execute":{command}}}"#);
        told.map_err(|e| failed(&e))?;
        loop {
            let mut line = String::new();
            match self.answers.read_line(&mut line) {
                Ok(0) => return Err(failed(&"it closed the connection")),
                Ok(_) if line.starts_with(r#"{"return""#) => return Ok(line),
                Ok(_) if line.starts_with(r#"{"error""#) => return Err(failed(&line.trim_end())),
                // Its greeting, or an event.
                Ok(_) => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Asks until it is so.
    fn wait(&mut self, what: &str, mut is_so: impl FnMut(&mut Machine) -> Result<bool, String>) -> Result<(), String> {
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        while !is_so(self)? {
            if Instant::now() > deadline {
                return Err(format!("{what}: not within {PROGRAM_TIMEOUT:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// How far the move to the target is.
    fn progress(&mut self, target: &Machine) -> Result<Progress, String> {
        self.running.stays_within(BOUNDS)?;
        target.running.stays_within(BOUNDS)?;
        let told = self.ask(r#""query-migrate""#)?;
        let number = |name: &str| {
            let value = told.split(&format!(r#""{name}": "#)).nth(1)?;
            value.split([',', '}']).next()?.parse().ok()
        };
        let state = match () {
            () if told.contains(r#""status": "completed""#) => State::Complete,
            () if told.contains(r#""status": "failed""#) => State::Failed,
            () => State::Under,
        };
        let (passes, copied) = (number("dirty-sync-count"), number("transferred"));
        Ok(Progress { state, passes: passes.unwrap_or(0), copied: copied.unwrap_or(0) })
    }

    /// Sees that the guest, which has done so many rounds, does more, and that its memory is as it must be. Stops it.
    fn goes_on(&mut self, stage: &Stage, rounds: u32) -> Result<(), String> {
        self.wait("the guest to go on", |machine| Ok(machine.rounds()? > rounds))?;
        self.ask(r#""stop""#)?;
        let judged = guest::judge(&self.memory(stage)?);
        judged.map(drop).map_err(|error| format!("after going on, the {} has {error}", self.name))
    }

    /// How many rounds the guest has done.
    fn rounds(&mut self) -> Result<u32, String> {
        let look = format!(r#""human-monitor-command","arguments":{{"command-line":"xp /1xw {:#x}"}}"#, guest::ROUNDS);
        let told = self.ask(&look)?;
        let word = told.split("0x").nth(1).and_then(|it| u32::from_str_radix(it.get(..8)?, 16).ok());
        word.ok_or_else(|| format!("{} says what is not understood: {told}", self.name))
    }

    /// The guest's memory.
    fn memory(&mut self, stage: &Stage) -> Result<Vec<u8>, String> {
        let path = stage.place.join(format!("{}.memory", self.name));
        let (size, to) = (guest::GUEST_MEMORY_BYTES, path.display());
        self.ask(&format!(r#""pmemsave","arguments":{{"val":0,"size":{size},"filename":"{to}"}}"#))?;
        let bytes = fs::read(&path).map_err(|e| format!("{to}: {e}"))?;
        let _ = fs::remove_file(&path);
        Ok(bytes)
    }

    /// Ends it, which must go well.
    fn quit(mut self) -> Result<(), String> {
        self.running.stays_within(BOUNDS)?;
        self.ask(r#""quit""#)?;
        let ended = self.running.end()?;
        if ended.status.success() { Ok(()) } else { Err(format!("{}: {}\n{}", self.name, ended.status, ended.last())) }
    }
}
