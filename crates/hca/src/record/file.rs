//! The file of a capture or of a log, in a program that did not ask for it: it takes nothing that is there already, it
//! follows no link, it never waits for a reader, and where it ends too early it says so, once, and the program goes on.
//! It holds what programs say to each other, so only its owner may read it: all such files are made here.

use ::host::descriptor::above_standard;
use ::host::standard_error::say;
use ::host::thread::Shield;
use std::fs::{File, OpenOptions, symlink_metadata};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that is written to the end of space.
#[derive(Debug)]
pub(crate) struct RecordFile {
    file: File,
    path: PathBuf,
    /// A file of our own has a length and an end; a terminal and the program's own output have not.
    length: Option<Length>,
    failed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Length {
    written: u64,
    /// Up to here there are whole records.
    whole: u64,
}

impl RecordFile {
    /// A file of this process's own: several may have been given the same name, and none may destroy what another
    /// writes.
    pub fn open(path: &Path) -> io::Result<RecordFile> {
        let made = |file: File, path: &Path, ours: bool| {
            let file = File::from(above_standard(OwnedFd::from(file))?);
            let length = ours.then(Length::default);
            Ok(RecordFile { file, path: path.to_owned(), length, failed: false })
        };
        if let Some(file) = no_file_of_ours(path)? {
            return made(file, path, false);
        }
        match create(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            file => return made(file?, path, true),
        }
        let own = with_process_number(path);
        say(format_args!("{} exists; writing {}", path.display(), own.display()));
        made(create_over(&own)?, &own, true)
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Beyond the limit the kernel would send SIGXFSZ, which ends a program that did not expect it.
        if let Some(length) = &self.length
            && length.written.saturating_add(bytes.len() as u64) > ::host::file_size::largest()
        {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let count = self.file.write(bytes)?;
        if let Some(length) = &mut self.length {
            length.written += count as u64;
        }
        Ok(count)
    }
}

impl Write for RecordFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _shield = Shield::up();
        self.try_write(bytes).inspect_err(|error| {
            if error.kind() == ErrorKind::Interrupted || self.failed {
                return;
            }
            self.failed = true;
            say(format_args!("nothing more is written to {}: {error}", self.path.display()));
            if let Some(length) = self.length {
                // What is there stays readable. If the half of a record cannot be taken away, it stays too.
                let _ = self.file.set_len(length.whole);
            }
        })
    }

    /// A record is whole.
    fn flush(&mut self) -> io::Result<()> {
        if let Some(length) = &mut self.length {
            length.whole = length.written;
        }
        Ok(())
    }
}

/// Makes a file for its owner alone, in place of an older one of this user's. No link is followed and no pipe is waited
/// for; a terminal and the program's own descriptors (`/dev/stdout`, `/dev/fd/3`) are written to as they are.
///
/// # Errors
/// `InvalidInput` if there is a link, a pipe or a directory; `AlreadyExists` if there is another user's file.
pub fn create_private(path: &Path) -> io::Result<File> {
    no_file_of_ours(path)?.map_or_else(|| create_over(path), Ok)
}

/// What is written to without being made. None: there is nothing, or a file. An error: what must not be written to.
fn no_file_of_ours(path: &Path) -> io::Result<Option<File>> {
    if let Some(fd) = descriptor_in(path) {
        // SAFETY: only copied, if it is open.
        return Ok(Some(File::from(unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?)));
    }
    let kind = match symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        there => there?.file_type(),
    };
    if kind.is_char_device() {
        // A terminal, or /dev/null.
        let flags = libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
        return OpenOptions::new().write(true).custom_flags(flags).open(path).map(Some);
    }
    if !kind.is_file() {
        let what = if kind.is_symlink() { "a symbolic link" } else { "neither a file nor a terminal" };
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("it is {what}")));
    }
    Ok(None)
}

/// A new file, which only its owner may read. It follows no link, not even one that leads nowhere.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// A new file instead of what was there, if that was a file of this user's.
fn create_over(path: &Path) -> io::Result<File> {
    match create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let there = symlink_metadata(path)?;
            // SAFETY: a call without arguments.
            if !there.is_file() || there.uid() != unsafe { libc::geteuid() } {
                return Err(error);
            }
            std::fs::remove_file(path)?;
            create(path)
        }
        file => file,
    }
}

