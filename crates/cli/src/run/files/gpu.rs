//! Where devices lie beside GPUs. A program that wants to know whether a network device can reach a GPU's memory by
//! itself looks how near they are in the tree of PCI devices. Ours reaches every GPU of the process by its driver, so
//! the GPUs are shown behind one switch together with the devices that have no place of their own. The switch is of a
//! domain that no machine has; everything else about a GPU is what the kernel says.

use super::tree::{file, mirror, processors};
use hca::environment;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where the kernel lists what is on PCI.
pub const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// The root of the tree that is ours, under `/sys/devices`; the two ports of the switch, each a bridge; the bus behind.
const PCI_ROOT: &str = "pci7562:00";
const UPPER_PORT: &str = "7562:00:00.0";
const LOWER_PORT: &str = "7562:01:00.0";
const PCI_BUS: &str = "7562:02";

/// Where the switch's lower port is under `/sys/devices`. Programs take two steps from a device to the switch it is at.
fn port() -> PathBuf {
    Path::new(PCI_ROOT).join(UPPER_PORT).join(LOWER_PORT)
}

/// The place of a device beside the GPUs, by its position.
pub fn place(position: usize) -> PathBuf {
    port().join(format!("{PCI_BUS}:{:02x}.0", position % 32))
}

/// The GPUs: their directories under `/sys/devices`.
pub fn find(devices: &Path) -> Vec<PathBuf> {
    let says = |device: &Path, name: &str, begin: &str| {
        fs::read_to_string(device.join(name)).is_ok_and(|text| text.trim().starts_with(begin))
    };
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| entry.path().canonicalize().ok())
        .filter(|device| says(device, "class", "0x03") && says(device, "vendor", "0x10de"))
        .collect();
    found.sort();
    found
}

/// A variable that programs with a GPU get, unless it is set: NCCL's ranks wait for data with nothing under way that
/// could fail when the peer is killed, so they are told.
pub const PEER_GONE_SETTING: (&str, &str) = (environment::PEER_GONE, "fatal");

/// Whether there is one.
pub fn are_here() -> bool {
    !find(Path::new(PCI_DEVICES)).is_empty()
}

/// Shows GPUs behind the switch: under `root`, which stands for `/`.
pub fn write(root: &Path, gpus: &[PathBuf]) -> io::Result<()> {
    let (devices, buses) = (root.join("sys/devices"), root.join("sys/class/pci_bus"));
    let behind = devices.join(port());
    fs::create_dir_all(&buses)?;
    // Buses without GPUs are where they were.
    for bus in fs::read_dir("/sys/class/pci_bus").into_iter().flatten().flatten() {
        symlink(bus.path(), buses.join(bus.file_name()))?;
    }
    if gpus.is_empty() {
        return Ok(());
    }
    pci_device(&devices.join(PCI_ROOT).join(UPPER_PORT), "0x060400")?;
    pci_device(&behind, "0x060400")?;
    for (path, text) in link_facts() {
        file(&devices.join(PCI_ROOT).join(path), text)?;
    }
    show_bus(root, &Path::new(PCI_ROOT).join("pci_bus/7562:00"))?;
    show_bus(root, &Path::new(PCI_ROOT).join(UPPER_PORT).join("pci_bus/7562:01"))?;
    show_bus(root, &port().join("pci_bus").join(PCI_BUS))?;
    for gpu in gpus {
        let (Some(name), Some(bus)) = (gpu.file_name(), gpu.file_name().and_then(|name| name.to_str()?.get(..7)))
        else {
            continue;
        };
        let place = behind.join(name);
        fs::create_dir_all(&place)?;
        mirror(gpu, &place)?;
        // Programs find a device by its bus and two steps up. Its neighbours that are no GPUs are where they were.
        show_bus(root, &port().join("pci_bus").join(bus))?;
        for neighbour in fs::read_dir(PCI_DEVICES).into_iter().flatten().flatten() {
            let same_bus = neighbour.file_name().to_str().is_some_and(|name| name.starts_with(bus));
            let path = behind.join(neighbour.file_name());
            let is_gpu = gpus.iter().any(|gpu| gpu.file_name() == Some(&neighbour.file_name()));
            if same_bus && !is_gpu && !path.is_symlink() {
                symlink(neighbour.path(), path)?;
            }
        }
    }
    Ok(())
}

/// A bus, by the directory that stands for it under `/sys/devices`.
fn show_bus(root: &Path, place: &Path) -> io::Result<()> {
    let link = root.join("sys/class/pci_bus").join(place.file_name().unwrap_or_default());
    fs::create_dir_all(root.join("sys/devices").join(place))?;
    if link.is_symlink() {
        fs::remove_file(&link)?;
    }
    symlink(Path::new("../../devices").join(place), link)
}

/// What programs ask of a PCI device of ours.
pub fn pci_device(place: &Path, class: &str) -> io::Result<()> {
    let (list, mask) = processors();
    let facts = [
        ("class", class),
        ("vendor", "0x7562"),
        ("device", "0x0001"),
        ("subsystem_vendor", "0x7562"),
        ("subsystem_device", "0x0001"),
        ("numa_node", "-1"),
        ("local_cpulist", &list),
        ("local_cpus", &mask),
        ("uevent", "DRIVER=ubiverbs"),
    ];
    for (path, text) in facts.into_iter().chain(link_facts()) {
        file(&place.join(path), text)?;
    }
    if !place.join("subsystem").is_symlink() {
        symlink("/sys/bus/pci", place.join("subsystem"))?;
    }
    Ok(())
}

/// How fast the way to a device is, as far as anything is in the way.
fn link_facts() -> [(&'static str, &'static str); 4] {
    [
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("max_link_width", "16"),
        ("current_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_and_devices_are_behind_one_switch() {
        let directory = std::env::temp_dir().join(format!("ubiverbs-gpu-tree-{}", std::process::id()));
        let machine = directory.join("machine");
        for (device, class, vendor) in [
            ("0000:00:06.0", "0x030200", "0x10de"),
            ("0000:00:03.0", "0x020000", "0x1af4"),
            ("0000:00:07.0", "0x030000", "0x1234"),
        ] {
            file(&machine.join(device).join("class"), class).unwrap();
            file(&machine.join(device).join("vendor"), vendor).unwrap();
        }
        let gpus = find(&machine);
        assert_eq!(gpus, [machine.join("0000:00:06.0").canonicalize().unwrap()]);
        let root = directory.join("root");
        write(&root, &gpus).unwrap();
        pci_device(&root.join("sys/devices").join(place(0)), "0x020000").unwrap();
        let root = root.canonicalize().unwrap();
        // As NCCL looks for the path of a device.
        let path = |bus: &str, device: &str| {
            let path = root.join("sys/class/pci_bus").join(bus).join("../..").join(device).canonicalize().unwrap();
            path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(path("0000:00", "0000:00:06.0"), "sys/devices/pci7562:00/7562:00:00.0/7562:01:00.0/0000:00:06.0");
        let lower = "sys/devices/pci7562:00/7562:00:00.0/7562:01:00.0";
        assert_eq!(path("7562:02", "7562:02:00.0"), format!("{lower}/7562:02:00.0"));
        assert_eq!(path("7562:01", "7562:01:00.0"), lower);
        assert_eq!(path("7562:00", "7562:00:00.0"), "sys/devices/pci7562:00/7562:00:00.0");
        let class = fs::read_to_string(root.join(path("0000:00", "0000:00:06.0")).join("class")).unwrap();
        assert_eq!(class.trim(), "0x030200");
        fs::remove_dir_all(directory).unwrap();
    }
}
