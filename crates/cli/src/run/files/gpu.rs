//! Where devices lie beside GPUs. A program that wants to know whether a network device can reach a GPU's memory by
//! itself looks how near they are in the tree of PCI devices. Ours reaches every GPU of the process by its driver, so
//! the GPUs are shown behind one switch together with the devices that have no place of their own; or, as in a server
//! that has as many of both, behind a switch for each device. Switches are of a domain that no machine has; everything
//! else about a GPU is what the kernel says.

use super::tree::{file, mirror, processors};
use hca::environment;
use hca::interfaces::Nics;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Where the kernel lists what is on PCI.
pub const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// The domain of what is ours.
const PCI_DOMAIN: &str = "7562";

/// How many buses a switch of several has: its root's, the one between its two ports, and those behind.
const BUSES_OF_SWITCH: usize = 16;

/// The switches.
pub struct Switches {
    count: usize,
}

/// One of them: the directories of its root and its ports, each a bridge, under `/sys/devices`. Programs take two steps
/// from a device to the switch it is at.
struct Switch {
    root: PathBuf,
    upper: PathBuf,
    lower: PathBuf,
    buses: [String; 2],
    numa_node: Option<usize>,
}

/// A bus of ours.
fn bus(number: usize) -> String {
    format!("{PCI_DOMAIN}:{number:02x}")
}

impl Switches {
    /// One, or one for each of the NICs that were asked for.
    pub fn of(nics: Option<Nics>) -> Switches {
        Switches { count: nics.filter(|nics| nics.own_switches).map_or(1, |nics| nics.count.into()) }
    }

    fn switch(&self, number: usize) -> Switch {
        let first = number * BUSES_OF_SWITCH;
        let buses = [bus(first), bus(first + 1)];
        let root = PathBuf::from(format!("pci{}", buses[0]));
        let upper = root.join(format!("{}:00.0", buses[0]));
        let lower = upper.join(format!("{}:00.0", buses[1]));
        // The first half of a server's switches are near its first processor, and so on.
        let numa_node = (self.count > 1).then(|| number * numa_nodes() / self.count);
        Switch { root, upper, lower, buses, numa_node }
    }

    /// The place of a device, by its position. Each has a bus of its own: NCCL takes devices of one bus for functions
    /// of one device.
    pub fn place(&self, position: usize) -> PathBuf {
        let (switch, behind) = if self.count > 1 { (position % self.count, 0) } else { (0, position % 128) };
        self.switch(switch).lower.join(format!("{}:00.0", bus(switch * BUSES_OF_SWITCH + 2 + behind)))
    }

    /// Shows a device at its place: what programs ask of one on PCI.
    pub fn write_device(&self, root: &Path, position: usize) -> io::Result<()> {
        let place = self.place(position);
        let bus = place.file_name().and_then(|name| name.to_str()?.get(..7)).unwrap_or_default();
        show_bus(root, &place.with_file_name("pci_bus").join(bus))?;
        let numa_node = self.switch(position % self.count).numa_node;
        pci_device(&root.join("sys/devices").join(&place), "0x020000", numa_node)
    }
}

