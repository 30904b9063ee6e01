//! One queue pair of a round: what it has sent and not heard the end of, what must come to it, and whether what comes
//! is that.

use std::collections::HashMap;

use ubiverbs::{Buffer, Error, RegisteredMut, RemoteSlice, SharedRegion};

use crate::bytes::{FILL, difference, touched};
use crate::connect::Kept;
use crate::harvest::Got;
use crate::memory::{Counters, Inbox};
use crate::plan::{Kind, MAX_BURST_MESSAGES, Message, PairPlan, What};
use crate::post::{Job, Qp};
use crate::watch::{Result, Trouble, Watch};

/// Marks the numbers of work that is sent, and of receives; what has neither is quiet work that failed.
pub const SENT: u64 = 1 << 62;
pub const RECEIVE: u64 = 1 << 63;

/// Where the index of a queue pair stands in such a number.
pub const INDEX: u32 = 40;

/// What an operation must bring.
struct Expected {
    message: Message,
    /// What an atomic operation must find.
    word: Option<u64>,
}

pub struct Pair {
    pub plan: PairPlan,
    /// Among those of its thread.
    pub index: usize,
    pub qp: Option<Qp>,
    pub kept: Kept,
    pub inbox: Inbox,
    /// Inboxes of before, each with the burst before which it was replaced.
    pub retired: Vec<(u32, Inbox)>,
    /// Held for the peer.
    _outbox: SharedRegion,
    pub counters: Counters,
    /// The peer's inbox, outbox and counters.
    pub theirs: [RemoteSlice; 3],
    /// Of the bytes that are read from the peer.
    pub their_outbox_key: u64,
    pub guards: Vec<RegisteredMut>,
    /// How many receives of its own are posted.
    pub receives: usize,
    /// Errors are expected: it is about to go, or the peer is gone.
    pub closing: bool,
    /// It was let go. What another thread of the library was just doing about it may still be told.
    pub gone: bool,
    sent: HashMap<u64, Expected>,
    last_completed: Option<u64>,
    /// What the peer's words must hold after all that was sent.
    words: [u64; 2],
    /// What our words must hold after all that came.
    counted: [u64; 2],
    incoming: Vec<Message>,
    arrived: Vec<bool>,
    /// In `incoming`: where the present burst begins, and what may come next where there is an order.
    start: usize,
    next: usize,
    last_of_thread: Vec<Option<u64>>,
}

