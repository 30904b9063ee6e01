//! Rounds of probes in a group whose members answer late.

use super::*;
use crate::slots::Slot;
use socket2::{Domain, Protocol, Socket, Type};
use std::os::fd::AsRawFd;

const MEMBERS: u64 = 8;

/// A group of sockets on a port of its own; the first is ours.
fn group() -> (Vec<UdpSocket>, u16) {
    let mut port = 0;
    let sockets = (0..MEMBERS).map(|_| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
        let socket = UdpSocket::from(socket);
        port = socket.local_addr().unwrap().port();
        socket
    });
    let sockets: Vec<_> = sockets.collect();
    program::attach(sockets[0].as_raw_fd(), &program::build(&Table::all_to(program::NO_SOCKET_INDEX))).unwrap();
    (sockets, port)
}

/// Answers all probes that have come to a socket.
fn answer(socket: &UdpSocket, identity: u64) {
    let mut buffer = [0; 64];
    while let Ok((length, from)) = socket.recv_from(&mut buffer) {
        let Some(Probe { nonce, index }) = Probe::parse(&buffer[..length]) else { continue };
        let slots = Slot::new(identity as u16 + 1).into_iter().collect();
        let answer = ProbeAnswer { nonce, index, socket: identity, slots, ports: Vec::new(), blocks: Vec::new() };
        socket.send_to(&answer.bytes(), from).unwrap();
    }
}

/// What there is to do within a minute. In each round the member that `late` names answers after its end.
fn within_a_minute(late: impl Fn(u64) -> Option<u64>) -> Steered {
    let (sockets, port) = group();
    let mut steering = Steering::new(Family::V4, Scope::Inside, port);
    let begun = Instant::now();
    let mut now = begun;
    while now < begun + Duration::from_secs(60) {
        steering.progress(sockets[0].as_raw_fd(), 0, now);
        let is_round = steering.round.is_some();
        let waits = late(steering.steered().rounds).filter(|_| is_round);
        (0..).zip(&sockets).filter(|(identity, _)| Some(*identity) != waits).for_each(|(identity, socket)| {
            answer(socket, identity);
        });
        steering.is_answered();
        steering.progress(sockets[0].as_raw_fd(), 0, now);
        let deadline = steering.round.as_ref().map(|round| round.deadline).or(steering.deadline());
        now = deadline.unwrap_or(now).max(now + PROBE_TIMEOUT / 3);
    }
    steering.steered()
}

#[test]
fn a_group_that_answers_is_asked_once() {
    let steered = within_a_minute(|_| None);
    assert_eq!((steered.rounds, steered.tables, steered.slots), (1, 1, MEMBERS as u32));
}

/// As on a machine with more processes than processors: each time another one answers late.
#[test]
fn a_crowd_that_answers_late_is_asked_ever_less_often() {
    let steered = within_a_minute(|round| Some(1 + round % (MEMBERS - 1)));
    assert!((3..30).contains(&steered.rounds), "{steered:?}");
    assert_eq!(steered.slots, MEMBERS as u32 - 1);
}

/// What a killed process has in its socket is lost, so one that has just started should have nothing of others.
#[test]
fn what_is_not_claimed_goes_to_those_that_were_there_before() {
    let round = |count: u16, answered: &[u16]| {
        let answer = |index: &u16| ProbeAnswer {
            nonce: 1,
            index: *index,
            socket: u64::from(*index) + 10,
            slots: Slot::new(*index + 1).into_iter().collect(),
            ports: Vec::new(),
            blocks: Vec::new(),
        };
        let answers = answered.iter().map(|index| (*index, answer(index))).collect();
        let (early, deadline, attached) = (None, Instant::now(), false);
        let table = Round { nonce: 1, count, early, deadline, attached, answers }.table(count - 1);
        (table.slots.len(), table.other_slots, table.otherwise)
    };
    // The last is the one that asks.
    assert_eq!(round(3, &[0, 1, 2]), (3, 0, 0));
    assert_eq!(round(3, &[0, 2]), (2, 1, 0), "one is late: what no other has is its");
    assert_eq!(round(2, &[1]), (1, 0, 1));
    assert_eq!(round(4, &[1, 3]), (2, 1, 1));
    assert_eq!(round(4, &[3]), (1, 3, 3), "it passes on what it does not know");
}
