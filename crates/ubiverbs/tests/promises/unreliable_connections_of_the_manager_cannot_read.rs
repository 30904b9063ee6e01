//! A connection can do what its queue pair can, and no more.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let listener = cm::Listener::<Unreliable>::bind_as("127.0.0.1:7471")?;
    let connection = listener.accept().wait()?;
    connection.read(connection.pd().allocate(8)?, RemoteSlice::new(0, 8, Key::new(0)))?;
    Ok(())
}
