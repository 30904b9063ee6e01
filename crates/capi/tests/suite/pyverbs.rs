//! rdma-core's own test suite, as Debian ships it with its Python bindings. It knows nothing of us.

use crate::library::{Link, alone, on_link, show};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian has the suite, compressed.
const DEBIAN_SUITE_FOLDER: &str = "/usr/share/doc/rdma-core/tests";

/// The modules that are about more than one vendor's hardware, but for the connection manager.
const MODULES: [&str; 18] = [
    "addr",
    "atomic",
    "cq",
    "cq_events",
    "cqex",
    "device",
    "flow",
    "fork",
    "mr",
    "odp",
    "parent_domain",
    "pd",
    "qp",
    "qpex",
    "relaxed_ordering",
    "rss_traffic",
    "shared_pd",
    "tag_matching",
];

/// Why a test may be skipped: memory of a graphics card, and huge pages, which only an administrator can provide.
const REASONS: [&str; 3] = ["Allocating dmabuf is not supported", "There are no huge pages", "memlock"];

/// Only root may have raw packets, and the suite asks for root rather than for the right.
const REASONS_OF_OTHERS: [&str; 2] =
    ["Must be run by root on Ethernet link layer", "must be done by root on Ethernet link layer"];

/// The suite, unpacked.
fn unpacked(link: Link) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pyverbs-{link:?}"));
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(place.join("tests")).unwrap();
    let shipped = fs::read_dir(DEBIAN_SUITE_FOLDER).expect("the suite is missing: apt-get install python3-pyverbs");
    for entry in shipped.flatten() {
        let name = entry.file_name().into_string().expect("a name");
        let to = place.join("tests").join(name.trim_end_matches(".gz"));
        if name.ends_with(".gz") {
            let text = Command::new("gzip").arg("-dc").arg(entry.path()).output().expect("gzip runs");
            fs::write(to, text.stdout).unwrap();
        } else if name.ends_with(".py") {
            fs::copy(entry.path(), to).unwrap();
        }
    }
    place
}

#[test]
fn the_suite_passes_through_shared_memory() {
    pass(Link::SharedMemory);
}

#[test]
fn the_suite_passes_over_udp() {
    pass(Link::Udp);
}

fn pass(link: Link) {
    let place = unpacked(link);
    let _turn = alone();
    let mut suite = on_link(link, "/usr/bin/python3");
    suite.current_dir(&place).arg("tests/run_tests.py").args(["--dev", "ubi_lo", "-v"]);
    suite.args(MODULES.map(|module| format!("tests.test_{module}")));
    let output = suite.output().expect("python runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}", show("the suite", &output));
    let skipped: Vec<&str> = said.lines().filter(|line| line.contains("... skipped")).collect();
    let (more, least) = match rustix::process::geteuid().is_root() {
        true => (&[][..], 143),
        false => (&REASONS_OF_OTHERS[..], 132),
    };
    let explains = |line: &str| REASONS.iter().chain(more).any(|reason| line.contains(reason));
    let unexplained: Vec<_> = skipped.iter().filter(|line| !explains(line)).collect();
    assert!(unexplained.is_empty(), "{unexplained:#?}");
    let ran: usize = said
        .lines()
        .find_map(|line| line.strip_prefix("Ran ")?.split_whitespace().next()?.parse().ok())
        .expect("the number of tests");
    let passed = ran - skipped.len();
    println!("{link:?}: {passed} of {ran} passed, {} skipped", skipped.len());
    assert!(passed >= least, "only {passed} of {ran} passed:\n{}", skipped.join("\n"));
}
