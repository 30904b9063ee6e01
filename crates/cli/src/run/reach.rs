//! Whether our libraries can reach a program at all. They come by the dynamic linker's variables, which mean nothing to
//! a program without that linker, and which the linker ignores for a program with more rights than its user. Such a
//! program would run on the system's libraries without a word.

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::process::{getgid, getuid};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why a program cannot be reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// It loads no libraries.
    Static,
    /// Its machine is another.
    Machine(String),
    /// Its dynamic linker is not the GNU C library's.
    Linker(PathBuf),
    /// It runs with the rights of another user or group.
    SetId(&'static str),
    /// Its file gives it capabilities.
    Capabilities,
}

/// What it is, and what to do about it.
impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ours = std::env::consts::ARCH;
        match self {
            Obstacle::Static => write!(f, "is linked statically and takes no library of ours: link it dynamically"),
            Obstacle::Machine(machine) => {
                write!(f, "is for {machine} and our libraries are for {ours}: use a build of it for {ours}")
            }
            Obstacle::Linker(linker) => {
                let linker = linker.display();
                write!(
                    f,
                    "starts with {linker} and our libraries need the GNU C library's linker: use a build for that"
                )
            }
            Obstacle::SetId(what) => write!(
                f,
                "is {what}, so the dynamic linker keeps our libraries from it: become that user first, and start \
                 `ubiverbs run` then (sudo ubiverbs run -- PROGRAM)"
            ),
            Obstacle::Capabilities => write!(
                f,
                "has capabilities, so the dynamic linker keeps our libraries from it: take them away (setcap -r), \
                 or start `ubiverbs run` as root"
            ),
        }
    }
}

/// The file that would be run for this name and why it cannot be reached. None where it can, where that cannot be told,
/// and where it would not start anyway: the system says so better.
pub fn obstacle(program: &OsStr) -> Option<(PathBuf, Obstacle)> {
    let mut path = found(program)?;
    if let Some(interpreter) = interpreter_of_script(&path) {
        path = interpreter;
    }
    let obstacle = obstacle_of_file(&path)?;
    Some((path, obstacle))
}

/// The file that a name stands for.
fn found(program: &OsStr) -> Option<PathBuf> {
    let runs = |path: &Path| fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    if program.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(program)).filter(|path| runs(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| runs(path))
}

/// What the first line of a script names.
fn interpreter_of_script(path: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let words = line.split(|byte| b" \t".contains(byte));
    let name = words.into_iter().find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsString::from_vec(name.to_vec())))
}

fn obstacle_of_file(path: &Path) -> Option<Obstacle> {
    let file = File::open(path).ok()?;
    let elf = Elf::read(&file)?;
    if !elf.is_ours() {
        return Some(Obstacle::Machine(elf.machine()));
    }
    match &elf.linker {
        // The linker itself can be called with a program to load, and has none.
        None if is_gnu_linker(path) => return None,
        None => return Some(Obstacle::Static),
        Some(linker) if !is_gnu_linker(linker) => return Some(Obstacle::Linker(linker.clone())),
        Some(_) => {}
    }
    more_rights(path, &file.metadata().ok()?)
}

/// By its file name: `ld-linux-x86-64.so.2`, `ld-linux-aarch64.so.1`.
fn is_gnu_linker(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-linux"))
}

/// Whether the kernel would tell the dynamic linker to be careful.
fn more_rights(path: &Path, metadata: &Metadata) -> Option<Obstacle> {
    let nothing_new = rustix::thread::no_new_privs().unwrap_or(false);
    if nothing_new || statvfs(path).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return None;
    }
    let mode = metadata.mode();
    if mode & libc::S_ISUID != 0 && metadata.uid() != getuid().as_raw() {
        return Some(Obstacle::SetId("set-user-ID"));
    }
    let both = libc::S_ISGID | libc::S_IXGRP;
    if mode & both == both && metadata.gid() != getgid().as_raw() {
        return Some(Obstacle::SetId("set-group-ID"));
    }
    // A version, and twice two words of capabilities: permitted, and inheritable.
    let mut capabilities = [0; 24];
    let length = getxattr(path, c"security.capability", &mut capabilities).unwrap_or(0);
    let permitted = [4..8, 12..16].into_iter().filter(|word| word.end <= length);
    let any = permitted.flat_map(|word| &capabilities[word]).any(|byte| *byte != 0);
    (any && !getuid().is_root()).then_some(Obstacle::Capabilities)
}

/// What the header of a program says.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Elf {
    is_64_bits: bool,
    is_little_endian: bool,
    machine: u16,
    linker: Option<PathBuf>,
}

