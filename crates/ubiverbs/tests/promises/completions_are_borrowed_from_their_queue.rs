//! An iterator over completions does not outlive the queue it takes them from.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let polled = cq.poll()?;
    drop(cq);
    println!("{}", polled.count());
    Ok(())
}
