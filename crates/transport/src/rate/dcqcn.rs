//! The reaction point of DCQCN: at which rate a sender goes on that is told of congestion (Zhu et al., "Congestion
//! Control for Large-Scale RDMA Deployments", SIGCOMM 2015). A notification cuts the rate by half of `alpha`, an
//! estimate of how congested the path is; without further ones
//! `alpha` decays, and the rate comes back: five times half of the way to where it was, then by additive steps, then by
//! growing ones.
//!
//! It has no timers that anybody must keep. Periods that have passed are made up for when the rate is next asked for,
//! which is when something is to be sent.

use trace::Time;

/// The constants of the algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DcqcnConfig {
    /// What the port sends at most, in bit/s: the rate of a sender that has heard nothing.
    pub line_rate: u64,
    /// The rate never falls below this, however many notifications come (`rpg_min_rate`).
    pub minimum_rate: u64,
    /// `g` is 2 to the power of minus this (`dce_tcp_g`).
    pub gain_shift: u32,
    /// `alpha` decays once in so many nanoseconds without a notification (`dce_tcp_rtt`).
    pub alpha_period: u64,
    /// The rate is raised once in so many nanoseconds (`rpg_time_reset`),
    pub increase_period: u64,
    /// and once every so many bytes (`rpg_byte_reset`).
    pub increase_bytes: u64,
    /// So many raises of a kind are fast recovery (`rpg_threshold`).
    pub fast_recovery: u32,
    /// The step of additive increase, in bit/s (`rpg_ai_rate`).
    pub additive_step: u64,
    /// The step of hyper increase, in bit/s (`rpg_hai_rate`).
    pub hyper_step: u64,
}

/// The paper's figures; those it leaves to QCN as mlx5 has them: a step of hyper increase is ten additive ones.
impl Default for DcqcnConfig {
    fn default() -> DcqcnConfig {
        DcqcnConfig {
            line_rate: 100_000_000_000,
            minimum_rate: 10_000_000,
            gain_shift: 8,
            alpha_period: 55_000,
            increase_period: 55_000,
            increase_bytes: 10_000_000,
            fast_recovery: 5,
            additive_step: 40_000_000,
            hyper_step: 400_000_000,
        }
    }
}

/// `alpha` counts in these parts of one.
const ALPHA_ONE: u64 = 1 << 30;

/// How long after the last notification a sender at line rate is as good as one that has never heard any.
const FORGET_NANOS: u64 = 50_000_000;

/// The rate of one sender. Notifications, bytes and moments go in, the rate comes out.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    config: DcqcnConfig,
    /// What is sent with, and where recovery leads to, in bit/s.
    current: u64,
    target: u64,
    alpha: u64,
    /// When `alpha` last decayed, or was renewed.
    alpha_at: Time,
    /// When the running period of increase began, and how many have ended since the last notification.
    period_at: Time,
    periods: u32,
    /// The bytes sent in the running period of increase; and the periods by bytes that have ended.
    bytes: u64,
    byte_rounds: u32,
    notified_at: Time,
}

impl Dcqcn {
    /// A sender at line rate, which expects the worst of the first notification (`alpha` is 1).
    pub fn new(config: DcqcnConfig, now: Time) -> Dcqcn {
        Dcqcn {
            current: config.line_rate,
            target: config.line_rate,
            config,
            alpha: ALPHA_ONE,
            alpha_at: now,
            period_at: now,
            periods: 0,
            bytes: 0,
            byte_rounds: 0,
            notified_at: now,
        }
    }

    /// A congestion notification arrived: the rate is cut at once, and recovery begins anew.
    pub fn notified(&mut self, now: Time) {
        self.advance(now);
        self.target = self.current;
        let cut = (u128::from(self.current) * u128::from(self.alpha) / u128::from(2 * ALPHA_ONE)) as u64;
        self.current = (self.current - cut).max(self.config.minimum_rate).min(self.config.line_rate);
        self.alpha = self.decayed() + (ALPHA_ONE >> self.config.gain_shift);
        (self.alpha_at, self.period_at, self.notified_at) = (now, now, now);
        (self.periods, self.bytes, self.byte_rounds) = (0, 0, 0);
    }

    /// So many bytes were sent.
    pub fn sent(&mut self, bytes: u64) {
        self.bytes += bytes;
        while self.bytes >= self.config.increase_bytes.max(1) && self.current < self.config.line_rate {
            self.bytes -= self.config.increase_bytes.max(1);
            self.byte_rounds = self.byte_rounds.saturating_add(1);
            self.raise();
        }
    }

    /// The rate at this moment, in bit/s.
    pub fn rate(&mut self, now: Time) -> u64 {
        self.advance(now);
        self.current
    }

    /// The estimate of congestion at this moment, 0 to 1.
    pub fn alpha(&mut self, now: Time) -> f64 {
        self.advance(now);
        self.alpha as f64 / ALPHA_ONE as f64
    }

    /// Whether the sender may go as fast as the port can, at this moment.
    pub fn is_at_line_rate(&mut self, now: Time) -> bool {
        self.rate(now) >= self.config.line_rate
    }

    /// Whether that has been so for so long that there is nothing to remember.
    pub fn is_over(&mut self, now: Time) -> bool {
        self.is_at_line_rate(now) && now.since(self.notified_at) >= FORGET_NANOS
    }

    /// Makes up for the periods that have passed.
    fn advance(&mut self, now: Time) {
        let period = self.config.alpha_period.max(1);
        let passed = now.since(self.alpha_at) / period;
        self.alpha_at = self.alpha_at.plus_nanos(passed * period);
        for _ in 0..passed {
            let decayed = self.decayed();
            if decayed == self.alpha {
                // What is left is less than the gain.
                break;
            }
            self.alpha = decayed;
        }
        let period = self.config.increase_period.max(1);
        let passed = now.since(self.period_at) / period;
        self.period_at = self.period_at.plus_nanos(passed * period);
        for _ in 0..passed {
            if self.current >= self.config.line_rate {
                break;
            }
            self.periods = self.periods.saturating_add(1);
            self.raise();
        }
    }

    fn decayed(&self) -> u64 {
        self.alpha - (self.alpha >> self.config.gain_shift)
    }

    /// A period has ended, or enough bytes were sent. The paper's figure 7.
    fn raise(&mut self) {
        let DcqcnConfig { line_rate, fast_recovery, additive_step, hyper_step, .. } = self.config;
        let (most, least) = (self.periods.max(self.byte_rounds), self.periods.min(self.byte_rounds));
        let step = match most {
            most if most <= fast_recovery => 0,
            _ if least > fast_recovery => hyper_step.saturating_mul(u64::from(least - fast_recovery)),
            _ => additive_step,
        };
        self.target = self.target.saturating_add(step).min(line_rate);
        self.current = self.current.midpoint(self.target);
        // Halving the distance alone would never arrive.
        if line_rate - self.current <= line_rate / 1000 {
            self.current = line_rate;
        }
    }
}