impl Pair {
    #[allow(clippy::too_many_arguments)] // its parts; made in one place
    pub fn new(
        plan: PairPlan,
        index: usize,
        inbox: Inbox,
        outbox: SharedRegion,
        counters: Counters,
        theirs: [RemoteSlice; 3],
        their_outbox_key: u64,
        (qp, kept): (Qp, Kept),
    ) -> Pair {
        Pair {
            plan,
            index,
            qp: Some(qp),
            kept,
            inbox,
            retired: Vec::new(),
            _outbox: outbox,
            counters,
            theirs,
            their_outbox_key,
            guards: Vec::new(),
            receives: 0,
            closing: false,
            gone: false,
            sent: HashMap::new(),
            last_completed: None,
            words: [0; 2],
            counted: [0; 2],
            incoming: Vec::new(),
            arrived: Vec::new(),
            start: 0,
            next: 0,
            last_of_thread: Vec::new(),
        }
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Trouble {
        Trouble::wrong(format!("qp {} ({:?}): {what}", self.plan.id, self.plan.kind))
    }

    /// Says of which queue pair it is.
    pub fn about<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|trouble| match trouble {
            Trouble::Wrong(what) => self.wrong(what),
            other => other,
        })
    }

    /// Messages will come, after those of earlier bursts.
    pub fn expect(&mut self, messages: Vec<Message>) {
        self.start = self.incoming.len();
        self.next = self.next.max(self.start);
        for message in &messages {
            match message.what {
                What::Add => self.counted[0] = self.counted[0].wrapping_add(message.value),
                What::Swap { right: true } => self.counted[1] = message.value,
                _ => {}
            }
        }
        self.last_of_thread = vec![None; self.plan.crowd];
        self.incoming.extend(messages);
        self.arrived.resize(self.incoming.len(), false);
    }

    pub fn current(&self) -> &[Message] {
        &self.incoming[self.start..]
    }

    /// What is added up in the word of all: messages of this burst.
    pub fn added_together(&self) -> u64 {
        let added = self.current().iter().filter(|message| message.what == What::AddTogether);
        added.fold(0, |sum, message| sum.wrapping_add(message.value))
    }

    /// How many messages that take a receive have not come.
    pub fn missing(&self) -> usize {
        let current = self.current().iter().zip(&self.arrived[self.start..]);
        current.filter(|(message, arrived)| message.what.takes_receive() && !**arrived).count()
    }

    pub fn first_missing(&self) -> String {
        let mut current = self.current().iter().zip(&self.arrived[self.start..]);
        let missing = current.find(|(message, arrived)| message.what.takes_receive() && !**arrived);
        let sent = self.sent.len();
        match missing {
            Some((message, _)) => format!(
                "qp {} ({:?}): {} messages have not come, the first is {} {:?} of {} bytes; {sent} of ours have not ended",
                self.plan.id,
                self.plan.kind,
                self.missing(),
                message.number,
                message.what,
                message.length
            ),
            None => format!("qp {} ({:?}): {sent} of our messages have not ended", self.plan.id, self.plan.kind),
        }
    }

    /// How many operations have not ended.
    pub fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// Work that will never be told of.
    pub fn forget_sent(&mut self) {
        self.sent.clear();
    }

    /// Makes jobs of messages, and remembers what must come of each.
    pub fn jobs(&mut self, messages: Vec<Message>) -> Vec<Job> {
        self.last_completed = None;
        let ids = SENT | (self.index as u64) << INDEX;
        let mut jobs = Vec::with_capacity(messages.len());
        for message in messages {
            let [added, swapped] = self.words;
            let mut compare = 0;
            let word = match message.what {
                What::Add => {
                    self.words[0] = added.wrapping_add(message.value);
                    Some(added)
                }
                What::Swap { right } => {
                    compare = if right { swapped } else { !swapped };
                    self.words[1] = if right { message.value } else { swapped };
                    Some(swapped)
                }
                _ => None,
            };
            let id = ids | message.number;
            if !message.what.is_quiet() {
                self.sent.insert(id, Expected { message: message.clone(), word });
            }
            jobs.push(Job { message, id, compare });
        }
        jobs
    }

    /// Work that was sent has ended.
    pub fn ended(
        &mut self,
        id: u64,
        result: std::result::Result<Got, Error>,
        in_order: bool,
        watch: &Watch,
    ) -> Result<()> {
        let Some(Expected { message, word }) = self.sent.remove(&id) else {
            if self.gone {
                return Ok(());
            }
            let what = format!("message {}: a completion too many: {result:?}", id & ((1 << INDEX) - 1));
            return Err(self.wrong(what));
        };
        let Message { number, what, length, .. } = message;
        let (id, kind, last) = (self.plan.id, self.plan.kind, self.last_completed);
        let about = |expected: &str, seen: &dyn std::fmt::Debug| {
            Trouble::wrong(format!(
                "qp {id} ({kind:?}): message {number} {what:?} of {length} bytes: expected {expected}, seen {seen:?}"
            ))
        };
        let got = match result {
            Ok(got) => got,
            Err(_) if self.closing => return Ok(()),
            Err(error) => return Err(Trouble::Broken(text(about("success", &error.to_string())))),
        };
        if in_order && self.plan.crowd == 1 && !self.closing && last.is_some_and(|last| last > number) {
            return Err(about("completions in the order of posting", &last));
        }
        self.last_completed = Some(number);
        match (what, got) {
            (What::Read, Got::Buffer(buffer)) => {
                let bytes = contents(buffer);
                let (read, behind) = bytes.split_at(length);
                if let Some((at, expected, seen)) = difference(self.their_outbox_key, message.place, read) {
                    return Err(about(&format!("{expected:#04x} at byte {at}"), &seen));
                }
                if let Some((at, seen)) = touched(behind) {
                    return Err(about(&format!("{FILL:#04x} at byte {at} behind the READ"), &seen));
                }
            }
            (What::Add | What::Swap { .. }, Got::Word(seen)) => {
                if word.is_some_and(|expected| expected != seen) {
                    return Err(about(&format!("the word {:#x}", word.unwrap_or_default()), &format!("{seen:#x}")));
                }
            }
            (What::AddTogether, Got::Word(_)) => {}
            (_, Got::Nothing) if what.is_short() => {}
            (_, Got::Buffer(buffer)) if !what.is_short() => {
                let bytes = contents(buffer);
                if bytes.len() != length || difference(message.key, 0, &bytes).is_some() {
                    return Err(about("its buffer back as it was", &bytes.len()));
                }
            }
            (_, got) => return Err(about("what this work gives", &got)),
        }
        watch.count(length);
        Ok(())
    }

    /// A message has come. Answers the buffer.
    pub fn came(&mut self, received: ubiverbs::Received, lossless: bool, watch: &Watch) -> Result<RegisteredMut> {
        let (bytes, immediate) = (received.bytes(), received.immediate());
        let fits = |message: &Message| {
            let number = match message.what {
                What::SendImmediate | What::WriteImmediate => Some(message.immediate),
                _ => None,
            };
            let same = message.what.takes_receive() && message.length == bytes && number == immediate;
            same && (message.what == What::WriteImmediate || difference(message.key, 0, received.payload()).is_none())
        };
        let fresh = |index: &usize| !self.arrived[*index];
        let mut expected = (self.next..self.incoming.len()).filter(|index| self.incoming[*index].what.takes_receive());
        let found = match (self.plan.kind, self.plan.crowd) {
            (Kind::Reliable, 1) => expected.next().filter(|index| fits(&self.incoming[*index])),
            (Kind::Reliable, _) => {
                (self.start..self.incoming.len()).filter(fresh).find(|index| fits(&self.incoming[*index]))
            }
            (Kind::Unreliable, _) if lossless => expected.next().filter(|index| fits(&self.incoming[*index])),
            (Kind::Datagram | Kind::Unreliable, _) => {
                let all = 0..self.incoming.len();
                let found = all.clone().filter(fresh).find(|index| fits(&self.incoming[*index]));
                // A network may double a packet, and here nobody takes the second away; nor does anybody keep the
                // order.
                found.or_else(|| all.clone().find(|index| !lossless && fits(&self.incoming[*index])))
            }
        };
        let Some(index) = found else { return Err(self.unexpected(&received)) };
        let message = &self.incoming[index];
        if self.plan.crowd > 1 {
            let place = index - self.start;
            let last = &mut self.last_of_thread[place % self.plan.crowd];
            if last.replace(message.number).is_some_and(|last| last > message.number) {
                let what =
                    format!("message {}: expected after those before it, seen after a later one", message.number);
                return Err(self.wrong(what));
            }
        }
        if message.what == What::WriteImmediate {
            let burst = (message.number / MAX_BURST_MESSAGES as u64) as u32;
            let inbox = self.retired.iter().find(|(before, _)| burst < *before).map_or(&self.inbox, |(_, inbox)| inbox);
            self.about(inbox.look(message))?;
        }
        if self.plan.kind == Kind::Reliable && self.plan.crowd == 1 && !self.closing {
            // What was written before it is there.
            for earlier in self.incoming[self.next..index].iter().filter(|earlier| earlier.what.writes()) {
                self.about(self.inbox.look(earlier))?;
            }
        }
        self.arrived[index] = true;
        self.next = self.next.max(index + 1);
        watch.count(bytes);
        let untouched = self.plan.kind == Kind::Reliable || lossless;
        let length = if immediate.is_some() && received.payload().is_empty() { 0 } else { bytes };
        let header = if self.plan.kind == Kind::Datagram { ubiverbs::GRH_LENGTH } else { 0 };
        let mut buffer = received.into_buffer();
        // Up to here it was made clean before it was posted.
        let clean = buffer.len().min(CLEAN);
        if untouched && let Some((at, seen)) = touched(buffer.get(header + length..clean).unwrap_or_default()) {
            let what =
                format!("a receive of {bytes} bytes: byte {at} behind it: expected {FILL:#04x}, seen {seen:#04x}");
            return Err(self.wrong(what));
        }
        buffer[..clean].fill(FILL);
        Ok(buffer)
    }

    fn unexpected(&self, received: &ubiverbs::Received) -> Trouble {
        let seen = format!("{} bytes with immediate {:x?}", received.bytes(), received.immediate());
        let mut due = (self.next..self.incoming.len()).filter(|index| self.incoming[*index].what.takes_receive());
        let Some(index) = due.next() else {
            return self.wrong(format!("expected no message, seen {seen}: {:02x?}", head(received.payload())));
        };
        let Message { number, what, length, immediate, key, .. } = self.incoming[index];
        let odd = difference(key, 0, received.payload());
        self.wrong(format!(
            "message {number}: expected {what:?} of {length} bytes with immediate {immediate:#x} where it has one, seen {seen}; \
             the first byte that differs (place, expected, seen): {odd:?}; it begins {:02x?}",
            head(received.payload())
        ))
    }

    /// Looks at the words that the peer counts in.
    pub fn look_at_counters(&self) -> Result<()> {
        self.about(self.counters.look(self.counted[0], self.counted[1]))
    }
}

/// How much of a receive is made clean before it is posted.
pub const CLEAN: usize = 8192;

fn head(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(16)]
}

fn text(trouble: Trouble) -> String {
    let (Trouble::Wrong(text) | Trouble::Broken(text) | Trouble::PeerGone(text) | Trouble::Setup(text)) = trouble;
    text
}

/// The bytes of any buffer.
fn contents(buffer: Buffer) -> Vec<u8> {
    match buffer {
        Buffer::Mut(buffer) => buffer.to_vec(),
        Buffer::Registered(buffer) => buffer.to_vec(),
        Buffer::Shared(region) => {
            let mut bytes = vec![0; region.len()];
            // It is as long as itself.
            let _ = region.read_at(0, &mut bytes);
            bytes
        }
        Buffer::Several(buffers) => buffers.into_iter().flat_map(contents).collect(),
        _ => Vec::new(),
    }
}
