//! A reliable connection is made with a reliable queue pair.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let route = cm::resolve("127.0.0.1:7471").wait()?;
    let context = route.context()?;
    let cq = context.completion_queue(16).create()?;
    let qp = context.alloc_pd()?.queue_pair::<Unreliable>(&cq).prepare()?;
    route.connect().queue_pair(qp).wait()?;
    Ok(())
}
