//! Memory of the device is posted by a region over it, which has a key; the memory itself has none.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let memory = context.device_memory(8).allocate()?;
    a.send(memory)?;
    Ok(())
}
