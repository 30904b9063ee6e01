//! Behind a route of datagrams is a service, not a connection.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let route = cm::resolve_as::<Datagram>("127.0.0.1:7471").wait()?;
    route.connect();
    Ok(())
}
