//! What requester, completer and responder all read and none of them writes: who this queue pair is and what its
//! attributes say.

use crate::attributes::Attributes;
use crate::state::Kind;
use wire::access::{ProtectionDomain, Subject};
use wire::{Headers, Mtu, Opcode, Pkey, Psn, Qpn, Transport};

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Connection {
    pub qpn: Qpn,
    pub kind: Kind,
    pub pd: ProtectionDomain,
    pub pkey: Pkey,
    pub port_mtu: Mtu,
    pub attributes: Attributes,
    /// The protection domain of tagged buffers.
    pub tag_domain: ProtectionDomain,
}

impl Connection {
    pub fn transport(&self) -> Transport {
        self.kind.transport()
    }

    /// Payload bytes per packet. Datagrams may be as long as the port allows.
    pub fn mtu(&self) -> u32 {
        match self.kind {
            Kind::UnreliableDatagram => self.port_mtu.bytes(),
            _ => self.attributes.path_mtu.bytes(),
        }
    }

    /// The queue pair acting on its own memory.
    pub fn local(&self) -> Subject {
        Subject { qpn: self.qpn, pd: self.pd, remote: false }
    }

    /// The queue pair acting for its peer.
    pub fn remote(&self) -> Subject {
        Subject { qpn: self.qpn, pd: self.pd, remote: true }
    }

    /// Headers of a response to the connected peer.
    pub fn response(&self, opcode: Opcode, psn: Psn) -> Headers {
        let mut headers = Headers::new(opcode, self.attributes.dest_qpn, psn);
        headers.bth.pkey = self.pkey;
        headers
    }
}
