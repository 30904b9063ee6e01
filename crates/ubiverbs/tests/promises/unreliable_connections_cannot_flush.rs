//! Nothing answers an unreliable connection, so nothing can be flushed on it.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Unreliable>(&pd, &cq)?;
    let there = pd.share(8, Access::FLUSH_GLOBAL)?.remote_slice();
    qp.flush(there, Flush::Visible)?.wait()?;
    Ok(())
}
