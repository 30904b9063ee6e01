//! Completion queues, and the completions that wait in them.

use alloc::collections::VecDeque;

use wire::Qpn;

/// Whether a status says that work failed, and not only because its queue pair had stopped.
#[must_use]
pub(crate) fn is_failure(status: &str) -> bool {
    !status.ends_with("SUCCESS") && !is_flush(status)
}

fn is_flush(status: &str) -> bool {
    status.ends_with("WR_FLUSH_ERR")
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    /// How many completions it holds.
    pub capacity: u32,
    /// How many the program asked for.
    pub wanted: u32,
    /// Its channel.
    pub channel: Option<u32>,
    /// How many completions there were.
    pub completed: u64,
    /// How many the program has polled.
    pub polled: u64,
    /// When and by which thread it was polled last, as far as polls are reported.
    pub last_poll: Option<(u64, u32)>,
    /// The status of the last completion.
    pub last_status: &'static str,
    unpolled: VecDeque<Unpolled>,
    /// Completions that were polled before they were told of: a thread that polls may be faster with its word than the
    /// one that completes.
    ahead: u64,
}

/// A completion that the program has not polled.
#[derive(Clone, Copy, Debug)]
pub struct Unpolled {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The program's name for the work.
    pub wr_id: u64,
    /// Its status, as verbs spell it.
    pub status: &'static str,
    /// When it completed.
    pub at: u64,
    /// Its queue pair has not been reset or destroyed since.
    pub is_live: bool,
    /// For a send: how many work requests of its queue, since RESET, have a free place when this was polled.
    pub frees: Option<u64>,
}

impl Unpolled {
    /// Whether it failed, and not only because its queue pair had stopped.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        is_failure(self.status)
    }

    /// Whether it failed only because its queue pair had stopped.
    #[must_use]
    pub fn is_flush(&self) -> bool {
        is_flush(self.status)
    }
}

impl CompletionQueue {
    pub(super) const fn new(capacity: u32, wanted: u32, channel: Option<u32>) -> CompletionQueue {
        CompletionQueue {
            capacity,
            wanted,
            channel,
            completed: 0,
            polled: 0,
            last_poll: None,
            last_status: "",
            unpolled: VecDeque::new(),
            ahead: 0,
        }
    }

    /// How many completions the program has not polled.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.unpolled.len()
    }

    /// The completions that the program has not polled, the oldest first.
    pub fn unpolled(&self) -> impl DoubleEndedIterator<Item = &Unpolled> {
        self.unpolled.iter()
    }

    /// Those that tell of work that was done or failed, of queue pairs that are still there.
    pub fn unheard(&self) -> impl Iterator<Item = &Unpolled> {
        self.unpolled.iter().filter(|one| one.is_live && !one.is_flush())
    }

    /// A completion arrived. Whether the program has polled it already.
    pub(super) fn completed(&mut self, one: Unpolled) -> bool {
        self.completed += 1;
        self.last_status = one.status;
        if self.ahead > 0 {
            self.ahead -= 1;
            return true;
        }
        if self.unpolled.len() < self.capacity as usize {
            self.unpolled.push_back(one);
        }
        false
    }

    /// The program polled so many. `each` gets those that are known.
    pub(super) fn polled(&mut self, at: u64, thread: u32, got: u32, each: impl FnMut(Unpolled)) {
        self.polled += u64::from(got);
        self.last_poll = Some((at, thread));
        let known = self.unpolled.len().min(got as usize);
        self.unpolled.drain(..known).for_each(each);
        self.ahead += u64::from(got) - known as u64;
    }

    /// The program took a queue pair back to RESET: what waited of it is gone.
    pub(super) fn forget(&mut self, qpn: Qpn) {
        self.unpolled.retain(|one| one.qpn != qpn || one.is_live);
    }

    /// A queue pair was reset or destroyed. If it was destroyed, some NICs take what waits of it away, others do not.
    pub(super) fn orphan(&mut self, qpn: Qpn) {
        self.unpolled.iter_mut().filter(|one| one.qpn == qpn).for_each(|one| one.is_live = false);
    }
}
