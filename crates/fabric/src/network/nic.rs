//! What happens in hosts: messages are posted, queue pairs take turns at the port, packets are handed to them.

use super::{MAX_IDLE_QUEUE_PAIRS, Network, plan};
use crate::endpoint::{Endpoint, Pending, endpoint_of, gid_of, qpn_of};
use crate::packets::{ECN_CAPABLE, FLAG_MARKED, FLAG_URGENT, NO_PACKET, NOBODYS_ADDRESS, NOBODYS_KEY, Packet};
use crate::world::UNLIMITED_WINDOW;
use transport::{Completion, Data, Inbound, Operation, Queue, Remote, SendFlags, SendRequest, Sge, Status};
use wire::{Ecn, Headers, Opcode};

/// Payload of any packet: nobody reads it.
static ZERO_PAYLOAD: [u8; 4096] = [0; 4096];

impl Network {
    /// Gives a message to its queue pair.
    pub(super) fn post_send(&mut self, endpoint: u32, message: u32, bytes: u32) {
        let now = self.time();
        if !self.wake(endpoint) {
            return self.ended(endpoint, message, false);
        }
        let Endpoint { live: Some(live), .. } = &mut self.endpoints[endpoint as usize] else { return };
        let request = SendRequest {
            wr_id: u64::from(message),
            operation: Operation::Write {
                remote: Remote { address: NOBODYS_ADDRESS, key: NOBODYS_KEY },
                immediate: Some(message),
            },
            flags: SendFlags::SIGNALED,
            data: Data::Gather(&[Sge { address: NOBODYS_ADDRESS, length: bytes, key: NOBODYS_KEY }]),
            target: None,
            xrc_srq: None,
        };
        match live.qp.post_send(now, &request, &mut self.world) {
            Ok(()) => self.after(endpoint),
            Err(_) => self.ended(endpoint, message, false),
        }
    }

    /// The endpoint has a queue pair of the transport from now on, and is the one that is driven.
    fn wake(&mut self, endpoint: u32) -> bool {
        let now = self.time();
        let this = &mut self.endpoints[endpoint as usize];
        self.world.current = this.window;
        if this.live.is_some() {
            return true;
        }
        self.live += 1;
        self.most_live = self.most_live.max(self.live);
        this.wake(endpoint, &self.settings, now, &mut self.world).is_ok()
    }

    /// A packet arrives at its host.
    pub(super) fn deliver(&mut self, packet: &Packet) {
        let (endpoint, payload) = (packet.endpoint, packet.payload());
        let Endpoint { host, peer_host, .. } = self.endpoints[endpoint as usize];
        self.counts.packets_delivered += 1;
        self.delivered += u64::from(payload);
        if self.captures.is_some() {
            self.capture(host, packet, true);
        }
        if self.wake(endpoint) {
            let now = self.time();
            let inbound = Inbound {
                headers: &packet.headers(),
                count: 1,
                payload: &ZERO_PAYLOAD[..payload as usize],
                from: gid_of(peer_host),
                grh: &[0; 40],
                congestion_marked: packet.flags & FLAG_MARKED != 0,
            };
            if let Some(live) = &mut self.endpoints[endpoint as usize].live {
                live.qp.handle(now, &inbound, &mut self.world);
            }
        }
        self.under_way -= 1;
        self.after(endpoint);
    }

    /// A queue pair wanted to be woken about now.
    pub(super) fn fire(&mut self, endpoint: u32) {
        let now = self.time();
        let this = &mut self.endpoints[endpoint as usize];
        self.world.current = this.window;
        let Some(live) = &mut this.live else { return };
        if live.armed <= now.as_nanos() {
            live.armed = u64::MAX;
        }
        if live.qp.poll_timeout().is_some_and(|deadline| deadline <= now) {
            live.qp.handle_timeout(now, &mut self.world);
        }
        self.after(endpoint);
    }

