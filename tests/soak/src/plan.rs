//! What is done: drawn from the seed, the same at both ends. A round has queue pairs; each of its bursts has, for each
//! queue pair and each direction, a list of messages.

use crate::bytes::{Dice, key};
use crate::options::{Connect, Options, Role};

/// The most messages of a burst, and so the most work of a queue pair under way.
pub const MAX_BURST_MESSAGES: usize = 40;

/// The longest message.
pub const MAX_MESSAGE_BYTES: usize = 2 << 20;

/// Untouched bytes before, between and after what a peer writes.
pub const GUARD: usize = 64;

/// The most bytes that travel inside a work request.
const INLINE: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Reliable,
    Unreliable,
    Datagram,
}

/// A queue pair of a round.
#[derive(Clone, Debug)]
pub struct PairPlan {
    /// Its number among those of all threads.
    pub id: u32,
    pub kind: Kind,
    /// How many threads post to it at once.
    pub crowd: usize,
    /// It takes its receives from a queue that others share.
    pub shared_receives: bool,
    /// The longest SEND.
    pub longest_send: usize,
    /// How many receives are posted.
    pub receives: usize,
    /// Messages of two megabytes come along.
    pub large: bool,
    /// Work is posted in batches.
    pub batches: bool,
    /// It is reset and connected anew after this burst.
    pub reset_after: Option<u32>,
    /// Where peers write is given up and made anew after this burst.
    pub renew_after: Option<u32>,
    /// It goes while work is under way.
    pub rough_end: bool,
    /// At its end the client writes where it may no longer, and must be told so.
    pub trespass: bool,
}

impl PairPlan {
    /// How many bytes a peer may write into, guards included.
    pub fn inbox(&self) -> usize {
        GUARD * (MAX_BURST_MESSAGES + 2) * 2 + if self.large { MAX_MESSAGE_BYTES + (128 << 10) } else { 256 << 10 }
    }

    /// How many bytes a peer may read.
    pub fn outbox(&self) -> usize {
        if self.large { MAX_MESSAGE_BYTES } else { 128 << 10 }
    }
}

#[derive(Clone, Debug)]
pub struct RoundPlan {
    pub number: u64,
    pub bursts: u32,
    /// Counters lie in the device's memory.
    pub device_counters: bool,
    pub pairs: Vec<PairPlan>,
}

impl RoundPlan {
    pub fn new(options: &Options, number: u64) -> RoundPlan {
        let mut dice = Dice::new(&[options.seed, number, 1]);
        let bursts = 2 + dice.below(5) as u32;
        let device_counters = dice.once_in(3);
        let kinds: &[Kind] = match dice.below(6) {
            0 => &[Kind::Reliable],
            1 => &[Kind::Datagram],
            2 => &[Kind::Unreliable],
            _ => &[Kind::Reliable, Kind::Reliable, Kind::Reliable, Kind::Unreliable, Kind::Datagram],
        };
        let pairs = (0..options.qps).map(|id| pair(options, &mut dice, id, kinds, bursts)).collect();
        RoundPlan { number, bursts, device_counters, pairs }
    }
}

