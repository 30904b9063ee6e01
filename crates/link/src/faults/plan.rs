//! What goes wrong, as values and as text. The grammar is in the module above.

use super::{Dice, Injected};
use host::environment::variable;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use trace::DropReason;
use wire::refuse_if;

/// Which faults happen to which packets.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The first that fits a packet decides.
    pub rules: Vec<Rule>,
    /// All that fit a packet act on it, before one of `rules` decides: failure scripts break several things at a time.
    pub added: Vec<Rule>,
    /// Where chance begins.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan { rules: Vec::new(), added: Vec::new(), seed: 1 }
    }
}

/// A shortest and a longest time.
pub type Span = (Duration, Duration);

/// Faults for some packets.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Only packets from this address.
    pub from: Option<IpAddr>,
    /// Only packets to this address.
    pub to: Option<IpAddr>,
    /// Nothing passes.
    pub partition: bool,
    /// Packets that are lost.
    pub drop: Chance,
    /// Packets that pass twice.
    pub dup: Chance,
    /// Packets that others overtake.
    pub reorder: Chance,
    /// Packets that are damaged.
    pub corrupt: Chance,
    /// Packets that are marked "congestion experienced".
    pub mark: Chance,
    /// How late packets are.
    pub delay: Span,
    /// How long a packet that is overtaken is held back.
    pub hold: Duration,
    /// No more than so many bits pass in a second.
    pub rate: Option<u64>,
    /// Packets are taken for this share of the time only, from more than 0 to 1.
    pub share: Option<f64>,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule {
            from: None,
            to: None,
            partition: false,
            drop: Chance::default(),
            dup: Chance::default(),
            reorder: Chance::default(),
            corrupt: Chance::default(),
            mark: Chance::default(),
            delay: (Duration::ZERO, Duration::ZERO),
            hold: Duration::from_millis(1),
            rate: None,
            share: None,
        }
    }
}

impl Rule {
    /// Why packet `number` is lost, if it is.
    pub(super) fn loses(&self, number: u64, dice: &mut Dice, injected: &mut Injected) -> Option<DropReason> {
        if self.partition {
            injected.partitioned += 1;
            return Some(DropReason::Partitioned);
        }
        let lost = self.drop.strikes(number, dice);
        injected.dropped += u64::from(lost);
        lost.then_some(DropReason::RandomLoss)
    }

    pub(super) fn fits(&self, from: IpAddr, to: IpAddr) -> bool {
        self.from.is_none_or(|address| address == from) && self.to.is_none_or(|address| address == to)
    }
}

/// How often something happens, or when.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Chance {
    /// With this probability.
    pub probability: f64,
    /// Also to the packets with these numbers, counted from 1.
    pub numbers: Vec<RangeInclusive<u64>>,
}

impl Chance {
    /// With this probability.
    pub fn of(probability: f64) -> Chance {
        Chance { probability, numbers: Vec::new() }
    }

    /// To packet `number`. What is impossible takes nothing from the dice: a fault that is off does not change when
    /// others strike.
    pub(super) fn strikes(&self, number: u64, dice: &mut Dice) -> bool {
        let by_chance = self.probability > 0.0 && dice.unit() < self.probability;
        by_chance || self.numbers.iter().any(|range| range.contains(&number))
    }
}

/// What is wrong with the text of a plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A word that is no fault.
    #[error("{0:?} is no fault: it is drop, dup, reorder, corrupt, mark, delay, hold, from, to, partition or seed")]
    UnknownItem(String),
    /// A word that says nothing.
    #[error("a fault is missing between two separators")]
    Empty,
    /// Not a probability.
    #[error("{item}={value:?}: a chance is a percentage from 0% to 100%, or a number from 0 to 1")]
    Chance {
        /// The fault.
        item: String,
        /// What was said.
        value: String,
    },
    /// Not the numbers of packets.
    #[error("{item}@{value:?}: packets are counted from 1, as in {item}@3 or {item}@3..5")]
    Numbers {
        /// The fault.
        item: String,
        /// What was said.
        value: String,
    },
    /// Not a time.
    #[error(
        "{item}={value:?}: a time is a number and ns, us, ms or s, at most an hour, as in 1ms; delay also takes 1ms..3ms"
    )]
    Time {
        /// The fault.
        item: String,
        /// What was said.
        value: String,
    },
    /// Not an address.
    #[error("{item}={value:?} is no IP address")]
    Address {
        /// The filter.
        item: String,
        /// What was said.
        value: String,
    },
    /// Not a seed.
    #[error("seed={0:?} is no number")]
    Seed(String),
    /// Not text.
    #[error("UBIVERBS_FAULTS is not text")]
    NotText,
}

