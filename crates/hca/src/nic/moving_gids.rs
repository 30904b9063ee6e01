//! GID tables whose entries move, on cards where a program may keep no index. A thread of its own moves them: only NICs
//! that are like such a card have one.

use crate::environment;
use crate::nic::Nic;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long the thread sleeps at most: it ends with the NIC.
const MAX_NAP: Duration = Duration::from_millis(100);

impl Nic {
    /// Moves GID tables from time to time, if a card does so that the NIC is like.
    pub(crate) fn begin_moving_gids(self: &Arc<Nic>) -> io::Result<()> {
        let periods = environment::all_profiles().iter().filter_map(|profile| profile.addresses.moves);
        let Some(period) = periods.min().map(Duration::from_nanos) else { return Ok(()) };
        let weak = Arc::downgrade(self);
        ::host::thread::spawn_and_wait("ubiverbs-gids", move || {
            let mut left = period;
            loop {
                let nap = left.min(MAX_NAP);
                std::thread::sleep(nap);
                left -= nap;
                let Some(nic) = weak.upgrade() else { return };
                if left.is_zero() {
                    left = period;
                    nic.move_gids();
                }
            }
        })
    }

    fn move_gids(&self) {
        for device in self.port_devices() {
            let change = device.move_gids();
            self.tell_change(&device, change);
        }
    }
}
