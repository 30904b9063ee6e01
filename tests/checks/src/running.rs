//! `ubiverbs run --why` and `--check`: what is told, reports, exit codes, signals. Played with programs that break rules.

use crate::programs::{Programs, TIME_LIMIT_SECONDS};
use serde_json::Value;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A test, and its name.
pub type Test = (&'static str, fn(&Stage<'_>) -> Result<(), String>);

pub const TESTS: &[Test] = &[
    ("run: one line if work failed, and nothing otherwise", one_line),
    ("run: --why explains once, and sums up", why),
    ("run: --why explains a refused call by the event that it waited for", refused_call),
    ("run: --why=json is lines of JSON", json_lines),
    ("run: --check-exit is 99 for an error and the program's own code otherwise", exit_codes),
    ("run: rules are switched by words and by a file", rules),
    ("run: what is not understood is told before the program starts", refusals),
    ("run: reports as JSON, SARIF and JUnit", reports),
    ("run: findings of all processes, also of one that was killed", processes),
    ("run: signals reach the program, and its death is ours", signals),
];

/// Where a test is played: the program `ubiverbs`, a directory of the test's own, and a program that breaks `UV-0101`.
pub struct Stage<'a> {
    programs: &'a Programs,
    ubiverbs: PathBuf,
    place: PathBuf,
}

impl<'a> Stage<'a> {
    /// For the test of this name.
    pub fn new(programs: &'a Programs, test: &str) -> Result<Stage<'a>, String> {
        let ubiverbs = programs.libraries().with_file_name("bin").join("ubiverbs");
        if !ubiverbs.exists() {
            return Err(format!("there is no {}", ubiverbs.display()));
        }
        let number = TESTS.iter().position(|(name, _)| *name == test).unwrap_or(TESTS.len());
        let place = std::env::temp_dir().join(format!("ubiverbs-checks-{}-{number}", std::process::id()));
        fs::create_dir_all(&place).map_err(|e| format!("cannot make {}: {e}", place.display()))?;
        Ok(Stage { programs, ubiverbs, place })
    }

    /// `ubiverbs run OPTIONS -- LINE`, stopped when it takes too long.
    fn run(&self, options: &[&str], line: &[&str]) -> Command {
        let mut command = self.programs.command("timeout");
        command
            .args(["--foreground", "--kill-after=2", &TIME_LIMIT_SECONDS.to_string()])
            .arg(&self.ubiverbs)
            .arg("run")
            .args(options);
        command.arg("--no-files").arg("--").args(line).current_dir(&self.place).stdin(Stdio::null());
        command
    }

    /// Runs the program that breaks or keeps `UV-0101`, to its end.
    fn work(&self, options: &[&str], kind: &str) -> Result<Output, String> {
        output(&mut self.run(options, &[&self.program(), "UV-0101", kind]))
    }

    fn program(&self) -> String {
        self.programs.path("work").display().to_string()
    }

    fn read(&self, name: &str) -> Result<String, String> {
        fs::read_to_string(self.place.join(name)).map_err(|e| format!("{name}: {e}"))
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.place);
    }
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|e| format!("{command:?}: {e}"))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn expect(what: bool, output: &Output) -> Result<(), String> {
    if what { Ok(()) } else { Err(format!("{}\n{}", output.status, errors(output))) }
}

fn one_line(stage: &Stage<'_>) -> Result<(), String> {
    let failed = stage.work(&[], "break")?;
    let said = "ubiverbs: 1 work request failed on 1 queue pair; run again with --why\n";
    expect(failed.status.success() && errors(&failed) == said, &failed)?;
    let fine = stage.work(&[], "keep")?;
    expect(fine.status.success() && errors(&fine).is_empty(), &fine)
}

fn why(stage: &Stage<'_>) -> Result<(), String> {
    let told = stage.work(&["--why"], "break")?;
    let text = errors(&told);
    let findings = text.lines().filter(|line| line.contains(" error: ") && line.ends_with("[UV-0101]")).count();
    let fine = told.status.success() && findings == 1 && text.contains(" summary:\n  error UV-0101, once (QP ");
    expect(fine && text.contains("\n  do: "), &told)?;
    let silent = stage.work(&["--why"], "keep")?;
    expect(errors(&silent).is_empty(), &silent)?;
    let checked = stage.work(&["--check", "--check-rules=-all,+UV-0201"], "keep")?;
    expect(errors(&checked).contains("against 1 rule: nothing was found"), &checked)
}