    /// After everything that goes into a queue pair: its answers go out, its completions are reported, it gets in line
    /// if it has more to send, and its next deadline is written down.
    fn after(&mut self, endpoint: u32) {
        let now = self.time();
        self.world.current = self.endpoints[endpoint as usize].window;
        loop {
            let Some(live) = &mut self.endpoints[endpoint as usize].live else { return };
            if !live.qp.owes_answer() {
                break;
            }
            let Some(train) = live.qp.poll_transmit(now, &mut self.world) else { break };
            let mut pending = Pending::new(&train);
            if train.headers.bth.opcode.is_request() {
                live.pending.push_back(pending);
                continue;
            }
            while !pending.is_over() {
                let (headers, payload) = pending.packet();
                let packet = self.packet(endpoint, headers, payload, pending.wr_id, false);
                self.enqueue(packet.port, &packet);
            }
            self.world.current = self.endpoints[endpoint as usize].window;
        }
        let Some(live) = &mut self.endpoints[endpoint as usize].live else { return };
        if live.pending.back().is_some_and(|pending| live.qp.next_psn().is_before(pending.end())) {
            // It has gone back, and what it had handed out before would only be refused.
            live.pending.clear();
        }
        if live.qp.may_complete() {
            self.complete(endpoint);
        }
        self.turn(endpoint);
        self.get_in_line(endpoint);
        self.arm(endpoint);
    }

    /// Tells what has completed.
    fn complete(&mut self, endpoint: u32) {
        let now = self.time();
        loop {
            self.world.current = self.endpoints[endpoint as usize].window;
            let Some(live) = &mut self.endpoints[endpoint as usize].live else { break };
            let Some(completion) = live.qp.poll_completion(now, &mut self.world) else { break };
            self.completed(endpoint, &completion);
        }
        let mut posts = std::mem::take(&mut self.posts);
        for post in posts.drain(..) {
            self.post(post);
        }
        // Posting may have completed others, which posted.
        if self.posts.is_empty() {
            self.posts = posts;
        }
    }

    fn completed(&mut self, endpoint: u32, completion: &Completion) {
        match (completion.queue, completion.immediate) {
            (Queue::Send, _) => self.ended(endpoint, completion.wr_id as u32, completion.status == Status::Success),
            (_, Some(message)) if completion.status == Status::Success => self.message_received(endpoint, message),
            _ => {}
        }
    }

    fn message_received(&mut self, endpoint: u32, number: u32) {
        let now = self.now();
        let Some(message) = self.messages.get_mut(number).filter(|message| !message.received) else { return };
        message.received = true;
        let message = *message;
        self.times.push(now - message.at);
        self.last = self.last.max(now);
        self.counts.messages_received += 1;
        self.counts.bytes_received += u64::from(message.post.bytes);
        self.program.received(&message.post, &mut self.posts);
        self.settle(endpoint);
    }

    /// A message is over for its sender.
    fn ended(&mut self, endpoint: u32, number: u32, well: bool) {
        let Some(message) = self.messages.remove(number) else { return };
        if !well && !message.received {
            self.counts.messages_failed += 1;
            let peer = self.endpoints[endpoint as usize].peer;
            self.settle(peer);
        }
        self.settle(endpoint);
        if well {
            self.program.sent(&message.post, &mut self.posts);
        }
    }

    /// One message less at an endpoint.
    fn settle(&mut self, endpoint: u32) {
        let this = &mut self.endpoints[endpoint as usize];
        this.open -= 1;
        if this.open == 0 {
            self.idle.push_back(endpoint);
        }
    }

    /// All regions have come equally far. Where many queue pairs are in use, those that are idle longest are put to
    /// rest; those that are busy again come back to the list when they are done.
    pub(super) fn tidy(&mut self) {
        let now = self.time();
        while self.live > MAX_IDLE_QUEUE_PAIRS || self.idle.len() > 4 * MAX_IDLE_QUEUE_PAIRS {
            let Some(oldest) = self.idle.pop_front() else { break };
            if self.live > MAX_IDLE_QUEUE_PAIRS
                && let Some(live) = self.endpoints[oldest as usize].rest(now)
            {
                let incidents = live.qp.counters().incidents;
                self.retired.0 += incidents.retries;
                self.retired.1 += incidents.timeouts;
                self.live -= 1;
            }
        }
    }

