//! One buffer, one receive.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let buffer = pd.allocate(10)?;
    let first = qp.recv(buffer)?;
    let second = qp.recv(buffer)?;
    drop((first, second));
    Ok(())
}
