//! A queue pair of datagrams, with a buffer for those that come and those that go.

use crate::error::Error;
use hca::cm::UDP_QKEY;
use hca::{Buffer, CompletionChannel, CompletionQueue, Context, Joins, Nic, OwnCalls, Qp};
use rsocket::{DatagramHeader, MAX_DATAGRAM_HEADER, Sizes};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use transport::{
    Access, Capabilities, Data, DatagramTarget, Kind, Limits, Modify, Operation, Queue, QueuePairConfig,
    ReceiveRequest, SendFlags, SendRequest, Sge, State, Status,
};
use wire::{Pkey, Psn, Qpn};

/// Bytes of a datagram with its header, at most.
pub(crate) const DATAGRAM_SLOT_BYTES: usize = 2048;
/// In front of what a queue pair of datagrams receives.
const GRH_BYTES: usize = 40;

/// From whom a datagram is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sender {
    /// What its header says: anybody can write that.
    pub claimed: SocketAddr,
    /// Where the packet came from.
    pub address: IpAddr,
    /// The queue pair that sent it.
    pub qpn: Qpn,
}

/// The source address in a GRH: an IPv6 header, or twenty bytes of nothing and an IPv4 header.
fn source(grh: &[u8], over_ipv4: bool) -> IpAddr {
    match over_ipv4 {
        true => grh.get(32..).and_then(<[u8]>::first_chunk::<4>).copied().unwrap_or_default().into(),
        false => grh.get(8..).and_then(<[u8]>::first_chunk::<16>).copied().unwrap_or_default().into(),
    }
}

/// A queue pair of datagrams.
#[derive(Debug)]
pub(crate) struct Pair {
    nic: Arc<Nic>,
    pub context: Arc<Context>,
    pub qp: Arc<Qp>,
    pub cq: Arc<CompletionQueue>,
    buffer: Buffer,
    /// Slots of the buffer for datagrams to send that are free.
    pub free: Vec<u32>,
    receives: u32,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _own = OwnCalls::told_by(self.nic.tracing());
        self.nic.destroy_qp(&self.qp);
    }
}

