//! The transports are these three.

use ubiverbs::*;

enum Mine {}

impl Transport for Mine {
    const KIND: Kind = Kind::ReliableConnected;
}

fn main() {}
