//! Only memory that this crate looks after can be posted.

use ubiverbs::*;

struct Mine(Vec<u8>);

impl Source for Mine {}

fn main() {}
