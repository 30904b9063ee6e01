//! Memory that peers may write is never a slice.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let region = pd.share(8, Access::REMOTE_WRITE)?;
    let bytes: &[u8] = &region;
    println!("{bytes:?}");
    Ok(())
}
