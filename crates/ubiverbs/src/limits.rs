//! What the NICs of this crate allow: the one of the process, and simulated ones, which are to be like it.

use crate::seam::DeviceLimits;
use hca::{limits, multicast};

/// What our NICs allow, whose memory allows so many regions, so long, so many windows, and so much device memory.
pub(crate) fn limits_of(regions: u32, region_length: u64, windows: u32, device_memory: u64) -> DeviceLimits {
    let transport = transport::Limits::default();
    DeviceLimits {
        max_queue_pairs: limits::MAX_QP,
        max_work_requests: limits::MAX_WR,
        max_pieces: limits::MAX_SGE,
        max_inline: limits::MAX_INLINE,
        max_message: transport::MAX_MESSAGE,
        max_reads: transport.max_rd_atomic,
        max_reads_of_peer: transport.max_dest_rd_atomic,
        max_completions: hca::MAX_ENTRIES,
        max_shared_receive_queues: limits::MAX_SRQ,
        max_regions: regions,
        max_region_length: region_length,
        max_windows: windows,
        device_memory,
        max_groups: multicast::max_groups(),
        max_group_members: multicast::MAX_MEMBERS,
        clock_hertz: 1_000_000_000,
    }
}