impl Pair {
    pub fn new(
        nic: &Arc<Nic>,
        (context, port): (Arc<Context>, u8),
        channel: &Arc<CompletionChannel>,
        sizes: &Sizes,
    ) -> Result<Pair, Error> {
        let (sends, receives) = (u32::from(sizes.send_queue), u32::from(sizes.receive_queue));
        let _own = OwnCalls::told_by(nic.tracing());
        let domain = context.new_domain();
        let room = receives as usize * (DATAGRAM_SLOT_BYTES + GRH_BYTES) + sends as usize * DATAGRAM_SLOT_BYTES;
        let buffer = Buffer::allocate(nic, room, domain, Access::empty())?;
        let cq = nic.create_cq(sends + receives, Some(Arc::clone(channel)))?;
        let config = QueuePairConfig {
            qpn: Qpn::default(),
            kind: Kind::UnreliableDatagram,
            pd: domain,
            capabilities: Capabilities {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            srq: None,
            signal_all: true,
            limits: Limits::default(),
            pkey: Pkey::DEFAULT,
            port_mtu: context.device().port().mtu(),
        };
        let joins = Joins {
            context: Arc::clone(&context),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            xrc_domain: None,
        };
        let qp = nic.create_qp(config, joins)?;
        let pair = Pair { nic: Arc::clone(nic), context, qp, cq, buffer, free: (0..sends).collect(), receives };
        let init = Modify {
            state: Some(State::Init),
            pkey_index: Some(0),
            port: Some(port),
            qkey: Some(UDP_QKEY),
            ..Modify::default()
        };
        pair.qp.modify(nic, &init)?;
        (0..receives).for_each(|slot| pair.post_receive(slot));
        pair.qp.modify(nic, &Modify { state: Some(State::ReadyToReceive), ..Modify::default() })?;
        let send = Modify { state: Some(State::ReadyToSend), sq_psn: Some(Psn::new(0)), ..Modify::default() };
        pair.qp.modify(nic, &send)?;
        Ok(pair)
    }

    pub fn is_busy(&self, sizes: &Sizes) -> bool {
        self.free.len() < sizes.send_queue.into()
    }

    fn receive_offset(slot: u32) -> usize {
        slot as usize * (DATAGRAM_SLOT_BYTES + GRH_BYTES)
    }

    fn send_offset(&self, slot: u32) -> usize {
        Self::receive_offset(self.receives) + slot as usize * DATAGRAM_SLOT_BYTES
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { address: self.buffer.address() + offset as u64, length: length as u32, key: self.buffer.key() }
    }

    fn post_receive(&self, slot: u32) {
        let sge = self.sge(Self::receive_offset(slot), DATAGRAM_SLOT_BYTES + GRH_BYTES);
        let _own = OwnCalls::told_by(self.nic.tracing());
        // In error it takes none, and then nothing comes either.
        let _ = self.qp.post_receive(&self.nic, &[ReceiveRequest { wr_id: slot.into(), sges: &[sge] }]);
    }

    pub fn send(&mut self, source: SocketAddr, bytes: &[&[u8]], target: DatagramTarget) -> Result<(), Error> {
        let slot = self.free.pop().ok_or(Error::WOULD_BLOCK)?;
        let offset = self.send_offset(slot);
        let mut header = [0; MAX_DATAGRAM_HEADER];
        let mut length = DatagramHeader { source }.encode(&mut header);
        let mut written = self.buffer.write(offset, &header[..length]).is_ok();
        for piece in bytes {
            written &= self.buffer.write(offset + length, piece).is_ok();
            length += piece.len();
        }
        let sge = self.sge(offset, length);
        let request = SendRequest {
            wr_id: slot.into(),
            operation: Operation::Send { immediate: None },
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&[sge]),
            target: Some(target),
            xrc_srq: None,
        };
        let _own = OwnCalls::told_by(self.nic.tracing());
        if !written || self.qp.post_send(&self.nic, &[request]).is_err() {
            self.free.push(slot);
            return Err(Error(libc::EIO));
        }
        Ok(())
    }

    /// Takes what has completed, and shows what came, with the address and the queue pair that the packet came from.
    /// Returns whether anything had.
    pub fn progress(&mut self, sizes: &Sizes, mut show: impl FnMut(Sender, &[u8])) -> bool {
        let mut room = [0; GRH_BYTES + DATAGRAM_SLOT_BYTES];
        let mut any = false;
        let _own = OwnCalls::told_by(self.nic.tracing());
        for _ in 0..=sizes.receive_queue {
            let mut found = None;
            self.nic.poll(&self.cq, 1, |completion, _| found = Some(*completion));
            let Some(completion) = found else { break };
            any = true;
            let slot = completion.wr_id as u32;
            if completion.queue == Queue::Send {
                self.free.push(slot);
                continue;
            }
            let length = (completion.bytes as usize).saturating_sub(GRH_BYTES).min(DATAGRAM_SLOT_BYTES);
            let (grh, bytes) = room[..GRH_BYTES + length].split_at_mut(GRH_BYTES);
            let offset = Self::receive_offset(slot);
            let read = self.buffer.read(offset, grh).is_ok() && self.buffer.read(offset + GRH_BYTES, bytes).is_ok();
            if completion.status == Status::Success
                && read
                && completion.grh
                && let Some(qpn) = completion.src_qpn
                && let Some((header, past)) = DatagramHeader::decode(bytes)
            {
                let sender = Sender { claimed: header.source, address: source(grh, completion.over_ipv4), qpn };
                show(sender, bytes.get(past..).unwrap_or_default());
            }
            self.post_receive(slot);
        }
        any
    }
}
