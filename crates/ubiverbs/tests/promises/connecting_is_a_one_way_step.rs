//! A queue pair is connected once.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let endpoint = prepared.endpoint();
    let first = prepared.connect(&endpoint)?;
    let second = prepared.connect(&endpoint)?;
    drop((first, second));
    Ok(())
}
