//! Starting other programs: cargo with the right directory and its output passed on while it is read. Not a shell.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The cargo that runs us, in the workspace.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // Set for us by the cargo that runs us; its children must look at their own.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_PKG_NAME", "CARGO_PKG_VERSION"] {
        command.env_remove(name);
    }
    command
}

/// What the steps of `cargo xtask test` before this one have built, with commas between: it is not built again.
pub const BUILT_STEPS_VARIABLE: &str = "XTASK_STEPS_BUILT";

/// Whether a step before this one has built that already.
pub fn is_built(what: &str) -> bool {
    env::var(BUILT_STEPS_VARIABLE).is_ok_and(|built| built.split(',').any(|step| step == what))
}

/// The name of the package of a manifest.
pub fn package_name(manifest: &Path) -> String {
    let text = std::fs::read_to_string(manifest).unwrap_or_default();
    let name = |manifest: toml::Value| Some(manifest.get("package")?.get("name")?.as_str()?.to_owned());
    toml::from_str(&text).ok().and_then(name).unwrap_or_default()
}

/// What is chosen where something of the dev profile is built, beside its own target: all packages and features, and an
/// example, with which Cargo counts what tests need. So the tests choose, and what they have built is not built a second
/// time with other features.
pub const AS_THE_TESTS: [&str; 4] = ["--workspace", "--all-features", "--example", "hello"];

/// Builds a program of the dev profile and returns where it is.
pub fn build_dev(root: &Path, program: &str) -> Result<PathBuf, String> {
    if !is_built("build") {
        run(cargo(root).arg("build").args(AS_THE_TESTS).args(["--bin", program]))?;
    }
    Ok(target_directory(root)?.join("debug").join(program))
}

/// Runs a program to its end, its output on ours.
pub fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{} did not start: {e}", show(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed: {status}", show(command))) }
}

/// Runs a program to its end and shows each line of its standard output to `line` and on ours. Says whether it
/// succeeded.
pub fn watch(command: &mut Command, mut line: impl FnMut(&str)) -> Result<bool, String> {
    let failed = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|e| failed(&format!("{} did not start", show(command)), &e))?;
    if let Some(stdout) = child.stdout.take() {
        let mut reader = BufReader::new(stdout);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let read = reader.read_until(b'\n', &mut bytes).map_err(|e| failed("its output broke off", &e))?;
            if read == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&bytes);
            print!("{text}");
            line(text.trim_end_matches(['\n', '\r']));
        }
    }
    Ok(child.wait().map_err(|e| failed("it did not end", &e))?.success())
}

/// Runs a program to its end and returns its standard output; its errors are in ours.
pub fn output(command: &mut Command) -> Result<String, String> {
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|e| format!("{} did not start: {e}", show(command)))?;
    if !output.status.success() {
        return Err(format!("{} failed: {}", show(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{} wrote something that is not UTF-8: {e}", show(command)))
}

/// Where cargo puts what it builds.
pub fn target_directory(root: &Path) -> Result<PathBuf, String> {
    let metadata = metadata(root)?;
    metadata["target_directory"].as_str().map(PathBuf::from).ok_or_else(|| "cargo metadata names no target".into())
}

/// What cargo knows about the workspace's own packages.
pub fn metadata(root: &Path) -> Result<serde_json::Value, String> {
    let text = output(cargo(root).args(["metadata", "--no-deps", "--format-version", "1"]))?;
    serde_json::from_str(&text).map_err(|e| format!("cargo metadata is not JSON: {e}"))
}

/// A port of TCP that nothing listens at now.
pub fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|e| format!("no port is free: {e}"))
}

fn show(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    format!("`{}`", words.join(" "))
}
