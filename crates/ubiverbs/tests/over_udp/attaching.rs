//! A NIC that is told to use UDP for everything, in a process of its own.
#![allow(missing_docs)]

use std::time::{Duration, Instant};
use ubiverbs::backend::{software, software_over_udp};
use ubiverbs::{Error, Reliable};

#[test]
fn the_nic_is_attached_once_and_everything_uses_it() -> Result<(), Error> {
    let first = software_over_udp()?;
    assert!(std::sync::Arc::ptr_eq(&first, &software_over_udp()?));
    assert!(std::sync::Arc::ptr_eq(&first, &software()?));
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    let receiving = b.recv(pd.allocate(64)?)?;
    a.send_inline(b"the long way round")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"the long way round");
    Ok(())
}

#[test]
fn what_a_poll_finds_and_nobody_asks_for_stays_in_the_queue() -> Result<(), Error> {
    software_over_udp()?;
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;
    let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    for round in 0..200u64 {
        b.recv(pd.allocate(8)?)?.polled(2 * round);
        a.send_inline(&round.to_le_bytes())?.polled(2 * round + 1);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut told = Vec::new();
        while told.len() < 2 {
            assert!(Instant::now() < deadline, "round {round}: {told:?}");
            // Looks, and takes nothing of what it finds.
            drop(cq.poll()?);
            for completion in cq.poll()?.take(1) {
                told.push(completion.wr_id());
                if completion.wr_id() == 2 * round {
                    assert_eq!(completion.into_received()?.payload(), round.to_le_bytes());
                }
            }
        }
        told.sort_unstable();
        assert_eq!(told, [2 * round, 2 * round + 1]);
    }
    assert_eq!(cq.poll()?.count(), 0);
    Ok(())
}