/// `e_machine` and the name of the machine.
const ELF_MACHINES: [(u16, &str); 7] = [
    (3, "x86 with 32 bits"),
    (21, "powerpc64"),
    (22, "s390x"),
    (40, "arm"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv"),
];

impl Elf {
    /// None if it is no ELF file, or one that is damaged.
    fn read(file: &File) -> Option<Elf> {
        let mut start = [0; 64];
        let length = file.read_at(&mut start, 0).ok()?;
        let start = start.get(..length)?;
        let &[0x7f, b'E', b'L', b'F', class, order, ..] = start else { return None };
        let is_64_bits = class == 2;
        let is_little_endian = order == 1;
        let elf = Elf { is_64_bits, is_little_endian, machine: 0, linker: None };
        let elf = Elf { machine: elf.number(start, 18, 2)? as u16, ..elf };
        // Where the program headers are, how long each is, and how many. Of programs for other machines no more is
        // needed.
        if !is_64_bits {
            return Some(elf);
        }
        let (offset, size, count) = (elf.number(start, 32, 8)?, elf.number(start, 54, 2)?, elf.number(start, 56, 2)?);
        let mut headers = vec![0; usize::try_from(size * count).ok()?];
        file.read_exact_at(&mut headers, offset).ok()?;
        let headers = headers.chunks_exact(usize::try_from(size).ok().filter(|size| *size >= 56)?);
        let Some(header) = headers.into_iter().find(|header| elf.number(header, 0, 4) == Some(PT_INTERP)) else {
            return Some(elf);
        };
        let mut name = vec![0; usize::try_from(elf.number(header, 32, 8)?).ok().filter(|size| *size <= 4096)?];
        file.read_exact_at(&mut name, elf.number(header, 8, 8)?).ok()?;
        name.pop_if(|byte| *byte == 0);
        Some(Elf { linker: Some(PathBuf::from(OsString::from_vec(name))), ..elf })
    }

    fn number(&self, bytes: &[u8], at: usize, size: usize) -> Option<u64> {
        let bytes = bytes.get(at..at + size)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if self.is_little_endian { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) })
    }

    fn is_ours(&self) -> bool {
        let ours = ELF_MACHINES.iter().any(|(number, name)| *number == self.machine && *name == std::env::consts::ARCH);
        ours && self.is_64_bits && self.is_little_endian
    }

    fn machine(&self) -> String {
        match ELF_MACHINES.iter().find(|(number, _)| *number == self.machine) {
            Some((62, _)) if !self.is_64_bits => "x86_64 with pointers of 32 bits".into(),
            Some((_, name)) => (*name).into(),
            None => format!("machine {}", self.machine),
        }
    }
}

/// The header that names the dynamic linker.
const PT_INTERP: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that no other test uses.
    fn file(name: &str, bytes: &[u8]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("ubiverbs-reach-{}-{name}", std::process::id()));
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn judged(name: &str, bytes: &[u8]) -> Option<Obstacle> {
        let path = file(name, bytes);
        let judged = obstacle(path.as_os_str());
        fs::remove_file(&path).unwrap();
        judged.map(|(_, obstacle)| obstacle)
    }

    #[test]
    fn programs_of_this_system_can_be_reached() {
        assert_eq!(obstacle(OsStr::new("sh")), None);
        assert_eq!(obstacle(std::env::current_exe().unwrap().as_os_str()), None);
    }

    #[test]
    fn what_would_not_start_is_left_to_the_system() {
        for name in ["no-such-program", "/no/such/program", "/", "/etc/passwd", ""] {
            assert_eq!(obstacle(OsStr::new(name)), None, "{name}");
        }
        assert_eq!(judged("text", b"just text"), None);
        assert_eq!(judged("empty", b""), None);
    }

    #[test]
    fn no_beginning_of_a_program_is_too_short() {
        let mut program = fs::read(std::env::current_exe().unwrap()).unwrap();
        program.truncate(1024);
        for length in 0..program.len() {
            let _ = judged("short", &program[..length]);
        }
        // Headers that are said to be elsewhere, and of other sizes.
        for at in 32..64 {
            let mut damaged = program.clone();
            damaged[at] ^= 0xff;
            let _ = judged("damaged", &damaged);
        }
    }

    #[test]
    fn another_machine_is_named() {
        let mut program = fs::read(std::env::current_exe().unwrap()).unwrap();
        program.truncate(4096);
        program[18..20].copy_from_slice(&243_u16.to_le_bytes());
        assert_eq!(judged("riscv", &program), Some(Obstacle::Machine("riscv".into())));
        program[4] = 1;
        program[18..20].copy_from_slice(&3_u16.to_le_bytes());
        assert_eq!(judged("i386", &program), Some(Obstacle::Machine("x86 with 32 bits".into())));
    }

    #[test]
    fn a_script_is_its_interpreter() {
        let path = file("script", b"#! /bin/sh -e\necho\n");
        assert_eq!(interpreter_of_script(&path), Some("/bin/sh".into()));
        assert_eq!(obstacle(path.as_os_str()), None);
        fs::remove_file(path).unwrap();
    }
}