/// The descriptor of this process that a path means.
fn descriptor_in(path: &Path) -> Option<i32> {
    let path = path.to_str()?;
    match path {
        "/dev/stdout" => Some(libc::STDOUT_FILENO),
        "/dev/stderr" => Some(libc::STDERR_FILENO),
        _ => path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/"))?.parse().ok(),
    }
    .filter(|fd| *fd >= 0)
}

/// `a/b.pcapng` becomes `a/b-1234.pcapng`.
fn with_process_number(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{}", std::process::id()));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    /// A path that is not there yet.
    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("ubiverbs-file-{}-{name}.log", std::process::id()));
        let _ = std::fs::remove_file(&place);
        place
    }

    #[test]
    fn a_second_process_writes_a_file_of_its_own() {
        let id = std::process::id();
        assert_eq!(with_process_number(Path::new("/a/b.pcapng")), Path::new(&format!("/a/b-{id}.pcapng")));
        assert_eq!(with_process_number(Path::new("b")), Path::new(&format!("b-{id}")));
        let place = place("own");
        RecordFile::open(&place).unwrap().write_all(b"first").unwrap();
        for again in [b"second".as_slice(), b"3"] {
            RecordFile::open(&place).unwrap().write_all(again).unwrap();
            assert_eq!(std::fs::read(&place).unwrap(), b"first");
            assert_eq!(std::fs::read(with_process_number(&place)).unwrap(), again);
        }
        std::fs::remove_file(with_process_number(&place)).unwrap();
        std::fs::remove_file(place).unwrap();
    }

    #[test]
    fn no_link_is_followed_and_no_pipe_is_written_to() {
        let (link, target, pipe) = (place("link"), place("target"), place("pipe"));
        symlink(&target, &link).unwrap();
        assert!(RecordFile::open(&link).unwrap_err().to_string().contains("symbolic link"));
        std::fs::write(&target, b"precious").unwrap();
        assert!(RecordFile::open(&link).is_err());
        // Where an earlier process might have left its file.
        let own = with_process_number(&target);
        symlink(&link, &own).unwrap();
        assert!(RecordFile::open(&target).is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"precious");
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: a string and a number.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        for path in [&link, &pipe] {
            assert_eq!(create_private(path).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert!(RecordFile::open(&pipe).is_err(), "it would wait for a reader");
        assert!(create_private(Path::new("/dev/null")).unwrap().write_all(b"nothing").is_ok());
        assert!(RecordFile::open(Path::new("/dev/null")).unwrap().write_all(b"nothing").is_ok());
        [link, target, own, pipe].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    #[test]
    fn only_its_owner_may_read_a_file_and_a_newer_one_takes_its_place() {
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
        let (log, report) = (place("mode"), place("report"));
        drop(RecordFile::open(&log).unwrap());
        assert_eq!(mode(&log), 0o600);
        drop(RecordFile::open(&log).unwrap());
        assert_eq!(mode(&with_process_number(&log)), 0o600);
        std::fs::write(&report, b"of another day, and longer").unwrap();
        std::fs::set_permissions(&report, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        create_private(&report).unwrap().write_all(b"new").unwrap();
        assert_eq!((std::fs::read(&report).unwrap(), mode(&report)), (b"new".to_vec(), 0o600));
        [&log, &with_process_number(&log), &report].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }

    #[test]
    fn the_end_of_space_leaves_whole_records() {
        let mut file = RecordFile::open(Path::new("/dev/full")).unwrap();
        assert_eq!(file.write(b"x").unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        let place = place("limit");
        // In a child: the limit is the process's, and the kernel's signal would end it.
        // SAFETY: the child writes a file and leaves without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 10, rlim_max: 10 };
            // SAFETY: a live structure.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            let mut file = RecordFile::open(&place).unwrap();
            let first = file.write_all(b"12345678").and_then(|()| file.flush());
            let half = file.write_all(b"9");
            let end = file.write_all(b"abc").map_err(|error| error.raw_os_error());
            let fine = first.is_ok() && half.is_ok() && end == Err(Some(libc::EFBIG));
            // SAFETY: ends the child.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for our own child; `status` is live.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        assert_eq!(std::fs::read(&place).unwrap(), b"12345678");
        std::fs::remove_file(place).unwrap();
    }
}
