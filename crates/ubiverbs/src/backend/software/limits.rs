//! What the NIC of this process allows.

use crate::backend::DeviceLimits;
use hca::{Nic, limits, multicast};

pub(super) fn of(nic: &Nic) -> DeviceLimits {
    let memory = nic.memory().limits();
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
        max_regions: memory.regions,
        max_region_length: memory.region_length,
        max_windows: memory.windows,
        device_memory: memory.device_memory,
        max_groups: multicast::max_groups(),
        max_group_members: multicast::MAX_MEMBERS,
        clock_hertz: 1_000_000_000,
    }
}
