//! What others may be reading is no destination.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let table = pd.publish(vec![0u8; 64])?;
    qp.recv_into(table)?.wait()?;
    Ok(())
}
