//! rdma-core's own tests, as Debian ships them with its Python bindings. Of the installed release those of the
//! connection manager: they look for the device's interface under `/sys`, and use the device that an address was bound
//! to: none is by the loopback's, as with kernels. The rest of that suite runs with the tests of the C library. Of the
//! newest release, which `cargo xtask newest` gets, the whole suite.

use crate::Test;
use crate::host::Host;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, Stage};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Where Debian has the suite, compressed.
const DEBIAN_SUITE_FOLDER: &str = "/usr/share/doc/rdma-core/tests";

/// Where the newest release's is, below where that is unpacked.
const NEWEST_SHIPPED: &str = "root/usr/share/doc/rdma-core/tests";

/// Where `cargo xtask programs` has unpacked the newest release, and why it has not.
const NEWEST_VARIABLE: &str = "UBIVERBS_TEST_NEWEST";
const NEWEST_MISSING: &str = "UBIVERBS_TEST_NEWEST_MISSING";

/// Why a test of the newest suite may be skipped.
const ALLOWED_SKIPS: [(&str, &str); 12] = [
    ("Can not run the test over non MLX5 device", "Mellanox hardware"),
    ("This is not an MLX5 device", "Mellanox hardware"),
    ("PCI device must be passed by the user", "Mellanox hardware, by VFIO"),
    ("FDs file not found", "Mellanox hardware"),
    ("Converting timestamp to nanoseconds is not supported", "Mellanox hardware"),
    ("Can not run the test over non EFA device", "Amazon's hardware"),
    ("/dev/dri/renderD128", "a graphics card"),
    ("cuda-python", "a graphics card"),
    ("No PHC or failed to open", "a clock of the network card's own"),
    ("Device does not report CC_DMA_BOUNCE", "a guest whose memory is encrypted"),
    ("There are no huge pages", "an administrator who provides huge pages"),
    ("by root on Ethernet link layer", "a user who may send raw packets"),
];

/// Modules whose tests send raw packets from one queue pair to another of the same device.
const RAW_MODULES: [&str; 3] = ["test_flow", "test_rss_traffic", "test_mlx5_timestamp"];

/// Tests that pass at the least.
const LEAST_PASSED: usize = 200;

const NEWEST_ROW: Row = Row {
    program: "pyverbs, the newest",
    version: Version::Newest,
    what: "rdma-core's whole test suite of its newest release, with the Python and C library that this wants",
};

const ROW: Row = Row {
    program: "pyverbs",
    version: Version::Package("python3-pyverbs"),
    what: "rdma-core's ten tests of its connection manager",
};

pub fn tests() -> Vec<Test> {
    let test = |link: Link| {
        let name = format!("pyverbs: the ten tests of the connection manager, {}", link.name());
        let test = Test::new(name, move |stage| connection_manager(stage, link)).takes_seconds(10);
        if own_interface().is_some() { test } else { test.for_root() }
    };
    let newest = |link: Link| {
        let name = format!("pyverbs: the whole suite of the newest release, {}", link.name());
        let test = Test::new(name, move |stage| newest_suite(stage, link)).takes_seconds(60);
        if own_interface().is_some() { test } else { test.for_root() }
    };
    let mut tests = all_of(&ROW, Link::BOTH.map(test));
    tests.extend(all_of(&NEWEST_ROW, Link::BOTH.map(newest)));
    tests.push(Test::new(
        "pyverbs: a test of the newest suite is skipped for a reason that is allowed",
        skips_need_a_reason,
    ));
    tests
}

/// An interface of this host that is up, and is not the loopback.
fn own_interface() -> Option<String> {
    let interfaces = fs::read_dir("/sys/class/net").ok()?.flatten();
    let mut names: Vec<String> = interfaces
        .filter(|entry| fs::read_to_string(entry.path().join("operstate")).is_ok_and(|state| state.trim() == "up"))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name != "lo")
        .collect();
    names.sort();
    names.into_iter().next()
}

/// What the suite waits for at most, and what it waits instead: 15 s are little on a busy machine.
const PATIENT: [(&str, &str); 2] = [("timeout=15)", "timeout=60)"), ("repeat_times=150 ", "repeat_times=600 ")];

/// What it says of two processes one of which waits for a datagram that was lost, and how often that may happen.
const STUCK: &str = "RDMA CM test procces is stuck";
const STUCK_MAX: usize = 2;

