//! What people get: that it needs nothing but the C library, that the loader's own tools accept it, and that the tarball and the Debian package work
//! where they are unpacked.

use crate::stage::Stage;
use crate::{Test, expect};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts of the C library, old and new.
const C_LIBRARY: [&str; 6] = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux"];

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("dist: nothing but the C library is needed", needs),
        Test::new("dist: ldconfig makes its links, and a program finds the library by them", ldconfig),
        Test::new("dist: the tarball works where it is unpacked", tarball),
        Test::new("dist: the Debian package leaves the system's library alone", debian),
    ]
}

/// Runs a command, which must succeed; answers what it printed.
fn succeed(stage: &Stage, command: &mut Command) -> Result<String, String> {
    let ended = stage.end(command)?;
    if ended.status.success() {
        Ok(ended.text)
    } else {
        Err(format!("{command:?}: {}\n{}", ended.status, ended.last()))
    }
}

fn needs(stage: &Stage) -> Result<(), String> {
    for file in ["bin/ubiverbs", "lib/libibverbs.so.1", "lib/librdmacm.so.1", "lib/libubiverbs-paths.so"] {
        // One library jumps into the other, which is beside it wherever both are copied to.
        let (beside, path): (&[&str], _) =
            if file.contains("rdmacm") { (&["libibverbs.so.1"], "[$ORIGIN]") } else { (&[], "no path") };
        let text = succeed(stage, Command::new("readelf").args(["--dynamic", "--wide"]).arg(stage.dist.join(file)))?;
        let names = text.lines().filter(|line| line.contains("(NEEDED)"));
        for name in names.filter_map(|line| line.split(['[', ']']).nth(1)) {
            if !C_LIBRARY.iter().chain(beside).any(|part| name.starts_with(part)) {
                return Err(format!("{file} needs {name}"));
            }
        }
        if text.lines().any(|line| line.contains("PATH") && !line.ends_with(path)) {
            return Err(format!("{file} has a path of the machine it was built on:\n{text}"));
        }
    }
    Ok(())
}

fn ldconfig(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("ldconfig");
    fs::create_dir_all(&place).map_err(|e| e.to_string())?;
    // Under a name that only its SONAME leads from.
    let file = place.join("libibverbs.so.1.99");
    fs::copy(stage.dist.join("lib/libibverbs.so.1"), &file).map_err(|e| e.to_string())?;
    let ldconfig = ["/sbin/ldconfig", "/usr/sbin/ldconfig"].into_iter().find(|path| Path::new(path).exists());
    succeed(stage, Command::new(ldconfig.unwrap_or("ldconfig")).arg("-n").arg(&place))?;
    let link = fs::read_link(place.join("libibverbs.so.1")).map_err(|e| format!("no link: {e}"))?;
    if link != Path::new("libibverbs.so.1.99") {
        return Err(format!("the link leads to {}", link.display()));
    }
    let mut command = stage.alone.command(None, Path::new("ibv_devices"));
    expect(&succeed(stage, command.env("LD_LIBRARY_PATH", &place))?, &["ubi_lo"])
}

/// The one package whose name ends so.
fn package(stage: &Stage, end: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(&stage.packages).map_err(|e| format!("{}: {e}", stage.packages.display()))?;
    let mut found =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.display().to_string().ends_with(end));
    found.next().ok_or_else(|| format!("no {end} in {}", stage.packages.display()))
}

fn tarball(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("unpacked");
    fs::create_dir_all(&place).map_err(|e| e.to_string())?;
    succeed(stage, Command::new("tar").arg("-xzf").arg(package(stage, ".tar.gz")?).arg("-C").arg(&place))?;
    let top = fs::read_dir(&place).map_err(|e| e.to_string())?.flatten().next().ok_or("it is empty")?.path();
    let mut command = stage.alone.command(None, &top.join("bin/ubiverbs"));
    expect(&succeed(stage, command.args(["run", "--", "ibv_devices"]))?, &["ubi_lo"])?;
    let files = [
        "README.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "lib/libibverbs.so",
        "lib/librdmacm.so",
        "share/man/man1/ubiverbs-run.1",
        "share/bash-completion/completions/ubiverbs",
        "share/zsh/site-functions/_ubiverbs",
        "share/fish/vendor_completions.d/ubiverbs.fish",
    ];
    match files.iter().find(|file| !top.join(file).exists()) {
        None => Ok(()),
        Some(missing) => Err(format!("no {missing} in it")),
    }
}

fn debian(stage: &Stage) -> Result<(), String> {
    let package = package(stage, ".deb")?;
    let control = succeed(stage, Command::new("dpkg-deb").arg("--field").arg(&package))?;
    expect(&control, &["Package: ubiverbs\n", "Depends: libc6 (>= 2.", "Description: "])?;
    let content = succeed(stage, Command::new("dpkg-deb").arg("--contents").arg(&package))?;
    expect(
        &content,
        &[
            "./usr/bin/ubiverbs -> ../lib/ubiverbs/bin/ubiverbs",
            "./usr/lib/ubiverbs/lib/libibverbs.so.1\n",
            "./usr/lib/ubiverbs/lib/librdmacm.so.1\n",
            "./usr/share/man/man1/ubiverbs-run.1\n",
            "./usr/share/bash-completion/completions/ubiverbs\n",
        ],
    )?;
    for line in content.lines() {
        let owned = line.contains(" root/root ") || line.contains(" 0/0 ");
        let ours = |path: &str| {
            path.starts_with("./usr/lib/ubiverbs/") || !path.contains("libibverbs") && !path.contains("librdmacm")
        };
        if !owned || !line.split_whitespace().nth(5).is_some_and(ours) {
            return Err(format!("what is this? {line}"));
        }
    }
    let place = stage.place.join("installed");
    succeed(stage, Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&place))?;
    // As a person types it: by the link.
    let mut command = stage.alone.command(None, &place.join("usr/bin/ubiverbs"));
    expect(&succeed(stage, command.args(["run", "--", "ibv_devices"]))?, &["ubi_lo"])
}
