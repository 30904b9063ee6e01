//! The `ubiverbs` program.
fn main() {}
