//! A connected queue pair needs its peer.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    pd.queue_pair::<Reliable>(&cq).prepare()?.activate()?;
    Ok(())
}
