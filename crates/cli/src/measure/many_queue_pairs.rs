//! Many queue pairs: the same WRITEs, one after the other over ever more of them. What a queue pair needs does not fit
//! a cache when there are thousands, so this shows how much of it each operation touches. All are connected the whole
//! time; a run uses the first so many, in turn.

use super::Run;
use super::patience::Patience;
use crate::control::Control;
use crate::exit::Failure;
use crate::station::Station;
use std::time::Instant;
use ubiverbs::{CompletionQueue, Endpoint, PreparedQueuePair, QueuePair, Reliable, RemoteSlice};

/// How many are used.
pub const QUEUE_PAIR_COUNTS: [u32; 4] = [10, 100, 1_000, 10_000];

/// How many bytes each WRITE carries.
pub const WRITE_BYTES: usize = 64;

/// WRITEs under way, all queue pairs taken together, however many there are.
const UNDER_WAY: u32 = 32;

/// How many endpoints fit into one message between the two sides.
pub const ENDPOINTS_PER_MESSAGE: usize = 250;

/// The queue pairs of one side.
pub struct ManyQueuePairs {
    cq: CompletionQueue,
    members: Vec<QueuePair<Reliable>>,
    /// Whose turn it is.
    next: usize,
    under_way: u32,
}

impl ManyQueuePairs {
    pub fn new(station: &Station) -> Result<ManyQueuePairs, Failure> {
        let cq = station.context.completion_queue(UNDER_WAY).create()?;
        Ok(ManyQueuePairs { cq, members: Vec::new(), next: 0, under_way: 0 })
    }

    /// So many queue pairs that have no peer yet.
    pub fn prepare(&self, station: &Station, count: usize) -> Result<Vec<PreparedQueuePair<Reliable>>, Failure> {
        let builder = station
            .queue_pair::<Reliable>(&self.cq)
            .max_sends(UNDER_WAY)
            .max_receives(1)
            .max_inline(WRITE_BYTES as u32);
        (0..count).map(|_| Ok(builder.prepare()?)).collect()
    }

    /// Connects them, each with one of the peer's.
    pub fn connect(&mut self, prepared: Vec<PreparedQueuePair<Reliable>>, peers: &[String]) -> Result<(), Failure> {
        if prepared.len() != peers.len() {
            return Err(Failure::Nonsense("not as many queue pairs as there should be".into()));
        }
        for (prepared, peer) in prepared.into_iter().zip(peers) {
            self.members.push(prepared.connect(&peer.parse::<Endpoint>()?)?);
        }
        Ok(())
    }

    /// The first side: the time of the whole run.
    pub fn first(
        &mut self,
        run: Run,
        among: u32,
        there: RemoteSlice,
        control: &Control,
        sample: &mut dyn FnMut(u64),
    ) -> Result<(), Failure> {
        let mut idle = Patience::new(control.gone());
        let used = self.members.len().min(among as usize);
        let there = there.slice(0..WRITE_BYTES as u64)?;
        let begun = Instant::now();
        for _ in 0..run.count {
            self.drain(UNDER_WAY - 1, &mut idle)?;
            self.next = if self.next + 1 < used { self.next + 1 } else { 0 };
            self.members[self.next].write_inline(&[1; WRITE_BYTES], there)?.polled(0);
            self.under_way += 1;
        }
        self.drain(0, &mut idle)?;
        sample(begun.elapsed().as_nanos() as u64);
        Ok(())
    }

    fn drain(&mut self, most: u32, idle: &mut Patience<'_>) -> Result<(), Failure> {
        while self.under_way > most {
            let before = self.under_way;
            for completion in self.cq.poll()? {
                completion.result().map_err(ubiverbs::Error::from)?;
                self.under_way -= 1;
            }
            if self.under_way < before { idle.renew() } else { idle.wear()? }
        }
        Ok(())
    }
}

/// What the peer must know of them.
pub fn endpoints(prepared: &[PreparedQueuePair<Reliable>]) -> Vec<String> {
    prepared.iter().map(|prepared| prepared.endpoint().to_string()).collect()
}
