//! rdma-core's own tests of its connection manager, as Debian ships them with its Python bindings. They look for the
//! device's interface under `/sys`, and use the device that an address was bound to: none is by the loopback's, as with
//! kernels. The rest of the suite runs with the tests of the C library.

use crate::Test;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, Stage};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Where Debian has the suite, compressed.
const SHIPPED: &str = "/usr/share/doc/rdma-core/tests";

const ROW: Row = Row {
    program: "pyverbs",
    version: Version::Package("python3-pyverbs"),
    what: "rdma-core's ten tests of its connection manager",
};

pub fn tests() -> Vec<Test> {
    let test = |link: Link| {
        let name = format!("pyverbs: the ten tests of the connection manager, {}", link.name());
        let test = Test::new(name, move |stage| connection_manager(stage, link));
        if own_interface().is_some() { test } else { test.for_root() }
    };
    all_of(&ROW, Link::BOTH.map(test))
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

fn unpack(place: &Path) -> Result<(), String> {
    let to = place.join("tests");
    fs::create_dir_all(&to).map_err(|e| e.to_string())?;
    let shipped =
        fs::read_dir(SHIPPED).map_err(|e| format!("{SHIPPED}: {e}: apt-get install rdma-core python3-pyverbs"))?;
    for entry in shipped.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let bytes = if name.ends_with(".gz") {
            Command::new("gzip").arg("-dc").arg(entry.path()).output().map_err(|e| format!("gzip: {e}"))?.stdout
        } else {
            fs::read(entry.path()).unwrap_or_default()
        };
        fs::write(to.join(name.trim_end_matches(".gz")), bytes).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn connection_manager(stage: &Stage, link: Link) -> Result<(), String> {
    let place = stage.place.join("pyverbs");
    unpack(&place)?;
    let (host, device) = match &stage.joined {
        Some([left, _]) => (left, "ubi_veth0".to_owned()),
        None => (&stage.alone, format!("ubi_{}", own_interface().ok_or("there is the loopback only")?)),
    };
    let line = format!("/usr/bin/python3 tests/run_tests.py --dev {device} -v tests.test_rdmacm");
    let options = link.options();
    let mut command = stage.run_on(host, None, &options, &line);
    let ended = stage.end(command.current_dir(&place))?;
    let passed = ended.text.lines().filter(|line| line.ends_with("... ok")).count();
    match (ended.status.success(), passed) {
        (true, 10) => Ok(()),
        _ => Err(format!("{}, {passed} passed\n{}", ended.status, ended.text)),
    }
}
