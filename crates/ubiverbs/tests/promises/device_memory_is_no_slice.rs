//! Memory that lies in the device has no address in the program.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let memory = context.device_memory(8).allocate()?;
    let bytes: &[u8] = &memory;
    println!("{bytes:?}");
    Ok(())
}
