//! `pip install`: the program and its libraries as a Python wheel, for every Linux with a C library of 2018 or newer.
//! The system's compiler would link for the C library of this machine, so Zig's does it, which knows the symbols of
//! each release; pip brings it. What was made is checked: that nothing newer is needed, that the libraries export what
//! those of the system's compiler do, and that programs run on the wheel once it is installed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, run};
use crate::toolchain::{Machine, Toolchain};
use crate::{dist, elf, packages, prerequisites};

/// The release of Zig, as pip knows it.
const ZIG: &str = "ziglang==0.17.0";

/// The oldest C library that the wheel runs on, as Python's platform tags say it; and as the linker does.
const PLATFORM: &str = "manylinux_2_28";
const LIBC: &str = "2.28";

/// The names under which programs are linked with our libraries, or NCCL looks for one, and the libraries.
const LINKS: [(&str, &str); 4] = [
    ("libibverbs.so", "libibverbs.so.1"),
    ("librdmacm.so", "librdmacm.so.1"),
    ("libibumad.so", "libibumad.so.3"),
    (dist::PROFILER_NAME, "libibverbs.so.1"),
];

/// How long a program on the installed wheel may take.
const RUN_MAX: Duration = Duration::from_secs(60);

/// What to build.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Options {
    /// For this machine; another than this one needs a cross compiler and QEMU, which are installed where that is
    /// possible.
    #[arg(long, value_name = "MACHINE")]
    target: Option<Machine>,
    /// For this machine's C library and newer ones, linked by its own compiler: nothing is fetched. The wheel is in
    /// target/packages.
    #[arg(long, conflicts_with = "target")]
    native: bool,
}

/// Makes the wheel and checks it; returns where it is.
pub fn build(root: &Path, options: Options) -> Result<String, String> {
    prerequisites::wheel()?;
    if options.native {
        dist::unpacked(root)?;
        return native(root).map(|wheel| wheel.display().to_string());
    }
    let system = Toolchain::system(root, options.target)?;
    let machine = system.machine;
    let place = process::target_directory(root)?.join("wheel");
    let work = place.join(machine.name());
    let _ = fs::remove_dir_all(&work);
    let python = environment(&place.join("zig"), &[ZIG])?;
    let zig = system.clone().with_zig(compiler(&place, &python, machine)?);

    let tree = work.join("dist");
    dist::tree(root, &zig, &tree, false)?;
    let files = without_links(&zig, &work, &tree)?;
    elf::check(&files, LIBC)?;
    same_exports(root, &system, &work, &tree)?;

    let tag = format!("py3-none-{PLATFORM}_{}", machine.name());
    let wheel = pack(root, &python, &work, &tree, &tag, &place)?;
    check(root, &system, &work, &wheel)?;
    let _ = fs::remove_dir_all(&work);
    Ok(wheel.display().to_string())
}

/// Makes a wheel of what is in target/dist, for this machine, without a check: tests install it.
pub fn native(root: &Path) -> Result<PathBuf, String> {
    let target = process::target_directory(root)?;
    let (system, place) = (Toolchain::system(root, None)?, target.join("packages"));
    let work = place.join("wheel-work");
    let _ = fs::remove_dir_all(&work);
    let tree = work.join("dist");
    packages::copy(&target.join("dist"), &tree)?;
    without_links(&system, &work, &tree)?;
    let tag = format!("py3-none-linux_{}", system.machine.name());
    let wheel = pack(root, Path::new("python3"), &work, &tree, &tag, &place)?;
    let _ = fs::remove_dir_all(&work);
    Ok(wheel)
}

/// Puts libraries in place of links, and takes debug information out; returns the files that have code.
fn without_links(toolchain: &Toolchain, work: &Path, tree: &Path) -> Result<Vec<PathBuf>, String> {
    stand_for_links(toolchain, work, &tree.join("lib"))?;
    // Other names of one library, which are links.
    let _ = fs::remove_dir_all(tree.join("lib/rsocket"));
    let _ = fs::remove_file(tree.join("lib/librspreload.so.1"));
    let mut files: Vec<PathBuf> = packages::CODE.iter().map(|file| tree.join(file)).collect();
    files.extend(LINKS.map(|(link, _)| tree.join("lib").join(link)));
    for file in &files {
        run(toolchain.tool("strip").args(["--strip-debug"]).arg(file))?;
    }
    Ok(files)
}

