//! A process that connects with the safe API.

use ubiverbs::cm;

/// The other process: connects to `address`, says so, and stays until it is killed or hears a line.
pub fn peer(address: &str) {
    let connection = cm::connect(address).wait().unwrap();
    connection.send_inline(b"here").unwrap().wait().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    // Not dropped: the process ends with it.
    std::mem::forget(connection);
    std::process::exit(0);
}
