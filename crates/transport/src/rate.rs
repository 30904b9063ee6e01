//! How fast a queue pair may send: what its program set (packet pacing, a static rate of the way) and what congestion
//! leaves of the line rate ([`Dcqcn`]), the lower of both. One account of time serves both: what was sent is paid for
//! at the rate, and until it is nothing more goes.
//!
//! A queue pair with neither has no [`Rate`] at all.
//!
//! | what | rule |
//! |---|---|
//! | bytes that count | those on an Ethernet wire: payload and 58 of headers a packet, over every link |
//! | requests | pay at the lower of both rates |
//! | answers to READs and atomics | pay at the rate of congestion alone: pacing is the send queue's |
//! | acknowledgements, notifications | are free |
//! | a driver that comes late | makes up for it, up to a burst: the program's, or [`CATCH_UP_NANOS`] |

mod dcqcn;

#[cfg(test)]
mod tests;

pub use dcqcn::{Dcqcn, DcqcnConfig};

use trace::Time;

/// Ethernet, IPv4, UDP, BTH and ICRC.
const PACKET_OVERHEAD: u64 = 58;

/// A sender that comes on time sends what the rate gives in this time, or a packet.
const QUANTUM_NANOS: u64 = 5_000;

/// A paced sender that comes late sends at once what it has missed in this time, where its program set no burst.
/// Threads sleep 50 us too long as a rule, and wait for a processor.
pub const CATCH_UP_NANOS: u64 = 2_000_000;

/// What a late sender catches up at once where congestion sets the rate: bursts are what it suffers from.
const CONGESTED_CATCH_UP_NANOS: u64 = 100_000;

/// What a program asks for to pace a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[doc(alias = "ibv_qp_rate_limit_attr")]
pub struct RateLimit {
    /// The most that is sent, in kbit/s; 0 for no limit.
    pub kbps: u32,
    /// The most that is sent in one go, in bytes; 0 leaves it to the device. A packet goes whole, however long.
    pub max_burst: u32,
    /// How long a packet is, mostly, in bytes. A hint for devices that compute gaps from it; this one sees the packets.
    pub typical_packet: u16,
}

impl RateLimit {
    /// The lowest and the highest limit, in kbit/s: what mlx5 has. The highest is the line rate.
    pub const MIN_KBPS: u32 = 1;
    /// See [`MIN_KBPS`](RateLimit::MIN_KBPS).
    pub const MAX_KBPS: u32 = 100_000_000;
    /// The longest burst, in bytes: what the line rate sends in ten milliseconds and a half.
    pub const MAX_BURST: u32 = 128 << 20;

    /// A limit in kbit/s and nothing else.
    pub const fn kbps(kbps: u32) -> RateLimit {
        RateLimit { kbps, max_burst: 0, typical_packet: 0 }
    }
}

/// The rate of a way, as an address vector encodes it (`ibv_rate`), in kbit/s. None where it is no limit: 0, what the
/// port can do and more, and numbers without a meaning.
pub fn static_rate_kbps(code: u8) -> Option<u32> {
    let mbps = match code {
        2 => 2_500,
        5 => 5_000,
        3 => 10_000,
        6 => 20_000,
        4 => 30_000,
        7 => 40_000,
        8 => 60_000,
        9 => 80_000,
        11 => 14_062,
        12 => 56_250,
        15 => 25_781,
        19 => 28_125,
        20 => 53_125,
        _ => return None,
    };
    Some(mbps * 1000)
}

/// What is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// Work of the send queue.
    Requests,
    /// Answers to the peer's READs and atomics.
    Answers,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Rate {
    /// What the program set.
    limit: RateLimit,
    /// What congestion leaves.
    congestion: Option<Dcqcn>,
    /// Everything sent is paid for at this moment.
    paid_at: Time,
    /// Something waits for it.
    waits_until: Option<Time>,
}

/// A rate and what may be sent at once under it.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    bits_per_second: u64,
    catch_up_nanos: u64,
    /// In bytes.
    burst: Option<u64>,
}

impl Rate {
    /// Nothing is limited yet.
    pub fn new(now: Time) -> Rate {
        Rate { limit: RateLimit::default(), congestion: None, paid_at: now, waits_until: None }
    }

