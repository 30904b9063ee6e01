//! The picture of a run: a [`Timeline`](timeline::Timeline) in, one HTML file out that holds everything it needs. This
//! crate reads no recording and knows no event of the NIC: the page draws what the timeline says.
#![forbid(unsafe_code)]

mod columns;
mod packed;
mod page;
pub mod timeline;

pub use page::page;
