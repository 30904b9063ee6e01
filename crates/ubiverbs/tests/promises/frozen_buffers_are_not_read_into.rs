//! A read-only buffer is no destination.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let there = pd.share(8, Access::REMOTE_READ)?.remote_slice();
    qp.read(pd.allocate(8)?.freeze(), there)?.wait()?;
    Ok(())
}