/// Packs a tree into the wheel of that tag; returns where it is.
fn pack(root: &Path, python: &Path, work: &Path, tree: &Path, tag: &str, place: &Path) -> Result<PathBuf, String> {
    let version = packages::version(root)?;
    let content = content(root, work, tree, &version, tag)?;
    let mut pack = Command::new(python);
    pack.arg(root.join("xtask/wheel/pack.py")).arg(content).args(["ubiverbs", &version, tag]).arg(place);
    Ok(PathBuf::from(process::output(&mut pack)?.trim()))
}

/// A Python environment with these packages; returns its interpreter. One that is there is taken as it is.
pub fn environment(place: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let (python, done) = (place.join("bin/python"), place.join("done"));
    let wanted = packages.join("\n");
    if fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    let _ = fs::remove_dir_all(place);
    run(Command::new("python3").args(["-m", "venv"]).arg(place))?;
    if !packages.is_empty() {
        println!("fetching {} with pip", packages.join(", "));
        run(pip(&python).args(["install"]).args(packages))?;
    }
    fs::write(&done, wanted).map_err(|e| format!("cannot write {}: {e}", done.display()))?;
    Ok(python)
}

fn pip(python: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    pip
}

/// Writes the script by which cargo and we call Zig's compiler.
fn compiler(place: &Path, python: &Path, machine: Machine) -> Result<PathBuf, String> {
    let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', "'\\''"));
    let (cache, target) = (quoted(&place.join("zig-cache")), format!("{}.{LIBC}", machine.gnu()));
    let script = format!(
        "#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR={cache} ZIG_LOCAL_CACHE_DIR={cache}\n\
         exec {} -m ziglang cc -target {target} \"$@\"\n",
        quoted(python)
    );
    let path = place.join(format!("zig-{}", machine.name()));
    let made = fs::write(&path, script).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
    made.map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    Ok(path)
}

/// A wheel has no links, and a copy of `libibverbs.so.1` under the name `libibverbs.so` would be a second NIC in one
/// process. Instead a library without content is there, that needs the other one: what is looked up in it is found.
fn stand_for_links(toolchain: &Toolchain, work: &Path, lib: &Path) -> Result<(), String> {
    let empty = work.join("empty.s");
    fs::write(&empty, "\t.section .note.GNU-stack,\"\",%progbits\n").map_err(|e| e.to_string())?;
    for (name, library) in LINKS {
        let path = lib.join(name);
        fs::remove_file(&path).map_err(|e| format!("cannot remove {}: {e}", path.display()))?;
        let mut linker = toolchain.compiler();
        linker.args(["-shared", "-nostdlib", "-Wl,--no-as-needed", "-Wl,--enable-new-dtags,-rpath,$ORIGIN"]);
        linker.arg(format!("-Wl,-soname,{name}")).arg("-o").arg(&path).arg(&empty);
        run(linker.arg(lib.join(library)).args(toolchain.without_libraries_of_libraries()))?;
    }
    Ok(())
}

/// Two linkers read the same tables; versions of symbols are where they could differ.
fn same_exports(root: &Path, system: &Toolchain, work: &Path, tree: &Path) -> Result<(), String> {
    let other = work.join("other");
    dist::tree(root, system, &other, true)?;
    for name in LINKS.map(|(_, name)| name).into_iter().chain(["librspreload.so"]) {
        let of = |tree: &Path| elf::exports(&tree.join("lib").join(name));
        let (ours, theirs) = (of(tree)?, of(&other)?);
        if ours != theirs || ours.len() < 40 {
            let differing: Vec<_> = ours.symmetric_difference(&theirs).collect();
            return Err(format!("{name} differs from what the system's compiler makes: {differing:#?}"));
        }
    }
    Ok(())
}

