//! A datagram queue pair has no peer to connect to.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let prepared = pd.queue_pair::<Datagram>(&cq).prepare()?;
    let endpoint = prepared.endpoint();
    prepared.connect(&endpoint)?;
    Ok(())
}
