//! The checks, in the order in which they are told, and those of limits: the kernel's, the user's, the container's.

use super::{Finding, libraries, network, system_calls};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io;
use std::path::Path;

/// The oldest kernel that has what we use: `pidfd_open`.
const OLDEST_KERNEL: (u32, u32) = (5, 3);

/// Fewer descriptors than this are gone soon: a program of MPI has some for each peer.
const FEW_DESCRIPTORS: u64 = 1024;

/// Programs that look at the limit of locked memory want about this much, or no limit.
const LOCKED_MEMORY: u64 = 64 << 20;

/// What two processes share takes about a mebibyte, as a file.
const SHARED_FILE: u64 = 1 << 20;

/// A container with less than this has room for few peers.
const CONTAINER_MEMORY: u64 = 64 << 20;

pub fn all() -> Vec<Finding> {
    let mut findings = vec![kernel(fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim())];
    findings.extend(system_calls::check());
    match proc() {
        Some(finding) => findings.push(finding),
        None => {
            findings.push(direct(hca::check_direct_support()));
            findings.extend(network::check());
        }
    }
    let limit = |resource| getrlimit(resource).current;
    findings.push(descriptors(limit(Resource::Nofile)));
    findings.push(file_size(limit(Resource::Fsize)));
    findings.push(locked_memory(limit(Resource::Memlock)));
    findings.extend(container_memory(smallest_limit()));
    findings.extend(libraries::check());
    findings
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST_KERNEL => {
            let (major, minor) = OLDEST_KERNEL;
            let what = format!("Linux {release} is too old; {major}.{minor} has what we use");
            Finding::failure("kernel", what, "use a newer kernel")
        }
        _ => Finding::ok("kernel", format!("Linux {release}")),
    }
}

/// Whether processes of one user may reach each other's memory.
fn direct(supported: io::Result<()>) -> Finding {
    match supported {
        Ok(()) => Finding::ok("direct access", "short WRITEs and READs need no other process of the user on this host"),
        Err(error) => {
            let what =
                format!("/proc/self/mem cannot be used ({error}): all WRITEs and READs wait for the other process");
            Finding::warning("direct access", what, "allow /proc and memfd_create in the sandbox or the container")
        }
    }
}

/// Processes find one another in it.
fn proc() -> Option<Finding> {
    let what = fs::read("/proc/thread-self/net/unix").err()?;
    let what = format!("cannot be read, and processes find one another there: /proc/thread-self/net/unix: {what}");
    Some(Finding::failure("/proc", what, "mount -t proc proc /proc"))
}

/// None is unlimited, here and below.
fn descriptors(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < FEW_DESCRIPTORS => {
            let what = format!("a process may have {limit} open files; many peers need more");
            Finding::warning("open files", what, format!("ulimit -n {FEW_DESCRIPTORS}"))
        }
        Some(limit) => Finding::ok("open files", format!("{limit} for a process")),
        None => Finding::ok("open files", "no limit"),
    }
}

fn file_size(limit: Option<u64>) -> Finding {
    match limit {
        Some(limit) if limit < SHARED_FILE => {
            let what = format!(
                "files may have {} KiB, shared memory as well: processes of one host use UDP, which is slower",
                limit >> 10
            );
            Finding::warning("file size", what, "ulimit -f unlimited")
        }
        _ => Finding::ok("file size", "the limit leaves room for shared memory"),
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

fn container_memory((limit, file): (u64, String)) -> Option<Finding> {
    if limit >= CONTAINER_MEMORY {
        return None;
    }
    let what = format!(
        "{} KiB for all processes of the control group: each peer takes about 1 MiB, and a process that finds none \
         left is killed",
        limit >> 10
    );
    Some(Finding::warning("memory", what, format!("echo {CONTAINER_MEMORY} > {file}")))
}

/// The smallest of the limits of our control group and those around it, of both versions, and the file that says so.
fn smallest_limit() -> (u64, String) {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let versions =
        [("0::/", "/sys/fs/cgroup", "memory.max"), (":memory:/", "/sys/fs/cgroup/memory", "memory.limit_in_bytes")];
    let mut smallest = (u64::MAX, String::new());
    for (mark, root, file) in versions {
        let ours = groups.lines().find_map(|line| line.split_once(mark)).map_or("", |(_, group)| group);
        let group = Path::new(root).join(ours);
        for group in group.ancestors().take_while(|group| group.starts_with(root)) {
            let file = group.join(file);
            if let Some(limit) = fs::read_to_string(&file).ok().and_then(|limit| limit.trim().parse().ok())
                && limit < smallest.0
            {
                smallest = (limit, file.display().to_string());
            }
        }
    }
    smallest
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
    fn without_direct_access_programs_are_slower() {
        assert_eq!(direct(Ok(())).level, Level::Ok);
        assert_eq!(direct(Err(io::ErrorKind::PermissionDenied.into())).level, Level::Warning);
    }

    #[test]
    fn limits_are_warnings() {
        assert_eq!(descriptors(Some(1023)).level, Level::Warning);
        assert_eq!(descriptors(Some(1024)).level, Level::Ok);
        assert_eq!(descriptors(None).level, Level::Ok);
        assert_eq!(file_size(Some(64 << 10)).level, Level::Warning);
        assert_eq!(file_size(None).level, Level::Ok);
        assert_eq!(locked_memory(Some(8 << 20)).level, Level::Warning);
        assert_eq!(locked_memory(Some(64 << 20)).level, Level::Ok);
        assert_eq!(locked_memory(None).level, Level::Ok);
        assert!(container_memory((16 << 20, String::new())).is_some_and(|finding| finding.level == Level::Warning));
        assert_eq!(container_memory((64 << 20, String::new())), None);
    }
}
