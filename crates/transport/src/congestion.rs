//! The congestion window towards one destination process, shared by all queue pairs of this process that talk to it.
//!
//! The first thing to overflow between two software NICs is not a switch but the receiver's UDP socket buffer: one per
//! process, 212,992 bytes unless its owner may raise it, and the kernel charges it with the memory a packet occupies
//! rather than with its bytes. So the window counts in that currency ([`packet_cost`]), belongs to the destination
//! rather than to a queue pair, and never exceeds the buffer. Below that limit it behaves as a transport should: it
//! starts small, doubles each round trip, then adds a packet per round trip; it shrinks on loss, on timeouts, and
//! gently when the round trip says that a queue is building up somewhere. A limit alone would not do: several processes
//! may send to the same buffer, and a network may lie in between.
//!
//! Queue pairs take turns ([`Window::next_waiter`]); the window does not know what they send, only what it costs. READ
//! responses are not acknowledged, so a requester accounts them, before it asks, to the window that guards its own
//! process.

mod delivery;
mod turns;

#[cfg(test)]
mod tests;

use delivery::Delivery;
use trace::Time;
use turns::Turns;
use wire::Qpn;

/// The receive buffer of a socket on a stock Linux system (`net.core.rmem_default`).
pub const STOCK_BUFFER: u64 = 212_992;

/// The cost of a packet with the largest payload: 25 of them fill a stock buffer.
pub const FULL_PACKET: u64 = packet_cost(4096);

/// What a packet with `payload` bytes costs the socket buffer it waits in.
///
/// The kernel charges a packet's "truesize": the allocation its bytes live in plus the structure that describes it. The
/// bytes are payload and 58 of headers (Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4); behind them, in the same
/// allocation, lie 320 bytes of `skb_shared_info`; the allocator hands out powers of two; and `sk_buff` itself takes
/// 256. IPv6 and extended headers add a few bytes more, which never decides for a payload of a power of two, since the
/// next power is twice away.
pub const fn packet_cost(payload: u32) -> u64 {
    (payload as u64 + 58 + 320).next_power_of_two() + 256
}

/// The longest UDP datagram over IPv4, and what a packet in the middle of a message has beside its payload: BTH and
/// ICRC.
const MAX_DATAGRAM_BYTES: u32 = 65_507;
const MIDDLE_HEADER_BYTES: u32 = 16;

/// The most datagrams that are sent in one go.
const MAX_DATAGRAMS_PER_CALL: u32 = 4;

/// What a sender should be able to send while an acknowledgement is on its way, three quarters of a window if that is
/// less.
const ACK_FLIGHT_BYTES: u64 = 2 << 20;

/// How many packets a datagram takes whose first is longer than the others.
const LONG_FIRST_PACKETS: u32 = 2;

/// How many packets of that length a datagram takes.
const fn most_in_datagram(packet_len: u32) -> u32 {
    MAX_DATAGRAM_BYTES / (packet_len + MIDDLE_HEADER_BYTES)
}

/// How a window behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowConfig {
    /// The receiver's buffer: never more than this is in flight (in cost, see [`packet_cost`]). `u64::MAX` switches the
    /// window off.
    pub limit: u64,
    /// The window at the start.
    pub initial: u64,
    /// The window after a timeout, and the least it ever is.
    pub minimum: u64,
    /// How much a queue pair may send in one turn while others wait.
    pub quantum: u64,
    /// The round trip is too long when its average exceeds twice the shortest seen, plus this. It covers what is no
    /// congestion: a receiver that is scheduled late.
    pub slack_nanos: u64,
}

/// A stock buffer at the other end; start with ten packets of 4 KiB, as TCP does; never fewer than two, so that the
/// pipe has something to acknowledge while something else is under way.
impl Default for WindowConfig {
    fn default() -> WindowConfig {
        WindowConfig {
            limit: STOCK_BUFFER,
            initial: 10 * FULL_PACKET,
            minimum: 2 * FULL_PACKET,
            quantum: 4 * FULL_PACKET,
            slack_nanos: 1_000_000,
        }
    }
}

