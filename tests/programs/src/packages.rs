//! What people get: that it needs nothing but the C library, that the loader's own tools accept it, and that the tarball and the Debian package work
//! where they are unpacked.

use crate::stage::Stage;
use crate::{Test, expect};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts of the C library, old and new.
const C_LIBRARY: [&str; 6] = ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux"];

/// What has code.
const CODE: [&str; 6] = [
    "bin/ubiverbs",
    "lib/libibverbs.so.1",
    "lib/librdmacm.so.1",
    "lib/libibumad.so.3",
    "lib/librspreload.so",
    "lib/libubiverbs-paths.so",
];

/// Those that only jump into `libibverbs.so.1`, which is beside them wherever they are copied to.
const JUMPS: [&str; 3] = ["lib/librdmacm.so.1", "lib/libibumad.so.3", "lib/librspreload.so"];

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("dist: nothing but the C library is needed", needs),
        Test::new("dist: ldconfig makes its links, and a program finds the library by them", ldconfig),
        Test::new("dist: the tarball works where it is unpacked", tarball),
        Test::new("dist: the Debian package leaves the system's library alone", debian),
        Test::new("dist: the Debian package is as Debian's policy wants it", policy),
        Test::new("dist: debug information is in a package of its own", debug),
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
    for file in CODE {
        let (beside, path): (&[&str], _) =
            if JUMPS.contains(&file) { (&["libibverbs.so.1"], "[$ORIGIN:$ORIGIN/..]") } else { (&[], "no path") };
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

/// The one package whose name begins and ends so.
fn package(stage: &Stage, begin: &str, end: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(&stage.packages).map_err(|e| format!("{}: {e}", stage.packages.display()))?;
    let mut found = entries.flatten().filter(|entry| {
        let name = entry.file_name().display().to_string();
        name.starts_with(begin) && name.ends_with(end)
    });
    let found = found.next().map(|entry| entry.path());
    found.ok_or_else(|| format!("no {begin}…{end} in {}", stage.packages.display()))
}

fn tarball(stage: &Stage) -> Result<(), String> {
    let place = stage.place.join("unpacked");
    fs::create_dir_all(&place).map_err(|e| e.to_string())?;
    succeed(stage, Command::new("tar").arg("-xzf").arg(package(stage, "ubiverbs-", ".tar.gz")?).arg("-C").arg(&place))?;
    let top = fs::read_dir(&place).map_err(|e| e.to_string())?.flatten().next().ok_or("it is empty")?.path();
    let mut command = stage.alone.command(None, &top.join("bin/ubiverbs"));
    expect(&succeed(stage, command.args(["run", "--", "ibv_devices"]))?, &["ubi_lo"])?;
    let files = [
        "README.md",
        "INSTALL.md",
        "docs/programs.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "lib/libibverbs.so",
        "lib/librdmacm.so",
        "lib/rsocket/librspreload.so.1",
        "share/man/man1/ubiverbs-run.1",
        "share/bash-completion/completions/ubiverbs",
        "share/zsh/site-functions/_ubiverbs",
        "share/fish/vendor_completions.d/ubiverbs.fish",
    ];
    if let Some(missing) = files.iter().find(|file| !top.join(file).exists()) {
        return Err(format!("no {missing} in it"));
    }
    for file in CODE {
        let sections = succeed(stage, Command::new("readelf").args(["--sections", "--wide"]).arg(top.join(file)))?;
        // Names of functions are for backtraces; the rest is for debuggers, and most of the weight.
        if sections.contains(".debug_info") || !sections.contains(".symtab") {
            return Err(format!("{file} has debug information, or no symbols:\n{sections}"));
        }
    }
    Ok(())
}

fn debian(stage: &Stage) -> Result<(), String> {
    let package = package(stage, "ubiverbs_", ".deb")?;
    let control = succeed(stage, Command::new("dpkg-deb").arg("--field").arg(&package))?;
    expect(&control, &["Package: ubiverbs\n", "Depends: libc6 (>= 2.", "Description: "])?;
    let content = succeed(stage, Command::new("dpkg-deb").arg("--contents").arg(&package))?;
    expect(
        &content,
        &[
            "./usr/bin/ubiverbs -> ../lib/ubiverbs/bin/ubiverbs",
            "./usr/lib/ubiverbs/lib/libibverbs.so.1\n",
            "./usr/lib/ubiverbs/lib/librdmacm.so.1\n",
            "./usr/share/man/man1/ubiverbs-run.1.gz\n",
            "./usr/share/bash-completion/completions/ubiverbs\n",
        ],
    )?;
    for line in content.lines() {
        let owned = line.contains(" root/root ") || line.contains(" 0/0 ");
        let ours = |path: &str| {
            let own = ["./usr/lib/ubiverbs/", "./usr/share/doc/ubiverbs/"].iter().any(|place| path.starts_with(place));
            own || !path.contains("libibverbs") && !path.contains("librdmacm")
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

/// What lintian looks at, as far as it can be seen without lintian.
fn policy(stage: &Stage) -> Result<(), String> {
    let package = package(stage, "ubiverbs_", ".deb")?;
    let place = stage.place.join("policy");
    succeed(stage, Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&place))?;
    let control = fs::read_to_string(place.join("DEBIAN/control")).map_err(|e| format!("control: {e}"))?;
    for field in ["Version: ", "Architecture: ", "Maintainer: ", "Installed-Size: ", "Section: ", "Priority: "] {
        if !control.lines().any(|line| line.strip_prefix(field).is_some_and(|value| !value.trim().is_empty())) {
            return Err(format!("no {field}in\n{control}"));
        }
    }
    // Every file has its sum, and the sum is right.
    succeed(stage, Command::new("md5sum").current_dir(&place).args(["--quiet", "--check", "DEBIAN/md5sums"]))?;
    let sums = fs::read_to_string(place.join("DEBIAN/md5sums")).map_err(|e| format!("md5sums: {e}"))?;
    let files = succeed(stage, Command::new("find").arg(place.join("usr")).args(["-type", "f"]))?.lines().count();
    if sums.lines().count() != files {
        return Err(format!("{files} files, and sums of {}", sums.lines().count()));
    }
    let documents = place.join("usr/share/doc/ubiverbs");
    for name in ["changelog.gz", "changelog.Debian.gz"] {
        succeed(stage, Command::new("gzip").arg("--test").arg(documents.join(name)))?;
    }
    for name in ["README.md", "programs.md", "ci.md"] {
        fs::metadata(documents.join(name)).map_err(|e| format!("{name}: {e}"))?;
    }
    let copyright = fs::read_to_string(documents.join("copyright")).map_err(|e| format!("copyright: {e}"))?;
    expect(&copyright, &["copyright-format/1.0", "License: Expat or Apache-2.0", "\n clap v"])?;
    for place_of in ["zsh/vendor-completions/_ubiverbs", "fish/vendor_completions.d/ubiverbs.fish"] {
        fs::metadata(place.join("usr/share").join(place_of)).map_err(|e| format!("{place_of}: {e}"))?;
    }
    for file in CODE {
        let path = place.join("usr/lib/ubiverbs").join(file);
        let sections = succeed(stage, Command::new("readelf").args(["--sections", "--wide"]).arg(&path))?;
        let mode = fs::metadata(&path).map_err(|e| format!("{file}: {e}"))?.permissions().mode() & 0o777;
        let wanted = if file.starts_with("bin/") { 0o755 } else { 0o644 };
        if sections.contains(".symtab") || mode != wanted {
            return Err(format!("{file} is not stripped, or its mode is not {wanted:o}: {mode:o}\n{sections}"));
        }
    }
    Ok(())
}

/// Debuggers find it by the identities of the files, which must be those of the other package.
fn debug(stage: &Stage) -> Result<(), String> {
    let (program, symbols) = (stage.place.join("policy"), stage.place.join("symbols"));
    for (name, place) in [("ubiverbs_", &program), ("ubiverbs-dbgsym_", &symbols)] {
        let package = package(stage, name, ".deb")?;
        succeed(stage, Command::new("dpkg-deb").arg("--extract").arg(&package).arg(place))?;
    }
    for file in CODE.iter().filter(|file| !JUMPS.contains(file)) {
        let path = program.join("usr/lib/ubiverbs").join(file);
        let notes = succeed(stage, Command::new("readelf").args(["--notes", "--wide"]).arg(path))?;
        let identity = notes.split("Build ID: ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let (first, rest) = identity.ok_or_else(|| format!("{file} has no identity"))?.split_at(2);
        let path = symbols.join(format!("usr/lib/debug/.build-id/{first}/{rest}.debug"));
        expect(
            &succeed(stage, Command::new("readelf").args(["--sections", "--wide"]).arg(path))?,
            &[".debug_info", ".symtab"],
        )?;
    }
    Ok(())
}