/// How many nodes of memory the machine has.
fn numa_nodes() -> usize {
    let nodes = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let is_node = |name: &str| name.strip_prefix("node").is_some_and(|rest| rest.parse::<u32>().is_ok());
    nodes.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count().max(1)
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

/// Shows buses where they are, under `root`, which stands for `/`.
pub fn write_buses(root: &Path) -> io::Result<()> {
    let buses = root.join("sys/class/pci_bus");
    fs::create_dir_all(&buses)?;
    // Buses without GPUs are where they were.
    for bus in fs::read_dir("/sys/class/pci_bus").into_iter().flatten().flatten() {
        symlink(bus.path(), buses.join(bus.file_name()))?;
    }
    Ok(())
}

/// Shows the switches, and GPUs behind them. GPUs of one bus stay together.
pub fn write(root: &Path, switches: &Switches, gpus: &[PathBuf]) -> io::Result<()> {
    let devices = root.join("sys/devices");
    for number in 0..switches.count {
        let Switch { root: pci_root, upper, lower, buses, numa_node } = switches.switch(number);
        pci_device(&devices.join(&upper), "0x060400", numa_node)?;
        pci_device(&devices.join(lower), "0x060400", numa_node)?;
        for (path, text) in link_facts() {
            file(&devices.join(&pci_root).join(path), text)?;
        }
        show_bus(root, &pci_root.join("pci_bus").join(&buses[0]))?;
        show_bus(root, &upper.join("pci_bus").join(&buses[1]))?;
    }
    let bus_of = |gpu: &PathBuf| gpu.file_name().and_then(|name| name.to_str()?.get(..7)).map(str::to_owned);
    let buses: BTreeSet<String> = gpus.iter().filter_map(bus_of).collect();
    for gpu in gpus {
        let (Some(name), Some(bus)) = (gpu.file_name(), bus_of(gpu)) else { continue };
        let before = buses.range(..bus.clone()).count();
        let port = switches.switch(before * switches.count / buses.len().max(1)).lower;
        let behind = devices.join(&port);
        let place = behind.join(name);
        fs::create_dir_all(&place)?;
        mirror(gpu, &place)?;
        // Programs find a device by its bus and two steps up. Its neighbours that are no GPUs are where they were.
        show_bus(root, &port.join("pci_bus").join(&bus))?;
        for neighbour in fs::read_dir(PCI_DEVICES).into_iter().flatten().flatten() {
            let same_bus = neighbour.file_name().to_str().is_some_and(|name| name.starts_with(&bus));
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

/// What programs ask of a PCI device of ours: near one node of memory, or near all processors.
fn pci_device(place: &Path, class: &str, numa_node: Option<usize>) -> io::Result<()> {
    let (list, mask) = processors(numa_node);
    let numa_node = numa_node.map_or("-1".into(), |node| node.to_string());
    let facts = [
        ("class", class),
        ("vendor", "0x7562"),
        ("device", "0x0001"),
        ("subsystem_vendor", "0x7562"),
        ("subsystem_device", "0x0001"),
        ("numa_node", &*numa_node),
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
        let switches = Switches::of(None);
        write_buses(&root).unwrap();
        write(&root, &switches, &gpus).unwrap();
        for position in 0..2 {
            switches.write_device(&root, position).unwrap();
        }
        let root = root.canonicalize().unwrap();
        // As NCCL looks for the path of a device.
        let path = |bus: &str, device: &str| {
            let path = root.join("sys/class/pci_bus").join(bus).join("../..").join(device).canonicalize().unwrap();
            path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(path("0000:00", "0000:00:06.0"), "sys/devices/pci7562:00/7562:00:00.0/7562:01:00.0/0000:00:06.0");
        let lower = "sys/devices/pci7562:00/7562:00:00.0/7562:01:00.0";
        assert_eq!(path("7562:02", "7562:02:00.0"), format!("{lower}/7562:02:00.0"));
        assert_eq!(path("7562:03", "7562:03:00.0"), format!("{lower}/7562:03:00.0"));
        assert_eq!(path("7562:01", "7562:01:00.0"), lower);
        assert_eq!(path("7562:00", "7562:00:00.0"), "sys/devices/pci7562:00/7562:00:00.0");
        let class = fs::read_to_string(root.join(path("0000:00", "0000:00:06.0")).join("class")).unwrap();
        assert_eq!(class.trim(), "0x030200");
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn each_nic_of_a_server_has_a_switch_of_its_own() {
        let switches = Switches::of("hgx".parse().ok());
        assert_eq!(switches.place(0), Path::new("pci7562:00/7562:00:00.0/7562:01:00.0/7562:02:00.0"));
        assert_eq!(switches.place(7), Path::new("pci7562:70/7562:70:00.0/7562:71:00.0/7562:72:00.0"));
        let nodes: Vec<_> = (0..8).filter_map(|number| switches.switch(number).numa_node).collect();
        assert!(nodes.len() == 8 && nodes.is_sorted() && nodes[0] == 0 && nodes[7] < numa_nodes(), "{nodes:?}");
        let together = Switches::of("8".parse().ok());
        assert_eq!(together.place(7), Path::new("pci7562:00/7562:00:00.0/7562:01:00.0/7562:09:00.0"));
    }
}
