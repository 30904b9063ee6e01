//! One deliberate mistake in an otherwise lawful program. The end that makes it has its channel to itself, so that what becomes of the channel
//! follows from its own work; all other channels must not notice.

use super::Chance;
use super::flow::cut;
use crate::model::program::*;
use sim::Rng;

/// Chooses who will make which mistake, before any work is chosen.
pub fn prepare(program: &mut Program, rng: &mut Rng) {
    let channel = rng.below(program.channels.len() as u64) as usize;
    let service = program.channels[channel].service;
    let side = if service == Service::Xrc { 0 } else { rng.below(2) as usize };
    let at = rng.scale(400_000);
    let leave = rng.one(&[Leave::Error, Leave::Reset, Leave::Destroyed]);
    let kind = match service {
        Service::Rc | Service::Xrc => match rng.below(15) {
            0 => FaultKind::Silence(at),
            1 => FaultKind::PeerLeaves(at, leave),
            2 => FaultKind::Aborts(at),
            _ => FaultKind::Work(flaw(service, rng)),
        },
        Service::Uc => FaultKind::Work(rng.one(&[Flaw::LocalKeyUnknown, Flaw::LocalDomain, Flaw::LocalBeyond])),
        Service::Ud => FaultKind::Work(rng.one(&[Flaw::LocalKeyUnknown, Flaw::LocalDomain, Flaw::TooLongForPort])),
    };
    program.fault = Some(Fault { end: 2 * channel + side, kind });
}

fn flaw(service: Service, rng: &mut Rng) -> Flaw {
    let everywhere = [
        Flaw::RemoteKeyUnknown,
        Flaw::RemoteDomain,
        Flaw::RemoteRight,
        Flaw::RemoteBeyond,
        Flaw::Misaligned,
        Flaw::InvalidateUnknown,
        Flaw::LocalKeyUnknown,
        Flaw::LocalDomain,
        Flaw::LocalBeyond,
        Flaw::LocalRight,
        Flaw::ShortLanding,
        Flaw::LocalInvalidate,
    ];
    let own_receives = [Flaw::TooLong, Flaw::BadReceive, Flaw::NeverReady, Flaw::WindowGone];
    match service {
        Service::Rc if rng.chance(0.3) => rng.one(&own_receives),
        _ => rng.one(&everywhere),
    }
}

/// Puts the mistake into the work.
pub fn commit(program: &mut Program, rng: &mut Rng) {
    let Some(Fault { end, kind: FaultKind::Work(flaw) }) = program.fault else { return };
    let receiver = program.end(end ^ 1).host;
    let queue = program.shared.iter().position(|queue| queue.xrc && queue.host == receiver);
    let channel = &mut program.channels[end / 2];
    let (mtu, service) = (channel.options.mtu.bytes(), channel.service);
    let end = &mut channel.ends[end % 2];
    if end.areas.source == 0 {
        end.areas = Areas { source: 8192, landing: 4096, target: 4096, own_keys: rng.chance(0.5), window: None };
    }
    if flaw == Flaw::WindowGone {
        end.areas.window = end.areas.window.or(Some(2));
    }
    let mut item = flawed(flaw, service, end, mtu, rng);
    if service == Service::Xrc {
        item.to = queue;
    }
    let place = rng.below(end.steps.len() as u64 + 1) as usize;
    end.steps.insert(place, Step::Post(item));
    // What comes after it is flushed wherever it stands, but a queue pair in error neither drains nor has windows bound for it.
    let mut index = 0;
    end.steps.retain(|step| {
        index += 1;
        index <= place + 1 || matches!(step, Step::Post(_) | Step::Wait | Step::Pause(_))
    });
    if flaw == Flaw::WindowGone {
        // It goes through the window while nothing is bound.
        let bound = end.steps[..place].iter().rev().find_map(|step| match step {
            Step::Bind { .. } => Some(true),
            Step::Unbind => Some(false),
            Step::Post(item) if item.action == Action::SendInvalidate => Some(false),
            _ => None,
        });
        if bound == Some(true) {
            end.steps.insert(place, Step::Unbind);
            if let Some(Step::Post(last)) =
                end.steps[..place].iter_mut().rev().find(|step| matches!(step, Step::Post(_)))
            {
                last.signaled = true;
            }
        }
    }
    // A drain must have its posts before the mistake.
    for step in &mut end.steps {
        if let Step::Drain { posts } = step {
            *posts = 0;
        }
    }
    if flaw == Flaw::NeverReady {
        channel.options.rnr_retry = rng.below(7) as u8;
    }
}

