//! A network that fails on purpose while the program runs: packets that arrive meet faults, and what is sent may disappear
//! in black holes. Beside what `UBIVERBS_FAULTS` asks for, which strikes from the start.

use super::Nic;
use crate::ground::nic_links::BlackHole;
use link::faults::Rule;

/// How often to look whether what was late has been received.
const LATE_LOOKS: u32 = 1000;

impl Nic {
    /// Changes what goes wrong with packets that arrive, by whatever link: all of these rules that fit a packet act on
    /// it. Those of before are forgotten, and once there are none nothing is late any more.
    pub fn set_network_faults(&self, rules: &[Rule], seed: u64) {
        self.ground.links.add_faults(rules, seed);
        self.ground.open_memory();
        if rules.is_empty() {
            for _ in 0..LATE_LOOKS {
                self.receive_links();
                if self.ground.links.registry.end_faults() {
                    break;
                }
            }
            self.ground.open_memory();
        }
        // It may sleep longer than packets are late now.
        self.ground.progress.engine.ring();
    }

    /// Changes where what is sent disappears.
    pub fn set_black_holes(&self, holes: &[BlackHole]) {
        let holes = holes.iter().copied().chain(self.ground.host.without_loopback()).collect();
        *self.ground.links.black_holes.write() = holes;
        self.ground.links.ways_changed();
        self.each_qp(|qp| qp.follow_ways(&self.ground));
        self.after_call(self.now());
    }
}
