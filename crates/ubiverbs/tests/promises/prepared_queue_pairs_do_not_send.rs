//! Without a peer there is nothing to send to.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    prepared.send_inline(b"hello")?.wait()?;
    Ok(())
}
