//! The NIC may have the memory longer than a borrow lasts.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let message = vec![1u8, 2, 3];
    pd.register_read_only(&message[..])?;
    Ok(())
}
