//! What processes counted that have ended. A port's counters must not go back when a program ends, and there is no
//! daemon to remember them, so a process that ends in order adds its own to a file of its user in `/dev/shm`, which is
//! memory and goes with the next start of the machine. A process that is killed takes its counters with it.
//!
//! The file has a few lines for each network namespace; the oldest go when there are too many. Where it cannot be made,
//! belongs to another user or is locked for long, nothing is remembered, and nothing fails.

use crate::encoding::{Field, records};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};
use transport::Counters;

/// How the file begins: a word, and the version of what follows.
const BEGINNING: [u8; 8] = *b"UbiEnd\x01\0";

/// So many ports are remembered, of all network namespaces together.
const MOST: usize = 128;

/// A longer file is none of ours.
const LONGEST: u64 = 1 << 20;

/// How long another process may keep the file locked.
const LOCK_WAIT: Duration = Duration::from_millis(50);

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

/// What processes of this network namespace counted that have ended, by the device's name: those of this user, or for
/// root those of all.
pub fn read() -> BTreeMap<String, Counters> {
    let own = host::holders::own_uid();
    let files = match own {
        0 => files_of_all(),
        _ => vec![(own, file_of(own))],
    };
    let namespace = host::inquiry::namespace();
    let mut sums: BTreeMap<String, Counters> = BTreeMap::new();
    for (uid, path) in files {
        let Some(mut file) = open(&path, uid, false) else { continue };
        for entry in entries(&mut file).into_iter().filter(|entry| entry.namespace == namespace) {
            *sums.entry(entry.device).or_default() += entry.counters;
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
    let mut file = open(path, uid, true)?;
    let mut all = entries(&mut file);
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
    all.drain(..all.len().saturating_sub(MOST));
    let mut bytes = BEGINNING.to_vec();
    all.put(&mut bytes);
    file.rewind().ok()?;
    file.set_len(bytes.len() as u64).ok()?;
    file.write_all(&bytes).ok()
}

fn file_of(uid: u32) -> PathBuf {
    PathBuf::from(format!("/dev/shm/ubiverbs-counters-{uid}"))
}

/// The files of all users, with the number that stands in the name.
fn files_of_all() -> Vec<(u32, PathBuf)> {
    let Ok(directory) = std::fs::read_dir("/dev/shm") else { return Vec::new() };
    let file = |entry: std::fs::DirEntry| {
        let uid = entry.file_name().to_str()?.strip_prefix("ubiverbs-counters-")?.parse().ok()?;
        Some((uid, entry.path()))
    };
    directory.flatten().filter_map(file).collect()
}

/// The file, locked; none if it is not that user's, or is no file.
fn open(path: &Path, uid: u32, write: bool) -> Option<File> {
    // Neither through a link nor for a pipe, on which it would wait.
    const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    options.read(true).write(write).create(write).mode(0o600).custom_flags(FLAGS);
    let file = options.open(path).ok()?;
    let metadata = file.metadata().ok()?;
    if !metadata.is_file() || metadata.uid() != uid || metadata.len() > LONGEST {
        return None;
    }
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        let locked = if write { file.try_lock() } else { file.try_lock_shared() };
        match locked {
            Ok(()) => return Some(file),
            Err(_) if Instant::now() >= deadline => return None,
            Err(_) => sleep(Duration::from_millis(1)),
        }
    }
}

/// What the file says; nothing if it makes no sense.
fn entries(file: &mut File) -> Vec<Entry> {
    let mut bytes = Vec::new();
    if file.take(LONGEST).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    parse(&bytes).unwrap_or_default()
}

/// What such a file says.
#[doc(hidden)] // for fuzzing
pub fn parse(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut rest = bytes.strip_prefix(&BEGINNING)?;
    Vec::take(&mut rest).filter(|_| rest.is_empty())
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
        let mut file = open(path, host::holders::own_uid(), false)?;
        let all = entries(&mut file);
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
        for namespace in 100..100 + MOST as u64 - 1 {
            add_to(&path, uid, 7, &[("ubi_lo".into(), counters(1))]);
            add_to(&path, uid, namespace, &[("ubi_lo".into(), counters(1))]);
        }
        assert_eq!((sum(&path, 7, "ubi_lo"), sum(&path, 8, "ubi_lo")), (Some(7 + MOST as u64 - 1), None));
        // Another user's, a link, and nonsense.
        assert!(open(&path, uid + 1, false).is_none());
        let link = directory.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open(&link, uid, true).is_none());
        std::fs::write(&path, [0xff; 99]).unwrap();
        assert_eq!(sum(&path, 7, "ubi_lo"), None);
        add_to(&path, uid, 7, &[("ubi_lo".into(), counters(2))]);
        assert_eq!(sum(&path, 7, "ubi_lo"), Some(2));
        // A process that keeps it locked.
        let locked = open(&path, uid, true).unwrap();
        assert!(open(&path, uid, false).is_none());
        drop(locked);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
