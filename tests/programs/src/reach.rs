//! Programs that our libraries cannot reach: `ubiverbs run` says so, instead of running them on the system's.

use crate::stage::{NOBODY_UID, Stage};
use crate::{Test, expect};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("run: a static program is out of reach", |stage| {
            let program = compiled(stage, "static", &["-static"])?;
            refused(stage, None, &program, "is linked statically")
        }),
        Test::new("run: a script of a static interpreter is out of reach", |stage| {
            let program = compiled(stage, "static-interpreter", &["-static"])?;
            let script = stage.place.join("script");
            fs::write(&script, format!("#!{}\n", program.display())).map_err(|e| e.to_string())?;
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
            refused(stage, None, &script, "static-interpreter is linked statically")
        }),
        Test::new("run: a program of another C library is out of reach", |stage| {
            let program = compiled(stage, "musl", &["-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"])?;
            let ended = stage.end(&mut stage.run_on(&stage.alone, None, &[], &program.display().to_string()))?;
            expect(&ended.text, &["starts with /lib/ld-musl-x86_64.so.1"])
        }),
        Test::new("run: a set-user-ID program is out of reach", |stage| set_id(stage, 0o4755, "is set-user-ID"))
            .for_root(),
        Test::new("run: a set-group-ID program is out of reach", |stage| set_id(stage, 0o2755, "is set-group-ID"))
            .for_root(),
        Test::new("run: a program with capabilities is out of reach", capabilities).for_root(),
    ]
}

/// A program that says that it runs, whatever it is given.
fn compiled(stage: &Stage, name: &str, options: &[&str]) -> Result<PathBuf, String> {
    let (source, program) = (stage.place.join("runs.c"), stage.place.join(name));
    let text = "#include <stdio.h>\nint main(void) { return puts(\"runs\") < 0; }\n";
    fs::write(&source, text).map_err(|e| e.to_string())?;
    let ended = stage.end(Command::new("cc").args(options).arg("-o").arg(&program).arg(&source))?;
    if ended.status.success() { Ok(program) } else { Err(format!("cc: {}", ended.last())) }
}

/// It does not run, and says why; with `--force` it does.
fn refused(stage: &Stage, user: Option<u32>, program: &Path, why: &str) -> Result<(), String> {
    let line = program.display().to_string();
    let ended = stage.end(&mut stage.run_on(&stage.alone, user, &[], &line))?;
    expect(&ended.text, &[why, "--force"])?;
    if ended.status.code() != Some(2) || ended.text.contains("runs\n") || ended.text.lines().count() != 1 {
        return Err(format!("{}: {}", ended.status, ended.text));
    }
    let text = stage.run(user, &["--force".to_owned()], &line)?;
    if text == "runs\n" { Ok(()) } else { Err(text) }
}

fn set_id(stage: &Stage, mode: u32, why: &str) -> Result<(), String> {
    let program = compiled(stage, &format!("mode-{mode:o}"), &[])?;
    chown(&program, Some(0), Some(0)).map_err(|e| e.to_string())?;
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).map_err(|e| e.to_string())?;
    // Root gains nothing by it.
    expect(&stage.run(None, &[], &program.display().to_string())?, &["runs"])?;
    refused(stage, Some(NOBODY_UID), &program, why)
}

fn capabilities(stage: &Stage) -> Result<(), String> {
    let program = compiled(stage, "capable", &[])?;
    // Version 2, effective; CAP_NET_RAW permitted, nothing inheritable.
    let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&program, c"security.capability", &bytes, flags).map_err(|e| e.to_string())?;
    expect(&stage.run(None, &[], &program.display().to_string())?, &["runs"])?;
    refused(stage, Some(NOBODY_UID), &program, "has capabilities")
}