/// Lays out what the wheel has; returns the directory.
fn content(root: &Path, work: &Path, dist: &Path, version: &str, tag: &str) -> Result<PathBuf, String> {
    let place = work.join("content");
    let module = place.join("ubiverbs");
    packages::copy(&root.join("python/ubiverbs"), &module)?;
    let init = module.join("__init__.py");
    let text = fs::read_to_string(&init).map_err(|e| format!("cannot read {}: {e}", init.display()))?;
    packages::write(&init, &text.replace("@VERSION@", version))?;
    let _ = fs::remove_dir_all(module.join("__pycache__"));
    for part in ["bin", "lib"] {
        packages::copy(&dist.join(part), &module.join(part))?;
    }
    packages::copy(&dist.join("share"), &place.join(format!("ubiverbs-{version}.data/data/share")))?;

    let information = place.join(format!("ubiverbs-{version}.dist-info"));
    for file in ["LICENSE-APACHE", "LICENSE-MIT"] {
        packages::copy(&root.join(file), &information.join("licenses").join(file))?;
    }
    let description = root.join("python/README.md");
    let description =
        fs::read_to_string(&description).map_err(|e| format!("cannot read {}: {e}", description.display()))?;
    packages::write(
        &information.join("METADATA"),
        &format!(
            "Metadata-Version: 2.4\nName: ubiverbs\nVersion: {version}\n\
             Summary: RDMA verbs without an RDMA NIC: libibverbs and librdmacm in user space\n\
             License-Expression: MIT OR Apache-2.0\nLicense-File: LICENSE-APACHE\nLicense-File: LICENSE-MIT\n\
             Keywords: rdma,verbs,roce,infiniband,libibverbs\nClassifier: Operating System :: POSIX :: Linux\n\
             Classifier: Programming Language :: Python :: 3\nClassifier: Topic :: System :: Networking\n\
             Requires-Python: >=3.8\nDescription-Content-Type: text/markdown\n\n{description}"
        ),
    )?;
    packages::write(
        &information.join("WHEEL"),
        &format!("Wheel-Version: 1.0\nGenerator: cargo xtask wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"),
    )?;
    packages::write(&information.join("entry_points.txt"), "[console_scripts]\nubiverbs = ubiverbs:main\n")?;
    Ok(place)
}

/// Installs the wheel where nothing else is, and runs programs on it.
fn check(root: &Path, toolchain: &Toolchain, work: &Path, wheel: &Path) -> Result<(), String> {
    let place = work.join("installed");
    if toolchain.is_cross() {
        return check_elsewhere(toolchain, &place, wheel);
    }
    let python = environment(&place, &[])?;
    run(pip(&python).args(["install", "--no-index"]).arg(wheel))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", place.join("bin").display());
    let start = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments).env("PATH", &path).env_remove("LD_LIBRARY_PATH").env_remove("LD_PRELOAD");
        command
    };
    run(start("python", &[]).arg(root.join("xtask/wheel/check.py")))?;
    run(&mut start("ubiverbs", &["run", "--", "ibv_devinfo", "-d", "ubi_lo"]))?;
    run(start("ubiverbs", &["demo", "--simulated"]).stdout(Stdio::null()))?;
    let port = process::free_port()?.to_string();
    let pingpong = ["run", "--", "ibv_rc_pingpong", "-g", "0", "-d", "ubi_lo", "-c", "-p", &port];
    let mut server = start("ubiverbs", &pingpong).spawn().map_err(|e| format!("ubiverbs did not start: {e}"))?;
    let mut client = pingpong.to_vec();
    client.push("127.0.0.1");
    let deadline = Instant::now() + RUN_MAX;
    // The client gives up at once where nothing listens yet.
    let met = loop {
        match run(start("ubiverbs", &client).stderr(Stdio::null())) {
            Err(_) if Instant::now() < deadline && matches!(server.try_wait(), Ok(None)) => {
                thread::sleep(Duration::from_millis(100));
            }
            ended => break ended,
        }
    };
    if met.is_err() {
        let _ = server.kill();
    }
    let served = server.wait().map_err(|e| format!("the server is gone: {e}"))?;
    met?;
    if served.success() { Ok(()) } else { Err(format!("ibv_rc_pingpong on the installed wheel: {served}")) }
}

/// Checks a wheel for another machine: pip only unpacks it, and QEMU runs the program.
fn check_elsewhere(toolchain: &Toolchain, place: &Path, wheel: &Path) -> Result<(), String> {
    let python = environment(place, &[])?;
    let unpacked = place.join("unpacked");
    let platform = format!("{PLATFORM}_{}", toolchain.machine.name());
    run(pip(&python)
        .args(["install", "--no-index", "--no-deps", "--only-binary=:all:", "--platform", &platform, "--target"])
        .arg(&unpacked)
        .arg(wheel))?;
    let mut devices = toolchain.start(&unpacked.join("ubiverbs/bin/ubiverbs"));
    let text = process::output(devices.arg("devices"))?;
    if text.contains("ubi_lo") { Ok(()) } else { Err(format!("no device ubi_lo, but:\n{text}")) }
}