    /// The window may have gained room: a queue pair that waits for it tries again, at once, as its turn is over with
    /// the next question.
    fn turn(&mut self, endpoint: u32) {
        let window = self.endpoints[endpoint as usize].window;
        if window == UNLIMITED_WINDOW {
            return;
        }
        let now = self.time();
        while let Some(qpn) = self.world.windows[window as usize].next_waiter() {
            let waiter = endpoint_of(qpn);
            self.world.current = window;
            let Some(live) = self.endpoints[waiter as usize].live.as_mut() else { continue };
            if let Some(train) = live.qp.poll_transmit(now, &mut self.world) {
                let pending = Pending::new(&train);
                live.pending.push_back(pending);
                self.get_in_line(waiter);
            } else {
                break;
            }
        }
    }

    fn get_in_line(&mut self, endpoint: u32) {
        let this = &mut self.endpoints[endpoint as usize];
        let Some(live) = &mut this.live else { return };
        if live.ready || live.pending.is_empty() && (!live.qp.may_transmit() || live.qp.paced_until().is_some()) {
            return;
        }
        live.ready = true;
        let port = self.paths[this.path as usize];
        let nic = self.ports[port as usize].nic;
        self.nics[nic as usize].push_back(endpoint);
        self.kick(port);
    }

    fn arm(&mut self, endpoint: u32) {
        let Some(live) = &mut self.endpoints[endpoint as usize].live else { return };
        if let Some(deadline) = live.qp.poll_timeout()
            && deadline.as_nanos() < live.armed
        {
            live.armed = deadline.as_nanos();
            self.calendar.plan(live.armed, plan::TIMER | u64::from(endpoint));
        }
    }

    /// The next packet of the queue pairs in line at a port: each has one in its turn.
    pub(super) fn next_of_host(&mut self, at: u32) -> Option<Packet> {
        let nic = self.ports[at as usize].nic;
        if nic == NO_PACKET || self.ports[at as usize].paused {
            return None;
        }
        let now = self.time();
        while let Some(endpoint) = self.nics[nic as usize].pop_front() {
            let this = &mut self.endpoints[endpoint as usize];
            self.world.current = this.window;
            let first = self.paths[this.path as usize];
            let Some(live) = &mut this.live else { continue };
            if first != at {
                // It has another way now.
                live.ready = false;
                self.get_in_line(endpoint);
                continue;
            }
            if live.pending.is_empty()
                && let Some(train) = live.qp.poll_transmit(now, &mut self.world)
            {
                let pending = Pending::new(&train);
                live.pending.push_back(pending);
            }
            let Some(pending) = live.pending.front_mut() else {
                live.ready = false;
                // Work may have failed, and a rate or a window may have closed.
                if live.qp.may_complete() {
                    self.complete(endpoint);
                }
                self.arm(endpoint);
                continue;
            };
            let ((headers, payload), wr_id) = (pending.packet(), pending.wr_id);
            if pending.is_over() {
                live.pending.pop_front();
            }
            let next = headers.bth.psn.add(1);
            let again = !next.is_after(live.high);
            if !again {
                live.high = next;
            }
            self.nics[nic as usize].push_back(endpoint);
            self.arm(endpoint);
            return Some(self.packet(endpoint, headers, payload, wr_id, again));
        }
        None
    }

    /// Makes a packet of a host; its port is the first of its way.
    fn packet(&mut self, endpoint: u32, headers: Headers, payload: u32, wr_id: Option<u64>, again: bool) -> Packet {
        let this = &self.endpoints[endpoint as usize];
        let (host, path) = (this.host, this.path);
        let opcode = headers.bth.opcode;
        self.counts.packets_sent += 1;
        self.counts.retransmitted += u64::from(again);
        self.counts.acknowledgements += u64::from(opcode == Opcode::RcAcknowledge);
        self.counts.notifications += u64::from(opcode == Opcode::Cnp);
        let capable = Ecn::of_sent(opcode) != Ecn::NotCapable;
        let flags = if opcode == Opcode::Cnp { FLAG_URGENT } else { u8::from(capable) * ECN_CAPABLE };
        let packet = Packet::new(&headers, payload, self.paths[path as usize], path, flags);
        self.under_way += 1;
        self.most_under_way = self.most_under_way.max(self.under_way);
        if self.captures.is_some() {
            self.capture(host, &packet, false);
        }
        if let Some(recorder) = &mut self.world.recorder {
            recorder.sent(self.calendar.now(), qpn_of(endpoint), &headers, payload, wr_id, again);
        }
        packet
    }
}
