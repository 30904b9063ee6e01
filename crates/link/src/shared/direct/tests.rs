use super::*;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::access::{Access, ProtectionDomain, Range};
use wire::{Gid, Key, Qpn};

const REGION_KEY: Key = Key::new(0x1234_5600);
const REQUESTER_QPN: Qpn = Qpn::new(0x21);
const TARGET_QPN: Qpn = Qpn::new(0x42);
const DOMAIN: ProtectionDomain = ProtectionDomain(3);

fn both() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// This process, which lets itself in.
struct Pair {
    published: Arc<Published>,
    grant: Option<Arc<Grant>>,
    peer: PeerMemory,
}

impl Pair {
    fn new() -> Pair {
        let published = Arc::new(Published::new().unwrap());
        let table = PeerTable::open(std::process::id() as i32, published.descriptor() as u64).unwrap();
        let proof = table.secret();
        let process = std::process::id() as i32;
        assert!(published.admit(proof ^ 1, process).is_none());
        let (grant, claims) = published.admit(proof, process).unwrap();
        // SAFETY: a copy of a live descriptor, which is ours.
        let memory = unsafe { OwnedFd::from_raw_fd(libc::dup(grant.descriptor())) };
        let peer = PeerMemory::accept(table, memory, claims, grant.number()).unwrap();
        published.publish_queue_pair(
            TARGET_QPN,
            &PublishedQueuePair { peer: REQUESTER_QPN, address: Gid::default(), domain: DOMAIN, access: both() },
        );
        published.set_open(true);
        Pair { published, grant: Some(grant), peer }
    }

    fn lend(&self, words: &[u64]) {
        self.lend_of(words, None);
    }

    fn lend_of(&self, words: &[u64], file: Option<SharedFile>) {
        let region = PublishedRegion {
            domain: DOMAIN,
            access: both(),
            start: 0x1000,
            length: size_of_val(words) as u64,
            base: words.as_ptr().addr() as u64,
            file,
        };
        self.published.publish_region(REGION_KEY, &region);
    }

    fn write(&self, access: &DirectAccess, bytes: &[u8]) -> bool {
        // SAFETY: live bytes.
        unsafe { self.peer.begin().write(access, bytes.as_ptr(), bytes.len(), (true, false)) }.is_some()
    }
}

/// Words of a file that is sealed against shrinking, at an offset in it.
struct FileMemory {
    map: Mapping,
    file: OwnedFd,
}

const FILE_OFFSET: usize = 4096 + 64;

impl FileMemory {
    fn new() -> FileMemory {
        let (map, file) = Mapping::create(256 * 1024).unwrap();
        FileMemory { map, file }
    }

    fn words(&self, count: usize) -> &[u64] {
        // SAFETY: inside the mapping; only the address and the length are used, or atomics over it.
        unsafe { std::slice::from_raw_parts(self.map.at(FILE_OFFSET, count * 8).cast(), count) }
    }

    fn file(&self) -> Option<SharedFile> {
        let file = std::fs::File::from(self.file.try_clone().unwrap());
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()) as u32;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&self.file) as u32;
        Some(SharedFile { descriptor, inode, offset: FILE_OFFSET as u64 })
    }
}

fn access(address: u64, length: u64) -> DirectAccess {
    let range = Range { key: REGION_KEY, address, length };
    DirectAccess { from: REQUESTER_QPN, address: Gid::default(), to: TARGET_QPN, range, access: Access::REMOTE_WRITE }
}