fn pair(options: &Options, dice: &mut Dice, id: u32, kinds: &[Kind], bursts: u32) -> PairPlan {
    let kind = dice.pick(kinds);
    let large = kind != Kind::Datagram && id < 8 && dice.once_in(6);
    let crowd = if kind == Kind::Reliable && dice.once_in(4) { 2 + dice.below(2) } else { 1 };
    // Long messages have few receives: a reliable sender waits for them, and others send no more than there are.
    let (longest_send, receives) = match kind {
        Kind::Datagram => (options.mtu as usize, MAX_BURST_MESSAGES),
        _ if large && dice.once_in(2) => (MAX_MESSAGE_BYTES, 3),
        _ => dice.pick(&[(300, 32), (4 * options.mtu as usize + 7, 32), (66_000, 8)]),
    };
    let manual = options.connect == Connect::Manual;
    let middle = |dice: &mut Dice| dice.below(bursts as usize - 1) as u32;
    PairPlan {
        id,
        kind,
        crowd,
        shared_receives: kind == Kind::Reliable && longest_send < MAX_MESSAGE_BYTES && dice.once_in(4),
        longest_send,
        receives,
        large,
        batches: dice.once_in(3),
        reset_after: (manual && kind != Kind::Datagram && dice.once_in(3)).then(|| middle(dice)),
        renew_after: (kind != Kind::Datagram && dice.once_in(3)).then(|| middle(dice)),
        rough_end: dice.once_in(3),
        trespass: kind == Kind::Reliable && dice.once_in(3),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    Send,
    SendImmediate,
    SendInline,
    SendQuietly,
    Write,
    WriteImmediate,
    WriteInline,
    WriteQuietly,
    Read,
    /// Adds to a word that only this queue pair counts in.
    Add,
    /// Adds to a word that all queue pairs of a thread count in.
    AddTogether,
    /// Replaces a word of this queue pair's, or finds something else there.
    Swap {
        right: bool,
    },
}

impl What {
    /// It takes a receive of the peer's.
    pub fn takes_receive(self) -> bool {
        matches!(self, What::Send | What::SendImmediate | What::SendInline | What::SendQuietly | What::WriteImmediate)
    }

    /// It changes the peer's inbox.
    pub fn writes(self) -> bool {
        matches!(self, What::Write | What::WriteImmediate | What::WriteInline | What::WriteQuietly)
    }

    /// Nothing is heard of it.
    pub fn is_quiet(self) -> bool {
        matches!(self, What::SendQuietly | What::WriteQuietly)
    }

    /// Its bytes are copied when it is posted.
    pub fn is_short(self) -> bool {
        matches!(self, What::SendInline | What::SendQuietly | What::WriteInline | What::WriteQuietly)
    }

    fn has_bytes(self) -> bool {
        !matches!(self, What::Add | What::AddTogether | What::Swap { .. })
    }
}

/// How the bytes of a message lie in the sender's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Registered for this message.
    Fresh,
    /// A part of something that is read-only.
    Frozen,
    /// Several pieces.
    Pieces,
    /// A region that others may reach.
    Shared,
}

#[derive(Clone, Debug)]
pub struct Message {
    /// Its number among all of its queue pair and direction.
    pub number: u64,
    pub what: What,
    pub length: usize,
    /// Where in the peer's inbox or outbox.
    pub place: usize,
    /// The number beside it.
    pub immediate: u32,
    /// What is added, or put there.
    pub value: u64,
    pub source: Source,
    /// It waits for the READs before it.
    pub fence: bool,
    /// Of its bytes.
    pub key: u64,
}

/// The messages of a burst from `from` to its peer.
pub fn burst(options: &Options, round: u64, pair: &PairPlan, from: Role, burst: u32) -> Vec<Message> {
    let about = [options.seed, round, u64::from(pair.id), from.number()];
    let mut dice = Dice::new(&[about[0], about[1], about[2], about[3], 2, u64::from(burst)]);
    let most = if dice.once_in(4) { MAX_BURST_MESSAGES } else { 16 };
    let count = 1 + dice.below(most);
    let mut place = GUARD;
    let mut receives = 0;
    let mut bytes = 0;
    let mut messages = Vec::with_capacity(count);
    for index in 0..count {
        let number = u64::from(burst) * MAX_BURST_MESSAGES as u64 + index as u64;
        let mut what = what(&mut dice, pair);
        // The end of the last one tells the end of the quiet ones before it.
        if index + 1 == count && what.is_quiet() {
            what = if what.writes() { What::WriteInline } else { What::SendInline };
        }
        let mut limit = match what {
            What::Read => pair.outbox(),
            _ if what.writes() => pair.inbox() - place - 2 * GUARD - (count - index) * 2 * GUARD,
            _ => pair.longest_send,
        };
        if what.is_short() {
            limit = limit.min(INLINE);
        }
        // One long message is enough for a burst.
        if bytes > MAX_MESSAGE_BYTES {
            limit = limit.min(5000);
        }
        let length = if what.has_bytes() { length(&mut dice, limit, options.mtu as usize) } else { 8 };
        bytes += length;
        if what.takes_receive() {
            receives += 1;
        }
        let value = dice.roll();
        let mut message = Message {
            number,
            what,
            length,
            place: 0,
            immediate: value as u32,
            value,
            source: dice.pick(&[Source::Fresh, Source::Frozen, Source::Pieces, Source::Shared]),
            fence: dice.once_in(8),
            key: key(&[about[0], about[1], about[2], about[3], 3, number]),
        };
        if pair.crowd > 1 {
            // Who receives it tells by this which it is: the order among threads is anybody's.
            message.immediate = number as u32;
        }
        if what.writes() {
            message.place = place;
            place += length + 1 + dice.below(GUARD);
        } else if what == What::Read {
            message.place = dice.below(pair.outbox() - length + 1);
        }
        messages.push(message);
        // Unreliable senders do not wait for receives.
        if pair.kind != Kind::Reliable && receives + 1 >= pair.receives {
            break;
        }
    }
    if let Some(last) = messages.last_mut().filter(|last| last.what.is_quiet()) {
        last.what = if last.what.writes() { What::WriteInline } else { What::SendInline };
    }
    messages
}

