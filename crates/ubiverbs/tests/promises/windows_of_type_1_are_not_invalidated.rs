//! Windows of type 1 are unbound, not invalidated.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(64, Access::MW_BIND)?;
    let bound = qp.bind(pd.window::<Type1>()?, &region, Access::REMOTE_READ)?.wait()?;
    qp.invalidate(bound)?.wait()?;
    Ok(())
}
