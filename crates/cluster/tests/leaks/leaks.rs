//! Groups that come and go leave nothing behind. Alone in its process, as it counts open files.

use crate::members::{self, builder, free_address, members_at};
use cluster::{Group, Topology};
use std::thread;
use std::time::{Duration, Instant};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[test]
fn groups_come_and_go_and_leave_nothing() {
    // The NIC keeps a way to each port that was asked at.
    let at = free_address();
    let once = || {
        let act = |mut group: Group| {
            group.barrier().wait()?;
            group.leave().wait()
        };
        members_at(at, 3, builder(3, &Topology::FullMesh), act).into_iter().for_each(|outcome| outcome.unwrap());
    };
    once();
    let before = open_files();
    (0..5).for_each(|_| once());
    let until = Instant::now() + members::TEST_TIMEOUT;
    while open_files() > before + 2 {
        assert!(Instant::now() < until, "{} files were open, now {} are", before, open_files());
        thread::sleep(Duration::from_millis(20));
    }
}