fn what(dice: &mut Dice, pair: &PairPlan) -> What {
    use What::*;
    if pair.crowd > 1 {
        return dice.pick(&[SendImmediate, WriteImmediate, Write, WriteInline, Read, AddTogether, AddTogether]);
    }
    match pair.kind {
        Kind::Datagram => dice.pick(&[Send, Send, Send, SendInline, SendQuietly]),
        Kind::Unreliable => {
            dice.pick(&[Send, SendImmediate, SendInline, SendQuietly, Write, WriteImmediate, WriteInline, WriteQuietly])
        }
        Kind::Reliable => dice.pick(&[
            Send,
            Send,
            SendImmediate,
            SendInline,
            SendQuietly,
            Write,
            Write,
            WriteImmediate,
            WriteInline,
            WriteQuietly,
            Read,
            Read,
            Add,
            AddTogether,
            Swap { right: true },
            Swap { right: false },
        ]),
    }
}

/// Lengths around words, packets and trains, and any other.
fn length(dice: &mut Dice, limit: usize, mtu: usize) -> usize {
    let length = match dice.below(12) {
        0 => 0,
        1 => dice.pick(&[1, 7, 8, 9, 63, 64, 65]),
        2 => mtu - 1,
        3 => mtu,
        4 => mtu + 1,
        5 => dice.below(4 * mtu + 2),
        6 => dice.pick(&[65_535, 65_536, 65_537]),
        7 => limit,
        8 => limit - dice.below(limit.min(9) + 1),
        9 if dice.once_in(3) => dice.below(limit + 1),
        _ => dice.below(limit.min(1500) + 1),
    };
    // The longest only now and then, so that there are many messages.
    let length = if length > 200_000 && !dice.once_in(3) { length % 5000 } else { length };
    length.min(limit)
}

#[cfg(test)]
mod bursts {
    use super::{GUARD, Kind, MAX_BURST_MESSAGES, RoundPlan, burst};
    use crate::options::{Options, Role};
    use clap::Parser;

    #[test]
    fn keep_within_what_there_is_room_for() {
        let words = "soak --seed 5 --seconds 1 --role client --address ::1 --port 1 --qps 12 --mtu 256";
        let options = Options::parse_from(words.split(' '));
        for round in 0..200 {
            let plan = RoundPlan::new(&options, round);
            for pair in &plan.pairs {
                let mut next = 0;
                for number in 0..plan.bursts {
                    let messages = burst(&options, round, pair, Role::Client, number);
                    let mut end = GUARD;
                    let receives = messages.iter().filter(|message| message.what.takes_receive()).count();
                    assert!(pair.kind == Kind::Reliable || receives <= pair.receives);
                    assert!(messages.len() <= MAX_BURST_MESSAGES && !messages.is_empty());
                    assert!(!messages.last().unwrap().what.is_quiet());
                    for message in messages {
                        assert!(message.number >= next);
                        next = message.number + 1;
                        if message.what.writes() {
                            assert!(message.place >= end);
                            end = message.place + message.length + 1;
                            assert!(end + GUARD <= pair.inbox());
                        }
                    }
                }
            }
        }
    }
}
