//! The recording of this process: every event of the NIC and every finding, in a file of its own (`recording`, the crate,
//! has the format). The file is mapped, so what was recorded before the process was killed is there. When the disk is
//! full the recording ends, the program is told once and goes on.

use ::host::descriptor::{Descriptor, above_standard, check};
use ::host::file_size;
use ::host::standard_error::say;
use ::host::thread::Shield;
use latch::Rank;
use latch::plain::Mutex;
use recording::block::BLOCK_BYTES;
use recording::reader::SPAN_NOTE;
use recording::recent::{RECENT_AT, RECENT_BYTES};
use recording::{BlockStart, BlockWriter, FileHeader, RecentWriter};
#[cfg(feature = "checks")]
use recording::{block::MAX_TEXT_BYTES, reader::FINDING_NOTE};
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use trace::{Call, Event, Kind};

/// How many blocks are mapped at a time, once the recording has as many.
const MAX_WINDOW_BLOCKS: u64 = 16;

/// The smallest ring.
const MIN_RING_BLOCKS: u32 = 2;

/// How many names are tried for a file.
const MAX_NAMES_TRIED: u32 = 10_000;

/// How much of a program's name is in the name of its file.
const MAX_NAME_CHARS: usize = 40;

/// How much is recorded of the command line.
const MAX_ARGUMENT_BYTES: usize = 4096;

/// How often two clocks are compared.
const CLOCK_LOOKS: u32 = 5;

/// What is asked for: a directory, and how much of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordingPlan {
    /// Where the files of all processes are.
    pub directory: PathBuf,
    /// Only the newest so many bytes of each process are kept.
    pub ring: Option<u64>,
    /// Calls that post work are recorded with their callers.
    pub stacks: bool,
}

impl RecordingPlan {
    /// Reads `DIR` or `DIR,ring=64M`.
    ///
    /// # Errors
    /// A sentence.
    pub fn read(text: &std::ffi::OsStr) -> Result<RecordingPlan, String> {
        let bytes = text.as_bytes();
        let comma = bytes.iter().rposition(|byte| *byte == b',');
        let option = comma.map(|comma| (&bytes[..comma], String::from_utf8_lossy(&bytes[comma + 1..])));
        let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        let (directory, ring) = match option {
            Some((directory, option)) if option.starts_with("ring=") => {
                let size = ring_bytes(&option["ring=".len()..]);
                let wrong = || format!("{option:?} is no size of a ring; say ring=64M, with K, M or G, at least 128K");
                (path(directory), Some(size.ok_or_else(wrong)?))
            }
            _ => (path(bytes), None),
        };
        if directory.as_os_str().is_empty() {
            return Err("there is no directory; say DIR or DIR,ring=64M".to_owned());
        }
        Ok(RecordingPlan { directory, ring, stacks: false })
    }
}

/// `64M` in bytes.
fn ring_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 10),
        (at, 'M' | 'm') => (&text[..at], 20),
        (at, 'G' | 'g') => (&text[..at], 30),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << unit)?;
    let blocks = bytes / BLOCK_BYTES as u64;
    (u64::from(MIN_RING_BLOCKS)..=1 << 20).contains(&blocks).then_some(bytes)
}

/// What another tool tells of: how long something took.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// When it began, on the host's [`monotonic`] clock, in nanoseconds.
    pub begin: u64,
    /// When it ended.
    pub end: u64,
    /// The thread that began it.
    pub thread: u32,
    /// The tool, the name of the span, and names and values of its fields, alternately.
    pub texts: &'a [&'a str],
}

/// A recording under way.
pub(crate) struct Recorder {
    inside: Mutex<Inside>,
    /// There may be events to be packed.
    waits: AtomicBool,
    /// Calls that post work come with their callers.
    pub stacks: bool,
    /// By how much the host's monotonic clock is ahead of that of events, once a span was recorded.
    ahead: OnceLock<u64>,
}

