//! What the NIC sends cannot change any more.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let mut buffer = pd.allocate(10)?;
    let sending = qp.send(buffer)?;
    buffer[0] = 1;
    sending.wait()?;
    Ok(())
}
