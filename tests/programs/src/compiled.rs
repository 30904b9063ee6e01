//! Programs compiled here against the system's headers and its library, as a user compiles his own, and run on ours.

use crate::Test;
use crate::expect;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, Stage};
use std::path::{Path, PathBuf};
use std::process::Command;

const ROW: Row = Row {
    program: "a C and a C++ program",
    version: Version::Ours,
    what: "compiled with the distribution's headers: device memory, extended completion queues, timestamps, \
        `ibv_wr_*`, memory windows",
};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for link in Link::BOTH {
        // With itself a program needs no shared memory; over UDP it is as if it were two.
        let over = if link == Link::Udp { ", UDP" } else { "" };
        tests.push(Test::new(format!("C: device memory and completions with timestamps{over}"), move |stage| {
            let text = compiled(stage, link, "cc", "device_memory.c", &["-std=c11"])?;
            expect(&text, &["device memory holds what was written", "timestamps rise"])
        }));
        let name = format!("C++: work requests built call by call, atomics, a memory window{over}");
        tests.push(Test::new(name, move |stage| {
            let text = compiled(stage, link, "c++", "work_requests.cpp", &["-std=c++17"])?;
            expect(&text, &["read back what was written", "counted to 100", "the window is shut"])
        }));
    }
    all_of(&ROW, tests)
}

fn compiled(stage: &Stage, link: Link, compiler: &str, source: &str, options: &[&str]) -> Result<String, String> {
    let program = compile(stage, compiler, source, options)?;
    stage.run(None, &link.options(), &format!("{} ubi_lo", program.display()))
}

/// Compiles a program with every warning an error.
pub fn compile(stage: &Stage, compiler: &str, source: &str, options: &[&str]) -> Result<PathBuf, String> {
    let name = source.split('.').next().unwrap_or(source);
    compile_with(stage, compiler, source, name, &[options, &["-libverbs"]].concat())
}

/// Compiles a program under a name of its own, without our library.
pub fn compile_with(
    stage: &Stage,
    compiler: &str,
    source: &str,
    name: &str,
    options: &[&str],
) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source);
    let program = stage.place.join(name);
    let mut command = Command::new(compiler);
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source).args(options);
    let ended = stage.end(&mut command)?;
    if !ended.status.success() {
        return Err(format!("{compiler} {}: is its package installed?\n{}", source.display(), ended.last()));
    }
    Ok(program)
}
