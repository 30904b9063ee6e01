//! The file in which `ubiverbs run` collects the findings of all processes of a run. Every finding is appended in one
//! write as it happens, so those of a process that is killed are there, and lines of several processes do not mix.

use host::descriptor::above_standard;
use host::standard_error::say;
use host::thread::Shield;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file, open to append to.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
}

impl Spool {
    /// Opens it, and says in it that this process is checked. What goes wrong is told once.
    pub fn open(path: &Path) -> Option<Spool> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
        let file = file.and_then(|file| above_standard(OwnedFd::from(file)).map(File::from));
        let told = |error: &std::io::Error| say(format_args!("cannot collect findings in {}: {error}", path.display()));
        let mut spool = Spool { file: file.inspect_err(told).ok()? };
        let name = std::env::current_exe().unwrap_or_default();
        let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
        spool.write(format!("{{\"process\":{},\"program\":{}}}", std::process::id(), checks::quoted(&name)));
        Some(spool)
    }

    /// Appends a line. A full disk does not stop the program.
    pub fn write(&mut self, mut line: String) {
        let _shield = Shield::up();
        line.push('\n');
        // Beyond the limit the kernel would send SIGXFSZ, which ends a program that did not expect it.
        let length = self.file.metadata().map_or(0, |file| file.len());
        if host::file_size::check(length + line.len() as u64).is_ok() {
            let _ = self.file.write_all(line.as_bytes());
        }
    }
}
