//! What the virtual machine boots: a kernel, and an initial file system with the few programs, libraries and modules that Soft-RoCE needs. It is
//! assembled from unpacked packages into the `newc` format of cpio, which the kernel reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first process of the guest.
const INIT: &str = include_str!("../../interop/init");

/// Modules the guest loads, besides those they depend on. Soft-RoCE and the packet filter ask for a CRC only when they start, so nothing depends
/// on those two.
const MODULES: [&str; 8] =
    ["virtio_pci", "virtio_net", "crc32_generic", "ib_uverbs", "rdma_rxe", "rdma_ucm", "crc32c_generic", "nf_tables"];

/// Programs the guest has.
const PROGRAMS: [&str; 19] = [
    "busybox",
    "ip",
    "nft",
    "rdma",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ib_write_bw",
    "ib_read_bw",
    "ib_atomic_bw",
    "ib_send_bw",
    "rping",
    "ucmatose",
    "udaddy",
    "rdma_client",
    "rdma_server",
    "rstream",
    "rcopy",
];

/// Where the kernel and the file system lie.
pub fn kernel(place: &Path) -> PathBuf {
    place.join("vmlinuz")
}

pub fn file_system(place: &Path) -> PathBuf {
    place.join("initramfs")
}

/// The release of the kernel that the packages have.
pub fn release(unpacked: &Path) -> Result<String, String> {
    let boot = unpacked.join("boot");
    let files = fs::read_dir(&boot).map_err(|e| format!("cannot read {}: {e}", boot.display()))?;
    let mut names = files.flatten().filter_map(|file| file.file_name().into_string().ok());
    let release = names.find_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
    release.ok_or_else(|| "the packages have no kernel".into())
}

/// Makes both files. `programs` are more that the guest gets, and `module` is loaded after all others.
pub fn build(unpacked: &Path, programs: &[&Path], module: &Path, place: &Path) -> Result<(), String> {
    let mut files = Vec::new();
    walk(unpacked, unpacked, &mut files)?;
    let kernel_file = files
        .iter()
        .find(|path| path.starts_with("boot") && name(path).starts_with("vmlinuz-"))
        .ok_or("the packages have no kernel")?;
    copy(&unpacked.join(kernel_file), &kernel(place))?;

    let mut archive = Archive::default();
    for directory in ["usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "proc", "sys", "dev", "tmp", "modules"] {
        archive.directory(directory);
    }
    // Packages differ in what they have below /usr; here it is everything.
    for merged in MERGED {
        archive.symlink(merged, &format!("usr/{merged}"));
    }
    archive.file("init", 0o755, INIT.as_bytes());
    archive.file(&format!("usr/bin/{}", super::COPY_CHECK), 0o755, super::COPY_CHECK_SCRIPT.as_bytes());
    for program in programs {
        let code = fs::read(program).map_err(|e| format!("cannot read {}: {e}", program.display()))?;
        archive.file(&format!("usr/bin/{}", name(program)), 0o755, &code);
    }
    let mut missing: BTreeSet<&str> = PROGRAMS.into();
    for path in files.iter().filter(|path| is_wanted(path)) {
        missing.remove(name(path));
        add(&mut archive, unpacked, path)?;
    }
    if !missing.is_empty() {
        return Err(format!("the packages lack {missing:?}"));
    }
    for (place, path) in modules(unpacked, &files)?.iter().enumerate() {
        archive.file(&format!("modules/{place:03}-{}", name(path)), 0o644, &module_bytes(&unpacked.join(path))?);
    }
    archive.file(&format!("modules/999-{}", name(module)), 0o644, &module_bytes(module)?);
    let to = file_system(place);
    fs::write(&to, archive.finish()).map_err(|e| format!("cannot write {}: {e}", to.display()))
}

const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];

/// Whether a file of the packages belongs into the guest: its programs, all libraries, and the drivers of software NICs.
fn is_wanted(path: &Path) -> bool {
    let name = name(path);
    let parent = path.parent().unwrap_or(path);
    let parent = parent.strip_prefix("usr").unwrap_or(parent);
    let in_libraries = parent == Path::new("lib64") || parent == Path::new("lib/x86_64-linux-gnu");
    let in_programs = parent == Path::new("bin") || parent == Path::new("sbin");
    (in_programs && PROGRAMS.contains(&name))
        || (in_libraries && name.contains(".so"))
        || name.starts_with("librxe-")
        || name == "rxe.driver"
        || name.starts_with("libsiw-")
        || name == "siw.driver"
}

/// Copies one file of the packages, with the directories it is in.
fn add(archive: &mut Archive, unpacked: &Path, path: &Path) -> Result<(), String> {
    let from = unpacked.join(path);
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", from.display());
    let to =
        if MERGED.iter().any(|merged| path.starts_with(merged)) { Path::new("usr").join(path) } else { path.into() };
    let to = to.to_str().ok_or_else(|| format!("{} has a strange name", from.display()))?;
    let metadata = fs::symlink_metadata(&from).map_err(failed)?;
    if metadata.is_symlink() {
        let target = fs::read_link(&from).map_err(failed)?;
        archive.symlink(to, &target.to_string_lossy());
    } else {
        archive.file(to, metadata.permissions().mode() & 0o777, &fs::read(&from).map_err(failed)?);
    }
    Ok(())
}

