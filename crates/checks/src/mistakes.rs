//! Mistakes that two rules find: one when the program makes it (`--check`), one when something fails for it (`--why`).
//! With both switched on the first to find it names both numbers, and the other is silent.

use trace::Event;

use crate::finding::{Finding, Subject};
use crate::map::{self, Key, Map, Wide};
use crate::model::Model;
use crate::posted_work::{Owner, Posting};
use crate::rule::Number;
use crate::rule::catalogue::{calls, connections, events, memory, posting, processes, work};

/// Rules of `--check`, and those of `--why` that explain what comes of it.
const RULES_OF_ONE_MISTAKE: &[(Number, Number)] = &[
    (memory::KEY_NEVER_SET, work::LOCAL_KEY_UNKNOWN),
    (memory::KEY_IS_GONE, work::LOCAL_KEY_UNKNOWN),
    (memory::OUTSIDE_REGION, work::LOCAL_OUT_OF_BOUNDS),
    (memory::WRONG_DOMAIN, work::LOCAL_OTHER_DOMAIN),
    (memory::NOT_WRITABLE, work::LOCAL_NOT_WRITABLE),
    (connections::ACCESS_NOT_GRANTED, work::REMOTE_PAIR_FORBIDS),
    (memory::ATOMIC_MISALIGNED, work::ATOMIC_MISALIGNED),
    (memory::ATOMIC_RESULT_SHORT, work::ATOMIC_TOO_SHORT),
    (posting::NO_READS_ALLOWED, work::NO_READS_ALLOWED),
    (posting::DATAGRAM_TOO_LONG, work::DATAGRAM_TOO_LONG),
    (posting::REMOTE_KEY_NEVER_SET, work::REMOTE_KEY_UNKNOWN),
    (connections::QKEY_DIFFERS, events::KEY_MISMATCH),
    (posting::NEVER_REAPED, events::NOTHING_SIGNALED),
    (posting::INLINE_TOO_LONG, calls::INLINE_TOO_LONG),
    (posting::NEXT_NEVER_SET, calls::LIST_LEADS_NOWHERE),
    (processes::DESTROY_REFUSED, calls::BUSY),
];

/// How many mistakes are remembered.
const MAX_MISTAKES: usize = 4096;

/// What a mistake is in, so that two findings of it are known to be of one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mistake {
    /// A work request.
    Work(Owner, u64),
    /// An object.
    Object(Subject),
}

impl Mistake {
    /// One of work that is posted. It may be found again when the work completes.
    pub fn of(posting: &Posting<'_>) -> Mistake {
        Mistake::Work(posting.owner, posting.work.wr_id)
    }
}

impl Key for (Number, Mistake) {
    type Order = Wide;

    fn order(self) -> Wide {
        match self {
            (rule, Mistake::Work(owner, wr_id)) => (rule.order(), owner.order(), None, wr_id),
            // No owner has so large a number.
            (rule, Mistake::Object(subject)) => {
                let (kind, number, name, _) = (rule, subject, 0).order();
                (kind, map::tagged(u64::from(u32::MAX), 0) | number, name, 0)
            }
        }
    }
}

/// Mistakes that were told, with the rule that is to be silent about each.
#[derive(Default, Debug)]
pub(crate) struct Mistakes(Map<(Number, Mistake), ()>);

impl Mistakes {
    /// Whether another rule has told of this one.
    pub fn is_known(&self, finding: &Finding, mistake: Mistake) -> bool {
        let is_its_own = match mistake {
            Mistake::Work(..) => true,
            Mistake::Object(subject) => subject == finding.subject,
        };
        is_its_own && self.0.contains_key(&(finding.rule, mistake))
    }

    /// A mistake is reported. Answers which other rule finds it, of those that are on.
    pub fn tell(&mut self, finding: &Finding, mistake: Mistake, is_on: impl Fn(Number) -> bool) -> Option<Number> {
        let twin = RULES_OF_ONE_MISTAKE.iter().find_map(|(check, explanation)| match finding.rule {
            rule if rule == *check => Some(*explanation),
            // What a work request does wrong is reported when it is posted, if at all.
            rule if rule == *explanation && matches!(mistake, Mistake::Object(_)) => Some(*check),
            _ => None,
        })?;
        if !is_on(twin) {
            return None;
        }
        if self.0.len() < MAX_MISTAKES {
            self.0.insert((twin, mistake), ());
            // Who makes it need not be who meets it; both may be told by one rule.
            if matches!(mistake, Mistake::Object(subject) if subject != finding.subject) {
                self.0.insert((finding.rule, mistake), ());
            }
        }
        Some(twin)
    }

    /// Work has completed: its name may be used again.
    pub fn completed(&mut self, model: &Model, event: &Event, queue: trace::Queue, wr_id: u64) {
        if self.0.is_empty() {
            return;
        }
        if let Some(owner) = Owner::of(model, event, queue) {
            for (_, explanation) in RULES_OF_ONE_MISTAKE {
                self.0.remove(&(*explanation, Mistake::Work(owner, wr_id)));
            }
        }
    }

    /// The work of a queue pair is gone.
    pub fn forget(&mut self, qpn: wire::Qpn) {
        self.0.retain(|(_, mistake), ()| {
            !matches!(mistake, Mistake::Work(Owner::Send(own) | Owner::Receive(own), _) if *own == qpn)
        });
    }
}
