//! The checks, in the order in which they are told.

use super::Finding;
use crate::run;
use hca::Nic;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use std::ffi::OsStr;
use std::path::Path;

/// The oldest kernel that has what we use: `pidfd_open`.
const KERNEL: (u32, u32) = (5, 3);

/// Fewer descriptors than this are gone soon: a program of MPI has some for each peer.
const DESCRIPTORS: u64 = 1024;

/// Programs that look at the limit of locked memory want about this much, or no limit.
const LOCKED_MEMORY: u64 = 64 << 20;

pub fn all() -> Vec<Finding> {
    let mut findings = vec![kernel(std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim())];
    findings.extend(system_calls());
    findings.extend(network());
    let limit = |resource| getrlimit(resource).current;
    findings.push(descriptors(limit(Resource::Nofile)));
    findings.push(locked_memory(limit(Resource::Memlock)));
    findings.push(libraries());
    findings.push(preloaded(&std::env::var_os("LD_PRELOAD").unwrap_or_default()));
    findings.push(files());
    findings
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < KERNEL => {
            let (major, minor) = KERNEL;
            let what = format!("Linux {release} is too old; {major}.{minor} has what we use");
            Finding::failure("kernel", what, "use a newer kernel")
        }
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

/// Filters of containers and sandboxes may forbid some.
fn system_calls() -> Vec<Finding> {
    let memory = memfd_create(c"ubiverbs-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).err();
    let watch = pidfd_open(getpid(), PidfdFlags::empty()).err();
    let refused: Vec<Finding> = [
        ("memfd_create", memory, "processes of one host cannot share memory"),
        ("pidfd_open", watch, "a process cannot see the end of another"),
    ]
    .into_iter()
    .filter_map(|(call, error, so)| {
        let what = format!("{call} is refused ({}): {so}", error?);
        let fix = "allow it in the sandbox or the container (docker run --security-opt seccomp=unconfined)";
        Some(Finding::failure("system calls", what, fix))
    })
    .collect();
    if refused.is_empty() {
        vec![Finding::ok("system calls", "memfd_create and pidfd_open are allowed")]
    } else {
        refused
    }
}

/// Whether there are devices, the loopback among them, and whether packets of other hosts would arrive.
fn network() -> Vec<Finding> {
    const LO: &str = "ip link set lo up";
    let nic = match Nic::of_process() {
        Ok(nic) => nic,
        Err(error) => {
            let what = crate::exit::Failure::Nic(error).told();
            return vec![Finding::failure("network", what, format!("{LO}; then look again"))];
        }
    };
    let devices = nic.devices();
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    let mut findings = vec![if names.is_empty() {
        Finding::failure("devices", "none: no network interface is up and has an address", LO)
    } else if !names.contains(&"ubi_lo") {
        let what = format!("{}, but not ubi_lo: programs that use 127.0.0.1 would fail", names.join(", "));
        Finding::failure("devices", what, LO)
    } else {
        Finding::ok("devices", names.join(", "))
    }];
    let unreachable = nic.unreachable();
    findings.extend(unreachable.iter().map(|reason| {
        let what = format!("other hosts cannot reach programs here: {reason}");
        Finding::failure("UDP port", what, "find the program that holds it with: ss -lunp 'sport = :4791'")
    }));
    if unreachable.is_empty() {
        findings.push(Finding::ok("UDP port", "4791 can be used"));
    }
    findings
}

/// None is unlimited.
fn descriptors(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < DESCRIPTORS => {
            let what = format!("a process may have {limit} open files; many peers need more");
            Finding::warning("open files", what, format!("ulimit -n {DESCRIPTORS}"))
        }
        Some(limit) => Finding::ok("open files", format!("{limit} for a process")),
        None => Finding::ok("open files", "no limit"),
    }
}

fn locked_memory(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < LOCKED_MEMORY => {
            let what =
                format!("{} KiB: nothing is locked here, but some programs look at the limit and refuse", limit >> 10);
            Finding::warning("locked memory", what, "ulimit -l unlimited")
        }
        _ => Finding::ok("locked memory", "the limit is high enough for programs that look at it"),
    }
}

fn libraries() -> Finding {
    match run::library() {
        Ok(directory) => Finding::ok("libraries", format!("in {}", directory.display())),
        Err(failure) => {
            Finding::failure("libraries", failure.to_string(), "copy bin and lib together, or run: cargo xtask dist")
        }
    }
}

/// What the user preloads comes before ours.
fn preloaded(list: &OsStr) -> Finding {
    let list = list.to_string_lossy();
    let ours = |name: &str| run::linker::LIBRARIES.contains(&name);
    let other = list.split([' ', ':']).find(|entry| {
        let name = Path::new(entry).file_name().unwrap_or_default().to_string_lossy();
        // A copy with our name is left out by `ubiverbs run`.
        (name.starts_with("libibverbs") || name.starts_with("librdmacm")) && !ours(&name)
    });
    match other {
        Some(entry) => {
            let what = format!("LD_PRELOAD has {entry}, which programs would get instead of ours");
            Finding::failure("preloaded", what, "unset LD_PRELOAD")
        }
        None => Finding::ok("preloaded", "no other libibverbs"),
    }
}

/// Without them UCX and others find no device.
fn files() -> Finding {
    match run::files_can_be_written() {
        Ok(directory) => Finding::ok("files", format!("of devices can be written to {}", directory.display())),
        Err(reason) => {
            let what = format!("of devices cannot be shown, and UCX, MPI and NCCL look for them: {reason}");
            Finding::warning("files", what, "set TMPDIR to a directory that can be written to")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn old_kernels_fail() {
        for (release, level) in [
            ("5.2.21-generic", Level::Failure),
            ("4.18.0-553.el8", Level::Failure),
            ("5.3.0", Level::Ok),
            ("6.18.44-fc", Level::Ok),
            ("10.0", Level::Ok),
            ("", Level::Ok),
        ] {
            assert_eq!(kernel(release).level, level, "{release}");
        }
    }

    #[test]
    fn limits_are_warnings() {
        assert_eq!(descriptors(Some(1023)).level, Level::Warning);
        assert_eq!(descriptors(Some(1024)).level, Level::Ok);
        assert_eq!(descriptors(None).level, Level::Ok);
        assert_eq!(locked_memory(Some(8 << 20)).level, Level::Warning);
        assert_eq!(locked_memory(Some(64 << 20)).level, Level::Ok);
        assert_eq!(locked_memory(None).level, Level::Ok);
    }

    #[test]
    fn a_preloaded_copy_of_another_name_fails() {
        for (list, level) in [
            ("", Level::Ok),
            ("libasan.so.8:/x/libjemalloc.so", Level::Ok),
            ("/x/libibverbs.so.1", Level::Ok),
            ("/x/libibverbs-ab12cd34.so.1.14.44", Level::Failure),
            ("a.so /x/librdmacm.so.1.3.44.0", Level::Failure),
        ] {
            assert_eq!(preloaded(OsStr::new(list)).level, level, "{list}");
        }
    }
}
