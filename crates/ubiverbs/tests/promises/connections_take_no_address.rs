//! A connected queue pair has one peer.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let to = pd.address(&qp.endpoint())?;
    qp.send_to(pd.allocate(8)?, &to)?.wait()?;
    Ok(())
}
