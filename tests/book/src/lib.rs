//! The pages of `docs/book` that have programs in them, as documentation: `cargo test --doc` compiles and runs each one.
//! The chapters made of examples are not here; `tests/suite/chapters.rs` looks after them.
#![forbid(unsafe_code)]

#[doc = include_str!("../../../crates/ubiverbs/README.md")]
pub mod crate_readme {}

#[doc = include_str!("../../../docs/book/rdma-in-15-minutes.md")]
pub mod rdma_in_15_minutes {}

#[doc = include_str!("../../../docs/book/from-libibverbs.md")]
pub mod from_libibverbs {}

#[doc = include_str!("../../../docs/book/from-sockets.md")]
pub mod from_sockets {}

#[doc = include_str!("../../../docs/book/request-response.md")]
pub mod request_response {}

#[doc = include_str!("../../../docs/book/one-sided-reads.md")]
pub mod one_sided_reads {}

#[doc = include_str!("../../../docs/book/large-transfers.md")]
pub mod large_transfers {}

#[doc = include_str!("../../../docs/book/many-connections.md")]
pub mod many_connections {}