    /// From now on this holds.
    pub fn set_limit(&mut self, limit: RateLimit) {
        self.limit = limit;
        // What was sent before was sent under another limit, which may have been far lower.
        (self.paid_at, self.waits_until) = (Time::ZERO, None);
    }

    /// A congestion notification arrived, at a port of this rate. Returns the rate before and after it, in bit/s.
    pub fn notified(&mut self, now: Time, line_rate: u64) -> (u64, u64) {
        let config = DcqcnConfig { line_rate, ..DcqcnConfig::default() };
        let congestion = self.congestion.get_or_insert_with(|| Dcqcn::new(config, now));
        let before = congestion.rate(now);
        congestion.notified(now);
        (before, congestion.rate(now))
    }

    /// Whether nothing is limited, and nothing is to be remembered.
    pub fn is_over(&mut self, now: Time) -> bool {
        self.limit.kbps == 0 && self.congestion.as_mut().is_none_or(|congestion| congestion.is_over(now))
    }

    /// What congestion leaves, in bit/s; none if it limits nothing.
    pub fn congested_rate(&mut self, now: Time) -> Option<u64> {
        let congestion = self.congestion.as_mut()?;
        if congestion.is_at_line_rate(now) { None } else { Some(congestion.rate(now)) }
    }

    /// How many packets with that payload may be sent now: at least one, or none before the moment in the error.
    pub fn grant(&mut self, now: Time, flow: Flow, payload: u32) -> Result<u32, Time> {
        self.waits_until = None;
        let Some(bounds) = self.bounds(now, flow) else { return Ok(u32::MAX) };
        if now < self.paid_at {
            self.waits_until = Some(self.paid_at);
            return Err(self.paid_at);
        }
        let packet = u64::from(payload) + PACKET_OVERHEAD;
        let missed = now.since(self.paid_at).min(bounds.catch_up_nanos);
        let bytes = bounds.bytes_in(missed + QUANTUM_NANOS).min(bounds.burst.unwrap_or(u64::MAX));
        Ok(u32::try_from(bytes / packet).unwrap_or(u32::MAX).max(1))
    }

    /// Packets were sent, with so much payload in all.
    pub fn spent(&mut self, now: Time, flow: Flow, packets: u32, payload: u32) {
        let bytes = u64::from(packets) * PACKET_OVERHEAD + u64::from(payload);
        if let Some(congestion) = &mut self.congestion {
            congestion.sent(bytes);
        }
        if let Some(bounds) = self.bounds(now, flow) {
            let earliest = Time::from_nanos(now.as_nanos().saturating_sub(bounds.catch_up_nanos));
            self.paid_at = self.paid_at.max(earliest).plus_nanos(bounds.nanos_of(bytes));
        }
    }

    /// When something that waits may be sent.
    pub fn waits_until(&self) -> Option<Time> {
        self.waits_until
    }

    /// Time passes: what waited may be asked for again.
    pub fn time_has_come(&mut self, now: Time) {
        if self.waits_until.is_some_and(|until| until <= now) {
            self.waits_until = None;
        }
    }

    /// What holds for this flow; none if nothing does.
    fn bounds(&mut self, now: Time, flow: Flow) -> Option<Bounds> {
        let congested = self.congested_rate(now).map(|bits_per_second| Bounds {
            bits_per_second,
            catch_up_nanos: CONGESTED_CATCH_UP_NANOS,
            burst: None,
        });
        let RateLimit { kbps, max_burst, .. } = self.limit;
        let paced = (kbps > 0 && flow == Flow::Requests).then(|| {
            let mut bounds = Bounds {
                bits_per_second: u64::from(kbps) * 1000,
                catch_up_nanos: CATCH_UP_NANOS,
                burst: (max_burst > 0).then_some(u64::from(max_burst)),
            };
            if let Some(burst) = bounds.burst {
                bounds.catch_up_nanos = bounds.nanos_of(burst).saturating_sub(QUANTUM_NANOS);
            }
            bounds
        });
        [congested, paced].into_iter().flatten().min_by_key(|bounds| bounds.bits_per_second)
    }
}

impl Bounds {
    fn bytes_in(&self, nanos: u64) -> u64 {
        (u128::from(nanos) * u128::from(self.bits_per_second) / 8_000_000_000) as u64
    }

    fn nanos_of(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.bits_per_second.max(1))) as u64
    }
}
