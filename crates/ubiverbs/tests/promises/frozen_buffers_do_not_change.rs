//! A read-only buffer is read-only.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let mut buffer = pd.allocate(10)?.freeze();
    buffer[0] = 1;
    Ok(())
}
