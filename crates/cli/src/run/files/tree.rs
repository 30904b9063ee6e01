//! The files themselves, laid out as the kernel does. Entries of `/sys/class` are links into `/sys/devices`: under the
//! PCI device of the interface where it has one, so that topologies show the device where its packets leave the host,
//! beside the GPUs if it has none (`gpu.rs`), and else under `virtual`, as those of Soft-RoCE are.

use super::gpu;
use hca::{Device, environment};
use inventory::names;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use transport::Counters;

/// Writes the files of these devices into a directory that stands for `/`.
pub fn write(root: &Path, devices: &[Arc<Device>]) -> io::Result<()> {
    for class in ["sys/class/infiniband", "sys/class/infiniband_verbs", "dev/infiniband"] {
        fs::create_dir_all(root.join(class))?;
    }
    file(&root.join("sys/class/infiniband_verbs/abi_version"), "6")?;
    let gpus = gpu::find(Path::new(gpu::PCI_DEVICES));
    let nics = environment::nics();
    let switches = (nics.is_some() || !gpus.is_empty()).then(|| gpu::Switches::of(nics));
    gpu::write_buses(root)?;
    if let Some(switches) = &switches {
        gpu::write(root, switches, &gpus)?;
    }
    for (position, device) in devices.iter().enumerate() {
        // A NIC keeps its place if the program does not see all of them.
        let switches = switches.as_ref().map(|switches| (switches, device.nic_position().unwrap_or(position)));
        write_device(root, device, &format!("uverbs{position}"), switches)?;
    }
    Ok(())
}

fn write_device(
    root: &Path,
    device: &Arc<Device>,
    verbs: &str,
    behind: Option<(&gpu::Switches, usize)>,
) -> io::Result<()> {
    let (name, interface) = (device.name(), device.interface_name());
    // The parent's path under `/sys/devices`.
    let pci = pci_device(interface, device.interface_index());
    let switched = behind.map(|(switches, position)| switches.place(position));
    let parent = pci.as_deref().or(switched.as_deref()).unwrap_or(Path::new("virtual"));
    let devices = root.join("sys/devices").join(parent);
    let (place, verbs_place) = (devices.join("infiniband").join(name), devices.join("infiniband_verbs").join(verbs));
    for (class, name, place) in [("infiniband", name, &place), ("infiniband_verbs", verbs, &verbs_place)] {
        fs::create_dir_all(place)?;
        let link = Path::new("../../devices").join(parent).join(class).join(name);
        symlink(link, root.join("sys/class").join(class).join(name))?;
    }
    // A device that can be opened, and says nothing; its number is that of `/dev/null`.
    symlink("/dev/null", root.join("dev/infiniband").join(verbs))?;
    for (path, text) in [("ibdev", name), ("abi_version", "1"), ("dev", "1:3")] {
        file(&verbs_place.join(path), text)?;
    }
    match (&pci, &switched) {
        (Some(of_pci), _) | (None, Some(of_pci)) => {
            match (&pci, behind) {
                (Some(pci), _) => mirror(&Path::new("/sys/devices").join(pci), &devices)?,
                (None, Some((switches, position))) => switches.write_device(root, position)?,
                (None, None) => {}
            }
            let link = Path::new("../..").join("..").join(of_pci.file_name().unwrap_or_default());
            symlink(&link, place.join("device"))?;
            symlink(&link, verbs_place.join("device"))?;
            net(&devices, interface)?;
        }
        (None, None) => {
            virtual_device(&place.join("device"))?;
            symlink(Path::new("../../infiniband").join(name).join("device"), verbs_place.join("device"))?;
            net(&place.join("device"), interface)?;
        }
    }
    let guid = crate::devices::guid(device);
    let of_device = [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", "ubiverbs"),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hca_type", "ubiverbs"),
        ("hw_rev", "0x1"),
        ("board_id", "ubiverbs"),
        ("uevent", &format!("NAME={name}")),
    ];
    for (path, text) in of_device {
        file(&place.join(path), text)?;
    }
    for port in device.ports() {
        write_port(&place.join(format!("ports/{}", port.port_number())), port, interface)?;
    }
    Ok(())
}

