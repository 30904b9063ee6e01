//! Members of a group as threads of one program, which find each other over the loopback interface.
#![allow(dead_code, reason = "each test file uses a part of it")]

use cluster::{Builder, Error, Group, Topology};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

/// An address of this host without a listener. Below the ports that are handed out to any process, so that
/// no other test gets it meanwhile.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let begin = (std::process::id() % 1000) as u16 * 20;
    loop {
        let port = 10_000 + begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if let Ok(listener) = ubiverbs::cm::Listener::bind(("127.0.0.1", port)) {
            return listener.local_addr();
        }
    }
}

/// What members of tests know.
pub const SECRET: &str = "of the tests";

/// Longer than anything takes on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub fn builder(size: u32, topology: &Topology) -> Builder {
    Group::builder(size).secret(SECRET).topology(topology.clone()).meeting_limit(TEST_TIMEOUT).deadline(TEST_TIMEOUT)
}

/// Runs a member in each of `size` threads and answers what came of each.
pub fn members<R: Send + 'static>(
    size: u32,
    builder: Builder,
    act: impl Fn(Group) -> Result<R, Error> + Send + Clone + 'static,
) -> Vec<Result<R, Error>> {
    members_at(free_address(), size, builder, act)
}

/// Runs a member in each of `size` threads, with this rendezvous.
pub fn members_at<R: Send + 'static>(
    at: SocketAddr,
    size: u32,
    builder: Builder,
    act: impl Fn(Group) -> Result<R, Error> + Send + Clone + 'static,
) -> Vec<Result<R, Error>> {
    let member = move |rank: u32| {
        let (builder, act) = (builder.clone(), act.clone());
        move || act(builder.rendezvous(at, rank).join().wait()?)
    };
    let threads: Vec<_> = (0..size).map(|rank| thread::spawn(member(rank))).collect();
    threads.into_iter().map(|thread| thread.join().expect("no member panics")).collect()
}
