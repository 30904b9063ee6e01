//! The first minute that the README promises: its code blocks, run as they stand, on the wheel of this machine. What a
//! machine without a GPU lacks is played by a stand-in, which says how it was called; GitHub's runner is played by the
//! commands of its job, after the steps of `action.yml` that install what was built.

use crate::stage::Stage;
use crate::{Test, expect, host};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The pages, and the section on each.
const PAGES: [(&str, &str); 2] = [("README.md", "## The first minute"), ("README.zh.md", "## 第一分钟")];

/// Where `ibv_rc_pingpong` listens unless it is told otherwise.
const PINGPONG_PORT: u16 = 18515;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("README: from pip install to a ping-pong between two terminals", pingpong).takes_seconds(15),
        Test::new("README: the NCCL job, with a stand-in for the program", nccl),
        Test::new("README: the GitHub job, with the action's own steps", github),
        Test::new("README: both languages have the same first minute", |_| same_in_both_languages()),
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The four blocks of the section: two terminals, NCCL, GitHub.
fn blocks((page, heading): (&str, &str)) -> Result<[String; 4], String> {
    let text = read(&root().join(page))?;
    let section = text.split("\n## ").find(|part| heading.ends_with(part.lines().next().unwrap_or_default()));
    let section = section.ok_or_else(|| format!("{page} has no {heading}"))?;
    let inside = section.split("```").skip(1).step_by(2);
    let found: Vec<(String, String)> = inside
        .filter_map(|block| block.split_once('\n'))
        .map(|(language, code)| (language.to_owned(), code.to_owned()))
        .collect();
    let languages: Vec<&str> = found.iter().map(|(language, _)| language.as_str()).collect();
    if languages != ["sh", "sh", "sh", "yaml"] {
        return Err(format!("{page}: the blocks are {languages:?}"));
    }
    let codes: Vec<String> = found.into_iter().map(|(_, code)| code).collect();
    codes.try_into().map_err(|_| format!("{page}: not four blocks"))
}

/// A shell that runs a block on the lonely host, in a directory that looks like a checkout.
fn shell(stage: &Stage, checkout: &Path, first_in_path: &[&Path], block: &str) -> Command {
    let mut command = stage.alone.command(None, Path::new("bash"));
    let before: String = first_in_path.iter().map(|path| format!("{}:", path.display())).collect();
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(["-e", "-c", block]).current_dir(checkout).env("PATH", before + &path);
    command.env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD").env_remove("VIRTUAL_ENV");
    command
}

fn pingpong(stage: &Stage) -> Result<(), String> {
    let [first, second, ..] = blocks(PAGES[0])?;
    let (checkout, wheels) = (stage.place.join("checkout"), stage.place.join("checkout/target/wheel"));
    fs::create_dir_all(&wheels).map_err(|e| e.to_string())?;
    let entries = fs::read_dir(&stage.packages).map_err(|e| format!("{}: {e}", stage.packages.display()))?;
    let wheel = entries.flatten().map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "whl"));
    let wheel = wheel.ok_or_else(|| format!("no wheel in {}", stage.packages.display()))?;
    symlink(&wheel, wheels.join(wheel.file_name().unwrap_or_default())).map_err(|e| e.to_string())?;

    let mut server = stage.start("first", &mut shell(stage, &checkout, &[], &first))?;
    host::wait("the first terminal to listen", || {
        server.has_ended() || host::listens(server.id(), PINGPONG_PORT).unwrap_or(false)
    })
    .map_err(|e| format!("{e}\n{}", server.text()))?;
    let client = stage.start("second", &mut shell(stage, &checkout, &[], &second))?.end();
    let server = server.end()?;
    for (name, ended) in [("first", server), ("second", client?)] {
        if !ended.status.success() {
            return Err(format!("{name} terminal: {}\n{}", ended.status, ended.last()));
        }
        expect(&ended.text, &["8192000 bytes in", "remote address:"])?;
    }
    let library = checkout.join("target/venv/lib");
    let found = stage.end(Command::new("find").arg(&library).args(["-name", "libibverbs.so.1"]))?;
    expect(&found.text, &["ubiverbs/lib/libibverbs.so.1"])
}

