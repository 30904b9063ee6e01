//! A file to which all processes of a run append lines, each in one write: lines of several processes do not mix, and
//! those of a process that is killed are there.

use ::host::descriptor::above_standard;
use ::host::standard_error::say;
use ::host::thread::Shield;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file, open to append to.
#[derive(Debug)]
pub(crate) struct AppendedFile {
    file: File,
}

impl AppendedFile {
    /// Opens it, to do `what`. What goes wrong is told once.
    pub fn open(path: &Path, what: &str) -> Option<AppendedFile> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path);
        let file = file.and_then(|file| above_standard(OwnedFd::from(file)).map(File::from));
        let told = |error: &io::Error| say(format_args!("cannot {what} in {}: {error}", path.display()));
        Some(AppendedFile { file: file.inspect_err(told).ok()? })
    }

    /// Appends a line. A full disk does not stop the program.
    pub fn write(&mut self, mut line: String) {
        let _shield = Shield::up();
        line.push('\n');
        // Beyond the limit the kernel would send SIGXFSZ, which ends a program that did not expect it.
        let length = self.file.metadata().map_or(0, |file| file.len());
        if ::host::file_size::check(length + line.len() as u64).is_ok() {
            let _ = self.file.write_all(line.as_bytes());
        }
    }
}
