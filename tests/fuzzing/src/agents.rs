//! Management agents: what programs register and send, and what strangers send them. Whatever arrives, an agent hears
//! only what it registered for or asked for, what is kept is bounded, and a closed port leaves nothing behind.

use crate::choices::Choices;
use mad::answer::{self, Counters};
use mad::{Config, Handled, Manager, Outgoing, Peer, PortId, Registration, Route, limits};
use trace::Time;
use wire::mad::{MAD_LEN, MadHeader};
use wire::{Gid, Qpn};

const FIRST: u32 = 0x0100_0000;
const AGENTS: u32 = 200;

/// What has been done so far.
struct Stage {
    manager: Manager,
    ports: Vec<(PortId, u32)>,
    now: Time,
    /// What was sent last, for answers and repetitions.
    sent: Vec<[u8; MAD_LEN]>,
}

fn route(choices: &mut Choices<'_>) -> Route {
    let remote = Gid::from_ipv4([10, 0, 0, choices.byte() % 3].into());
    let local = Gid::from_ipv4([10, 0, 0, 9].into());
    Route { local, remote, qpn: Qpn::GSI, traffic_class: 0, hop_limit: 64, flow_label: 0 }
}

/// A datagram of the bytes, or one that was sent, turned round or damaged.
fn datagram(choices: &mut Choices<'_>, sent: &[[u8; MAD_LEN]]) -> Vec<u8> {
    let mut bytes = match choices.byte() % 4 {
        0 if !sent.is_empty() => sent[usize::from(choices.byte()) % sent.len()].to_vec(),
        1 if !sent.is_empty() => {
            let mut bytes = sent[usize::from(choices.byte()) % sent.len()].to_vec();
            bytes[3] ^= MadHeader::RESPONSE;
            bytes
        }
        _ => {
            let mut bytes = vec![0; MAD_LEN];
            let class = choices.of(&[3, 4, 7, 0x32, 0x33, 1, 0x81, 5, 0x50]);
            let head = [1, class, choices.byte() % 4, choices.byte()];
            bytes[..4].copy_from_slice(&head);
            bytes[8..16].copy_from_slice(&(u64::from(FIRST + choices.word() % AGENTS) << 32).to_be_bytes());
            bytes[37..40].copy_from_slice(&[0, 0x14, 5]);
            bytes
        }
    };
    for _ in 0..choices.byte() % 4 {
        let at = usize::from(choices.byte());
        bytes[at] = choices.byte();
    }
    // The header of segmented messages, now and then.
    if choices.one_in(3) {
        let header = [1, choices.byte() % 6, choices.byte() % 8, 0, 0, 0, 0, choices.byte(), 0, 0, 0, choices.byte()];
        bytes[24..36].copy_from_slice(&header);
    }
    if choices.one_in(16) {
        bytes.truncate(usize::from(choices.byte()));
    }
    bytes
}

/// Lets bytes decide what programs and strangers do with the agents of a process.
///
/// # Panics
/// If a rule is broken.
pub fn agents(bytes: &[u8]) {
    answers(bytes);
    let mut choices = Choices { bytes };
    let config = Config { first: FIRST, last: FIRST + AGENTS, seed: choices.word() };
    let mut stage = Stage { manager: Manager::new(config), ports: Vec::new(), now: Time::ZERO, sent: Vec::new() };
    while !choices.bytes.is_empty() {
        step(&mut choices, &mut stage);
        while let Some(transmit) = stage.manager.poll_transmit() {
            stage.sent.truncate(63);
            stage.sent.insert(0, transmit.bytes);
        }
        while let Some((port, delivery)) = stage.manager.poll_delivery() {
            assert!(stage.ports.iter().any(|(open, _)| *open == port), "a port that is closed hears nothing");
            assert!(usize::from(delivery.agent) < limits::MAX_AGENTS && delivery.bytes.len() >= MadHeader::LEN);
        }
    }
    for (port, _) in stage.ports {
        stage.manager.close(port);
    }
    assert_eq!(stage.manager.poll_timeout(), None, "nothing is under way without agents");
    let silent = stage.manager.handle(stage.now, 1, &route(&mut choices), stage.sent.first().unwrap_or(&[0; MAD_LEN]));
    assert_ne!(silent, Handled::Taken);
}

