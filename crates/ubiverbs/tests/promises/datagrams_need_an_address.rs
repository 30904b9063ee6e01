//! A datagram queue pair has no peer to send to.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let qp = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    qp.send(pd.allocate(8)?)?.wait()?;
    Ok(())
}