#[test]
fn bytes_go_where_the_table_says_and_nowhere_else() {
    let pair = Pair::new();
    let words = vec![0u64; 4];
    pair.lend(&words);
    assert!(pair.write(&access(0x1003, 13), b"thirteen byte"));
    let reads = DirectAccess { access: Access::REMOTE_READ, ..access(0x1003, 13) };
    let mut read = [0; 13];
    // SAFETY: live bytes.
    assert!(unsafe { pair.peer.begin().read(&reads, read.as_mut_ptr(), 13, (true, false)) }.is_some());
    assert_eq!(&read, b"thirteen byte");
    let whole = access(0x1000, 8);
    for wrong in [
        access(0xfff, 8),
        access(0x1019, 8),
        access(u64::MAX, 8),
        DirectAccess { range: Range { key: Key::new(REGION_KEY.value() ^ 0x100), ..whole.range }, ..whole },
        DirectAccess { from: Qpn::new(0x22), ..whole },
        DirectAccess { to: Qpn::new(0x43), ..whole },
        DirectAccess { address: Gid::from_ip([10, 0, 0, 1].into()), ..whole },
        DirectAccess { access: Access::REMOTE_ATOMIC, ..whole },
    ] {
        assert!(!pair.write(&wrong, &[1; 8]), "{wrong:?}");
    }
    assert!(pair.write(&whole, &[1; 8]));
    pair.published.set_open(false);
    assert!(!pair.peer.is_open() && !pair.write(&whole, &[2; 8]));
    pair.published.set_open(true);
    pair.published.withdraw_queue_pair(TARGET_QPN);
    assert!(!pair.write(&whole, &[2; 8]));
}

#[test]
fn who_was_let_in_is_kept_out_when_the_connection_ends() {
    let mut pair = Pair::new();
    let words = vec![0u64; 4];
    pair.lend(&words);
    assert!(pair.write(&access(0x1000, 8), &[1; 8]));
    pair.grant = None;
    assert!(!pair.write(&access(0x1000, 8), &[2; 8]));
}

#[test]
fn memory_that_is_not_there_is_left_to_packets() {
    let pair = Pair::new();
    // SAFETY: a slice without an access: no code looks at the address.
    let nowhere = unsafe { std::slice::from_raw_parts(std::ptr::without_provenance(0x1000), 4) };
    pair.lend(nowhere);
    for _ in 0..peer::FAILURES_MAX {
        assert!(pair.peer.is_open() && !pair.write(&access(0x1000, 8), &[1; 8]));
    }
    assert!(!pair.peer.is_open(), "it is not tried again");
}

