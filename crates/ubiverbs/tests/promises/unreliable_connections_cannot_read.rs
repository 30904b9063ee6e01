//! An unreliable queue pair has no READ and no atomic operations.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let there = pd.share(8, Access::REMOTE_READ)?.remote_slice();
    let [qp, _peer] = connected_pair::<Unreliable>(&pd, &cq)?;
    qp.read(pd.allocate(8)?, there)?.wait()?;
    qp.fetch_add(there, 1)?.wait()?;
    Ok(())
}
