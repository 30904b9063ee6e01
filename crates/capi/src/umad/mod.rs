//! The C entry points of `libibumad.so.3`: management datagrams. Programs and `libibmad` find here what they find on
//! a RoCE port of the kernel; where the manual page names an errno, it is that one.

mod agent;
mod datagram;
mod device;
mod dump;
mod pair;
mod port;
mod resolve;
mod strings;

pub use agent::{umad_register, umad_register_oui, umad_register2, umad_unregister};
pub use datagram::{
    umad_get_mad, umad_get_mad_addr, umad_get_pkey, umad_set_addr, umad_set_addr_net, umad_set_grh, umad_set_pkey,
    umad_size, umad_status,
};
pub use device::{
    umad_done, umad_free_ca_device_list, umad_get_ca, umad_get_ca_device_list, umad_get_ca_portguids,
    umad_get_cas_names, umad_get_issm_path, umad_get_port, umad_init, umad_release_ca, umad_release_port,
    umad_sort_ca_device_list,
};
pub use dump::{umad_addr_dump, umad_debug, umad_dump};
pub use pair::{umad_get_smi_gsi_pair_by_ca_name, umad_get_smi_gsi_pairs};
pub use port::{umad_close_port, umad_get_fd, umad_open_port, umad_open_smi_port, umad_poll, umad_recv, umad_send};
pub use strings::{
    umad_attribute_str, umad_class_str, umad_common_mad_status_str, umad_method_str, umad_sa_mad_status_str,
};

use crate::boundary::{caught, report};
use crate::errno::Errno;
use std::ffi::c_int;

/// A number, or the negative errno: the convention of most calls of this library. errno is set as well.
fn negative(call: &'static str, f: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    caught(call, f).unwrap_or_else(|error| -report(error))
}
