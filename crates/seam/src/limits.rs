//! What a device allows.

/// What a device allows. Returned by `Context::limits`.
///
/// ```
/// let limits = ubiverbs::device("ubi_lo")?.open()?.limits();
/// assert!(limits.max_pieces >= 4 && limits.max_message >= 1 << 30);
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[doc(alias = "ibv_device_attr")]
#[doc(alias = "ibv_device_attr_ex")]
#[doc(alias = "ibv_query_device")]
#[doc(alias = "ibv_query_device_ex")]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_queue_pairs: u32,
    /// Work requests in a queue, of sends, receives or a shared receive queue.
    pub max_work_requests: u32,
    /// Pieces of one work request.
    pub max_pieces: u32,
    /// Bytes of an inline SEND or WRITE.
    pub max_inline: u32,
    /// Bytes of a message.
    pub max_message: u64,
    /// READs and atomic operations that a queue pair may have outstanding.
    pub max_reads: u8,
    /// READs and atomic operations that its peer may have outstanding.
    pub max_reads_of_peer: u8,
    /// Completions in a queue.
    pub max_completions: u32,
    /// Shared receive queues.
    pub max_shared_receive_queues: u32,
    /// Registrations at a time.
    pub max_regions: u32,
    /// Bytes of a registration.
    pub max_region_length: u64,
    /// Memory windows at a time.
    pub max_windows: u32,
    /// Bytes of the device's own memory, in use or not.
    pub device_memory: u64,
    /// Multicast groups that a process may be in, and queue pairs in each.
    pub max_groups: u32,
    /// Queue pairs in a multicast group.
    pub max_group_members: u32,
    /// Ticks per second of the clock that stamps completions.
    pub clock_hertz: u64,
}