/// The program connects where nobody listens, twice: with an event channel, and with a call that waits.
fn refused_call(stage: &Stage<'_>) -> Result<(), String> {
    let program = stage.programs.path("events").display().to_string();
    let told = output(&mut stage.run(&["--why"], &[&program, "UV-0941", "break"]))?;
    let text = errors(&told);
    let findings = text.lines().filter(|line| line.contains("nobody listens at 127.0.0.1, port 7 (RDMA_PS_TCP)"));
    expect(told.status.success() && findings.count() == 2 && !text.contains("UV-08"), &told)?;
    let flushed =
        text.split("failed with WR_FLUSH_ERR").nth(1).ok_or_else(|| format!("nothing was flushed\n{text}"))?;
    expect(flushed.contains("the connection was never made") && flushed.contains("UV-0941"), &told)
}

fn json_lines(stage: &Stage<'_>) -> Result<(), String> {
    let told = stage.work(&["--why=json"], "break")?;
    let lines: Result<Vec<Value>, _> = errors(&told).lines().map(serde_json::from_str).collect();
    let lines = lines.map_err(|e| format!("{e}: {}", errors(&told)))?;
    let finding = lines.iter().find(|line| line["rule"] == "UV-0101").ok_or("no finding")?;
    let is_whole = ["title", "severity", "wall", "pid", "tid", "what", "cause", "advice"];
    expect(is_whole.iter().all(|field| !finding[field].is_null()), &told)?;
    expect(lines.last().is_some_and(|line| line["summary"][0]["count"] == 1), &told)
}

fn exit_codes(stage: &Stage<'_>) -> Result<(), String> {
    let broken = stage.work(&["--why", "--check-exit"], "break")?;
    expect(broken.status.code() == Some(99), &broken)?;
    let kept = stage.work(&["--why", "--check-exit"], "keep")?;
    expect(kept.status.code() == Some(0), &kept)?;
    // Work that failed counts without --why, and calls that failed do not.
    let failed = stage.work(&["--check", "--check-exit"], "break")?;
    expect(failed.status.code() == Some(99) && errors(&failed).contains("[UV-0101]"), &failed)?;
    let off = stage.work(&["--check-exit", "--check-rules", "-work"], "break")?;
    expect(off.status.code() == Some(0) && !errors(&off).contains("UV-0101"), &off)?;
    let call = stage.programs.path("calls").display().to_string();
    let tried = output(&mut stage.run(&["--check-exit"], &[&call, "UV-0823", "break"]))?;
    expect(tried.status.code() == Some(0), &tried)?;
    let milder = stage.work(&["--why", "--check-exit", "--check-rules", "UV-0101=warning"], "break")?;
    expect(milder.status.code() == Some(0) && errors(&milder).contains(" warning: "), &milder)?;
    let other = output(&mut stage.run(&["--check-exit"], &["sh", "-c", "exit 7"]))?;
    expect(other.status.code() == Some(7) && errors(&other).contains("nothing was checked"), &other)?;
    let missing = output(&mut stage.run(&["--check-exit"], &["no-such-program"]))?;
    expect(missing.status.code() == Some(127), &missing)
}

fn rules(stage: &Stage<'_>) -> Result<(), String> {
    for words in ["-UV-0101", "-work", "UV-0101=off", "-all"] {
        let off = stage.work(&["--why", "--check-rules", words], "break")?;
        expect(off.status.success() && !errors(&off).contains("UV-0101"), &off)?;
    }
    let on = stage.work(&["--why", "--check-rules", "-all,+UV-0101"], "break")?;
    expect(errors(&on).contains("[UV-0101]"), &on)?;
    let file = stage.place.join("ubiverbs-checks.toml");
    fs::write(&file, "[rules]\nUV-0101 = \"note\" # known\n").map_err(|e| e.to_string())?;
    let milder = stage.work(&["--why"], "break")?;
    expect(errors(&milder).contains(" note: "), &milder)?;
    // The command line has the last word, and the library reads the file by itself, too.
    let back = stage.work(&["--why", "--check-rules", "UV-0101=error"], "break")?;
    expect(errors(&back).contains(" error: "), &back)?;
    let mut alone = stage.programs.command(stage.program());
    alone.args(["UV-0101", "break"]).env("UBIVERBS_WHY", "1").current_dir(&stage.place);
    let alone = output(&mut alone)?;
    expect(errors(&alone).contains(" note: "), &alone)?;
    fs::remove_file(file).map_err(|e| e.to_string())
}

