//! Where datagrams go.

use crate::device::ContextCore;
use crate::domain::ProtectionDomain;
use crate::endpoint::Endpoint;
use seam::Error;
use std::sync::Arc;
use transport::{AddressVector, DatagramTarget};
use wire::{Gid, Qkey, Qpn};

/// The Q_Key of a datagram queue pair that was given none.
pub const DEFAULT_QKEY: Qkey = Qkey::new(0x1111_1111);

/// The way to a datagram queue pair: its address, its number and its Q_Key, which are never used apart. Made by
/// [`ProtectionDomain::address`](crate::ProtectionDomain::address) or from a received datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(alias = "ibv_ah")]
pub struct AddressHandle {
    target: DatagramTarget,
}

impl ProtectionDomain {
    /// The way to a datagram queue pair.
    #[doc(alias = "ibv_create_ah")]
    pub fn address(&self, peer: &Endpoint) -> Result<AddressHandle, Error> {
        AddressHandle::new(self.core(), peer.gid(), peer.qpn(), peer.qkey())
    }
}

impl AddressHandle {
    pub(crate) fn new(context: &Arc<ContextCore>, gid: Gid, qpn: Qpn, qkey: Qkey) -> Result<AddressHandle, Error> {
        let (sgid_index, _) = context.source_for(gid)?;
        let av = AddressVector { dgid: gid, sgid_index, ..AddressVector::default() };
        Ok(AddressHandle { target: DatagramTarget { av, qpn, qkey } })
    }

    /// A way that was found elsewhere.
    pub(crate) fn found(av: AddressVector, qpn: Qpn, qkey: Qkey) -> AddressHandle {
        AddressHandle { target: DatagramTarget { av, qpn, qkey } }
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.target.av.dgid
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.target.qpn
    }

    pub(crate) fn target(&self) -> DatagramTarget {
        self.target
    }
}