/// A port. What `ibv_query_port` says of it, in the kernel's words.
fn write_port(place: &Path, device: &Device, interface: &str) -> io::Result<()> {
    let port = device.port();
    for (path, text) in hca::port_files(&port) {
        file(&place.join(path), &text)?;
    }
    let of_port = [
        ("link_layer", "Ethernet"),
        // It has connection management, and GIDs that are IP addresses.
        ("cap_mask", "0x04010000"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("has_smi", "0"),
    ];
    for (path, text) in of_port {
        file(&place.join(path), text)?;
    }
    for (index, _) in port.gids.iter().enumerate().filter(|(_, gid)| gid.is_some()) {
        file(&place.join(format!("gid_attrs/types/{index}")), "RoCE v2")?;
        file(&place.join(format!("gid_attrs/ndevs/{index}")), interface)?;
    }
    write_counters(place, &Counters::default())
}

/// What ports count, for InfiniBand and for RoCE. A file that is there is replaced as a whole.
fn write_counters(place: &Path, counters: &Counters) -> io::Result<()> {
    for (directory, values) in [("counters", names::port(counters)), ("hw_counters", names::hardware(counters))] {
        let fresh = place.join(directory).join(".fresh");
        for (name, value) in values {
            file(&fresh, &value.to_string())?;
            fs::rename(&fresh, place.join(directory).join(name))?;
        }
    }
    Ok(())
}

/// Brings the counters of a port of a device up to date.
pub fn refresh(root: &Path, device: &str, port: u32, counters: &Counters) -> io::Result<()> {
    write_counters(&root.join("sys/class/infiniband").join(device).join(format!("ports/{port}")), counters)
}

/// The PCI device that an interface belongs to, by its path under `/sys/devices`. A network namespace may be shown the
/// files of another, with an interface of the same name: that has another number.
fn pci_device(interface: &str, index: u32) -> Option<PathBuf> {
    let of_class = Path::new("/sys/class/net").join(interface);
    let number = fs::read_to_string(of_class.join("ifindex")).ok()?;
    if number.trim().parse() != Ok(index) {
        return None;
    }
    // A virtual function of virtio is behind its own device, which is behind that of PCI.
    let device = of_class.join("device").canonicalize().ok()?;
    let is_pci = |path: &&Path| {
        fs::read_link(path.join("subsystem")).is_ok_and(|link| link.file_name().is_some_and(|name| name == "pci"))
    };
    let found = device.ancestors().find(is_pci)?;
    found.strip_prefix("/sys/devices").ok().map(Path::to_owned)
}

/// Everything that a directory of the kernel has, but for what is ours.
pub fn mirror(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)?.flatten() {
        let name = entry.file_name();
        let ours = ["infiniband", "infiniband_verbs", "infiniband_mad", "net"].iter().any(|ours| name == **ours);
        // Two interfaces may be of one device.
        if !ours && !to.join(&name).is_symlink() {
            symlink(from.join(&name), to.join(&name))?;
        }
    }
    Ok(())
}

fn net(device: &Path, interface: &str) -> io::Result<()> {
    fs::create_dir_all(device.join("net"))?;
    symlink(Path::new("/sys/class/net").join(interface), device.join("net").join(interface))
}

/// What programs ask of a PCI device, for one that is near all processors.
fn virtual_device(place: &Path) -> io::Result<()> {
    let (online, mask) = processors(None);
    for (path, text) in [
        ("numa_node", "-1"),
        ("local_cpulist", &*online),
        ("local_cpus", &mask),
        ("vendor", "0x7562"),
        ("device", "0x0001"),
        ("subsystem_vendor", "0x7562"),
        ("subsystem_device", "0x0001"),
        ("class", "0x020000"),
        ("uevent", "DRIVER=ubiverbs"),
    ] {
        file(&place.join(path), text)?;
    }
    Ok(())
}

/// The processors of a node of memory, or all, as a list and as a mask.
pub fn processors(numa_node: Option<usize>) -> (String, String) {
    let read = |path: &str| fs::read_to_string(path).ok();
    let near = numa_node.and_then(|node| read(&format!("/sys/devices/system/node/node{node}/cpulist")));
    let online = near.or_else(|| read("/sys/devices/system/cpu/online")).unwrap_or_default();
    let online = if online.trim().is_empty() { "0" } else { online.trim() };
    (online.to_owned(), mask(online))
}

/// A list of processors (`0-3,8`) as the kernel's mask: words of 32 bits in hexadecimal, the last for the first
/// processors.
fn mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else { continue };
        for processor in first..=last.min(1 << 16) {
            words.resize(words.len().max(processor / 32 + 1), 0);
            words[processor / 32] |= 1 << (processor % 32);
        }
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    words.join(",")
}

/// A file with one line, and the directories that it is in.
pub fn file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(path, format!("{text}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_the_kernels() {
        assert_eq!(mask("0"), "00000001");
        assert_eq!(mask("0-3,8"), "0000010f");
        assert_eq!(mask("0-1,32-33"), "00000003,00000003");
        assert_eq!(mask("nonsense"), "00000000");
    }

    #[test]
    fn no_interface_has_no_pci_device() {
        assert_eq!(pci_device("no-such-interface", 1), None);
        assert_eq!(pci_device("lo", 1), None);
    }
}
