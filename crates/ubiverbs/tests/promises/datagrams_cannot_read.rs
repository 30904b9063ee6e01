//! A datagram queue pair has no READ.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let there = pd.share(8, Access::REMOTE_READ)?.remote_slice();
    let qp = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    qp.read(pd.allocate(8)?, there)?.wait()?;
    Ok(())
}