/// How long the shortest round trip is remembered: paths change.
const FORGET_NANOS: u64 = 10_000_000_000;
/// A stand-in while no round trip has been measured.
const GUESS_NANOS: u64 = 50_000;

/// How long to wait between two steps towards a size that was too much before.
const PROBE_NANOS: u64 = 2_000_000;

/// Losses that are at least so many packets apart on average are borne where each costs one packet.
const BEARABLE_INTERVAL: u64 = 10;

/// What has to be sent again with a packet that was lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostBehind {
    /// Nothing: the peer keeps what comes behind a lost packet.
    Nothing,
    /// The peer has not shown yet what it does.
    Unknown,
    /// All that was sent behind it: the peer goes back (go-back-N).
    Everything,
}

/// See the module.
///
/// Before sending, [`reserve`](Window::reserve); for all that was reserved, later, either
/// [`acknowledged`](Window::acknowledged) or [`release`](Window::release), exactly once. After either, the code that
/// drives the queue pairs asks [`next_waiter`](Window::next_waiter) until it says `None`, and lets each queue pair it
/// names try again.
#[derive(Debug)]
pub struct Window {
    config: WindowConfig,
    /// The congestion window.
    cwnd: u64,
    in_flight: u64,
    /// Below it the window doubles each round trip, above it grows by a packet.
    ssthresh: u64,
    /// Acknowledged since the last step of additive growth, and when that was.
    bytes_acked: u64,
    stepped_at: Time,
    /// Where a full buffer was last found: close to it growth is slow. `u64::MAX` if nowhere.
    ceiling: u64,
    /// Acknowledged since the last loss that cut the window, how much of it before the last loss at all, and how much
    /// between losses on average.
    since_loss: u64,
    counted: u64,
    loss_interval: u64,
    turns: Turns,
    round_trip: RoundTrip,
    delivery: Delivery,
    /// When the window was last cut for loss or delay, or `ssthresh` for a timeout.
    cut_at: Option<Time>,
}

impl Window {
    /// A window that behaves as `config` says.
    pub fn new(config: WindowConfig) -> Window {
        Window {
            cwnd: config.initial.clamp(config.minimum.min(config.limit), config.limit),
            config,
            in_flight: 0,
            ssthresh: u64::MAX,
            bytes_acked: 0,
            stepped_at: Time::ZERO,
            ceiling: u64::MAX,
            since_loss: 0,
            counted: 0,
            loss_interval: 2 * BEARABLE_INTERVAL * FULL_PACKET,
            turns: Turns::default(),
            round_trip: RoundTrip::default(),
            delivery: Delivery::default(),
            cut_at: None,
        }
    }

    /// A window that never refuses and counts nothing, for links that lose nothing.
    pub fn unlimited() -> Window {
        Window::new(WindowConfig { limit: u64::MAX, initial: u64::MAX, ..WindowConfig::default() })
    }

    /// Whether it never refuses.
    #[inline]
    pub fn is_unlimited(&self) -> bool {
        self.config.limit == u64::MAX
    }

    /// How many of `packets` packets may queue pair `qpn` send now? All but the last carry `packet_len` bytes, the last
    /// `last_len`. What is granted is charged ([`Window::charge_of`]). If it is less than was asked, the queue pair is
    /// in the queue and will be named by [`next_waiter`](Window::next_waiter).
    ///
    /// Nothing is granted to a queue pair that tries out of turn while others wait. But when nothing is in flight one
    /// packet is always granted, whatever it costs and whichever queue pair waits: an acknowledgement must come from
    /// somewhere to move the queue on.
    #[inline]
    pub fn reserve(&mut self, qpn: Qpn, packet_len: u32, packets: u32, last_len: u32) -> u32 {
        self.grant(qpn, packet_len, packets, last_len, 0)
    }