impl Plan {
    /// Whether nothing goes wrong.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.added.is_empty()
    }

    /// The plan in `UBIVERBS_FAULTS`; none if that is not set or empty.
    pub fn from_environment() -> Result<Option<Plan>, PlanError> {
        let Some(text) = variable("UBIVERBS_FAULTS") else { return Ok(None) };
        match text.to_str() {
            Some(text) if text.trim().is_empty() => Ok(None),
            Some(text) => text.parse().map(Some),
            None => Err(PlanError::NotText),
        }
    }
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let mut plan = Plan::default();
        for text in text.split(';') {
            let mut rule = Rule::default();
            for item in text.split(',') {
                read_item(item.trim(), &mut rule, &mut plan.seed)?;
            }
            plan.rules.push(rule);
        }
        Ok(plan)
    }
}

fn read_item(item: &str, rule: &mut Rule, seed: &mut u64) -> Result<(), PlanError> {
    refuse_if!(item.is_empty(), PlanError::Empty);
    if let Some((name, value)) = item.split_once('@') {
        let chance = rule.chance(name).ok_or_else(|| PlanError::UnknownItem(name.into()))?;
        let wrong = || PlanError::Numbers { item: name.into(), value: value.into() };
        chance.numbers.push(numbers(value).ok_or_else(wrong)?);
        return Ok(());
    }
    let (name, value) = item.split_once('=').unwrap_or((item, ""));
    if let Some(chance) = rule.chance(name) {
        let wrong = || PlanError::Chance { item: name.into(), value: value.into() };
        chance.probability = probability(value).ok_or_else(wrong)?;
        return Ok(());
    }
    let wrong_time = || PlanError::Time { item: name.into(), value: value.into() };
    let address = || value.parse().map_err(|_| PlanError::Address { item: name.into(), value: value.into() });
    match name {
        "delay" => {
            let (low, high) = value.split_once("..").unwrap_or((value, value));
            rule.delay = (time(low).ok_or_else(wrong_time)?, time(high).ok_or_else(wrong_time)?);
            refuse_if!(rule.delay.0 > rule.delay.1, wrong_time());
        }
        "hold" => rule.hold = time(value).ok_or_else(wrong_time)?,
        "from" => rule.from = Some(address()?),
        "to" => rule.to = Some(address()?),
        "partition" if value.is_empty() && !item.contains('=') => rule.partition = true,
        "seed" => *seed = value.parse().map_err(|_| PlanError::Seed(value.into()))?,
        _ => return Err(PlanError::UnknownItem(item.into())),
    }
    Ok(())
}

impl Rule {
    fn chance(&mut self, name: &str) -> Option<&mut Chance> {
        match name {
            "drop" => Some(&mut self.drop),
            "dup" => Some(&mut self.dup),
            "reorder" => Some(&mut self.reorder),
            "corrupt" => Some(&mut self.corrupt),
            "mark" => Some(&mut self.mark),
            _ => None,
        }
    }
}

fn probability(text: &str) -> Option<f64> {
    let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |digits| (digits, 100.0));
    let value = decimal(digits)? / scale;
    (0.0..=1.0).contains(&value).then_some(value)
}

fn numbers(text: &str) -> Option<RangeInclusive<u64>> {
    let (low, high) = text.split_once("..").unwrap_or((text, text));
    let (low, high) = (low.parse().ok()?, high.parse().ok()?);
    (1 <= low && low <= high).then_some(low..=high)
}

fn time(text: &str) -> Option<Duration> {
    let unit = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (digits, unit) = text.split_at_checked(unit)?;
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return None,
    };
    let seconds = decimal(digits)? * scale;
    (seconds <= 3600.0).then(|| Duration::from_secs_f64(seconds))
}

/// A number without sign, exponent or names such as `inf`, which the library's parser knows too.
fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}
