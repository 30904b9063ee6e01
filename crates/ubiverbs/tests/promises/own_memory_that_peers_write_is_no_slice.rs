//! Peers may write at any moment, so there is no reference to what they may write.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let shared = pd.share_own(vec![1u64; 8], Access::REMOTE_WRITE)?;
    let numbers: &[u64] = &shared;
    qp.write_inline(&[0; 8], shared.remote_slice())?.wait()?;
    println!("{}", numbers[0]);
    Ok(())
}
