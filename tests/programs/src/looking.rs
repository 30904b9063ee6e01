//! Programs that only look: the list of devices, everything about a device, and its asynchronous events.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{NOBODY_UID, Stage};
use crate::{Test, expect, host};

const DEVICES: Row = Row {
    program: "`ibv_devices`, `ibv_devinfo`, `ibv_asyncwatch`",
    version: Version::Package("ibverbs-utils"),
    what: "what they print; as nobody; events of a cable that is pulled, and of addresses",
};

const FILES: Row = Row {
    program: "`ibstat`, `ibstatus`",
    version: Version::Package("infiniband-diags"),
    what: "what they read from the device files",
};

const TOPOLOGY: Row = Row {
    program: "`lstopo`",
    version: Version::Package("hwloc-nox"),
    what: "a device is shown under that of its interface",
};

pub fn tests() -> Vec<Test> {
    let mut tests = all_of(&DEVICES, devices());
    tests.push(Test::new("ibstat and ibstatus, which read files", read_files).of(&FILES));
    tests.push(Test::new("hwloc shows a device under that of its interface", topology).for_root().of(&TOPOLOGY));
    tests
}

fn devices() -> Vec<Test> {
    vec![
        Test::new("ibv_devices", |stage| expect(&stage.run(None, &[], "ibv_devices")?, &["node GUID", "ubi_lo"])),
        Test::new("ibv_devices, as nobody", |stage| {
            expect(&stage.run(Some(NOBODY_UID), &[], "ibv_devices")?, &["node GUID", "ubi_lo"])
        })
        .for_root(),
        Test::new("ibv_devinfo", |stage| {
            let text = stage.run(None, &[], "ibv_devinfo -d ubi_lo")?;
            expect(&text, &["hca_id:\tubi_lo", "PORT_ACTIVE (4)", "4096 (5)", "link_layer:\t\tEthernet"])
        }),
        Test::new("ibv_devinfo -l", |stage| expect(&stage.run(None, &[], "ibv_devinfo -l")?, &["HCA", "ubi_lo"])),
        Test::new("ibv_devinfo -v", verbose),
        Test::new("ibv_devices, two cables", cables).for_root(),
        Test::new("ibv_asyncwatch, a cable is pulled and put back", asynchronous).for_root(),
    ]
}

fn read_files(stage: &Stage) -> Result<(), String> {
    let option = ["--device".to_owned(), "ubi_lo".to_owned()];
    let wanted = ["CA 'ubi_lo'", "State: Active", "Physical state: LinkUp", "Rate: 100", "Link layer: Ethernet"];
    expect(&stage.run(None, &option, "ibstat")?, &wanted)?;
    let wanted = ["device 'ubi_lo' port 1", "4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)", "Ethernet"];
    expect(&stage.run(None, &option, "ibstatus")?, &wanted)
}

fn verbose(stage: &Stage) -> Result<(), String> {
    let text = stage.run(None, &[], "ibv_devinfo -v -d ubi_lo")?;
    let wanted = [
        "max_qp:",
        "max_srq:",
        "ATOMIC_HCA",
        "XRC",
        "MEM_WINDOW",
        "general_odp_caps:",
        "completion timestamp_mask:",
        "GID[  0]:",
        "RoCE v2",
        "active_speed:",
        "phys_state:\t\tLINK_UP (5)",
    ];
    expect(&text, &wanted)
}

/// A host whose interface has the name and the number of one that is behind PCI: the kernel's files are then taken for its own.
fn topology(stage: &Stage) -> Result<(), String> {
    let behind_pci = |name: &String| {
        let device = std::fs::canonicalize(format!("/sys/class/net/{name}/device"));
        device.is_ok_and(|path| path.components().any(|part| part.as_os_str().display().to_string().starts_with("pci")))
    };
    let entries = std::fs::read_dir("/sys/class/net").map_err(|e| e.to_string())?;
    let mut names = entries.flatten().map(|entry| entry.file_name().display().to_string());
    let Some(name) = names.find(behind_pci) else { return Ok(()) };
    let index = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).map_err(|e| e.to_string())?;
    let host = host::Host::alone()?;
    host.ip(&format!("link add {name} index {} type veth peer name other", index.trim()))?;
    host.ip(&format!("addr add 10.79.0.1/24 dev {name}"))?;
    host.ip(&format!("link set {name} up"))?;
    host.ip("link set other up")?;
    let ended = stage.end(&mut stage.run_on(&host, None, &[], "lstopo-no-graphics"))?;
    expect(&ended.text, &[&format!("OpenFabrics \"ubi_{name}\"")])?;
    let line = format!("cat /sys/class/infiniband/ubi_{name}/device/vendor");
    let text = stage.end(&mut stage.run_on(&host, None, &[], &line))?.text;
    if text.starts_with("0x") && text != "0x7562\n" { Ok(()) } else { Err(text) }
}

fn cables(stage: &Stage) -> Result<(), String> {
    let Some([left, _]) = &stage.joined else { return Err("no cables".into()) };
    let ended = stage.end(&mut stage.run_on(left, None, &[], "ibv_devices"))?;
    expect(&ended.text, &["ubi_veth0", "ubi_veth1", "ubi_lo"])
}

/// It runs until it is ended, and its output would wait in a buffer.
fn asynchronous(stage: &Stage) -> Result<(), String> {
    let Some([left, right]) = &stage.joined else { return Err("no cables".into()) };
    let mut command = stage.run_on(left, None, &[], "stdbuf -oL ibv_asyncwatch -d ubi_veth1");
    let running = stage.start("asyncwatch", &mut command)?;
    let see = |what: &str| {
        host::wait(what, || running.text().contains(what)).map_err(|e| format!("{e}:\n{}", running.text()))
    };
    see("async event FD")?;
    right.ip("link set veth1 down")?;
    let seen = see("IBV_EVENT_PORT_ERR");
    right.ip("link set veth1 up")?;
    // The kernel takes IPv6 addresses from an interface that goes down.
    right.ip("addr replace fd78::2/64 dev veth1 nodad")?;
    seen?;
    see("IBV_EVENT_PORT_ACTIVE")?;
    let address = "10.78.0.77/24 dev veth1";
    left.ip(&format!("addr add {address}"))?;
    let seen = see("IBV_EVENT_GID_CHANGE");
    left.ip(&format!("addr del {address}"))?;
    seen?;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(running.id() as i32).ok_or("no process")?,
        rustix::process::Signal::TERM,
    )
    .map_err(|e| e.to_string())?;
    let ended = running.end()?;
    use std::os::unix::process::ExitStatusExt;
    match ended.status.signal() {
        Some(15) => Ok(()),
        _ => Err(format!("ended with {}", ended.status)),
    }
}