struct Inside {
    recent: RecentWriter,
    recent_area: RecentArea,
    file: MappedFile,
    writer: BlockWriter,
    /// The number of the block that is being written.
    sequence: u64,
    /// How many blocks a ring has; 0 if all are kept.
    ring: u64,
    path: PathBuf,
    /// The time of the last event.
    last: u64,
    /// The program has said that it ends.
    has_ended: bool,
    /// What follows if the work request was accepted that the last event posts.
    posting: Option<Event>,
    /// Nothing has been written yet, or nothing is written any more.
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unbegun,
    Going,
    Ended,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

impl Recorder {
    /// Makes the directory, if it is not there, and in it the file of this process.
    pub fn open(plan: &RecordingPlan) -> io::Result<Recorder> {
        let _shield = Shield::up();
        DirBuilder::new().recursive(true).mode(0o700).create(&plan.directory)?;
        let ring_blocks = plan.ring.map_or(0, |bytes| (bytes / BLOCK_BYTES as u64) as u32);
        let program = program();
        let (file, path) = create(&plan.directory, &program)?;
        let header = FileHeader { ring_blocks, facts: facts(program) };
        file.write_all_at(&header.to_bytes(), 0)?;
        let file = MappedFile { file: Descriptor::keep(above_standard(OwnedFd::from(file))?), window: None };
        let recent_area = RecentArea(file.map(0, 1)?);
        let inside = Inside {
            recent: RecentWriter::default(),
            recent_area,
            file,
            writer: BlockWriter::default(),
            sequence: 0,
            ring: ring_blocks.into(),
            path,
            last: 0,
            has_ended: false,
            posting: None,
            state: State::Unbegun,
        };
        let inside = Mutex::new(Rank::Recording, inside);
        Ok(Recorder { inside, waits: AtomicBool::new(false), stacks: plan.stacks, ahead: OnceLock::new() })
    }

    /// Records an event.
    #[inline]
    pub fn record(&self, event: &Event) {
        self.inside.lock().record(event);
        // Without a write where it is so already.
        if !self.waits.load(Ordering::Relaxed) {
            self.waits.store(true, Ordering::Relaxed);
        }
    }

    /// Records an event unless another thread is recording.
    pub fn try_record(&self, event: &Event) {
        if let Some(mut inside) = self.inside.try_lock() {
            inside.record(event);
        }
    }

    /// A poll found nothing, so there is time to pack one of the newest events.
    #[inline]
    pub fn catch_up(&self) {
        if self.waits.load(Ordering::Relaxed)
            && let Some(mut inside) = self.inside.try_lock()
        {
            inside.pack_recent(1);
            self.waits.store(!inside.recent.is_empty(), Ordering::Relaxed);
        }
    }

    /// Records what another tool tells of.
    pub fn span(&self, now: impl Fn() -> u64, span: &Span<'_>) {
        // The same for all spans: one that is inside another stays there.
        let ahead = *self.ahead.get_or_init(|| monotonic_ahead_of(&now));
        let (now, begin) = (now(), span.begin.saturating_sub(ahead));
        let numbers = [span.end.saturating_sub(span.begin), span.thread.into()];
        let mut inside = self.inside.lock();
        inside.pack_recent(u32::MAX);
        // A block that begins here begins now, not when the span did.
        inside.add(now, |writer, block| writer.note(block, SPAN_NOTE, begin, &numbers, span.texts));
    }

    /// Records what the checker has found.
    #[cfg(feature = "checks")]
    pub fn finding(&self, at: u64, json: &str) {
        if json.len() <= MAX_TEXT_BYTES {
            let mut inside = self.inside.lock();
            inside.pack_recent(u32::MAX);
            inside.add(at, |writer, block| writer.note(block, FINDING_NOTE, at, &[], &[json]));
        }
    }
}

impl Inside {
    #[inline]
    fn record(&mut self, event: &Event) {
        if let Some(area) = self.recent_area.bytes()
            && self.recent.put(area, event)
        {
            return;
        }
        self.last = event.at;
        self.has_ended |= matches!(event.kind, Kind::Called { call: Call::Exit {}, .. });
        self.pack_recent(u32::MAX);
        if !self.recent_area.bytes().is_some_and(|area| self.recent.put(area, event)) {
            self.pack(event);
        }
    }

    /// Packs so many of the newest events.
    fn pack_recent(&mut self, count: u32) {
        for _ in 0..count {
            let Some(event) = self.recent_area.bytes().and_then(|area| self.recent.oldest(area)) else { return };
            self.pack(&event);
            if let Some(area) = self.recent_area.bytes() {
                self.recent.take(area);
            }
        }
    }

    fn pack(&mut self, event: &Event) {
        // Of work that was accepted the call has said all.
        if let Some(posting) = self.posting.take()
            && posting == *event
            && self.try_add(|writer, block| writer.acceptance(block))
        {
            return;
        }
        self.add(event.at, |writer, block| writer.event(block, event));
        self.posting = event.acceptance();
    }

    #[inline]
    fn add(&mut self, at: u64, add: impl Fn(&mut BlockWriter, &mut [u8]) -> bool) {
        // What has no room in an empty block is left out.
        if !self.try_add(&add) && self.begin_block(at) && !self.try_add(&add) {
            self.begin_block(at);
        }
        self.posting = None;
    }

