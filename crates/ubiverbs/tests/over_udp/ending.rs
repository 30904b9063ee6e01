//! How connections end, over UDP.
#![allow(missing_docs)]

#[macro_use]
#[path = "../endings/mod.rs"]
mod endings;

/// Whether everything goes over UDP.
pub const OVER_UDP: bool = true;

fn prepare() {
    ubiverbs::backend::software_over_udp().unwrap();
}

tests!();