fn refusals(stage: &Stage<'_>) -> Result<(), String> {
    fs::write(stage.place.join("bad"), "UV-0101 = \"off\"\n\nUV-0102 = \"loud\"\n").map_err(|e| e.to_string())?;
    for (options, said) in [
        (&["--check-rules", "-UV-9999", "--check"][..], "there is no rule UV-9999"),
        (&["--check-rules", "-UV-0101"], "add --check or --why"),
        (&["--why", "--check-config", "bad"], "line 3: \"loud\" is nothing that a rule can be; expected on, off"),
        (&["--why", "--check-config", "absent"], "No such file"),
        (&["--check-report", "report"], "end it with .json, .sarif or .xml"),
        (&["--check-report", "no/such/place.json"], "there is no directory"),
        (&["--why=loud"], "possible values: text, json, silent"),
    ] {
        let refused = output(&mut stage.run(options, &["echo", "started"]))?;
        let started = !refused.stdout.is_empty();
        expect(refused.status.code() == Some(2) && errors(&refused).contains(said) && !started, &refused)?;
    }
    Ok(())
}

fn reports(stage: &Stage<'_>) -> Result<(), String> {
    for (options, name) in [
        (&["--why", "--check-report", "r.json"][..], "r.json"),
        (&["--why", "--check-report", "r.sarif"], "r.sarif"),
        (&["--why", "--check-report", "r.xml"], "r.xml"),
        (&["--why=silent", "--check-report", "r", "--check-format", "json"], "r"),
    ] {
        let ended = stage.work(options, "break")?;
        expect(ended.status.success(), &ended)?;
        expect(errors(&ended).is_empty() == (name == "r"), &ended)?;
        let text = stage.read(name)?;
        let told = || format!("{name}: {text}");
        if name.ends_with(".xml") {
            let counts = text.contains("failures=\"1\"") && text.contains("<failure type=\"UV-0101\"");
            let passes = text.contains("name=\"UV-0201: ");
            (counts && passes).then_some(()).ok_or_else(told)?;
            continue;
        }
        let document: Value = serde_json::from_str(&text).map_err(|e| format!("{e}: {}", told()))?;
        let is_right = if name.ends_with(".sarif") {
            document["version"] == "2.1.0" && document["runs"][0]["results"][0]["ruleId"] == "UV-0101"
        } else {
            let finding = document["findings"].as_array().and_then(|all| all.iter().find(|it| it["rule"] == "UV-0101"));
            finding.is_some_and(|it| it["program"] == "work") && document["ended"]["code"] == 0
        };
        is_right.then_some(()).ok_or_else(told)?;
    }
    Ok(())
}

fn processes(stage: &Stage<'_>) -> Result<(), String> {
    let program = stage.program();
    // The second is killed before it could say that it ends.
    let script = format!("{program} UV-0101 keep; CHECKS_KILL_AFTER=1 {program} UV-0101 break; exit 5");
    let ended = output(&mut stage.run(&["--why", "--check-report", "all.json"], &["sh", "-c", &script]))?;
    expect(ended.status.code() == Some(5) && errors(&ended).contains("2 processes checked: 1 error"), &ended)?;
    let document: Value = serde_json::from_str(&stage.read("all.json")?).map_err(|e| e.to_string())?;
    let processes = document["processes"].as_array().ok_or("no processes")?;
    let events: Vec<bool> = processes.iter().map(|process| process["events"].is_null()).collect();
    let mut findings = document["findings"].as_array().into_iter().flatten();
    let finding = findings.find(|it| it["rule"] == "UV-0101").ok_or("no finding")?;
    let is_right = events == [false, true] && finding["pid"] == processes[1]["pid"];
    is_right.then_some(()).ok_or_else(|| document.to_string())
}

fn signals(stage: &Stage<'_>) -> Result<(), String> {
    let script = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut command = stage.programs.command(&stage.ubiverbs);
    command.args(["run", "--no-files", "--check-exit", "--", "sh", "-c", script]).current_dir(&stage.place);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    let mut ready = [0; 6];
    let read = child.stdout.take().map(|mut pipe| std::io::Read::read_exact(&mut pipe, &mut ready));
    read.ok_or("no pipe")?.map_err(|e| e.to_string())?;
    let kill = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    kill.map_err(|e| e.to_string())?;
    let status = ended(&mut child)?;
    if status.code() != Some(9) {
        return Err(format!("SIGTERM made it {status}"));
    }
    for (name, number) in [("SEGV", 11), ("KILL", 9), ("TERM", 15)] {
        let mut command = stage.programs.command(&stage.ubiverbs);
        command.args(["run", "--no-files", "--check-exit", "--", "sh", "-c", &format!("kill -{name} $$")]);
        let ended = output(command.current_dir(&stage.place))?;
        expect(ended.status.signal() == Some(number), &ended)?;
    }
    Ok(())
}

/// Waits until a process has ended.
fn ended(child: &mut Child) -> Result<std::process::ExitStatus, String> {
    let deadline = Instant::now() + Duration::from_secs(TIME_LIMIT_SECONDS.into());
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            return Err("it did not end".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
