//! A vector that the NIC sends is not the program's until it comes back.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [qp, _peer] = connected_pair::<Reliable>(&pd, &cq)?;
    let numbers = pd.register_own(vec![1u32, 2, 3])?;
    let sending = qp.send(numbers)?;
    println!("{}", numbers[0]);
    sending.wait()?;
    Ok(())
}
