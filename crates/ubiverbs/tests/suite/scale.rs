//! Many objects: ten thousand queue pairs in a process work, and what a device does not offer is refused with a reason,
//! after which everything else still works.

use std::time::Instant;
use ubiverbs::{Access, CompletionQueue, Context, Error, ProtectionDomain, QueuePair, Reliable};

const PAIRS: usize = 5_000;

fn open() -> Result<(Context, ProtectionDomain), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    Ok((context, pd))
}

fn connect(pd: &ProtectionDomain, cq: &CompletionQueue) -> Result<[QueuePair<Reliable>; 2], Error> {
    let builder = pd.queue_pair::<Reliable>(cq).max_sends(2).max_receives(1).max_inline(16);
    let (a, b) = (builder.prepare()?, builder.prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    Ok([a.connect(&at_b)?, b.connect(&at_a)?])
}

#[test]
fn ten_thousand_queue_pairs_work() -> Result<(), Error> {
    let (context, pd) = open()?;
    let cq = context.completion_queue(16).create()?;
    let memory = pd.share(8 * PAIRS, Access::REMOTE_WRITE)?;
    let began = Instant::now();
    let pairs = (0..PAIRS).map(|_| connect(&pd, &cq)).collect::<Result<Vec<_>, Error>>()?;
    let mut numbers: Vec<_> = pairs.iter().flatten().map(|qp| qp.qpn()).collect();
    numbers.sort();
    numbers.dedup();
    assert_eq!(numbers.len(), 2 * PAIRS, "every number is given once");
    println!("{} queue pairs made and connected in {:?}", 2 * PAIRS, began.elapsed());

    let slots = memory.remote_slice();
    for (index, [a, b]) in pairs.iter().enumerate() {
        let receive = b.recv(pd.allocate(8)?)?;
        let at = 8 * index as u64;
        a.write_inline(&(at + 1).to_le_bytes(), slots.slice(at..at + 8)?)?.wait()?;
        a.send_inline(&at.to_le_bytes())?.wait()?;
        assert_eq!(receive.wait()?.payload(), at.to_le_bytes());
    }
    for index in 0..PAIRS {
        assert_eq!(memory.load(8 * index)?, 8 * index as u64 + 1);
    }
    drop(pairs);

    // Their numbers can be had again.
    let again = (0..PAIRS / 10).map(|_| connect(&pd, &cq)).collect::<Result<Vec<_>, Error>>()?;
    let receive = again[0][1].recv(pd.allocate(2)?)?;
    again[0][0].send_inline(b"ok")?.wait()?;
    assert_eq!(receive.wait()?.payload(), b"ok");
    Ok(())
}

#[test]
fn what_a_device_does_not_offer_is_refused() -> Result<(), Error> {
    let (context, pd) = open()?;
    let cq = context.completion_queue(16).create()?;
    let refused = |result: Result<(), Error>, what: &str| {
        let error = result.expect_err(what).to_string();
        assert!(error.contains(what), "{error:?} does not say {what:?}");
    };
    let builder = || pd.queue_pair::<Reliable>(&cq);
    refused(builder().max_sends(1 << 20).prepare().map(drop), "max_send_wr 1048576 is more than the device's 32768");
    refused(builder().max_receives(u32::MAX).prepare().map(drop), "max_recv_wr");
    refused(builder().max_pieces(1000).prepare().map(drop), "max_send_sge");
    refused(builder().max_inline(1 << 30).prepare().map(drop), "max_inline_data");
    refused(context.completion_queue(0).create().map(drop), "completion_queue(0) makes no sense");
    refused(context.completion_queue(u32::MAX).create().map(drop), "the device offers 1 to");
    refused(pd.shared_receive_queue(u32::MAX).map(drop), "max_wr");
    refused(cq.resize(u32::MAX), "the device offers 1 to");
    let [a, b] = connect(&pd, &cq)?;
    let receive = b.recv(pd.allocate(2)?)?;
    a.send_inline(b"ok")?.wait()?;
    assert_eq!(receive.wait()?.payload(), b"ok");
    Ok(())
}