/// Plays `python3` with torch: it tells what a rank was given, and which devices it sees.
const PYTHON: &str = r#"#!/bin/sh
[ -f "$1" ] || { echo "there is no $1"; exit 1; }
{
    echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, $NCCL_HOSTID, $NCCL_NET, $NCCL_GIN_TYPE"
    ls /sys/class/infiniband
    ibv_devices
} > "$TMPDIR/rank$RANK"
"#;

fn nccl(stage: &Stage) -> Result<(), String> {
    let [_, _, block, _] = blocks(PAGES[0])?;
    let stand_in = stage.place.join("stand-in");
    fs::create_dir_all(&stand_in).map_err(|e| e.to_string())?;
    let python = stand_in.join("python3");
    fs::write(&python, PYTHON).map_err(|e| e.to_string())?;
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let programs = stage.dist.join("bin");
    let ended = stage.end(&mut shell(stage, &root(), &[&stand_in, &programs], &block))?;
    if !ended.status.success() {
        return Err(format!("{}\n{}", ended.status, ended.last()));
    }
    for rank in [0, 1] {
        let told = read(&stage.scratch.join(format!("rank{rank}"))).map_err(|e| format!("{e}\n{}", ended.text))?;
        let wanted = format!("{rank} of 2 at 127.0.0.1:29500, host{rank}, IB, 2");
        expect(&told, &[&wanted, "\nubi_lo\n", "    ubi_lo"])?;
    }
    Ok(())
}

/// The script of a step of `action.yml`.
fn step(name: &str) -> Result<String, String> {
    let text = read(&root().join("action.yml"))?;
    let step = text.split("\n    - name: ").find(|part| part.lines().next() == Some(name));
    let script = step.and_then(|step| step.split_once("\n      run: |\n")).map(|(_, script)| script);
    let script = script.ok_or_else(|| format!("action.yml has no script for {name}"))?;
    Ok(script.lines().map(|line| format!("{}\n", line.strip_prefix("        ").unwrap_or(line))).collect())
}

/// What the steps of a job run, one after the other.
fn commands(job: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_inside = false;
    for line in job.lines() {
        if let Some(command) = line.trim_start().strip_prefix("- run: ") {
            is_inside = command == "|";
            commands.push(if is_inside { String::new() } else { command.to_owned() });
        } else if line.trim_start().starts_with("- ") {
            is_inside = false;
        } else if is_inside && let Some(last) = commands.last_mut() {
            *last += &format!("{}\n", line.trim_start());
        }
    }
    commands
}

fn github(stage: &Stage) -> Result<(), String> {
    let [.., job] = blocks(PAGES[0])?;
    expect(&job, &["packages: ibverbs-utils rdmacm-utils", "uses: OWNER/ubiverbs@main"])?;
    let (path, output, environment) =
        (stage.place.join("path"), stage.place.join("output"), stage.place.join("environment"));
    let mut install = shell(stage, &root(), &[], &step("Install")?);
    install.env("FROM", "source").env("PLACE", &stage.dist).env("ENVIRONMENT", "false");
    install.env("GITHUB_PATH", &path).env("GITHUB_OUTPUT", &output).env("GITHUB_ENV", &environment);
    let ended = stage.end(&mut install)?;
    if !ended.status.success() {
        return Err(format!("the action's step Install: {}\n{}", ended.status, ended.last()));
    }
    expect(&read(&output)?, &["library-directory="])?;
    let added = PathBuf::from(read(&path)?.trim());
    let commands = commands(&job);
    let (mut shown, count) = (String::new(), commands.len());
    for command in commands {
        let ended = stage.end(&mut shell(stage, &stage.place, &[&added], &command))?;
        if !ended.status.success() {
            return Err(format!("{command}: {}\n{}", ended.status, ended.last()));
        }
        shown += &ended.text;
    }
    expect(&shown, &["hca_id:\tubi_lo", "ping data: rdma-ping-9: "])?;
    if count == 2 { Ok(()) } else { Err(format!("{count} commands were found in the job")) }
}

/// A block without its comments, which are translated, and without the blanks before them.
fn without_comments(block: &str) -> String {
    block.lines().map(|line| format!("{}\n", line.split(" # ").next().unwrap_or_default().trim_end())).collect()
}

fn same_in_both_languages() -> Result<(), String> {
    let [english, chinese] = PAGES.map(blocks);
    for (one, other) in english?.iter().zip(&chinese?) {
        if without_comments(one) != without_comments(other) {
            return Err(format!("they differ:\n{one}\n{other}"));
        }
    }
    Ok(())
}