fn step(choices: &mut Choices<'_>, stage: &mut Stage) {
    let Stage { manager, ports, now, sent } = stage;
    let port = (!ports.is_empty()).then(|| ports[usize::from(choices.byte()) % ports.len()]);
    match (choices.byte() % 8, port) {
        (0, _) if ports.len() < 6 => {
            let interface = u32::from(choices.byte() % 3);
            ports.push((manager.open(interface), interface));
        }
        (1, Some((port, _))) if choices.one_in(4) => {
            manager.close(port);
            ports.retain(|(open, _)| *open != port);
        }
        (2, Some((port, interface))) => {
            let wanted = Registration {
                subnet_management: choices.one_in(8),
                class: choices.of(&[0, 3, 4, 7, 0x32, 0x33, 1, 0x81]),
                version: choices.byte() % 9,
                oui: choices.of(&[0x1405, 0x1405, 0, 1]),
                methods: choices.of(&[0, u128::MAX, 2, 6]),
                rmpp_version: choices.byte() % 3,
                user_rmpp: choices.one_in(3),
            };
            if manager.register(port, &wanted).is_ok() {
                assert!(wanted.check().is_ok() && wanted.key(interface).is_none_or(|key| manager.has_class(key)));
            }
        }
        (3, Some((port, _))) => drop(manager.unregister(port, choices.byte() % 4)),
        (4, Some((port, _))) => {
            let bytes = datagram(choices, sent);
            let peer = match choices.byte() % 3 {
                0 => Peer::Lid(u16::from(choices.byte() % 3)),
                _ => Peer::Address(route(choices)),
            };
            let (timeout_ms, retries) = (u32::from(choices.byte()), u32::from(choices.byte() % 4));
            let length = bytes.len() + 100 * usize::from(choices.byte() % 8);
            let long: Vec<u8> = bytes.iter().copied().cycle().take(if bytes.is_empty() { 0 } else { length }).collect();
            let bytes = if choices.one_in(4) { &long } else { &bytes };
            let out = Outgoing { bytes, to: peer, pkey_index: u16::from(choices.one_in(8)), timeout_ms, retries };
            let _ = manager.send(*now, (port, choices.byte() % 4), &out, |gid| (!gid.is_zero()).then_some(gid));
        }
        (5, _) => {
            *now = now.plus_nanos(u64::from(choices.short()) * 1_000_000);
            manager.handle_timeout(*now);
            assert!(manager.poll_timeout().is_none_or(|deadline| deadline > *now));
        }
        _ => {
            let bytes = datagram(choices, sent);
            let interface = u32::from(choices.byte() % 3);
            if let Handled::Unclaimed(key) = manager.handle(*now, interface, &route(choices), &bytes) {
                assert_eq!((key.interface, key.class), (interface, bytes[1]));
                answers(&bytes);
            }
        }
    }
}

/// A request is answered in its own transaction and class, and an answer never is.
fn answers(bytes: &[u8]) {
    let Some(datagram) = bytes.first_chunk::<MAD_LEN>() else { return };
    let Some(answer) = answer::answer(datagram, Counters::default) else { return };
    let (asked, _) = MadHeader::parse(datagram).expect("it was answered");
    let (answered, _) = MadHeader::parse(&answer).expect("a whole datagram");
    assert!(!asked.is_response() && answered.method == MadHeader::METHOD_GET_RESPONSE);
    assert_eq!(answered.transaction_id, asked.transaction_id);
    assert_eq!(answered.management_class, asked.management_class);
    assert!(answer::answer(&answer, Counters::default).is_none(), "no answer to an answer");
}
