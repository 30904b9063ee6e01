//! What people download: a tarball that is unpacked anywhere, and a Debian package. The package keeps our libraries in a directory of its own, where
//! only `ubiverbs run` finds them: the system's libraries stay what they are.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{self, run};

/// Makes both out of `dist`, in `target/packages`; returns where they are.
pub fn build(root: &Path, dist: &Path) -> Result<Vec<PathBuf>, String> {
    let version = version(root)?;
    let place = dist.with_file_name("packages");
    let work = place.join("work");
    let _ = fs::remove_dir_all(&place);
    let tarball = tarball(root, dist, &place, &work, &version)?;
    let package = package(root, dist, &place, &work, &version)?;
    let _ = fs::remove_dir_all(&work);
    Ok(vec![tarball, package])
}

fn tarball(root: &Path, dist: &Path, place: &Path, work: &Path, version: &str) -> Result<PathBuf, String> {
    let name = format!("ubiverbs-{version}");
    let tree = work.join(&name);
    copy(dist, &tree)?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(file), &tree.join(file))?;
    }
    let path = place.join(format!("{name}-{}-linux.tar.gz", std::env::consts::ARCH));
    archive(&path, work, &name)?;
    Ok(path)
}

fn package(root: &Path, dist: &Path, place: &Path, work: &Path, version: &str) -> Result<PathBuf, String> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => return Err(format!("Debian has no name for {other} here")),
    };
    let (data, control) = (work.join("data"), work.join("control"));
    copy(dist, &data.join("usr/lib/ubiverbs"))?;
    // Manual pages and completions are where the system looks for them.
    let share = data.join("usr/share");
    directory(&data.join("usr"))?;
    fs::rename(data.join("usr/lib/ubiverbs/share"), &share)
        .map_err(|e| format!("cannot make {}: {e}", share.display()))?;
    copy(&root.join("LICENSE-MIT"), &data.join("usr/share/doc/ubiverbs/copyright"))?;
    directory(&data.join("usr/bin"))?;
    let link = data.join("usr/bin/ubiverbs");
    symlink("../lib/ubiverbs/bin/ubiverbs", &link).map_err(|e| format!("cannot make {}: {e}", link.display()))?;
    let libc = newest_libc(&[dist.join("bin/ubiverbs"), dist.join("lib/libibverbs.so.1")])?;
    let text = format!(
        "Package: ubiverbs\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: ubiverbs <ubiverbs@localhost>\n\
         Section: net\nPriority: optional\nDepends: libc6 (>= {libc})\n\
         Description: RDMA verbs in user space\n A software RDMA NIC without kernel module, root or hardware. Programs written for\n \
         libibverbs and librdmacm run on it unmodified, with `ubiverbs run`; it speaks RoCEv2.\n"
    );
    write(&control.join("control"), &text)?;
    write(&work.join("debian-binary"), "2.0\n")?;
    archive(&work.join("control.tar.gz"), &control, ".")?;
    archive(&work.join("data.tar.gz"), &data, ".")?;
    let path = place.join(format!("ubiverbs_{version}_{architecture}.deb"));
    let mut ar = Command::new("ar");
    ar.current_dir(work).arg("rcD").arg(&path).args(["debian-binary", "control.tar.gz", "data.tar.gz"]);
    run(&mut ar)?;
    Ok(path)
}

/// A directory as a compressed tarball: root's, and the same whoever makes it.
fn archive(path: &Path, directory: &Path, name: &str) -> Result<(), String> {
    let mut tar = Command::new("tar");
    tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX", "--mtime=@0", "-czf"]);
    run(tar.arg(path).arg("-C").arg(directory).arg(name))
}

/// The newest version of the C library that these files need something of.
fn newest_libc(files: &[PathBuf]) -> Result<String, String> {
    let text = process::output(Command::new("readelf").arg("--version-info").arg("--wide").args(files))?;
    let number = |version: &str| version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>();
    let versions = text.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let newest = versions.filter(|version| number(version).is_some()).max_by_key(|version| number(version));
    newest.map(str::to_owned).ok_or_else(|| "the files need no C library at all".into())
}

fn version(root: &Path) -> Result<String, String> {
    let metadata = process::metadata(root)?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let package = packages.iter().find(|package| package["name"] == "ubiverbs-cli");
    package
        .and_then(|package| Some(package["version"].as_str()?.to_owned()))
        .ok_or_else(|| "no package has a version".into())
}

/// Copies a file or a directory; links stay links.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    to.parent().map_or(Ok(()), directory)?;
    run(Command::new("cp").arg("-a").arg(from).arg(to))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    path.parent().map_or(Ok(()), directory)?;
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn directory(path: &Path) -> Result<(), String> {
    let readable = |()| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    fs::create_dir_all(path).and_then(readable).map_err(|e| format!("cannot make {}: {e}", path.display()))
}