fn unpack(from: &Path, place: &Path) -> Result<(), String> {
    let to = place.join("tests");
    fs::create_dir_all(&to).map_err(|e| e.to_string())?;
    let shipped = fs::read_dir(from)
        .map_err(|e| format!("{}: {e}: apt-get install rdma-core python3-pyverbs", from.display()))?;
    for entry in shipped.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bytes = if name.ends_with(".gz") {
            Command::new("gzip").arg("-dc").arg(entry.path()).output().map_err(|e| format!("gzip: {e}"))?.stdout
        } else {
            fs::read(entry.path()).unwrap_or_default()
        };
        let text = String::from_utf8_lossy(&bytes);
        let patient = PATIENT.iter().fold(text.into_owned(), |text, (little, much)| text.replace(little, much));
        fs::write(to.join(name.trim_end_matches(".gz")), patient).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// A host with an interface that is not the loopback, and that.
fn host(stage: &Stage) -> Result<(&Host, String), String> {
    match &stage.joined {
        Some([left, _]) => Ok((left, "veth0".to_owned())),
        None => Ok((&stage.alone, own_interface().ok_or("there is the loopback only")?)),
    }
}

fn connection_manager(stage: &Stage, link: Link) -> Result<(), String> {
    let place = stage.place.join("pyverbs");
    unpack(Path::new(DEBIAN_SUITE_FOLDER), &place)?;
    let (host, interface) = host(stage)?;
    let device = format!("ubi_{interface}");
    let line = format!("/usr/bin/python3 tests/run_tests.py --dev {device} -v tests.test_rdmacm");
    let options = link.options();
    let run = || stage.end(stage.run_on(host, None, &options, &line).current_dir(&place));
    let mut ended = run()?;
    for _ in 0..STUCK_MAX {
        if !ended.text.contains(STUCK) {
            break;
        }
        stage.note(format!("two processes were stuck, and all tests ran again:\n{}", ended.text));
        ended = run()?;
    }
    let passed = ended.text.lines().filter(|line| line.ends_with("... ok")).count();
    match (ended.status.success(), passed) {
        (true, 10) => Ok(()),
        _ => Err(format!("{}, {passed} passed\n{}", ended.status, ended.text)),
    }
}

/// Where the newest release is unpacked.
pub fn newest() -> Result<PathBuf, String> {
    let missing = || {
        std::env::var(NEWEST_MISSING).unwrap_or_else(|_| format!("{NEWEST_VARIABLE} is not set: cargo xtask newest"))
    };
    std::env::var_os(NEWEST_VARIABLE).map(PathBuf::from).ok_or_else(missing)
}

/// The suite asks `rdma` which interface a device is of, and there is no kernel's RDMA for that to ask.
fn write_rdma(directory: &Path, interface: &str) -> Result<(), String> {
    let facts = r#""ifindex":1,"port":1,"state":"ACTIVE","physical_state":"LINK_UP""#;
    let link = format!(r#"[{{{facts},"ifname":"ubi_{interface}","netdev":"{interface}"}}]"#);
    let program = directory.join("rdma");
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&program, format!("#!/bin/sh\necho '{link}'\n")))
        .and_then(|()| fs::set_permissions(&program, Permissions::from_mode(0o755)))
        .map_err(|e| format!("{}: {e}", program.display()))
}

/// Huge pages for some tests, where there are none and we may provide them; the last who needs them gives them back.
struct HugePages;

/// How many tests have huge pages of ours.
static HUGE_PAGES_USERS: Mutex<usize> = Mutex::new(0);

impl HugePages {
    const NUMBER: &str = "/proc/sys/vm/nr_hugepages";

    /// So many for each who needs them at the same time.
    const PAGES_PER_USER: usize = 16;

    /// None if there are some already, or we may not.
    fn provide() -> Option<HugePages> {
        let mut users = HUGE_PAGES_USERS.lock().unwrap_or_else(PoisonError::into_inner);
        let has_none = fs::read_to_string(HugePages::NUMBER).is_ok_and(|number| number.trim() == "0");
        let pages = (*users + 1) * HugePages::PAGES_PER_USER;
        let provided = (*users > 0 || has_none) && fs::write(HugePages::NUMBER, pages.to_string()).is_ok();
        *users += usize::from(provided);
        provided.then_some(HugePages)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let mut users = HUGE_PAGES_USERS.lock().unwrap_or_else(PoisonError::into_inner);
        *users -= 1;
        let _ = fs::write(HugePages::NUMBER, (*users * HugePages::PAGES_PER_USER).to_string());
    }
}

