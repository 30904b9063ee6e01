//! Sockets over RDMA: requests that are never continued, and datagrams in another's name.

use super::{Attack, Verdict};
use crate::actor::{Actor, Outcome};
use crate::hand::Hand;
use crate::network::{Network, User};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "socket-request-flood",
        what: "20,000 requests with false sources, in 5 s, for a socket whose backlog has no end: its memory, its \
               descriptors, and whether clients connect meanwhile",
        run: |network, _| flood(network),
    },
    Attack {
        name: "socket-datagram-sender",
        what: "a stranger's datagrams say that they are from 127.0.0.1:53, from another host, from another port",
        run: |network, _| senders(network),
    },
];

/// A victim's role on its host, and its port.
fn start(network: &Network, role: &str) -> Outcome<(Actor, u16)> {
    let home = &network.home;
    let mut actor = home.start(User::Victim, role, &[home.address.to_string()])?;
    let port = actor.hear("listening")?.parse()?;
    Ok((actor, port))
}

/// What 2,048 records and a few connections may take, in KiB: 20,000 sockets took 2.9 GB.
const MAX_GROWTH_KIB: u64 = 24 << 10;

/// Descriptors of as many connections as the server keeps, with room.
const DESCRIPTORS: usize = 32;

fn flood(network: &Network) -> Outcome<Verdict> {
    let (listener, port) = start(network, "socket-listener")?;
    let mut connector = network.away.start(User::Victim, "socket-connector", &[])?;
    connector.hear("ready")?;
    let calm = connector.ask("connect", format_args!("{} {port} 4", network.home.address), "done")?;
    if !calm.starts_with("0 ") {
        return Err(format!("clients do not connect even without an attack: {calm}").into());
    }
    let (memory, descriptors) = listener.size()?;
    let mut hand = Hand::stranger(&network.strange, network.strange.address, &network.home)?;
    hand.begin(format_args!("socket-requests {port} 20000 5000"));
    let meanwhile = connector.ask("connect", format_args!("{} {port} 16", network.home.address), "done")?;
    let most = listener.size()?;
    hand.ended()?.map_err(|why| format!("the stranger cannot flood: {why}"))?;
    let last = listener.size()?;
    let grown = most.0.max(last.0).saturating_sub(memory);
    let opened = most.1.max(last.1).saturating_sub(descriptors);
    let mut words = meanwhile.split_whitespace();
    let (failed, took) = (words.next().unwrap_or("?"), words.next().unwrap_or("?"));
    Ok(if failed != "0" {
        Verdict::Broken(format!("{failed} of 16 clients did not connect during the flood: {meanwhile}"))
    } else if grown > MAX_GROWTH_KIB || opened > DESCRIPTORS {
        Verdict::Broken(format!("it grew by {grown} KiB and {opened} descriptors"))
    } else {
        Verdict::Held(format!("16 clients connected in {took} ms meanwhile; {grown} KiB, {opened} descriptors more"))
    })
}

fn senders(network: &Network) -> Outcome<Verdict> {
    let (mut receiver, port) = start(network, "datagram-receiver")?;
    let mut hand = Hand::stranger(&network.strange, network.strange.address, &network.home)?;
    let to = format!("{}:{port}", network.home.address);
    let lies = ["127.0.0.1:53".to_owned(), format!("{}:53", network.away.address), format!("{}:53", hand.way.from)];
    for lie in &lies {
        hand.must(format_args!("datagram {to} {lie} lie"))?;
    }
    // The last is true, and comes after the others.
    let own = format!("{}:{}", hand.way.from, hand.way.port);
    hand.must(format_args!("datagram {to} {own} truth"))?;
    let mut shown = Vec::new();
    loop {
        let got = receiver.hear("got")?;
        match got.split_once(' ').unwrap_or((&got, "")) {
            ("lie", from) => shown.push(from.to_owned()),
            ("truth", _) => break,
            _ => {}
        }
    }
    let refused: usize = receiver.ask("refused", "", "refused")?.parse()?;
    Ok(if !shown.is_empty() {
        Verdict::Broken(format!("datagrams of {} are shown as those of {}", hand.way.from, shown.join(", ")))
    } else if refused < lies.len() {
        Verdict::Broken(format!("{refused} of {} datagrams are counted that were dropped", lies.len()))
    } else {
        Verdict::Held(format!("{refused} datagrams were dropped and counted, and the true one was shown"))
    })
}
