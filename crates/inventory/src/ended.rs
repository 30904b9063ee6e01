//! What processes counted that have ended. A port's counters must not go back when a program ends, and there is no
//! daemon to remember them, so a process that ends in order adds its own to a file of its user in `/dev/shm`, which is
//! memory and goes with the next start of the machine. A process that is killed takes its counters with it.
//!
//! The file has a few lines for each network namespace; the oldest go when there are too many. Where it cannot be made,
//! belongs to another user or is locked for long, nothing is remembered, and nothing fails. Only processes that add to
//! their own user's file lock it. A reader waits for nobody: what a process adds to is replaced as a whole, by a file of
//! a name of its own for that long.

use crate::encoding::{Field, Reader, records};
use host::inquiry::Users;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use transport::Counters;

/// How the file begins: a word, and the version of what follows.
const ENDED_COUNTERS_MAGIC: [u8; 8] = *b"UbiEnd\x02\0";

/// So many ports are remembered, of all network namespaces together.
const MAX_REMEMBERED_PORTS: usize = 128;

/// A longer file is none of ours.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How long another process of the user may keep the file locked that this one adds to.
const LOCK_WAIT: Duration = Duration::from_millis(50);

/// How long files of other users are looked for: a user can make many that have the names of others.
const SCAN_TIMEOUT: Duration = Duration::from_millis(100);

/// How the files' names begin; the user's number follows.
const FILE_NAME_PREFIX: &str = "ubiverbs-counters-";

/// How the name of a file ends that is about to replace another.
const NEW_FILE_EXTENSION: &str = "new";

/// Neither through a link nor for a pipe, on which it would wait.
const OPEN_FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;

records! {
    /// A port, and what was counted on it.
    Entry {
        /// The network namespace.
        namespace: u64,
        /// The device's name.
        device: String,
        /// The sum over processes that have ended.
        counters: Counters,
    }
}

/// What processes of these users and of this network namespace counted that have ended, by the device's name.
pub fn read(users: Users) -> BTreeMap<String, Counters> {
    let own = host::holders::own_uid();
    let namespace = host::inquiry::namespace();
    let mut sums: BTreeMap<String, Counters> = BTreeMap::new();
    let mut add = |uid| {
        for entry in entries_of(&file_of(uid), uid).into_iter().filter(|entry| entry.namespace == namespace) {
            *sums.entry(entry.device).or_default() += entry.counters;
        }
    };
    add(own);
    if users == Users::All && own == 0 {
        let deadline = Instant::now() + SCAN_TIMEOUT;
        let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        for file in files.take_while(|_| Instant::now() < deadline) {
            file.file_name().to_str().and_then(user_of).filter(|uid| *uid != own).map(&mut add);
        }
    }
    sums
}

/// Remembers what this process has counted, because it ends.
pub fn add(ports: &[(String, Counters)]) {
    let own = host::holders::own_uid();
    add_to(&file_of(own), own, host::inquiry::namespace(), ports);
}

fn add_to(path: &Path, uid: u32, namespace: u64, ports: &[(String, Counters)]) -> Option<()> {
    let ports: Vec<_> = ports.iter().filter(|(_, counters)| *counters != Counters::default()).collect();
    if ports.is_empty() {
        return None;
    }
    let locked = locked(path, uid)?;
    let mut all = parse(&contents(&locked)).unwrap_or_default();
    for (device, counters) in ports {
        let known = all.iter().position(|entry| entry.namespace == namespace && entry.device == *device);
        // What was used last stands last.
        let mut entry = match known {
            Some(at) => all.remove(at),
            None => Entry { namespace, device: device.clone(), ..Entry::default() },
        };
        entry.counters += *counters;
        all.push(entry);
    }
    all.drain(..all.len().saturating_sub(MAX_REMEMBERED_PORTS));
    let new = path.with_extension(NEW_FILE_EXTENSION);
    // Of a process that was killed here.
    let _ = std::fs::remove_file(&new);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(OPEN_FLAGS).open(&new);
    file.and_then(|mut file| file.write_all(&encode(&all))).and_then(|()| std::fs::rename(&new, path)).ok()
}

/// The file that says this.
pub(crate) fn encode(all: &Vec<Entry>) -> Vec<u8> {
    let mut bytes = ENDED_COUNTERS_MAGIC.to_vec();
    all.put(&mut bytes);
    bytes
}

fn file_of(uid: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/{FILE_NAME_PREFIX}{uid}"))
}

/// The user whose file has this name. A user has one: a number is written in one way.
fn user_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(FILE_NAME_PREFIX)?;
    digits.parse().ok().filter(|uid: &u32| uid.to_string() == digits)
}

/// The file; none if it is not that user's, or is no file.
fn open(path: &Path, uid: u32, write: bool) -> Option<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).create(write).mode(0o600).custom_flags(OPEN_FLAGS);
    let file = options.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.uid() == uid && metadata.len() <= MAX_FILE_BYTES).then_some(file)
}

