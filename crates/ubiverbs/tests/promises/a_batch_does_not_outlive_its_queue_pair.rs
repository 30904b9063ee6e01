//! A batch borrows the queue pair whose doorbell it rings.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let batch = qp.batch();
    drop(qp);
    batch.post()?;
    Ok(())
}