fn flawed(flaw: Flaw, service: Service, end: &End, mtu: u32, rng: &mut Rng) -> Item {
    let areas = &end.areas;
    let most = areas.source.min(areas.landing).min(areas.target);
    let longest = if service == Service::Ud { 4096 } else { 3 * mtu };
    let length = rng.between(1, u64::from(most.min(longest))) as u32;
    let immediate = rng.chance(0.3).then(|| rng.next_u64() as u32);
    let from = |place, length| vec![Piece { place, offset: 0, length }];
    let send = (Action::Send { immediate }, from(MemorySide::Source, length));
    let write = (Action::Write { at: 0, immediate }, from(MemorySide::Source, length));
    let read = (Action::Read { at: 0 }, from(MemorySide::Landing, length));
    let add = (Action::FetchAdd { at: 0, add: 7 }, from(MemorySide::Landing, 8));
    let swap = (Action::CompareSwap { at: 0, hit: true, swap: 7 }, from(MemorySide::Landing, 8));
    let index = rng.below(4) as usize;
    let (mut action, mut pieces) = match flaw {
        Flaw::RemoteKeyUnknown | Flaw::RemoteDomain | Flaw::RemoteRight | Flaw::RemoteBeyond | Flaw::WindowGone => {
            [write, read, add, swap][index].clone()
        }
        Flaw::Misaligned => [add, swap][index % 2].clone(),
        Flaw::TooLong | Flaw::BadReceive => send,
        Flaw::NeverReady if rng.chance(0.3) => {
            (Action::Write { at: 0, immediate: immediate.or(Some(1)) }, from(MemorySide::Source, length))
        }
        Flaw::NeverReady => send,
        Flaw::InvalidateUnknown => (Action::SendInvalidate, from(MemorySide::Source, length)),
        Flaw::LocalKeyUnknown | Flaw::LocalDomain | Flaw::LocalBeyond => match service {
            Service::Ud => send,
            Service::Uc => [send, write][index % 2].clone(),
            _ => [send, write, read, add][index].clone(),
        },
        Flaw::LocalRight => [read, add][index % 2].clone(),
        Flaw::ShortLanding => {
            [(add.0, from(MemorySide::Landing, 7)), (swap.0, from(MemorySide::Landing, 3))][index % 2].clone()
        }
        Flaw::LocalInvalidate => (Action::LocalInvalidate, Vec::new()),
        Flaw::TooLongForPort => (Action::Send { immediate }, from(MemorySide::Source, 4097)),
    };
    match (&mut action, flaw) {
        (Action::Write { at, .. } | Action::Read { at }, Flaw::RemoteBeyond) => {
            *at = areas.target - rng.below(u64::from(length)) as u32;
        }
        (Action::FetchAdd { at, .. } | Action::CompareSwap { at, .. }, Flaw::RemoteBeyond) => *at = areas.target,
        (Action::FetchAdd { at, .. } | Action::CompareSwap { at, .. }, Flaw::Misaligned) => {
            *at = rng.between(1, 7) as u32;
        }
        _ => {}
    }
    if flaw == Flaw::LocalBeyond {
        let end = if pieces[0].place == MemorySide::Source { areas.source } else { areas.landing };
        pieces[0].offset = end - pieces[0].length + 1;
    } else if pieces.len() == 1 && !flaw.is_local() {
        let Piece { place, length, .. } = pieces[0];
        let mut offset = 0;
        pieces = cut(length, end.capabilities.max_send_sge, rng)
            .into_iter()
            .map(|length| {
                offset += length;
                Piece { place, offset: offset - length, length }
            })
            .collect();
    }
    Item {
        action,
        pieces,
        inline: false,
        signaled: rng.chance(0.7),
        // A WRITE that is not ready to end has written all the same.
        fenced: service.is_reliable() && (flaw == Flaw::NeverReady || rng.chance(0.2)),
        solicited: false,
        by_window: flaw == Flaw::WindowGone,
        to: None,
        flaw: Some(flaw),
    }
}
