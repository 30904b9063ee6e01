//! What is done again and again and could be done once: UV-0604 to UV-0610.

use alloc::format;
use core::ops::{RangeBounds, RangeInclusive};

use trace::{Call, Kind, Queue};

use crate::examine::{Examine, Moment, Out, Sort};
use crate::finding::{Finding, Subject};
use crate::map::{Map, Set};
use crate::model::Model;
use crate::rule::catalogue::processes::*;

/// How many times something is done in the data path until it is reported.
const MANY_TIMES: u32 = 64;

/// With more work requests in that time, it is not the data path that registers.
const POSTS_FOR_REGISTRATIONS: u64 = MANY_TIMES as u64 * 8;

/// With fewer or more work requests in that time, address handles are not made for messages.
const POSTS_FOR_HANDLES: RangeInclusive<u64> = MANY_TIMES as u64 / 2..=MANY_TIMES as u64 * 4;

/// How much work a queue pair does that was made for a message.
const FEW_REQUESTS: u64 = 8;

/// Within how long so many queue pairs come and go.
const PAIRS_WITHIN_NS: u64 = 60_000_000_000;

/// How often the same buffer is registered until it is reported.
const SAME_BUFFER: u32 = 16;

/// How small a buffer is small, and how many are many.
const SMALL_BUFFER_BYTES: u64 = 4096;
const MANY_SMALL: u32 = 256;

/// In how many domains a buffer is registered until it is reported.
const MANY_DOMAINS: usize = 4;

/// How often a device is open until it is reported.
const MANY_CONTEXTS: usize = 16;

/// How many buffers are known apart.
const MAX_BUFFERS: usize = 4096;

/// The part.
#[derive(Default, Debug)]
pub(super) struct DataPath {
    /// How many work requests were posted.
    posts: u64,
    /// Regions registered after work was posted, with how many posts there were then.
    fresh: Map<u32, u64>,
    registrations: Window,
    /// Buffers that are registered, or were, by address and length.
    buffers: Map<(u64, u64), Buffer>,
    /// Small regions of each domain.
    small: Map<u32, u32>,
    /// Short-lived queue pairs, and when the first of them went.
    pairs: (u32, u64),
    /// Address handles by where they lead, each with the work posted when the first was made.
    handles: Map<[u8; 16], Window>,
}

/// How often something was done since how many posts.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    times: u32,
    since: u64,
}

impl Window {
    /// Once more. Answers whether it has been done often, in so many posts.
    fn is_often(&mut self, posts: u64, within: impl RangeBounds<u64>) -> bool {
        if self.times == 0 {
            self.since = posts;
        }
        self.times += 1;
        if self.times < MANY_TIMES {
            return false;
        }
        self.times = 0;
        within.contains(&(posts - self.since))
    }
}

/// A buffer of the program.
#[derive(Default, Debug)]
struct Buffer {
    times: u32,
    domains: Set<u32>,
}

impl Examine for DataPath {
    fn sees(&self) -> Sort {
        Sort::POSTED | Sort::RARE
    }

