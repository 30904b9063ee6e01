//! Random programs from a seed: the same seed gives the same program for ever. What an end may lawfully do is decided in `flow`, what the network
//! does in `weather`, what goes wrong on purpose in `mistake`; here they are put together.

mod flow;
mod mistake;
mod weather;

use super::program::*;
use flow::Flow;
use sim::{ConnectOptions, Family, Rng};
use transport::{Capabilities, SrqModify};
use wire::{Mtu, Psn};

/// The sorts of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// Reliable connections with receive queues of their own.
    Connected,
    /// Reliable connections that share receive queues, XRC among them.
    Shared,
    /// Unreliable connections and datagrams beside a reliable connection.
    Unreliable,
    /// Any of them, with one mistake.
    Mistaken,
}

/// What chance is asked for.
pub trait Chance {
    /// A number from `low` to `high`, both possible.
    fn between(&mut self, low: u64, high: u64) -> u64;
    /// A number up to `high`, small ones as likely as large ones.
    fn scale(&mut self, high: u64) -> u64;
    /// One of them.
    fn one<T: Copy>(&mut self, of: &[T]) -> T;
    /// One of them, each as often as its weight says.
    fn weighted<T: Copy>(&mut self, of: &[(u32, T)]) -> T;
}

impl Chance for Rng {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    fn scale(&mut self, high: u64) -> u64 {
        let bits = 64 - high.leading_zeros();
        let magnitude = self.between(0, u64::from(bits));
        self.below(1 << magnitude).min(high)
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn weighted<T: Copy>(&mut self, of: &[(u32, T)]) -> T {
        let mut left = self.below(of.iter().map(|(weight, _)| u64::from(*weight)).sum());
        for (weight, what) in of {
            if left < u64::from(*weight) {
                return *what;
            }
            left -= u64::from(*weight);
        }
        of[0].1
    }
}

/// The program of this sort and seed.
pub fn program(sort: Sort, seed: u64) -> Program {
    let mut rng = Rng::new(seed ^ (sort as u64) << 56);
    let mut program = weather::network(&mut rng);
    let mistaken = sort == Sort::Mistaken;
    let sort =
        if mistaken { rng.weighted(&[(8, Sort::Connected), (1, Sort::Shared), (2, Sort::Unreliable)]) } else { sort };
    let mut late = rng.chance(0.3);
    let channels = rng.weighted(&[(3, 1), (4, 2), (2, 3), (1, 5)]);
    for number in 0..channels {
        let service = match sort {
            Sort::Connected | Sort::Mistaken => Service::Rc,
            Sort::Shared => rng.one(&[Service::Rc, Service::Rc, Service::Xrc]),
            Sort::Unreliable if number == 0 => rng.one(&[Service::Uc, Service::Ud]),
            Sort::Unreliable => rng.one(&[Service::Uc, Service::Ud, Service::Rc]),
        };
        let channel = channel(service, &mut program, &mut rng);
        program.channels.push(channel);
    }
    if mistaken {
        mistake::prepare(&mut program, &mut rng);
        // Who waits for a receive that never comes must have a budget that ends.
        late &= program.fault.is_none_or(|fault| fault.kind != FaultKind::Work(Flaw::NeverReady));
    }
    write_flows(&mut program, &mut rng);
    if mistaken {
        mistake::commit(&mut program, &mut rng);
    }
    if sort == Sort::Shared {
        share_receives(&mut program, late, &mut rng);
    }
    own_receives(&mut program, late, &mut rng);
    let destroyed = FaultKind::is_destruction;
    program.encore =
        program.shared.is_empty() && program.fault.is_none_or(|fault| !destroyed(fault.kind)) && rng.chance(0.25);
    program
}

fn channel(service: Service, program: &mut Program, rng: &mut Rng) -> Channel {
    let hosts = program.hosts.len() as u64;
    let here = rng.below(hosts) as usize;
    // Now and then a host talks to itself.
    let there = if rng.chance(0.1) { here } else { rng.below(hosts) as usize };
    let psn = |rng: &mut Rng| match rng.below(3) {
        0 => Psn::new(Psn::COUNT - 1 - rng.below(40) as u32),
        1 => Psn::new(rng.below(4) as u32),
        _ => Psn::new(rng.next_u64() as u32),
    };
    let max_rd_atomic = rng.one(&[1, 2, 3, 4, 8, 16]);
    let options = ConnectOptions {
        mtu: rng.one(&[Mtu::B256, Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B1024, Mtu::B2048, Mtu::B4096]),
        timeout: rng.between(8, 11) as u8,
        retry_cnt: weather::retries(program, rng),
        rnr_retry: 7,
        min_rnr_timer: rng.between(1, 16) as u8,
        max_rd_atomic,
        max_dest_rd_atomic: rng.between(u64::from(max_rd_atomic), 16) as u8,
        psn: Some((psn(rng), psn(rng))),
        family: rng.one(&[Family::V4, Family::V6]),
        traffic_class: rng.one(&[0, 0x02, 0x68]),
        ..ConnectOptions::default()
    };
    let mut end = |host| End {
        host,
        steps: Vec::new(),
        areas: Areas::default(),
        receives: Receives::Nowhere,
        capabilities: Capabilities {
            max_send_wr: rng.between(2, 40) as u32,
            max_recv_wr: 1,
            max_send_sge: rng.between(1, 6) as u32,
            max_recv_sge: rng.between(1, 6) as u32,
            max_inline_data: rng.one(&[0, 64, 300, 512]),
        },
        signal_all: rng.chance(0.15),
    };
    Channel { service, options, ends: [end(here), end(there)] }
}

/// Decides what every end posts.
fn write_flows(program: &mut Program, rng: &mut Rng) {
    let datagram: Vec<usize> =
        (0..program.ends()).filter(|end| program.channels[end / 2].service == Service::Ud).collect();
    let xrc_queues = rng.between(1, 2) as usize;
    for number in 0..program.ends() {
        let (channel, side) = (number / 2, number % 2);
        let service = program.channels[channel].service;
        let silent = match program.fault {
            Some(fault) => service.is_reliable() && fault.end / 2 == channel && fault.end != number,
            None => rng.chance(0.2),
        };
        let receiver = program.channels[channel].ends[1 - side].host;
        if service == Service::Xrc && side == 0 {
            let queues = (0..xrc_queues).map(|_| SharedQueue { host: receiver, xrc: true, receives: Vec::new() });
            program.shared.extend(queues);
        }
        if silent || (service == Service::Xrc && side == 1) {
            continue;
        }
        let mut flow = Flow::new(rng, &program.channels[channel], side);
        flow.partners = match service {
            Service::Ud => datagram.clone(),
            Service::Xrc => (program.shared.len() - xrc_queues..program.shared.len()).collect(),
            _ => Vec::new(),
        };
        let timed = program.fault.is_some_and(|fault| fault.end == number && fault.kind.is_timed());
        flow.simple = timed || !service.is_reliable();
        let (areas, steps) = flow.write();
        let end = &mut program.channels[channel].ends[side];
        (end.areas, end.steps) = (areas, steps);
    }
}

/// The messages that come to an end, as the lengths its receives must hold.
fn messages_to(program: &Program, end: usize) -> Vec<&Item> {
    let to = |sender: usize, item: &Item| match program.channels[sender / 2].service {
        Service::Ud => item.to.unwrap_or(sender ^ 1) == end,
        _ => sender ^ 1 == end,
    };
    let posts = |sender: usize| {
        program.end(sender).steps.iter().filter_map(|step| match step {
            Step::Post(item) => Some(item),
            _ => None,
        })
    };
    (0..program.ends())
        .flat_map(|sender| posts(sender).filter(move |item| item.consumes() && to(sender, item)))
        .collect()
}

/// Receives for every end that has a queue of its own.
fn own_receives(program: &mut Program, late: bool, rng: &mut Rng) {
    for number in 0..program.ends() {
        let (channel, side) = (number / 2, number % 2);
        let service = program.channels[channel].service;
        if service == Service::Xrc || !matches!(program.end(number).receives, Receives::Nowhere) {
            continue;
        }
        let pieces = program.end(number).capabilities.max_recv_sge;
        let messages = messages_to(program, number);
        let mut receives = Vec::new();
        let mut never = false;
        let longest = messages.iter().map(|item| item.length()).max().unwrap_or(0);
        for item in &messages {
            let needed = match (service, item.action) {
                (Service::Ud, _) => longest + 40,
                (Service::Uc, _) => longest,
                (_, Action::Write { .. }) => rng.scale(64) as u32,
                _ => item.length(),
            };
            let space = match item.flaw {
                Some(Flaw::TooLong) => rng.below(u64::from(needed)) as u32,
                _ if rng.chance(0.5) => needed,
                _ => needed + rng.scale(200) as u32,
            };
            let flawed = item.flaw == Some(Flaw::BadReceive);
            never |= item.flaw == Some(Flaw::NeverReady);
            if !never {
                // One piece, so that a message that uses the receive uses the flaw.
                let pieces = flow::cut(space, if flawed { 1 } else { pieces }, rng);
                receives.push(Receive { at: 0, pieces, flawed });
            }
        }
        let spare = if service.is_reliable() { rng.below(3) as usize } else { messages.len() + 2 };
        for _ in 0..if never { 0 } else { spare } {
            let space = if service.is_reliable() { rng.scale(100) as u32 } else { longest + 40 };
            receives.push(Receive { at: 0, pieces: flow::cut(space, pieces, rng), flawed: false });
        }
        if late && !never {
            delay(&mut receives, rng);
        } else {
            // Nobody may ever be found not ready, so any budget is enough.
            program.channels[channel].options.rnr_retry = rng.below(7) as u8;
        }
        let end = &mut program.channels[channel].ends[side];
        end.capabilities.max_recv_wr = receives.len().max(1) as u32;
        end.receives = Receives::Own(receives);
    }
    if late {
        // The budget belongs to a channel, and either end may have been late.
        for channel in program.channels.iter_mut().filter(|channel| channel.service.is_reliable()) {
            let early = channel.ends.iter().all(|end| match &end.receives {
                Receives::Own(receives) => receives.iter().all(|receive| receive.at == 0),
                Receives::Shared(_) => false,
                Receives::Nowhere => channel.service == Service::Rc,
            });
            if !early {
                channel.options.rnr_retry = 7;
            }
        }
    }
}

/// Receives for the queues that ends share.
fn share_receives(program: &mut Program, late: bool, rng: &mut Rng) {
    for host in 0..program.hosts.len() {
        let number = program.shared.len();
        let mut used = false;
        let own = program.fault.filter(|fault| matches!(fault.kind, FaultKind::Work(flaw) if flaw.is_of_receives()));
        let own = own.map(|fault| fault.end / 2);
        for (index, channel) in program.channels.iter_mut().enumerate() {
            if channel.service != Service::Rc || own == Some(index) {
                continue;
            }
            for end in channel.ends.iter_mut().filter(|end| end.host == host) {
                if rng.chance(0.8) {
                    end.receives = Receives::Shared(number);
                    used = true;
                }
            }
        }
        if used {
            program.shared.push(SharedQueue { host, xrc: false, receives: Vec::new() });
        }
    }
    for number in 0..program.shared.len() {
        let lengths: Vec<u32> = if program.shared[number].xrc {
            let all = program.channels.iter().filter(|channel| channel.service == Service::Xrc);
            all.flat_map(|channel| &channel.ends[0].steps)
                .filter_map(|step| match step {
                    Step::Post(item) if item.to == Some(number) && item.consumes() => Some(item.length()),
                    _ => None,
                })
                .collect()
        } else {
            let users = (0..program.ends())
                .filter(|end| matches!(program.end(*end).receives, Receives::Shared(queue) if queue == number));
            users.flat_map(|end| messages_to(program, end)).map(Item::length).collect()
        };
        let longest = lengths.iter().max().copied().unwrap_or(0);
        let count = lengths.len() as u64 + rng.below(3);
        let mut receives: Vec<_> = (0..count)
            .map(|_| {
                let space = longest + rng.scale(100) as u32;
                Receive { at: 0, pieces: flow::cut(space, 6, rng), flawed: false }
            })
            .collect();
        if late {
            delay(&mut receives, rng);
        }
        program.shared[number].receives = receives;
    }
}

/// Posts receives later and later, from some point on.
fn delay(receives: &mut [Receive], rng: &mut Rng) {
    let early = rng.below(receives.len() as u64 + 1) as usize;
    let mut at = 0;
    for receive in &mut receives[early..] {
        at += rng.scale(300_000);
        receive.at = at;
    }
}

/// The limit a shared receive queue is armed with, so that its event is part of every run.
pub fn limit_of(queue: &SharedQueue) -> SrqModify {
    SrqModify { limit: Some(queue.receives.len() as u32 / 2), ..SrqModify::default() }
}