    /// Like [`reserve`](Window::reserve), for a queue pair that has something under way and can wait: less than a
    /// turn's worth (or a quarter of the window, if that is less) is declined, and it waits for as much.
    #[inline]
    pub fn reserve_unless_sliver(&mut self, qpn: Qpn, packet_len: u32, packets: u32, last_len: u32) -> u32 {
        let least = self.config.quantum.min(self.cwnd / 4).next_multiple_of(packet_cost(packet_len));
        self.grant(qpn, packet_len, packets, last_len, least)
    }

    /// Like [`reserve_unless_sliver`](Window::reserve_unless_sliver), for packets that are sent together, a
    /// [`burst`](Window::burst) at most. In a wide window fewer are declined while something is under way, and the
    /// queue pair waits for room for all of them: a datagram costs its sender and its receiver about as much whether it
    /// is full or not.
    #[inline]
    pub fn reserve_together(&mut self, qpn: Qpn, packet_len: u32, packets: u32, last_len: u32) -> u32 {
        let all = if self.is_wide(packet_len) { Window::charge_of(packet_len, packets, last_len) } else { 0 };
        self.grant(qpn, packet_len, packets, last_len, all)
    }

    /// Whether a sender should ask for an acknowledgement that has sent so many packets of `packet_len` bytes since it
    /// last did. In a wide window not with each datagram, but so often that acknowledgements come while there is enough
    /// under way, and before there is no room left.
    #[inline]
    pub fn should_ask(&self, packet_len: u32, unasked: u32) -> bool {
        let cost = packet_cost(packet_len);
        let next = u64::from(self.burst(packet_len)).saturating_mul(cost);
        let part = (self.cwnd / 4).max(self.cwnd.saturating_sub(ACK_FLIGHT_BYTES));
        !self.is_wide(packet_len)
            || self.has_waiters()
            || u64::from(unasked) * cost + next > part
            || self.in_flight + next > self.cwnd
    }

    /// Whether a quarter of it takes a datagram full of packets of that length. Where it is narrower every packet
    /// counts, and so does every acknowledgement: losses have made it so.
    #[inline]
    pub fn is_wide(&self, packet_len: u32) -> bool {
        !self.is_unlimited() && self.cwnd / 4 >= u64::from(most_in_datagram(packet_len)) * packet_cost(packet_len)
    }

    /// Like [`reserve`](Window::reserve), for one packet that is granted or not: it does not wait, and passes no queue
    /// pair that waits. Returns what it is charged.
    #[inline]
    pub fn reserve_one(&mut self, length: u32) -> Option<u64> {
        let charge = packet_cost(length);
        if !self.is_unlimited() {
            if self.has_waiters() || self.cwnd.saturating_sub(self.in_flight) < charge {
                return None;
            }
            self.in_flight += charge;
        }
        Some(charge)
    }

    fn grant(&mut self, qpn: Qpn, packet_len: u32, packets: u32, last_len: u32, least: u64) -> u32 {
        if self.is_unlimited() || packets == 0 {
            return packets;
        }
        let room = self.cwnd.saturating_sub(self.in_flight);
        let allowed = self.turns.allow(qpn, room);
        let mut granted = fitting(allowed, packet_len, packets, last_len);
        if granted == 0 && self.in_flight == 0 {
            granted = 1;
        }
        let charge = if granted == packets {
            Window::charge_of(packet_len, packets, last_len)
        } else {
            u64::from(granted) * packet_cost(packet_len)
        };
        if granted < packets && charge < least && self.in_flight > 0 {
            let next = least.min(Window::charge_of(packet_len, packets, last_len));
            self.turns.wait(qpn, next, 0, next > room);
            return 0;
        }
        self.in_flight += charge;
        if granted < packets {
            let next = packet_cost(if packets - granted == 1 { last_len } else { packet_len });
            // Out of room or out of allowance? Who was stopped by the window alone goes on where he stopped.
            let stopped_by_window = next > room.saturating_sub(charge);
            self.turns.wait(qpn, next, charge, stopped_by_window);
        } else {
            self.turns.spend(qpn, charge);
        }
        granted
    }

