//! `riomap`, `riounmap` and `riowrite`.
use crate::boundary::number;
use crate::errno::Errno;
use std::ffi::c_int;
/// Not yet.
#[unsafe(export_name = "ubiverbs_riomap")]
pub extern "C" fn riomap() -> isize {
    number("riomap", || Err(Errno(libc::ENOTSUP))) as isize
}
/// Not yet.
#[unsafe(export_name = "ubiverbs_riounmap")]
pub extern "C" fn riounmap() -> c_int {
    number("riounmap", || Err(Errno(libc::ENOTSUP)))
}
/// Not yet.
#[unsafe(export_name = "ubiverbs_riowrite")]
pub extern "C" fn riowrite() -> isize {
    number("riowrite", || Err(Errno(libc::ENOTSUP))) as isize
}
