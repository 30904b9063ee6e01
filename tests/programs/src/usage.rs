//! What programs take of the machine while they run: memory and descriptors. A leak of ours shows here before it
//! shows anywhere else.

use std::fmt;
use std::fs;

/// The most that one process had.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Memory that was present at once: `VmHWM`.
    pub kilobytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
}

impl Usage {
    /// The most that a process had until now. One that has ended counts for nothing.
    pub fn of(process: u32) -> Usage {
        Usage::look(process, "VmHWM:")
    }

    /// What a process has now.
    pub fn present(process: u32) -> Usage {
        Usage::look(process, "VmRSS:")
    }

    fn look(process: u32, memory: &str) -> Usage {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(memory));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, |entries| entries.count() as u64);
        Usage { kilobytes, descriptors }
    }

    /// The larger of each.
    pub fn join(&mut self, other: Usage) {
        self.kilobytes = self.kilobytes.max(other.kilobytes);
        self.descriptors = self.descriptors.max(other.descriptors);
    }

    /// In whole megabytes.
    pub fn megabytes(&self) -> u64 {
        self.kilobytes.div_ceil(1024)
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MB, {} descriptors", self.megabytes(), self.descriptors)
    }
}

/// The most that a process may have.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub megabytes: u64,
    pub descriptors: u64,
}

impl Bounds {
    /// Fails if that is more.
    pub fn allow(self, usage: Usage) -> Result<(), String> {
        match usage.megabytes() > self.megabytes || usage.descriptors > self.descriptors {
            true => Err(format!("{usage}: more than {} MB, {} descriptors", self.megabytes, self.descriptors)),
            false => Ok(()),
        }
    }
}