#[test]
fn what_finds_no_place_is_not_published() {
    let published = Published::new().unwrap();
    let region = PublishedRegion { domain: DOMAIN, access: both(), start: 0, length: 8, base: 0, file: None };
    for key in 0..20_000 {
        published.publish_region(Key::new(key), &region);
    }
    for key in 0..20_000 {
        published.withdraw_region(Key::new(key));
    }
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn memory_of_a_file_is_mapped_after_a_few_accesses_and_not_after_it_was_taken_back() {
    let pair = Pair::new();
    let memory = FileMemory::new();
    let words = memory.words(32);
    for _ in 0..3 {
        pair.lend_of(words, memory.file());
        // SAFETY: live bytes.
        let write = |address, bytes: &[u8]| unsafe {
            pair.peer.begin().write(&access(address, bytes.len() as u64), bytes.as_ptr(), bytes.len(), (true, false))
        };
        let ways: Vec<_> = (0..6).map(|round| write(0x1008, &[round; 16])).collect();
        assert_eq!(ways[0], Some(Moved::ByKernel));
        assert_eq!(ways[5], Some(Moved::ByMapping));
        assert_eq!(words[1..4], [u64::from_ne_bytes([5; 8]), u64::from_ne_bytes([5; 8]), words[3]]);
        assert_eq!(write(0x1010, &[7; 11]), Some(Moved::ByMapping));
        assert_eq!(write(0x1011, &[8; 8]), Some(Moved::ByKernel), "a word would be torn");
        let mut read = [0; 3];
        // SAFETY: live bytes.
        let way = unsafe {
            let reads = DirectAccess { access: Access::REMOTE_READ, ..access(0x1010, 3) };
            pair.peer.begin().read(&reads, read.as_mut_ptr(), 3, (true, false));
            pair.peer.begin().read(&reads, read.as_mut_ptr(), 3, (true, false))
        };
        assert_eq!((way, read), (Some(Moved::ByMapping), [7, 8, 8]));
        // SAFETY: live bytes.
        let way = unsafe { pair.peer.begin().write(&access(0x1010, 8), [7; 8].as_ptr(), 8, (true, true)) };
        assert_eq!(way, Some(Moved::ByKernel), "memory of this process that may vanish");
        assert_eq!(write(0x10f8, &[1; 16]), None, "past the end");
        pair.published.withdraw_region(REGION_KEY);
        assert_eq!(write(0x1008, &[9; 16]), None);
    }
}

#[test]
fn a_descriptor_of_another_file_is_not_mapped() {
    let pair = Pair::new();
    let (memory, other) = (FileMemory::new(), FileMemory::new());
    let wrong = SharedFile { descriptor: other.file().unwrap().descriptor, ..memory.file().unwrap() };
    let beyond = SharedFile { offset: 256 * 1024 - 8, ..memory.file().unwrap() };
    for file in [wrong, beyond] {
        pair.lend_of(memory.words(32), Some(file));
        for _ in 0..20 {
            // SAFETY: live bytes.
            let way = unsafe { pair.peer.begin().write(&access(0x1000, 8), [1; 8].as_ptr(), 8, (true, false)) };
            assert_eq!(way, Some(Moved::ByKernel));
        }
        pair.published.withdraw_region(REGION_KEY);
    }
}

#[test]
fn nothing_is_written_after_it_was_taken_back() {
    let words = vec![0u64; 64];
    write_while_taken_back(&words, None, 24);
}

#[test]
fn nothing_is_written_to_a_file_after_it_was_taken_back() {
    for length in [24, 8, 2048] {
        let memory = FileMemory::new();
        write_while_taken_back(memory.words(512), memory.file(), length);
    }
}

/// Another thread writes all the time, while memory is lent, taken back and used for something else, so often as
/// `UBIVERBS_TEST_DIRECT` says.
fn write_while_taken_back(plain: &[u64], file: Option<SharedFile>, length: usize) {
    let pair = Pair::new();
    // SAFETY: live words that nothing but atomics and copies of other threads touches from here on.
    let words: &[AtomicU64] = unsafe { std::slice::from_raw_parts(plain.as_ptr().cast(), plain.len()) };
    let source = vec![0xff; length];
    let rounds = std::env::var("UBIVERBS_TEST_DIRECT").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(600);
    let ends = AtomicBool::new(false);
    let mut written = 0;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut done = 0u64;
            while !ends.load(Ordering::Relaxed) {
                done += u64::from(pair.write(&access(0x1000 + done % 32 * 8, length as u64), &source));
            }
            done
        });
        for round in 0..rounds {
            pair.lend_of(plain, file);
            while round % 10 == 0 && words.iter().all(|word| word.load(Ordering::Relaxed) != u64::MAX) {
                std::hint::spin_loop();
            }
            match round % 3 {
                0 => pair.published.withdraw_region(REGION_KEY),
                1 => {
                    pair.published.withdraw_queue_pair(TARGET_QPN);
                    pair.published.withdraw_region(REGION_KEY);
                    let facts = PublishedQueuePair {
                        peer: REQUESTER_QPN,
                        address: Gid::default(),
                        domain: DOMAIN,
                        access: both(),
                    };
                    pair.published.publish_queue_pair(TARGET_QPN, &facts);
                }
                _ => {
                    pair.published.set_open(false);
                    words.iter().for_each(|word| word.store(round, Ordering::Relaxed));
                    assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == round), "round {round}: closed");
                    pair.published.withdraw_region(REGION_KEY);
                    pair.published.set_open(true);
                }
            }
            words.iter().for_each(|word| word.store(round, Ordering::Relaxed));
            for _ in 0..round % 50 {
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == round), "round {round}");
            }
        }
        ends.store(true, Ordering::Relaxed);
        written = writer.join().unwrap();
    });
    assert!(written > 0);
}