    /// How many packets of `packet_len` bytes to send before asking for an acknowledgement: a quarter of the window, so
    /// that acknowledgements come while there is still something under way. One for the whole window would mean to stop
    /// and wait. In a wide window as many as fill datagrams that are cut into packets by their sender, up to a
    /// few.
    #[inline]
    pub fn burst(&self, packet_len: u32) -> u32 {
        if self.is_unlimited() {
            return u32::MAX;
        }
        let quarter = u32::try_from(self.cwnd / 4 / packet_cost(packet_len)).unwrap_or(u32::MAX);
        let datagram = most_in_datagram(packet_len);
        match quarter / datagram {
            0 => quarter.max(1),
            datagrams => datagrams.min(MAX_DATAGRAMS_PER_CALL) * datagram,
        }
    }

    /// Like [`burst`](Window::burst), where the first packet is longer than the others. Of packets that are cut from
    /// one datagram only the last may have another length: in a wide window the first datagram is one of two.
    #[inline]
    pub fn burst_after_longer(&self, packet_len: u32) -> u32 {
        let burst = self.burst(packet_len);
        if self.is_wide(packet_len) { burst - most_in_datagram(packet_len) + LONG_FIRST_PACKETS } else { burst }
    }

    /// What [`reserve`](Window::reserve) charges for `packets` packets when it grants them all. For a part of a run,
    /// `last_len` is `packet_len`.
    pub fn charge_of(packet_len: u32, packets: u32, last_len: u32) -> u64 {
        match packets.checked_sub(1) {
            None => 0,
            Some(others) => u64::from(others) * packet_cost(packet_len) + packet_cost(last_len),
        }
    }