    fn observe(&mut self, moment: &mut Moment<'_>, out: &mut Out<'_>) {
        let (event, model) = (moment.event, moment.model);
        match &event.kind {
            Kind::WorkPosted { queue: Queue::Send | Queue::Receive, .. } => self.posts += 1,
            Kind::Called { call, .. } => match *call {
                Call::RegisterMemory { key, pd, address, length, .. } => {
                    self.registered(key.value(), pd, address, length, out);
                }
                Call::DeregisterMemory { key } => self.deregistered(key.value(), model, out),
                Call::CreateAh { dgid, .. } => self.made_handle(dgid, out),
                Call::OpenDevice { device, .. } => {
                    let open = model.contexts.values().filter(|context| context.device == device).count() + 1;
                    if open == MANY_CONTEXTS {
                        out.tell(opened_many_times(device.as_str()));
                    }
                }
                Call::DestroyQp { .. } => {
                    let Some(pair) = model.pair_of(event) else { return };
                    let posted = pair.sends.posted + pair.receives.posted;
                    if pair.completed > 0 && posted <= FEW_REQUESTS {
                        self.short_lived(event.at, out);
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }
}

impl DataPath {
    fn registered(&mut self, key: u32, pd: u32, address: u64, length: u64, out: &mut Out<'_>) {
        if length <= SMALL_BUFFER_BYTES {
            let small = self.small.entry(pd).or_default();
            *small += 1;
            if *small == MANY_SMALL {
                out.tell(many_small(pd, *small));
            }
        }
        if self.buffers.len() >= MAX_BUFFERS {
            self.buffers.retain(|_, buffer| !buffer.domains.is_empty());
        }
        if self.buffers.len() < MAX_BUFFERS || self.buffers.contains_key(&(address, length)) {
            let buffer = self.buffers.entry((address, length)).or_default();
            buffer.times += 1;
            buffer.domains.insert(pd);
            if buffer.times == SAME_BUFFER && buffer.domains.len() == 1 {
                out.tell(registered_again(key, address, length));
            }
            if buffer.domains.len() == MANY_DOMAINS {
                out.tell(in_many_domains(key, address, length, buffer));
            }
            if buffer.times > 1 {
                // A buffer that comes back is not one of many.
                return;
            }
        }
        if self.posts > 0 && self.fresh.len() < MAX_BUFFERS {
            self.fresh.insert(key, self.posts);
        }
    }

    fn deregistered(&mut self, key: u32, model: &Model, out: &mut Out<'_>) {
        if let Some(region) = model.regions.get(&key) {
            if region.length <= SMALL_BUFFER_BYTES
                && let Some(small) = self.small.get_mut(&region.pd)
            {
                *small = small.saturating_sub(1);
            }
            if let Some(buffer) = self.buffers.get_mut(&(region.address, region.length)) {
                buffer.domains.remove(&region.pd);
            }
        }
        let was_used = self.fresh.remove(&key).is_some_and(|posts| self.posts > posts);
        if was_used && self.registrations.is_often(self.posts, ..=POSTS_FOR_REGISTRATIONS) {
            out.tell(
                Finding::new(
                    REGISTERED_PER_MESSAGE,
                    Subject::Process,
                    format!(
                        "{MANY_TIMES} buffers were registered, used and deregistered in turn, with at most {} work requests \
                         posted meanwhile",
                        POSTS_FOR_REGISTRATIONS
                    ),
                    "register a few large buffers with ibv_reg_mr when the program starts, and send from parts of them; \
                     copy short messages, or send them with IBV_SEND_INLINE",
                )
                .because(
                    "ibv_reg_mr and ibv_dereg_mr are calls of the kernel that pin and unpin pages: each takes longer \
                     than sending a message",
                ),
            );
        }
    }

    fn made_handle(&mut self, dgid: [u8; 16], out: &mut Out<'_>) {
        if self.handles.len() >= MAX_BUFFERS && !self.handles.contains_key(&dgid) {
            return;
        }
        if self.handles.entry(dgid).or_default().is_often(self.posts, POSTS_FOR_HANDLES) {
            out.tell(
                Finding::new(
                    HANDLE_PER_MESSAGE,
                    Subject::Process,
                    format!(
                        "{MANY_TIMES} address handles were made for the same address, {}, about one for each message",
                        Gid(&dgid)
                    ),
                    "make one ibv_ah for each peer, keep it, and use it in every work request that goes there",
                )
                .because("ibv_create_ah is a call of the kernel on some devices, and looks the path up each time"),
            );
        }
    }

    fn short_lived(&mut self, at: u64, out: &mut Out<'_>) {
        let (count, since) = &mut self.pairs;
        if *count == 0 || at.saturating_sub(*since) > PAIRS_WITHIN_NS {
            (*count, *since) = (0, at);
        }
        *count += 1;
        if *count == MANY_TIMES {
            out.tell(
                Finding::new(
                    PAIR_PER_MESSAGE,
                    Subject::Process,
                    format!(
                        "{MANY_TIMES} queue pairs were made, connected, and destroyed after at most {FEW_REQUESTS} work \
                         requests each"
                    ),
                    "keep queue pairs and their connections, and send many messages over each",
                )
                .because(
                    "to make and connect a queue pair takes calls of the kernel and messages to and fro: as long as \
                     thousands of messages over one that exists",
                ),
            );
        }
    }
}

fn registered_again(key: u32, address: u64, length: u64) -> Finding {
    Finding::new(
        REGISTERED_AGAIN,
        Subject::Memory(key),
        format!("the buffer [{address:#x}, +{length}) was registered {SAME_BUFFER} times; the last key is {key:#010x}"),
        "register it once with ibv_reg_mr, keep the ibv_mr as long as the buffer lives, and use it for all work",
    )
    .because("each registration pins the pages anew, in a call of the kernel that takes longer than most messages")
}

fn in_many_domains(key: u32, address: u64, length: u64, buffer: &Buffer) -> Finding {
    let list = buffer.domains.iter().map(|pd| format!("{pd}")).collect::<alloc::vec::Vec<_>>().join(", ");
    Finding::new(
        REGISTERED_IN_MANY_DOMAINS,
        Subject::Memory(key),
        format!(
            "the buffer [{address:#x}, +{length}) is registered in {MANY_DOMAINS} protection domains at once: {list}"
        ),
        "make the queue pairs that use it in one protection domain, where one registration serves them all",
    )
    .because("every registration has its own translation tables in the NIC, which compete for its caches")
}

fn many_small(pd: u32, count: u32) -> Finding {
    Finding::new(
        MANY_SMALL_REGIONS,
        Subject::Domain(pd),
        format!("{count} buffers of {SMALL_BUFFER_BYTES} bytes or less are registered one by one in PD {pd}"),
        "allocate one large block, register it once with ibv_reg_mr, and cut the buffers from it: one lkey for all",
    )
    .because(
        "each registration takes a call of the kernel and an entry in the NIC's tables, and pins whole pages, however \
         short the buffer",
    )
}

fn opened_many_times(device: &str) -> Finding {
    Finding::new(
        OPENED_MANY_TIMES,
        Subject::Process,
        format!("the device {device} is open {MANY_CONTEXTS} times at once in this process"),
        "open it once with ibv_open_device and share the ibv_context: all its calls may be made by any thread",
    )
    .because("objects of one context cannot be used with those of another, and each has its own files and doorbells")
}

/// A GID, shown as an IPv6 address is.
struct Gid<'a>(&'a [u8; 16]);

impl core::fmt::Display for Gid<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::net::Ipv6Addr::from(*self.0).fmt(f)
    }
}
