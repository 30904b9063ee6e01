//! A process in a network of its own, whose devices follow its interfaces: also what happens late, and what could not be
//! seen at once.

use hca::{Device, Nic};
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Changes the network.
fn ip(line: &str) {
    let status = Command::new("ip").args(line.split(' ')).status().expect("ip is missing: apt-get install iproute2");
    assert!(status.success(), "ip {line}");
}

fn device(nic: &Nic, name: &str) -> Option<Arc<Device>> {
    nic.devices().into_iter().find(|device| device.name() == name)
}

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn has_address(nic: &Nic, name: &str, address: &str) -> bool {
    let address: IpAddr = address.parse().unwrap();
    device(nic, name).is_some_and(|device| device.port().gids.iter().flatten().any(|gid| gid.to_ip() == address))
}

/// All of it, one after the other: descriptors are the whole process's.
pub fn follow(_: &str) {
    ip("link set lo up");
    let nic = Nic::open().unwrap();
    an_interface_whose_cable_comes_late(&nic);
    while_a_thread_waits(&nic);
    no_descriptor_to_look_with(&nic);
}

/// Up, with an address, and nothing at the other end.
fn an_interface_whose_cable_comes_late(nic: &Arc<Nic>) {
    ip("link add late type veth peer name far");
    // No addresses but ours: the kernel's own come late, and tell of themselves.
    ip("link set late addrgenmode none");
    ip("link set far addrgenmode none");
    ip("address add 10.9.9.1/24 dev late");
    ip("link set late up");
    assert!(device(nic, "ubi_late").is_none_or(|device| !device.port().active), "it has no carrier");
    ip("link set far up");
    wait_for("the device", || device(nic, "ubi_late").is_some_and(|device| device.port().active));
    assert!(has_address(nic, "ubi_late", "10.9.9.1"));
    ip("link set far down");
    wait_for("the port to go down", || device(nic, "ubi_late").is_some_and(|device| !device.port().active));
    ip("link set far up");
    wait_for("the port to come back", || device(nic, "ubi_late").is_some_and(|device| device.port().active));
}

/// A thread that waits for completions drives, and the engine sleeps deeper.
fn while_a_thread_waits(nic: &Arc<Nic>) {
    let channel = Arc::new(hca::CompletionChannel::new().unwrap());
    let (waiter, waits_on) = (Arc::clone(nic), Arc::clone(&channel));
    let thread = std::thread::spawn(move || waiter.wait(&waits_on).unwrap());
    wait_for("the thread to wait", || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.flatten().filter(|task| is_asleep(&task.path())).count() >= 2
    });
    // By the first the engine learns that a thread waits.
    for address in ["10.9.9.3", "10.9.9.4"] {
        ip(&format!("address add {address}/24 dev late"));
        wait_for("another address", || has_address(nic, "ubi_late", address));
    }
    channel.push(7);
    assert_eq!(thread.join().unwrap(), 7);
}

fn is_asleep(task: &std::path::Path) -> bool {
    let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

fn no_descriptor_to_look_with(nic: &Arc<Nic>) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "read word && ip address add 10.9.9.2/24 dev late"]).stdin(Stdio::piped());
    let mut shell = shell.spawn().unwrap();
    let mut hoard = Vec::new();
    limit_descriptors(400);
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    assert!(!hoard.is_empty());
    shell.stdin.take().unwrap().write_all(b"now\n").unwrap();
    assert!(shell.wait().unwrap().success());
    // Proves that nothing happens: long enough for the engine to hear of the address, and to look in vain.
    std::thread::sleep(Duration::from_millis(300));
    assert!(!has_address(nic, "ubi_late", "10.9.9.2"), "there was a descriptor after all");
    drop(hoard);
    wait_for("the address", || has_address(nic, "ubi_late", "10.9.9.2"));
}

fn limit_descriptors(count: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel reads and writes a live structure.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_cur.min(count);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}
