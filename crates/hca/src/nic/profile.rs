//! What the card that a device is like makes of a request: the objects it refuses, and the sizes it grants. All of it when
//! something is made or changed; what a queue pair may post is given to it when it is made.

use crate::error::Error;
use crate::nic::{Nic, limits};
use crate::objects::context::Context;
use crate::objects::device::Device;
use crate::objects::shared_queue::SharedQueueKind;
use crate::queue_pair::Joins;
use profiles::{Feature, Grant, Granting, Limit};
use std::sync::{Arc, Weak};
use transport::{Access, Capabilities, FailingWork, Granularity, Kind, QueuePairConfig, RefusedWork, Timers};

/// A piece of a list, in the rings of kernel Soft-RoCE.
const PIECE_BYTES: u32 = 16;

impl Nic {
    /// Makes a queue pair what the card grants, or says what it refuses.
    pub(super) fn obey_profile(&self, config: &mut QueuePairConfig, joins: &Joins) -> Result<(), Error> {
        let device = joins.context.device();
        let Some(profile) = device.profile() else { return Ok(()) };
        profile.offers(match config.kind {
            Kind::ReliableConnected => Feature::Rc,
            Kind::UnreliableConnected => Feature::Uc,
            Kind::UnreliableDatagram => Feature::Ud,
            Kind::XrcInitiator | Kind::XrcTarget => Feature::Xrc,
            Kind::RawPacket => Feature::RawPacket,
        })?;
        let asked = config.capabilities;
        for (limit, asked) in [
            (Limit::MaxSendWr, asked.max_send_wr),
            (Limit::MaxRecvWr, asked.max_recv_wr),
            (Limit::MaxSendSge, asked.max_send_sge),
            (Limit::MaxRecvSge, asked.max_recv_sge),
            (Limit::MaxInline, asked.max_inline_data),
        ] {
            profile.at_most(limit, asked.into())?;
        }
        let mut pairs = 1;
        self.each_qp(|qp| pairs += u64::from(qp.context().device().number() == device.number()));
        profile.at_most(Limit::MaxQp, pairs)?;
        let has = |asked: u32, grant, most, ours: u32| {
            if asked == 0 { 0 } else { device.grant(grant, asked, most, asked).min(ours) }
        };
        config.capabilities = Capabilities {
            max_send_wr: has(asked.max_send_wr, Grant::SendWr, Limit::MaxSendWr, limits::MAX_WR),
            max_recv_wr: has(asked.max_recv_wr, Grant::RecvWr, Limit::MaxRecvWr, limits::MAX_WR),
            max_send_sge: has(asked.max_send_sge, Grant::SendSge, Limit::MaxSendSge, limits::MAX_SGE),
            max_recv_sge: has(asked.max_recv_sge, Grant::RecvSge, Limit::MaxRecvSge, limits::MAX_SGE),
            max_inline_data: asked.max_inline_data,
        };
        if asked.max_send_wr > 0 {
            let inline = device.grant(Grant::Inline, asked.max_inline_data, Limit::MaxInline, asked.max_inline_data);
            config.capabilities.max_inline_data = inline.min(limits::MAX_INLINE);
            if profile.granting(Grant::Inline) == Some(Granting::SharedWithPieces) {
                let room = (config.capabilities.max_send_sge * PIECE_BYTES).max(asked.max_inline_data);
                config.capabilities.max_send_sge = (room / PIECE_BYTES).min(limits::MAX_SGE);
                config.capabilities.max_inline_data = room.min(limits::MAX_INLINE);
            }
        }
        let most = |limit, usual: u8| device.limit(limit, usual.into()).min(usual.into()) as u8;
        config.limits.max_rd_atomic = most(Limit::MaxQpInitRdAtom, config.limits.max_rd_atomic);
        config.limits.max_dest_rd_atomic = most(Limit::MaxQpRdAtom, config.limits.max_dest_rd_atomic);
        config.limits.gids = device.port().gids.len() as u16;
        config.limits.max_mtu = config.limits.max_mtu.min(device.port().mtu());
        config.limits.refused_work = RefusedWork {
            profile: &profile.name,
            work: profile.refused_work(),
            failing: FailingWork(profile.failing_work()),
        };
        let rounded = |by: profiles::Granularity| Granularity { least: by.least, step: by.step };
        config.limits.timers = Timers { ack: rounded(profile.timers.ack), rnr: rounded(profile.timers.rnr) };
        Ok(())
    }

    /// Whether the card has room for one more shared receive queue of that kind and size.
    pub(super) fn profile_admits_srq(
        &self,
        context: &Context,
        max_wr: u32,
        max_sge: u32,
        kind: &SharedQueueKind,
    ) -> Result<(), Error> {
        let device = context.device();
        let Some(profile) = device.profile() else { return Ok(()) };
        profile.offers(match kind {
            SharedQueueKind::Basic => Feature::CreateSrq,
            SharedQueueKind::Xrc(_) => Feature::XrcSrq,
            SharedQueueKind::Tags(_) => Feature::TagMatching,
        })?;
        profile.at_most(Limit::MaxSrqWr, max_wr.into())?;
        profile.at_most(Limit::MaxSrqSge, max_sge.into())?;
        let queues = self.ground.shared_queues.all();
        let own = queues.iter().filter(|queue| queue.context().device().number() == device.number()).count();
        Ok(profile.at_most(Limit::MaxSrq, own as u64 + 1)?)
    }

    /// Whether the card has room for one more completion queue, of so many entries.
    pub fn profile_admits_cq(&self, device: &Device, entries: u32) -> Result<(), Error> {
        let Some(profile) = device.profile() else { return Ok(()) };
        profile.at_most(Limit::MaxCqe, entries.into())?;
        let queues = self.objects.cqs.lock();
        let own = queues.iter().filter_map(Weak::upgrade).filter(|queue| queue.interface() == device.number()).count();
        drop(queues);
        Ok(profile.at_most(Limit::MaxCq, own as u64 + 1)?)
    }

    /// Whether the card registers memory of that length with those rights, and one more region.
    pub fn profile_admits_region(&self, device: &Device, length: usize, access: Access) -> Result<(), Error> {
        let Some(profile) = device.profile() else { return Ok(()) };
        profile.offers_access(access.bits())?;
        profile.admits_length(length as u64)?;
        profile.at_most(Limit::MaxMrSize, length as u64)?;
        let regions = u64::from(self.memory().usage().regions);
        // Of all devices there are more than of one: only where these are too many, those of the device are counted.
        let own = if profile.at_most(Limit::MaxMr, regions + 1).is_ok() { regions } else { self.regions_of(device) };
        Ok(profile.at_most(Limit::MaxMr, own + 1)?)
    }

    fn regions_of(&self, device: &Device) -> u64 {
        let contexts: Vec<Arc<Context>> = self.objects.contexts.lock().iter().filter_map(Weak::upgrade).collect();
        let own = contexts.iter().filter(|context| context.device().number() == device.number());
        let domains: Vec<u32> = own.flat_map(|context| context.domains()).collect();
        let regions = self.memory().regions();
        regions.iter().filter(|region| domains.contains(&region.domain.0)).count() as u64
    }
}
