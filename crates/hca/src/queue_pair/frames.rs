//! Raw queue pairs, and the work queues that several of them may share the frames of: what each has beside the
//! transport's machine, and how its frames get out and in.

use super::{Inner, Qp};
use crate::ground::Ground;
use crate::links::packets::PacketPort;
use crate::queue_pair::port::{GpuTrains, NicPort};
use crate::tuning::{FRAME_WAIT_MAX, UNRECEIVED_MAX_BYTES, nanos};
use link::packet::MAX_BATCH;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trace::{Direction, DropReason};
use transport::{FrameNotes, Time};
use wire::flow::{ETHERNET_HEADER, Layers, Rss, fill_checksums, remove_tag};

/// The bytes of a VLAN tag, for which every interface has room beside its MTU.
const VLAN_TAG_LEN: usize = 4;

/// Frames that came while no receive was posted, oldest first. A program that is kept from its processor for a moment
/// loses none: hardware would not have taken its processor away. A frame that is older than
/// [`FRAME_WAIT_MAX`] when a receive is posted, or finds too many before it, is lost.
#[derive(Debug, Default)]
pub(crate) struct Unreceived {
    frames: VecDeque<(Time, Vec<u8>, FrameNotes)>,
    bytes: usize,
}

/// What a raw queue pair, or a work queue, has beside others.
#[derive(Debug)]
pub(crate) struct RawPart {
    /// Its interface; a work queue has none.
    pub port: Option<Arc<PacketPort>>,
    /// The work queues that take its frames, and by which hash; then it has no queues of its own.
    pub spread: Option<Spread>,
    /// VLAN tags are taken out of what it receives.
    pub strips_tags: AtomicBool,
}

/// How frames are given to work queues.
#[derive(Clone, Debug)]
pub struct Spread {
    /// The hash.
    pub rss: Rss,
    /// As many as a power of two says; a queue may be there several times.
    pub queues: Vec<Arc<Qp>>,
}

impl Unreceived {
    fn pop(&mut self) -> Option<(Time, Vec<u8>, FrameNotes)> {
        let first = self.frames.pop_front()?;
        self.bytes -= first.1.len();
        Some(first)
    }

    /// Shows those that have waited too long to `lost`, one call each.
    fn expire(&mut self, now: Time, mut lost: impl FnMut()) {
        while self.frames.front().is_some_and(|(came, ..)| now.since(*came) > nanos(FRAME_WAIT_MAX)) {
            self.pop();
            lost();
        }
    }
}

impl Qp {
    /// Whether VLAN tags are taken out of what it receives from now on.
    pub fn strip_tags(&self, strips: bool) {
        if let Some(raw) = &self.raw {
            raw.strips_tags.store(strips, Ordering::Relaxed);
        }
    }

    /// The interface of a raw queue pair.
    pub(crate) fn packet_port(&self) -> Option<&Arc<PacketPort>> {
        self.raw.as_ref()?.port.as_ref()
    }

    /// The work queue that takes a frame of this queue pair; none if it takes it itself.
    pub(crate) fn work_queue(&self, layers: &Layers) -> Option<&Arc<Qp>> {
        let spread = self.raw.as_ref()?.spread.as_ref()?;
        // The table is not empty, and its size a power of two.
        let mask = (spread.queues.len() as u32).wrapping_sub(1);
        spread.queues.get((spread.rss.hash(layers) & mask) as usize)
    }

    /// Takes a frame that a flow gave to it. The caller must see to it that it is driven.
    pub(crate) fn take_frame(&self, nic: &Ground, now: Time, frame: &[u8], mut notes: FrameNotes) {
        let strips = self.raw.as_ref().is_some_and(|raw| raw.strips_tags.load(Ordering::Relaxed));
        let stripped = if strips { remove_tag(frame) } else { None };
        let frame = match &stripped {
            Some((frame, tag)) => {
                notes.vlan = *tag;
                frame
            }
            None => frame,
        };
        let mut inner = self.inner.lock();
        if let Err(reason) = inner.belief.takes_any() {
            return nic.dropped(now, Some(self.qpn), None, reason);
        }
        let Inner { pair, windows, unreceived, .. } = &mut *inner;
        let mut port = NicPort { nic, windows, weak: None, xrc_domain: None, landing: None, gpu: GpuTrains::None };
        let in_line = !unreceived.frames.is_empty();
        if !in_line && pair.handle_frame(now, frame, notes, &mut port) {
            return;
        }
        unreceived.expire(now, || pair.frame_lost(now, &mut port));
        if unreceived.bytes + frame.len() > UNRECEIVED_MAX_BYTES {
            return pair.frame_lost(now, &mut port);
        }
        unreceived.bytes += frame.len();
        unreceived.frames.push_back((now, frame.to_vec(), notes));
    }

    /// Receives were posted: frames that wait take them. Returns whether any did.
    pub(super) fn take_unreceived(&self, nic: &Ground, inner: &mut Inner) -> bool {
        let Inner { pair, windows, unreceived, .. } = inner;
        if unreceived.frames.is_empty() {
            return false;
        }
        let now = nic.now();
        let mut port = NicPort { nic, windows, weak: None, xrc_domain: None, landing: None, gpu: GpuTrains::None };
        unreceived.expire(now, || pair.frame_lost(now, &mut port));
        let mut any = false;
        while let Some((_, frame, notes)) = unreceived.frames.front()
            && pair.handle_frame(now, frame, *notes, &mut port)
        {
            unreceived.pop();
            any = true;
        }
        any
    }

    /// The queue pair changes its state, or goes: what waited is lost.
    pub(super) fn lose_unreceived(&self, nic: &Ground, inner: &mut Inner) {
        let Inner { pair, windows, unreceived, .. } = inner;
        let mut port = NicPort { nic, windows, weak: None, xrc_domain: None, landing: None, gpu: GpuTrains::None };
        while unreceived.pop().is_some() {
            pair.frame_lost(nic.now(), &mut port);
        }
    }

    /// Sends the frames that wait in its send queue.
    pub(super) fn transmit_frames(&self, nic: &Ground, inner: &mut Inner, now: Time) {
        let Some(packets) = self.packet_port() else { return };
        let Inner { pair, windows, outbox, belief, .. } = inner;
        if !pair.may_transmit() {
            return;
        }
        let is_down = belief.takes_any().is_err();
        let longest = self.port_device().port().interface_mtu as usize + ETHERNET_HEADER + VLAN_TAG_LEN;
        let mut port = NicPort { nic, windows, weak: None, xrc_domain: None, landing: None, gpu: GpuTrains::None };
        outbox.resize_with(MAX_BATCH, Vec::new);
        loop {
            let mut count = 0;
            while let Some(frame) = outbox.get_mut(count)
                && let Some(sent) = pair.poll_frame(now, longest, frame, &mut port)
            {
                if sent.fills_checksums
                    && let Some(layers) = Layers::parse(frame)
                {
                    fill_checksums(frame, &layers);
                }
                count += 1;
            }
            let frames = outbox.get(..count).unwrap_or_default();
            if frames.is_empty() {
                return;
            }
            if is_down {
                frames.iter().for_each(|_| nic.dropped(now, Some(self.qpn), None, DropReason::PortDown));
                continue;
            }
            if let Some(capture) = &nic.records.capture {
                let mut capture = capture.lock();
                frames.iter().for_each(|frame| capture.raw(self.port_device().port_name(), frame, Direction::Outbound));
            }
            packets.send(frames, || nic.dropped(now, Some(self.qpn), None, DropReason::SystemRefused));
        }
    }
}