/// The file, made if there is none, and locked: not one that another process has replaced meanwhile.
fn locked(path: &Path, uid: u32) -> Option<File> {
    let deadline = Instant::now() + LOCK_WAIT;
    while Instant::now() < deadline {
        let file = open(path, uid, true)?;
        if file.try_lock().is_err() {
            sleep(Duration::from_millis(1));
        } else if std::fs::symlink_metadata(path).ok()?.ino() == file.metadata().ok()?.ino() {
            return Some(file);
        }
    }
    None
}

/// What a user's file says; nothing if there is none, or it makes no sense.
fn entries_of(path: &Path, uid: u32) -> Vec<Entry> {
    open(path, uid, false).and_then(|file| parse(&contents(&file))).unwrap_or_default()
}

fn contents(file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = file.take(MAX_FILE_BYTES).read_to_end(&mut bytes);
    bytes
}

/// What such a file says.
#[doc(hidden)] // for fuzzing
pub fn parse(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut rest = bytes.strip_prefix(&ENDED_COUNTERS_MAGIC)?;
    let mut from = Reader::new(&mut rest, MAX_REMEMBERED_PORTS);
    Vec::take(&mut from).filter(|_| from.is_at_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(packets: u64) -> Counters {
        let mut counters = Counters::default();
        counters.traffic.sent_packets = packets;
        counters
    }

    fn sum(path: &Path, namespace: u64, device: &str) -> Option<u64> {
        let all = entries_of(path, host::holders::own_uid());
        let found = all.into_iter().find(|entry| entry.namespace == namespace && entry.device == device)?;
        Some(found.counters.traffic.sent_packets)
    }

    #[test]
    fn processes_that_end_are_added_up() {
        let directory = std::env::temp_dir().join(format!("ubiverbs-ended-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (path, uid) = (directory.join("file"), host::holders::own_uid());
        add_to(&path, uid, 7, &[("ubi_lo".into(), counters(3)), ("ubi_eth0".into(), counters(0))]);
        add_to(&path, uid, 7, &[("ubi_lo".into(), counters(4))]);
        add_to(&path, uid, 8, &[("ubi_lo".into(), counters(5))]);
        assert_eq!(
            (sum(&path, 7, "ubi_lo"), sum(&path, 8, "ubi_lo"), sum(&path, 7, "ubi_eth0")),
            (Some(7), Some(5), None)
        );
        // Old ones go, and what is used stays.
        for namespace in 100..100 + MAX_REMEMBERED_PORTS as u64 - 1 {
            add_to(&path, uid, 7, &[("ubi_lo".into(), counters(1))]);
            add_to(&path, uid, namespace, &[("ubi_lo".into(), counters(1))]);
        }
        assert_eq!(
            (sum(&path, 7, "ubi_lo"), sum(&path, 8, "ubi_lo")),
            (Some(7 + MAX_REMEMBERED_PORTS as u64 - 1), None)
        );
        // Another user's, a link, and nonsense.
        assert!(open(&path, uid + 1, false).is_none());
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open(&link, uid, true).is_none());
        std::fs::write(&path, [0xff; 99]).unwrap();
        assert_eq!(sum(&path, 7, "ubi_lo"), None);
        add_to(&path, uid, 7, &[("ubi_lo".into(), counters(2))]);
        assert_eq!(sum(&path, 7, "ubi_lo"), Some(2));
        // A process that keeps it locked hinders those that would add to it, and no reader.
        let held = locked(&path, uid).unwrap();
        assert_eq!(add_to(&path, uid, 7, &[("ubi_lo".into(), counters(2))]), None);
        assert_eq!(sum(&path, 7, "ubi_lo"), Some(2));
        drop(held);
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_read_was_written_at_once() {
        let path = std::env::temp_dir().join(format!("ubiverbs-ended-whole-{}", std::process::id()));
        let uid = host::holders::own_uid();
        let both = |packets| {
            let mut counters = counters(packets);
            counters.traffic.receives = packets;
            counters
        };
        // Many lines, which move when one of them grows: a reader in between would take one for another.
        let add_one = |namespace| add_to(&path, uid, namespace, &[("ubi_lo".into(), both(1))]);
        (0..100).for_each(|namespace| assert!(add_one(namespace).is_some()));
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _writer = scope.spawn(|| {
                (0..200).for_each(|round| assert!(add_one(round % 100).is_some()));
                done.store(true, std::sync::atomic::Ordering::Release);
            });
            let mut last = 0;
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                let entries = entries_of(&path, uid);
                let traffic = entries.iter().map(|entry| entry.counters.traffic);
                let (sent, received) = traffic.fold((0, 0), |(a, b), one| (a + one.sent_packets, b + one.receives));
                assert_eq!((entries.len(), sent), (100, received));
                assert!(sent >= last, "{sent} after {last}");
                last = sent;
            }
        });
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_user_has_one_file() {
        assert_eq!(user_of("ubiverbs-counters-2002"), Some(2002));
        for name in ["+2002", "0002002", " 2002", "2002 ", "-0", "", "4294967296", "2002/"] {
            assert_eq!(user_of(&format!("{FILE_NAME_PREFIX}{name}")), None, "{name}");
        }
        assert_eq!(user_of("2002"), None);
    }
}
