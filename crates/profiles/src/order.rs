//! How much less than the usual a NIC promises about order and time. All of it is allowed by the specification; what a
//! profile does not say stays as strong as it is without one.

/// What the table `order` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Order {
    /// Bytes of a message are placed in any order and in pieces, before the completion.
    pub any_placement: bool,
    /// Messages of different queue pairs overtake each other.
    pub any_across_pairs: bool,
    /// Completions, READ responses and atomics come as late as they may.
    pub late_completions: bool,
    /// What unsignaled work did is seen as late as it may.
    pub late_unsignaled: bool,
    /// Receive buffers are scribbled on before the completion.
    pub scribbles: bool,
    /// What is not inline is read as late as it may.
    pub gathers_late: bool,
    /// Relaxed ordering is obeyed where it was asked for.
    pub obeys_relaxed: bool,
    /// Events come spuriously, and late.
    pub spurious_events: bool,
    /// Where chance begins.
    pub seed: Option<u64>,
}

impl Order {
    /// Whether it is as strong as without a profile.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        *self == Order { seed: self.seed, ..Order::default() }
    }
}

/// The words of the table: a key, its usual word, its weak word, and where it is kept.
#[cfg(feature = "parse")]
pub(crate) type OrderKey = (&'static str, [&'static str; 2], fn(&mut Order) -> &mut bool);

/// All of them but the seed.
#[cfg(feature = "parse")]
pub(crate) const KEYS: &[OrderKey] = &[
    ("placement", ["in-order", "any"], |order| &mut order.any_placement),
    ("across-queue-pairs", ["in-order", "any"], |order| &mut order.any_across_pairs),
    ("completions", ["prompt", "late"], |order| &mut order.late_completions),
    ("unsignaled", ["prompt", "late"], |order| &mut order.late_unsignaled),
    ("receive-buffers", ["clean", "scribbled"], |order| &mut order.scribbles),
    ("gather", ["early", "late"], |order| &mut order.gathers_late),
    ("relaxed-ordering", ["ignored", "obeyed"], |order| &mut order.obeys_relaxed),
    ("events", ["exact", "spurious"], |order| &mut order.spurious_events),
];