    #[inline]
    fn try_add(&mut self, add: impl FnOnce(&mut BlockWriter, &mut [u8]) -> bool) -> bool {
        self.state == State::Going && self.file.block().is_some_and(|block| add(&mut self.writer, block))
    }

    /// Begins the next block; false if there is none.
    #[cold]
    fn begin_block(&mut self, at: u64) -> bool {
        let sequence = match self.state {
            State::Ended => return false,
            State::Unbegun => 0,
            State::Going => self.sequence + 1,
        };
        let _shield = Shield::up();
        let place = if self.ring == 0 { sequence } else { sequence % self.ring };
        let left = if self.ring == 0 { u64::MAX } else { self.ring - place };
        // Small recordings are small files.
        let wanted = sequence.clamp(1, MAX_WINDOW_BLOCKS).min(left);
        if let Err(error) = self.file.go_to(place, wanted) {
            say(format_args!("nothing more is recorded in {}: {error}", self.path.display()));
            self.state = State::Ended;
            return false;
        }
        (self.sequence, self.state) = (sequence, State::Going);
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let start = BlockStart { sequence, at, monotonic: monotonic(), wall };
        let Some(block) = self.file.block() else { return false };
        self.writer.begin(block, &start);
        true
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A NIC may be gone before its process is.
        if !self.has_ended {
            self.record(&Event { at: self.last, qpn: None, kind: Kind::Called { thread: 0, call: Call::Exit {} } });
        }
        self.pack_recent(u32::MAX);
        if self.state == State::Going && self.ring == 0 {
            let length = (1 + self.sequence) * BLOCK_BYTES as u64 + self.writer.length() as u64;
            self.file.cut(length);
        }
    }
}

/// Where the newest events are in the file.
struct RecentArea(Window);

impl RecentArea {
    #[inline]
    fn bytes(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the block of the header is mapped, and this process alone writes it.
        let header = unsafe { std::slice::from_raw_parts_mut(self.0.base.as_ptr(), BLOCK_BYTES) };
        header.get_mut(RECENT_AT..RECENT_AT + RECENT_BYTES)
    }
}

/// A file, of which some blocks are mapped.
struct MappedFile {
    file: Descriptor,
    window: Option<Window>,
}

/// Blocks that are mapped, and which of them is written.
struct Window {
    base: NonNull<u8>,
    /// The first block's place.
    first: u64,
    blocks: u64,
    current: u64,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is used by the owner of this value alone.
unsafe impl Send for Window {}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own mapping, entire; nothing refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.blocks as usize * BLOCK_BYTES) };
    }
}

impl MappedFile {
    /// The block that is being written.
    #[inline]
    fn block(&mut self) -> Option<&mut [u8]> {
        let window = self.window.as_mut()?;
        let offset = window.current as usize * BLOCK_BYTES;
        // SAFETY: `current` is less than `blocks`, all of them are mapped, and this process alone writes them. The space
        // of the file is reserved, so that touching it does not fail; another process of this user could cut the file,
        // and would end this one, as it could by a signal.
        Some(unsafe { std::slice::from_raw_parts_mut(window.base.as_ptr().add(offset), BLOCK_BYTES) })
    }

    /// Makes this block the one that is written; up to `wanted` are mapped from there on if it is not mapped yet.
    fn go_to(&mut self, place: u64, wanted: u64) -> io::Result<()> {
        if let Some(window) = &mut self.window
            && (window.first..window.first + window.blocks).contains(&place)
        {
            window.current = place - window.first;
            return Ok(());
        }
        self.window = None;
        // The header is in front of the blocks.
        let window = match self.map(place + 1, wanted) {
            // There may be room for less.
            Err(error) if wanted > 1 && error.raw_os_error() == Some(libc::ENOSPC) => self.map(place + 1, 1),
            mapped => mapped,
        };
        let mut window = window?;
        window.first = place;
        self.window = Some(window);
        Ok(())
    }

    /// Reserves and maps a part of the file.
    fn map(&self, first: u64, blocks: u64) -> io::Result<Window> {
        let (offset, length) = (first * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
        file_size::check(offset + length)?;
        let fd = self.file.raw();
        // SAFETY: numbers.
        match check(unsafe { libc::fallocate(fd, 0, offset as libc::off_t, length as libc::off_t) }) {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => write_zeros(fd, offset, length)?,
            reserved => drop(reserved?),
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), length as usize, protection, libc::MAP_SHARED, fd, offset as libc::off_t)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(ErrorKind::OutOfMemory)?;
        let window = Window { base, first, blocks, current: 0 };
        // SAFETY: our own mapping, entire. A forked child has a recording of its own.
        check(unsafe { libc::madvise(base.as_ptr().cast(), length as usize, libc::MADV_DONTFORK) })?;
        Ok(window)
    }