fn newest_suite(stage: &Stage, link: Link) -> Result<(), String> {
    let newest = newest()?;
    let place = stage.place.join("newest-pyverbs");
    unpack(&newest.join(NEWEST_SHIPPED), &place)?;
    fs::write(place.join("suite.py"), include_str!("../python/suite.py")).map_err(|e| e.to_string())?;
    let (host, interface) = host(stage)?;
    let _pages = HugePages::provide();
    let modules = modules(&place)?;
    // Raw packets that a queue pair sends to another of its device come back on the loopback only.
    let (raw, others): (Vec<_>, Vec<_>) = modules.iter().partition(|module| RAW_MODULES.contains(&module.as_str()));
    let (mut text, mut success) = (String::new(), true);
    for (interface, modules) in [(interface.as_str(), others), ("lo", raw)] {
        write_rdma(&place.join("bin"), interface)?;
        let python = newest.join("python3");
        let line = format!("{} suite.py tests/run_tests.py --dev ubi_{interface} -v", python.display());
        let mut command = stage.run_on(host, None, &link.options(), &line);
        command.args(modules.iter().map(|module| format!("tests.{module}")));
        let path = std::env::var("PATH").unwrap_or_default();
        let ended =
            stage.end(command.current_dir(&place).env("PATH", format!("{}:{path}", place.join("bin").display())))?;
        text.push_str(&ended.text);
        success &= ended.status.success();
    }
    stage.note(judge(&text, success)?);
    Ok(())
}

/// The modules of a suite.
fn modules(place: &Path) -> Result<Vec<String>, String> {
    let entries = fs::read_dir(place.join("tests")).map_err(|e| format!("{}: {e}", place.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut modules: Vec<String> = names
        .filter_map(|name| name.strip_suffix(".py").filter(|name| name.starts_with("test_")).map(str::to_owned))
        .collect();
    modules.sort();
    Ok(modules)
}

/// What the suite's report says: nothing failed, and nothing was skipped that need not be.
fn judge(text: &str, success: bool) -> Result<String, String> {
    let number = |rest: &str| rest.split(|it: char| !it.is_ascii_digit()).next()?.parse::<usize>().ok();
    let sum_after = |start: &str| -> usize { text.lines().filter_map(|line| number(line.split_once(start)?.1)).sum() };
    let (ran, skips) = (sum_after("Ran "), sum_after("skipped="));
    let passed = ran.saturating_sub(skips);
    if !success || passed < LEAST_PASSED {
        return Err(format!("{passed} of {ran} passed\n{text}"));
    }
    let skipped: Vec<&str> =
        text.lines().filter(|line| line.contains("skipped '") || line.contains("skipped \"")).collect();
    let is_allowed = |line: &str| ALLOWED_SKIPS.iter().any(|(reason, _)| line.contains(reason));
    let unexplained: Vec<&str> = skipped.iter().copied().filter(|line| !is_allowed(line)).collect();
    match (unexplained.is_empty(), skipped.len() == skips) {
        (true, true) => Ok(format!("{passed} of {ran} passed, {skips} skipped")),
        (true, false) => Err(format!("{} of {skips} skipped tests have a reason\n{text}", skipped.len())),
        (false, _) => Err(format!("skipped for no reason that is allowed:\n{}", unexplained.join("\n"))),
    }
}

/// That the judge judges: an allowed reason passes; another, a missing one, too few tests and a failure do not.
fn skips_need_a_reason(_: &Stage) -> Result<(), String> {
    let report = |reason: &str, ran: usize, skips: usize| {
        format!("test_a ... ok\ntest_b ... skipped '{reason}'\nRan {ran} tests in 1s\n\nOK (skipped={skips})\n")
    };
    let allowed = "There are no huge pages of size 2M";
    judge(&report(allowed, 300, 1), true)?;
    let wrong = [
        judge(&report("I do not feel like it", 300, 1), true),
        judge(&report(allowed, 300, 2), true),
        judge(&report(allowed, 100, 1), true),
        judge(&report(allowed, 300, 1), false),
    ];
    match wrong.iter().position(Result::is_ok) {
        None => Ok(()),
        Some(which) => Err(format!("the wrong report number {which} is taken for good")),
    }
}
