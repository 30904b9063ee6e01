//! The flows of an interface, and which of them a frame meets.
//!
//! | rules | which frames | in which order |
//! |---|---|---|
//! | sniffers | all, also those that the host sends | each gets a copy, before the others are asked |
//! | normal | those for which all conditions hold | by priority, 0 first; then those that let pass; then the older |
//! | default | what no normal rule took; one kind takes groups only | each gets a copy |
//!
//! The first normal rule that holds takes the frame, unless it lets it pass (`DONT_TRAP`): then the next are asked,
//! too. Rules of one priority with the same conditions each get a copy, as with mlx5.
//!
//! A NIC loops back what its host sends to an address that it receives itself: see [`Loopback`].

use super::{Filter, Layers, Match};
use alloc::vec::Vec;

/// What a rule is for, with the numbers of `ibv_flow_attr_type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RuleKind {
    /// Frames for which its conditions hold.
    Normal = 0,
    /// What no normal rule took.
    AllDefault = 1,
    /// What no normal rule took, and is for a group.
    MulticastDefault = 2,
    /// Everything.
    Sniffer = 3,
}

impl RuleKind {
    /// From the number that C programs know.
    pub fn from_code(code: u32) -> Option<RuleKind> {
        let all = [RuleKind::Normal, RuleKind::AllDefault, RuleKind::MulticastDefault, RuleKind::Sniffer];
        all.into_iter().find(|kind| *kind as u32 == code)
    }
}

/// Where a frame comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Another host.
    Wire,
    /// This host sends it through the interface.
    Host(Loopback),
}

/// Which rules, beside sniffers, get a frame that the host sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Loopback {
    /// None: it is for other hosts, or comes back by itself, as on the loopback interface.
    None,
    /// Those that name its destination: that is no address of the interface's, but a program asks for it.
    Named,
    /// All: its destination is the interface's address, or a group.
    All,
}

/// One flow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule<T> {
    /// Its number.
    pub id: u32,
    /// What it is for.
    pub kind: RuleKind,
    /// Lower comes first.
    pub priority: u16,
    /// Rules after it are asked, too.
    pub passes: bool,
    /// All of them must hold.
    pub matches: Vec<Match>,
    /// The tag of the completion.
    pub tag: u32,
    /// The frame goes no further.
    pub drops: bool,
    /// Who gets it.
    pub target: T,
}

impl<T> Rule<T> {
    /// Whether its conditions hold for a frame.
    pub fn holds(&self, layers: &Layers) -> bool {
        self.matches.iter().all(|condition| condition.holds(layers))
    }

    /// The Ethernet addresses that its conditions name, of the frame itself.
    pub fn destinations(&self) -> impl Iterator<Item = [u8; 6]> {
        self.matches.iter().filter(|condition| !condition.inner).filter_map(|condition| condition.filter.destination())
    }

    /// Whether a frame from there may be for it.
    fn hears(&self, origin: Origin, layers: &Layers) -> bool {
        match origin {
            Origin::Wire | Origin::Host(Loopback::All) => true,
            Origin::Host(Loopback::None) => false,
            Origin::Host(Loopback::Named) => layers
                .outer
                .ethernet
                .is_some_and(|header| self.destinations().any(|destination| destination == header.destination)),
        }
    }

    /// Whether two of its conditions name different Ethernet types: it would never hold.
    pub fn contradicts_itself(&self) -> bool {
        [false, true].into_iter().any(|inner| {
            let here = || self.matches.iter().filter(|condition| condition.inner == inner);
            let mut types = here().filter_map(|condition| condition.filter.ether_type());
            // A label stands where the type of what follows it would.
            let labelled = here().any(|condition| matches!(condition.filter, Filter::Mpls { .. }));
            let first = types.next();
            !labelled && types.any(|other| Some(other) != first)
        })
    }
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Rules took it.
    Taken,
    /// A rule has it dropped.
    Dropped,
    /// It is none of this program's business.
    Unmatched,
}

/// The flows of an interface.
#[derive(Clone, Debug)]
pub struct Table<T> {
    normal: Vec<Rule<T>>,
    defaults: Vec<Rule<T>>,
    sniffers: Vec<Rule<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table { normal: Vec::new(), defaults: Vec::new(), sniffers: Vec::new() }
    }
}

impl<T: PartialEq> Table<T> {
    /// Adds a rule.
    pub fn insert(&mut self, rule: Rule<T>) {
        let order = |rule: &Rule<T>| (rule.priority, !rule.passes);
        match rule.kind {
            RuleKind::Normal => {
                let place = self.normal.partition_point(|other| order(other) <= order(&rule));
                self.normal.insert(place, rule);
            }
            RuleKind::AllDefault | RuleKind::MulticastDefault => self.defaults.push(rule),
            RuleKind::Sniffer => self.sniffers.push(rule),
        }
    }

    /// Removes the rules that `which` names, and returns them.
    pub fn remove(&mut self, mut which: impl FnMut(&Rule<T>) -> bool) -> Vec<Rule<T>> {
        let mut removed = Vec::new();
        for list in [&mut self.normal, &mut self.defaults, &mut self.sniffers] {
            removed.extend(list.extract_if(.., |rule| which(rule)));
        }
        removed
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.normal.is_empty() && self.defaults.is_empty() && self.sniffers.is_empty()
    }

    /// Whether a rule wants to see what the host sends.
    pub fn wants_outgoing(&self) -> bool {
        !self.sniffers.is_empty()
    }

    /// All rules.
    pub fn iter(&self) -> impl Iterator<Item = &Rule<T>> {
        self.normal.iter().chain(&self.defaults).chain(&self.sniffers)
    }

    /// Shows the rules that get a frame to `give`, with whether each gets a copy or only counts it.
    pub fn route(&self, layers: &Layers, origin: Origin, mut give: impl FnMut(&Rule<T>, bool)) -> Verdict {
        let mut verdict = Verdict::Unmatched;
        for rule in self.sniffers.iter().filter(|rule| rule.holds(layers)) {
            give(rule, !rule.drops);
            verdict = Verdict::Taken;
        }
        if origin == Origin::Host(Loopback::None) {
            return verdict;
        }
        let mut taken: Option<&Rule<T>> = None;
        for (place, rule) in self.normal.iter().enumerate() {
            match taken {
                Some(first) if rule.priority != first.priority => break,
                Some(first) if rule.matches != first.matches => continue,
                Some(_) => {}
                None if !rule.hears(origin, layers) || !rule.holds(layers) => continue,
                None => {}
            }
            // A queue pair that has asked twice for the same gets one copy.
            let again = self.normal.iter().take(place).any(|other| {
                other.priority == rule.priority && other.target == rule.target && other.matches == rule.matches
            });
            give(rule, !rule.drops && !again);
            verdict = if rule.drops { Verdict::Dropped } else { Verdict::Taken };
            if !rule.passes {
                taken.get_or_insert(rule);
            }
        }
        if taken.is_some() {
            return verdict;
        }
        let multicast = layers.is_multicast();
        for rule in self.defaults.iter().filter(|rule| multicast || rule.kind == RuleKind::AllDefault) {
            if rule.hears(origin, layers) && rule.holds(layers) {
                give(rule, !rule.drops);
                verdict = if rule.drops { Verdict::Dropped } else { Verdict::Taken };
            }
        }
        verdict
    }
}
