//! What a queue pair cannot do, its batches cannot either.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let there = pd.share(8, Access::REMOTE_READ)?.remote_slice();
    let [qp, _peer] = connected_pair::<Unreliable>(&pd, &cq)?;
    let mut batch = qp.batch();
    batch.read(pd.allocate(8)?, there)?.polled(1);
    batch.post()?;
    Ok(())
}
