//! A process that receives datagrams, and counts them when the test says so.

use std::io::BufRead;
use std::time::{Duration, Instant};
use ubiverbs::{AddressHandle, CompletionQueue, Datagram, GRH_LENGTH, ProtectionDomain, QueuePair};

/// Eight times what a link holds.
pub const DATAGRAMS: u32 = 2000;
/// The length of each.
pub const LENGTH: usize = 2048;
/// The length of one that comes after all others.
pub const LAST: usize = 7;

/// A queue pair of this process.
#[derive(Debug)]
pub struct Here {
    /// Its protection domain.
    pub pd: ProtectionDomain,
    /// Where its work completes.
    pub cq: CompletionQueue,
    /// The queue pair.
    pub qp: QueuePair<Datagram>,
}

impl Default for Here {
    fn default() -> Here {
        Here::new()
    }
}

impl Here {
    /// On the device of `lo`, with room for all datagrams.
    pub fn new() -> Here {
        let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.completion_queue(4 * DATAGRAMS).create().unwrap();
        let builder = pd.queue_pair::<Datagram>(&cq).max_sends(DATAGRAMS).max_receives(2 * DATAGRAMS);
        let qp = builder.prepare().unwrap().activate().unwrap();
        Here { pd, cq, qp }
    }

    /// Posts them all.
    pub fn post(&self, to: &AddressHandle) {
        let datagram = self.pd.allocate(LENGTH).unwrap().freeze();
        for _ in 0..DATAGRAMS {
            self.qp.send_to(datagram.clone(), to).unwrap().polled(1);
        }
    }

    /// Waits until so many sends have completed, all of them well.
    pub fn complete(&self, mut count: u32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while count > 0 {
            for completion in self.cq.poll().unwrap() {
                assert!(completion.is_ok(), "{completion:?}");
                count -= 1;
            }
            assert!(Instant::now() < deadline, "{count} sends have not completed");
        }
    }
}

/// A process that posts receives for all, and counts when it is told to. Until then its program does nothing.
pub fn peer(_: &str) {
    let here = Here::new();
    for receive in here.pd.allocate(2 * DATAGRAMS as usize * (GRH_LENGTH + LENGTH)).unwrap().chunks(GRH_LENGTH + LENGTH)
    {
        here.qp.recv(receive).unwrap().polled(1);
    }
    println!("at {}", here.qp.endpoint());
    let mut lines = std::io::stdin().lock().lines();
    lines.next();
    let (mut count, mut last) = (0u32, false);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !last && Instant::now() < deadline {
        for completion in here.cq.poll().unwrap() {
            let length = completion.into_received().unwrap().payload().len();
            last |= length == LAST;
            count += u32::from(length == LENGTH);
        }
    }
    println!("counted {count} {last}");
    lines.next();
}