    /// Gives back what was reserved, without judgement: the queue pair was reset, or will send these packets again.
    #[inline]
    pub fn release(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// What was reserved has arrived. Frees it, and lets the window grow if it was the window that held the sender
    /// back. `round_trip_nanos` is the time from sending to this acknowledgement, where it is known for certain (not
    /// for packets sent twice).
    #[inline]
    pub fn acknowledged(&mut self, now: Time, cost: u64, round_trip_nanos: Option<u64>) {
        if self.is_unlimited() {
            return;
        }
        // A sender that neither fills half of its window nor is held back by it has not shown that the path carries
        // more.
        let used = self.in_flight >= self.cwnd / 2 || self.has_waiters();
        self.in_flight = self.in_flight.saturating_sub(cost);
        self.since_loss = self.since_loss.saturating_add(cost);
        if let Some(sample) = round_trip_nanos {
            self.round_trip.sample(now, sample);
        }
        self.delivery.arrived(now, cost, self.round_trip.smoothed(), self.round_trip.shortest());
        if self.round_trip.exceeds(self.config.slack_nanos) && self.cwnd > self.delay_floor() {
            self.delayed(now);
        } else if used && self.cwnd < self.config.limit {
            self.grow(now, cost);
        }
    }

    /// A packet of `length` bytes was lost: the peer said so, or skipped it. Cuts the window to seven tenths, once for
    /// all losses of one round trip.
    ///
    /// Was a buffer full, or was it bad luck? It was luck if the round trip shows no queue and losses are rare: a whole
    /// buffer went through since the last. (The round trip alone cannot tell: who joined a full buffer late has never
    /// seen it empty.) Luck says nothing about the size. A full buffer does: the size is remembered, and the window
    /// comes close to it again only slowly, for go-back-N pays for each lost packet with a window of them.
    ///
    /// A peer that goes back is no NIC of ours, so it has no socket whose buffer its senders share. Towards it, unless
    /// more than one packet of ten is lost, the window is not cut below one and a half times what the path holds without
    /// a queue (`congestion/delivery.rs`): a smaller one would leave the path idle.
    ///
    /// Where a loss costs one packet, a smaller window gains nothing if it was luck, and the window stays what it is:
    /// if there is no queue for certain, and no more than one packet of ten is lost.
    pub fn lost(&mut self, now: Time, length: u32, behind: LostBehind) {
        if self.is_unlimited() {
            return;
        }
        let bearable = BEARABLE_INTERVAL * packet_cost(length);
        let interval = (self.since_loss - self.counted).min(4 * bearable);
        self.loss_interval = self.loss_interval - self.loss_interval / 8 + interval / 8;
        self.counted = self.since_loss;
        if behind == LostBehind::Nothing && self.loss_interval >= bearable && !self.round_trip.shows_queue() {
            return;
        }
        if self.may_cut(now) {
            self.cut_at = Some(now);
            let luck = !self.round_trip.is_raised() && self.since_loss >= self.config.limit;
            self.ceiling = if luck { u64::MAX } else { self.cwnd };
            (self.since_loss, self.counted) = (0, 0);
            let holds = behind == LostBehind::Everything && self.loss_interval >= bearable;
            let full = if holds { self.delivery.held_by_path() } else { 0 };
            let floor = (full + full / 2).min(self.cwnd).max(self.config.minimum);
            self.shrink_to(self.cwnd / 10 * 7, floor);
        }
    }

    /// Nothing came back at all. Cuts the window to its minimum; it then doubles up to half of where it was.
    pub fn timed_out(&mut self, now: Time) {
        if self.is_unlimited() {
            return;
        }
        // The queue pairs of one destination time out together. Only the first finds a window that says anything about
        // the path.
        let minimum = self.config.minimum.min(self.config.limit);
        if self.cwnd > minimum {
            self.ssthresh = (self.cwnd / 2).max(minimum);
            self.cut_at = Some(now);
        }
        self.cwnd = minimum;
        self.bytes_acked = 0;
    }

    /// The queue pair that waited longest, if there is room for its next packet. It has left the queue and holds the
    /// turn until the next call: its next [`reserve`](Window::reserve) passes those who still wait.
    pub fn next_waiter(&mut self) -> Option<Qpn> {
        let room = if self.in_flight == 0 { u64::MAX } else { self.cwnd.saturating_sub(self.in_flight) };
        self.turns.next(room, self.config.quantum)
    }

    /// Whether any queue pair waits.
    pub fn has_waiters(&self) -> bool {
        !self.turns.is_empty()
    }

    /// A queue pair wants nothing any more: it was reset, destroyed, or is in error.
    pub fn leave(&mut self, qpn: Qpn) {
        self.turns.leave(qpn);
    }

    /// The congestion window as it is now.
    pub fn cwnd(&self) -> u64 {
        self.cwnd
    }

    /// What is reserved and not yet acknowledged or released.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The largest it may become.
    pub fn limit(&self) -> u64 {
        self.config.limit
    }

    /// The smoothed round trip, once one was measured.
    pub fn round_trip_nanos(&self) -> Option<u64> {
        self.round_trip.smoothed
    }

    fn grow(&mut self, now: Time, cost: u64) {
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + cost).min(self.config.limit);
            return;
        }
        self.bytes_acked += cost;
        if self.bytes_acked < self.cwnd {
            return;
        }
        let next = (self.cwnd + FULL_PACKET).min(self.config.limit);
        if next > self.ceiling - self.ceiling / 8 && now.since(self.stepped_at) < PROBE_NANOS {
            self.bytes_acked = self.cwnd;
            return;
        }
        if next > self.ceiling.saturating_add(2 * FULL_PACKET) {
            // Well past it and nothing was lost: the other sender that filled the buffer is gone.
            self.ceiling = u64::MAX;
        }
        self.bytes_acked -= self.cwnd;
        self.stepped_at = now;
        self.cwnd = next;
    }

    /// The round trip is too long: by an eighth, once per round trip.
    fn delayed(&mut self, now: Time) {
        if self.may_cut(now) {
            self.cut_at = Some(now);
            self.shrink_to(self.cwnd - self.cwnd / 8, self.delay_floor());
        }
    }

    /// Delay alone never takes more than three quarters of the buffer away: on a busy host it often means only that the
    /// receiver got no processor, and then a small window makes it worse.
    fn delay_floor(&self) -> u64 {
        (self.config.limit / 4).max(self.config.minimum)
    }

    fn may_cut(&self, now: Time) -> bool {
        let pause = self.round_trip.smoothed().max(1);
        !self.is_unlimited() && self.cut_at.is_none_or(|at| now.since(at) >= pause)
    }

    fn shrink_to(&mut self, cwnd: u64, floor: u64) {
        self.cwnd = cwnd.max(floor).min(self.config.limit);
        self.ssthresh = self.cwnd;
        self.bytes_acked = 0;
    }
}

