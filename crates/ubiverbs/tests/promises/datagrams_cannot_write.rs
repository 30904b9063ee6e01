//! A datagram queue pair has no WRITE.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let there = pd.share(8, Access::REMOTE_WRITE)?.remote_slice();
    let qp = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    qp.write(pd.allocate(8)?, there)?.wait()?;
    Ok(())
}