/// Paths of the wanted modules and of those they depend on, each after what it needs.
fn modules(unpacked: &Path, files: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let in_modules = |path: &&PathBuf| path.starts_with("lib/modules") || path.starts_with("usr/lib/modules");
    let paths: BTreeMap<String, &PathBuf> =
        files.iter().filter(in_modules).filter_map(|path| Some((module_name(name(path))?, path))).collect();
    let built_in = files.iter().filter(in_modules).find(|path| name(path) == "modules.builtin");
    let built_in = built_in.and_then(|path| fs::read_to_string(unpacked.join(path)).ok()).unwrap_or_default();
    let built_in: BTreeSet<String> = built_in.lines().filter_map(|line| module_name(name(Path::new(line)))).collect();
    let mut order = Vec::new();
    // A module is seen twice: first to put its dependencies before it, then to take its place.
    let mut pending: Vec<(String, bool)> = MODULES.iter().rev().map(|module| (module.to_string(), false)).collect();
    while let Some((module, ready)) = pending.pop() {
        let Some(&path) = paths.get(&module) else {
            if built_in.contains(&module) {
                continue;
            }
            return Err(format!("the kernel package has no module {module}"));
        };
        if order.contains(path) {
            continue;
        }
        if ready {
            order.push(path.clone());
            continue;
        }
        let bytes = module_bytes(&unpacked.join(path))?;
        pending.push((module, true));
        pending.extend(dependencies(&bytes).into_iter().map(|dependency| (dependency, false)));
    }
    Ok(order)
}

/// `nvme_core` for `nvme-core.ko.xz`.
fn module_name(file: &str) -> Option<String> {
    file.split_once(".ko").map(|(name, _)| name.replace('-', "_"))
}

/// The code of a module, unpacked.
fn module_bytes(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    if path.extension().is_some_and(|extension| extension == "xz") {
        let output = Command::new("xz").arg("--decompress").arg("--stdout").arg(path).output().map_err(failed)?;
        return Ok(output.stdout);
    }
    fs::read(path).map_err(failed)
}

/// What a module says it depends on: a string among others, each ended by a zero.
fn dependencies(module: &[u8]) -> Vec<String> {
    const MARK: &[u8] = b"\0depends=";
    let Some(at) = module.windows(MARK.len()).position(|window| window == MARK) else {
        return Vec::new();
    };
    let list = module[at + MARK.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(|_| ()).map_err(|e| format!("cannot copy {}: {e}", from.display()))
}

/// All files and links below a directory, relative to `root`.
fn walk(root: &Path, directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", directory.display());
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = entry.path();
        if entry.file_type().map_err(failed)?.is_dir() {
            walk(root, &path, files)?;
        } else if let Ok(path) = path.strip_prefix(root) {
            files.push(path.to_path_buf());
        }
    }
    Ok(())
}

/// A cpio archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    directories: BTreeSet<String>,
}

impl Archive {
    /// A directory, after those it is in.
    fn directory(&mut self, name: &str) {
        if name.is_empty() || !self.directories.insert(name.to_string()) {
            return;
        }
        self.parent(name);
        self.entry(name, 0o040_755, &[]);
    }

    fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.parent(name);
        self.entry(name, 0o100_000 | permissions, content);
    }

    fn symlink(&mut self, name: &str, target: &str) {
        self.parent(name);
        self.entry(name, 0o120_777, target.as_bytes());
    }

    fn parent(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.directory(parent);
        }
    }

    /// A header of text, the name and the content, each padded to four bytes. Owner, times and devices are zero.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let length = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let fields = [self.entries, mode, 0, 0, 1, 0, length(content.len()), 0, 0, 0, 0, length(name.len() + 1), 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_say_what_they_depend_on() {
        let module = b"\x7fELF\0license=GPL\0depends=ib_core,ip6-udp-tunnel\0name=rdma_rxe\0";
        assert_eq!(dependencies(module), ["ib_core", "ip6_udp_tunnel"]);
        assert_eq!(dependencies(b"\0depends=\0name=crc\0"), Vec::<String>::new());
        assert_eq!(dependencies(b"no module"), Vec::<String>::new());
        assert_eq!(module_name("virtio-net.ko.xz").as_deref(), Some("virtio_net"));
        assert_eq!(module_name("modules.order"), None);
    }

    #[test]
    fn only_what_the_guest_runs_is_taken() {
        let wanted = |path: &str| is_wanted(Path::new(path));
        assert!(wanted("bin/ip") && wanted("usr/sbin/ip") && wanted("usr/lib/x86_64-linux-gnu/libmnl.so.0"));
        assert!(
            wanted("usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so") && wanted("etc/libibverbs.d/rxe.driver")
        );
        assert!(
            !wanted("usr/lib/x86_64-linux-gnu/gconv/UTF-32.so") && !wanted("usr/share/doc/ip") && !wanted("bin/ss")
        );
    }

    #[test]
    fn an_archive_has_directories_before_what_is_in_them_and_all_of_it_aligned() {
        let mut archive = Archive::default();
        archive.file("a/b/c", 0o644, b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is not in {text}"));
        assert!(at("a\0") < at("a/b\0") && at("a/b\0") < at("a/b/c\0") && at("12345") < at("TRAILER!!!"));
        assert_eq!(text.matches("070701").count(), 4);
    }
}
