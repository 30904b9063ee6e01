//! Peers that are killed at random points of what they do, on the link through shared memory: the survivor gets its error,
//! gets all of its work back, and keeps nothing of the dead. `UBIVERBS_TEST_KILLS` says how many are killed; `SEED` repeats
//! a run's decisions, though not the machine's.

use stage::killed::{TIMEOUT, length, work};
use stage::{End, Other, poll};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use transport::{Remote, State, Status};
use wire::{Key, Qpn};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// What a victim does: nothing, so that its engine answers; poll; or move data in the other direction.
const OCCUPATIONS: [&str; 3] = ["wait", "poll", "move"];

/// Longer than anybody needs to hear of a death. Who does not hear of it waits for ever: the dead read nothing, and may have been stopped.
const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptors that may stay for later.
const MAX_KEPT_DESCRIPTORS: usize = 3;

/// When the victim dies.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// So long after the first request.
    After(Duration),
    /// When so many have come back.
    Completions(u32),
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn point(&mut self) -> Point {
        match self.below(2) {
            0 => Point::After(Duration::from_micros(self.below(5000))),
            _ => Point::Completions(self.below(40) as u32),
        }
    }
}

/// What a process has: descriptors, mappings of rings, and kilobytes of memory.
#[derive(Clone, Copy, Debug)]
struct Belongings {
    descriptors: usize,
    rings: usize,
    memory: u64,
}

impl Belongings {
    fn now() -> Belongings {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap();
        let resident = read("status").lines().find_map(|line| {
            let line = line.strip_prefix("VmRSS:")?;
            line.split_whitespace().next()?.parse().ok()
        });
        Belongings {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            rings: read("maps").lines().filter(|line| line.contains("memfd:ubiverbs")).count(),
            memory: resident.unwrap(),
        }
    }

    /// Waits until there are no more descriptors and rings than there were: who hears of a death may not have put away yet what led there. Connections
    /// for packets to neighbours are kept, a few of them, not one for each of the dead.
    #[track_caller]
    fn wait_for(self, round: u32) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let now = Belongings::now();
            if now.descriptors <= self.descriptors + MAX_KEPT_DESCRIPTORS && now.rings <= self.rings {
                return;
            }
            let links = || {
                let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
                entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
            };
            assert!(Instant::now() < deadline, "round {round}: {now:?} after {self:?}: {:?}", links());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// One victim, and what became of the survivor's work. Answers how long the survivor was in doubt; nothing if the victim had not answered yet when it
/// died: then there was no link, and UDP gives up when all is sent in vain.
fn round(survivor: &End, occupation: &str, point: Point) -> Option<Duration> {
    let end = survivor.another();
    let mut other = Other::start(Command::new(PEER).args(["killed", occupation]));
    writeln!(other.stdin, "{} {} {}", end.qp.qpn().value(), end.address(), end.key.value()).unwrap();
    let [qpn, address, key] = other.hear("here ")[..] else { panic!("three numbers") };
    end.connect_with(Qpn::new(qpn as u32), TIMEOUT);
    let remote = Remote { address, key: Key::new(key as u32) };
    let (mut posted, mut good, mut flushed) = (0, 0, 0);
    let (mut killed, mut doubt) = (None::<Instant>, None);
    let start = Instant::now();
    while doubt.is_none() || good + 1 + flushed < posted {
        // As much as the queue takes, for as long as it takes any.
        if doubt.is_none() && end.post(work(posted, remote), length(posted)) {
            posted += 1;
        }
        let is_time = match point {
            Point::After(time) => start.elapsed() >= time,
            Point::Completions(count) => good >= count,
        };
        if killed.is_none() && is_time {
            other.child.kill().unwrap();
            other.child.wait().unwrap();
            killed = Some(Instant::now());
        }
        while let Some(completion) = poll(&end) {
            match (completion.status, doubt) {
                (Status::Success, None) => good += 1,
                (Status::RetryExceeded, None) => doubt = Some(killed.expect("nothing fails before").elapsed()),
                (Status::WorkRequestFlushed, Some(_)) => flushed += 1,
                _ => panic!("{completion:?} after {good} good ones"),
            }
        }
        assert!(start.elapsed() < Duration::from_secs(120), "{good} of {posted} good, {flushed} flushed: {doubt:?}");
    }
    assert_eq!(end.qp.state(), State::Error);
    let linked = end.qp.link() == "shared memory";
    assert!(linked || good == 0, "{good} good ones, and then {}", end.qp.link());
    end.nic.destroy_qp(&end.qp);
    end.nic.memory().deregister(end.key).unwrap();
    doubt.filter(|_| linked)
}

#[test]
fn a_peer_that_is_killed_at_any_point_leaves_an_error_and_nothing_else() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let kills = number("UBIVERBS_TEST_KILLS").unwrap_or(30) as u32;
    let seed = number("SEED").unwrap_or_else(|| std::process::id().into());
    println!("{kills} kills, SEED={seed}");
    let mut random = Random(seed);
    let survivor = End::new();
    let mut doubts = Vec::new();
    let mut before = None;
    for n in 0..kills {
        let (occupation, point) = (OCCUPATIONS[random.below(3) as usize], random.point());
        let doubt = round(&survivor, occupation, point);
        assert!(
            doubt.is_none_or(|doubt| doubt < DEATH_NOTICE_TIMEOUT),
            "round {n}, {occupation}, {point:?}: {doubt:?}"
        );
        doubts.extend(doubt);
        // The first rounds make what is kept for the next ones.
        if n >= 5 {
            before.get_or_insert_with(Belongings::now).wait_for(n);
        }
    }
    doubts.sort();
    assert!(doubts.len() >= kills as usize / 2, "only {} of {kills} were connected", doubts.len());
    let (Some(before), after) = (before, Belongings::now()) else { panic!("too few kills") };
    println!("{} of them had not answered yet when they died", kills as usize - doubts.len());
    println!(
        "the survivor knew after {:?} (median), {:?} (longest)",
        doubts[doubts.len() / 2],
        doubts[doubts.len() - 1]
    );
    println!("it has {after:?} after {kills} victims, {before:?} after six");
    // Spare buffers and tables reach their size; a ring that is kept of each victim would be 200 KiB each time.
    let allowed = before.memory + 16 * 1024 + u64::from(kills) * 8;
    assert!(after.memory < allowed, "{} KiB, not {allowed}", after.memory);
}
