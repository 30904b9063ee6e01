//! How many descriptors this process has.

/// Counts them. The one that counting takes is not among them.
pub fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, |folder| folder.count() - 1)
}
