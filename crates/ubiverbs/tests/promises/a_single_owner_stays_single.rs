//! A buffer with one owner cannot be cloned into two.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let buffer = pd.allocate(10)?;
    let other = buffer.clone();
    drop((buffer, other));
    Ok(())
}
