//! A message over an extended connection names the queue it is for.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let domain = context.xrc_domain()?;
    let (sender, target) = (pd.xrc_sender(&cq)?, domain.target()?);
    let sender = sender.connect(&target.endpoint())?;
    sender.send_inline(b"to whom?")?.wait()?;
    Ok(())
}