/// How many packets of a run cost no more than `room`.
fn fitting(room: u64, packet_len: u32, packets: u32, last_len: u32) -> u32 {
    if Window::charge_of(packet_len, packets, last_len) <= room {
        return packets;
    }
    let whole = room / packet_cost(packet_len);
    // The run as a whole does not fit, so at least its last packet stays.
    u32::try_from(whole).unwrap_or(u32::MAX).min(packets - 1)
}

/// What is known of the time between sending and acknowledgement.
#[derive(Debug, Default)]
struct RoundTrip {
    smoothed: Option<u64>,
    shortest: u64,
    shortest_at: Time,
    /// How many samples there were; the shortest of those since the last multiple of [`RECENT_SAMPLES`], and of as many
    /// before these.
    samples: u32,
    recent: u64,
    before: u64,
}

/// Of so many round trips the shortest is looked at: a thread that comes late makes some longer, a queue all of them.
const RECENT_SAMPLES: u32 = 8;

impl RoundTrip {
    fn sample(&mut self, now: Time, nanos: u64) {
        // Samples of minutes would only come from a driver's mistake; the bound keeps the sums below from overflowing.
        let nanos = nanos.min(1 << 40);
        if self.samples.is_multiple_of(RECENT_SAMPLES) {
            (self.before, self.recent) = (if self.samples == 0 { u64::MAX } else { self.recent }, u64::MAX);
        }
        self.samples = self.samples.wrapping_add(1);
        self.recent = self.recent.min(nanos);
        match &mut self.smoothed {
            None => {
                self.smoothed = Some(nanos);
                (self.shortest, self.shortest_at) = (nanos, now);
            }
            Some(smoothed) => {
                // An eighth of the way towards each sample, as TCP does (RFC 6298).
                *smoothed = *smoothed - *smoothed / 8 + nanos / 8;
                if nanos <= self.shortest || now.since(self.shortest_at) >= FORGET_NANOS {
                    (self.shortest, self.shortest_at) = (nanos, now);
                }
            }
        }
    }

    fn smoothed(&self) -> u64 {
        self.smoothed.unwrap_or(GUESS_NANOS)
    }

    fn shortest(&self) -> u64 {
        if self.smoothed.is_some() { self.shortest } else { GUESS_NANOS }
    }

    /// A quarter above the shortest: there may be a queue somewhere.
    fn is_raised(&self) -> bool {
        self.smoothed.is_some_and(|smoothed| smoothed > self.shortest + self.shortest / 4)
    }

    /// All of the last few are a quarter above the shortest: there is one.
    fn shows_queue(&self) -> bool {
        self.samples > 0 && self.recent.min(self.before) > self.shortest + self.shortest / 4
    }

    fn exceeds(&self, slack: u64) -> bool {
        self.smoothed.is_some_and(|smoothed| smoothed > (2 * self.shortest).saturating_add(slack))
    }
}