    /// Gives back the space behind the end.
    fn cut(&mut self, length: u64) {
        let _shield = Shield::up();
        self.window = None;
        // SAFETY: numbers; in a forked child the descriptor is none.
        unsafe { libc::ftruncate(self.file.raw(), length as libc::off_t) };
    }
}

/// Takes space of a file system that reserves none.
fn write_zeros(fd: i32, offset: u64, length: u64) -> io::Result<()> {
    let zeros = [0_u8; 4096];
    for at in (offset..offset + length).step_by(zeros.len()) {
        // SAFETY: live bytes.
        let written = unsafe { libc::pwrite(fd, zeros.as_ptr().cast(), zeros.len(), at as libc::off_t) };
        if check(written as libc::c_int)? as usize != zeros.len() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
    }
    Ok(())
}

/// A new file of this process; several processes may have had its number, and several NICs may be in it.
fn create(directory: &Path, program: &str) -> io::Result<(File, PathBuf)> {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = program.chars().filter(is_plain).take(MAX_NAME_CHARS).collect();
    let process = std::process::id();
    for number in 1..=MAX_NAMES_TRIED {
        let again = if number == 1 { String::new() } else { format!("-{number}") };
        let path = directory.join(format!("{}.{process}{again}.uvrec", name.trim_start_matches('.')));
        let options = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).clone();
        match options.clone().custom_flags(libc::O_NOFOLLOW).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            file => return Ok((file?, path)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// What the header says of this process.
fn facts(program: String) -> Vec<(String, String)> {
    let text = |path: &str| std::fs::read(path).map_or_else(|_| String::new(), |text| line_of(&text));
    let fact = |name: &str, value: String| (name.to_owned(), value);
    vec![
        fact(FileHeader::PROGRAM, program),
        fact(FileHeader::ARGUMENTS, text("/proc/self/cmdline")),
        fact(FileHeader::PROCESS, std::process::id().to_string()),
        fact(FileHeader::HOST, text("/proc/sys/kernel/hostname")),
        fact(FileHeader::BOOT, text("/proc/sys/kernel/random/boot_id")),
        fact(FileHeader::WORLD, "software NIC".to_owned()),
        fact(FileHeader::WRITER, concat!("ubiverbs ", env!("CARGO_PKG_VERSION")).to_owned()),
    ]
}

/// A line of text, or a list of arguments that end with zeros.
fn line_of(text: &[u8]) -> String {
    let text = &text[..text.len().min(MAX_ARGUMENT_BYTES)];
    let spaced: Vec<u8> = text.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
    String::from_utf8_lossy(&spaced).trim().to_owned()
}

fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if name.is_empty() { "process".to_owned() } else { name }
}

/// By how much the host's monotonic clock is ahead of another. A thread may lose the processor between two looks at
/// clocks, so the closest looks count.
fn monotonic_ahead_of(clock: impl Fn() -> u64) -> u64 {
    let look = |_| {
        let (before, host, after) = (clock(), monotonic(), clock());
        (after.saturating_sub(before), host.saturating_sub(before))
    };
    (0..CLOCK_LOOKS).map(look).min().map_or(0, |(_, ahead)| ahead)
}

/// The host's monotonic clock, in nanoseconds.
#[must_use]
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in a live structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_a_directory_and_the_size_of_a_ring() {
        let plan = |text: &str| RecordingPlan::read(text.as_ref()).map(|plan| (plan.directory, plan.ring));
        assert_eq!(plan("rec"), Ok(("rec".into(), None)));
        assert_eq!(plan("/a,b/rec"), Ok(("/a,b/rec".into(), None)));
        assert_eq!(plan("rec,ring=64M"), Ok(("rec".into(), Some(64 << 20))));
        assert_eq!(plan("a,b,ring=128k"), Ok(("a,b".into(), Some(128 << 10))));
        assert_eq!(plan("rec,ring=1G"), Ok(("rec".into(), Some(1 << 30))));
        for wrong in ["", ",ring=64M", "rec,ring=", "rec,ring=127K", "rec,ring=-1M", "rec,ring=9999999999G", "r,ring=é"]
        {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }
}
