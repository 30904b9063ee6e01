//! A request is accepted or rejected, not both.

use ubiverbs::*;

fn main() -> Result<(), Error> {
    let request = cm::Listener::bind("127.0.0.1:7471")?.next().wait()?;
    let _connection = request.accept().wait()?;
    request.reject(b"changed my mind")
}
