//! What cannot be: names and addresses that nobody has, packets that the cable does not carry, peers that are not
//! there, a port that another program holds. Each is a clear error, soon, and the program goes on.

use crate::actor::{self, Actor, NOBODY, Outcome, USER, hear, say};
use crate::network::{DEVICE, Host, Network};
use crate::traffic::{self, End, RIGHTS};
use std::error::Error as StdError;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use ubiverbs::cm::ConnectError;
use ubiverbs::{
    AddressVector, Endpoint, Error, Gid, Kind, Modify, ModifyError, Mtu, Psn, Qkey, Qpn, Reliable, State, Status,
};

/// `Ok` if the condition holds.
fn check(holds: bool, what: &str, seen: impl std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{what}: {seen:?}").into()) }
}

/// The way to RTR, with what is wrong about it.
fn to_rtr(end: &End, sgid_index: u8, dgid: Gid, mtu: Mtu) -> Result<(), Error> {
    let mut prepared = end.pd.queue_pair::<Reliable>(&end.cq).source(end.source).prepare()?;
    prepared.modify(&Modify {
        state: Some(State::ReadyToReceive),
        av: Some(AddressVector { dgid, sgid_index, ..AddressVector::default() }),
        path_mtu: Some(mtu),
        dest_qpn: Some(Qpn::new(0x1234)),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(1),
        ..Modify::default()
    })?;
    Ok(())
}

fn endpoint(address: IpAddr) -> Endpoint {
    Endpoint::new(
        Kind::ReliableConnected,
        Mtu::B1024,
        Gid::from_ip(address),
        Qpn::new(0x1234),
        Psn::new(0),
        Qkey::default(),
    )
}

/// Asks for what cannot be, on a host whose interface carries 1500 bytes.
pub fn dreamer(arguments: &[String]) -> Outcome {
    let [source, peer] = arguments else { return Err("two addresses".into()) };
    let (source, peer): (IpAddr, IpAddr) = (source.parse()?, peer.parse()?);
    let unknown = ubiverbs::device("mlx5_0").map(|_| ()).map_err(|error| error.to_string());
    let text = unknown.clone().err().unwrap_or_default();
    check(text.contains("mlx5_0") && text.contains("ubi_lo") && text.contains(DEVICE), "an unknown device", unknown)?;
    let end = End::new(source)?;
    let index = end.context.port().gids.iter().position(|gid| *gid == Some(Gid::from_ip(source)));
    let index = index.ok_or("no entry")? as u8;
    let dgid = Gid::from_ip(peer);
    to_rtr(&end, index, dgid, Mtu::B1024)?;

    let foreign = end.pd.queue_pair::<Reliable>(&end.cq).source(peer).prepare().map(|_| ());
    check(matches!(foreign, Err(Error::NoAddress { .. })), "a source address of another host", foreign)?;
    let empty = to_rtr(&end, 63, dgid, Mtu::B1024);
    check(matches!(empty, Err(Error::Modify(ModifyError::NoSourceAddress { index: 63 }))), "an empty entry", empty)?;
    let beyond = to_rtr(&end, 200, dgid, Mtu::B1024);
    check(matches!(beyond, Err(Error::Modify(_))), "an entry beyond the table", beyond)?;
    for (what, gid, word) in [
        ("a GID that is zero", Gid::default(), "single host"),
        ("a multicast GID", Gid::from_ip("ff02::1".parse()?), "single host"),
        ("an address without route", Gid::from_ip("198.51.100.7".parse()?), "route"),
        ("an address of another family", Gid::from_ip("fd77::2".parse()?), "family"),
    ] {
        let answer = to_rtr(&end, index, gid, Mtu::B1024);
        let told = matches!(&answer, Err(Error::Modify(error @ ModifyError::NoWay { .. })) if error.to_string().contains(word));
        check(told, what, answer)?;
    }
    let large = to_rtr(&end, index, dgid, Mtu::B4096);
    let too_large = |answer: &Result<(), Error>, max| matches!(answer, Err(Error::Modify(ModifyError::MtuTooLarge { max: told, .. })) if *told == max);
    check(too_large(&large, Mtu::B1024), "a path MTU beyond the interface's", large)?;
    // The interface may come to carry less after the queue pair was made.
    let late = end.impatient()?;
    say("lower", "");
    hear("lowered")?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while end.context.port().mtu != Mtu::B512 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let late = late.connect(&endpoint(peer)).map(|_| ());
    check(too_large(&late, Mtu::B512), "a path MTU beyond what the interface carries by now", late)
}

pub fn what_cannot_be_is_told_clearly() {
    let Network { left, right } = &Network::new(1500);
    let mut dreamer = left.start("dreamer", &[left.v4.to_string(), right.v4.to_string()]);
    dreamer.hear("lower");
    left.run(&format!("ip link set {DEVICE} mtu 700"));
    dreamer.say("lowered", "");
    dreamer.end();
}

/// Writes to peers that are not there, and says what came of it and when.
pub fn caller(arguments: &[String]) -> Outcome {
    let [source, peers @ ..] = arguments else { return Err("addresses".into()) };
    let end = End::new(source.parse()?)?;
    let nowhere = end.pd.share(64, RIGHTS)?.remote_slice();
    for peer in peers {
        let start = Instant::now();
        let peer: IpAddr = peer.parse()?;
        let qp = match end.impatient()?.connect(&endpoint(peer)) {
            Ok(qp) => qp,
            Err(Error::Modify(ModifyError::NoNeighbour { to })) if to == peer => {
                say("ended", &format!("unknown {}", start.elapsed().as_micros()));
                // The connection manager finds out, too, before anything is asked of the peer. Once is enough.
                if peer.is_ipv4() {
                    let start = Instant::now();
                    let found = ubiverbs::cm::resolve(SocketAddr::new(peer, 7471)).wait().map(|_| ());
                    let told = matches!(&found, Err(Error::Connect(ConnectError::NoRoute { to, .. })) if *to == peer);
                    check(told, "an address that no host has", &found)?;
                    let took = start.elapsed();
                    check((1..4).contains(&took.as_secs()), "an answer in time", took)?;
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let answer = qp.write_inline(b"anybody there?", nowhere)?.wait();
        let Err(Error::Completion(error)) = answer.map_err(|failed| failed.error) else {
            return Err("it was answered".into());
        };
        check(!error.hint().is_empty(), "a hint", &error)?;
        say("ended", &format!("{} {}", error.status, start.elapsed().as_micros()));
    }
    Ok(())
}

pub fn a_peer_that_is_not_there_is_given_up_in_bounded_time() {
    let Network { left, right } = &Network::new(1500);
    let nobody: IpAddr = [10, 77, 0, 99].into();
    let nobody_v6: IpAddr = "fd77::99".parse().unwrap();
    // No such host; a host where nobody speaks; and the same over IPv6.
    for (from, peers) in [(left.v4, [nobody, right.v4]), (left.v6, [nobody_v6, right.v6])] {
        let mut caller = left.start("caller", &[from.to_string(), peers[0].to_string(), peers[1].to_string()]);
        for peer in peers {
            let ended = caller.hear("ended");
            let (status, micros) = ended.rsplit_once(' ').unwrap();
            let took = Duration::from_micros(micros.parse().unwrap());
            println!("  {peer} from {from}: {status} after {took:?}");
            // As with kernels: what the network does not know is told where it is given.
            let expected = if peer == peers[0] { "unknown".into() } else { Status::RetryExceeded.to_string() };
            assert_eq!(status, expected);
            assert!(took < Duration::from_secs(10), "{took:?}");
        }
        caller.end();
    }
    // A host with ubiverbs, and no such queue pair.
    let mut other = right.start("sleeper", &[right.v4.to_string()]);
    other.hear("endpoint");
    let mut caller = left.start("caller", &[left.v4.to_string(), right.v4.to_string()]);
    assert!(caller.hear("ended").starts_with(&Status::RetryExceeded.to_string()));
}

/// Has fewer and fewer descriptors to work with.
pub fn pauper(arguments: &[String]) -> Outcome {
    let [source] = arguments else { return Err("an address".into()) };
    let source = source.parse()?;
    let open = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    let before = open()?;
    let full = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let allow = |count: Option<u64>| {
        let limit = rustix::process::Rlimit { current: count, ..full };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)
    };
    let mut refused = 0;
    for spare in 0..64 {
        allow(Some(before as u64 - 1 + spare))?;
        let answer = attempt(source);
        allow(full.current)?;
        match answer {
            Ok(()) => break,
            Err(error) => check(!error.to_string().is_empty(), "a reason", spare)?,
        }
        refused += 1;
    }
    check(refused > 3, "descriptors were short", refused)?;
    // What was made with the last descriptors works like any other.
    attempt(source)?;
    let opened = open()?;
    // With a NIC but no descriptor for anything else.
    let end = End::new(source)?;
    allow(Some(opened as u64))?;
    let channels: Vec<_> = (0..8).map(|_| end.context.completion_channel()).collect();
    let errors = channels.iter().filter(|channel| channel.is_err()).count();
    allow(full.current)?;
    check(errors > 0, "a channel without a descriptor", errors)?;
    drop(channels);
    end.context.completion_channel()?;
    say("refused", &refused.to_string());
    Ok(())
}

/// Opens, connects and moves something.
fn attempt(source: IpAddr) -> Result<(), Box<dyn StdError>> {
    let end = End::new(source)?;
    let channel = end.context.completion_channel()?;
    let cq = end.context.completion_queue(8).channel(&channel).create()?;
    let [one, other] = ubiverbs::connected_pair::<Reliable>(&end.pd, &cq)?;
    let receiving = other.recv(end.pd.allocate(16)?)?;
    one.send_inline(b"hello")?.wait().map_err(|failed| failed.error)?;
    check(receiving.wait()?.payload() == b"hello", "a message", "it was another")
}

pub fn a_process_without_descriptors_gets_errors_and_recovers() {
    let Network { left, .. } = &Network::new(1500);
    let mut pauper = left.start("pauper", &[left.v4.to_string()]);
    println!("  refused {} times", pauper.hear("refused"));
    pauper.end();
}

/// Takes the port for itself.
pub fn hog(arguments: &[String]) -> Outcome {
    let [address] = arguments else { return Err("an address".into()) };
    let address: IpAddr = address.parse()?;
    let _socket = UdpSocket::bind((address, 4791))?;
    say("holds", "");
    actor::wait_for_end();
    Ok(())
}

/// Works where another program holds the port: inside the process, then with the peer once the port is free.
pub fn crowded(arguments: &[String]) -> Outcome {
    let [source, peer] = arguments else { return Err("two addresses".into()) };
    let (source, peer): (IpAddr, IpAddr) = (source.parse()?, peer.parse()?);
    attempt(source)?;
    let end = End::new(source)?;
    let refused = end.impatient()?.connect(&endpoint(peer)).map(|_| ());
    let told =
        matches!(&refused, Err(Error::Modify(error @ ModifyError::NoWay { .. })) if error.to_string().contains("4791"));
    check(told, "a peer that cannot answer", &refused)?;
    say("refused", &refused.err().map(|error| error.to_string()).unwrap_or_default());
    hear("free")?;
    let deadline = Instant::now() + Duration::from_secs(30);
    while end.impatient()?.connect(&endpoint(peer)).is_err() {
        check(Instant::now() < deadline, "the port is taken when it is free", "not within half a minute")?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

pub fn a_port_that_is_not_shared_leaves_the_host_alone_and_says_so() {
    let Network { left, right } = &Network::new(1500);
    // Both families by one socket; then IPv4 alone.
    for address in ["::", "0.0.0.0"] {
        let mut hog = left.start("hog", &[address.into()]);
        hog.hear("holds");
        let mut crowded = left.start("crowded", &[left.v4.to_string(), right.v4.to_string()]);
        let told = crowded.hear("refused");
        println!("  {told}");
        if address == "0.0.0.0" {
            assert_eq!(traffic::everything([(left, left.v6), (right, right.v6)], 1, "").again, 0, "IPv6 is free");
        }
        hog.end();
        crowded.say("free", "");
        crowded.end();
    }
    assert_eq!(traffic::everything([(left, left.v4), (right, right.v4)], 1, "").again, 0);
}

/// Milliseconds that an answer may take: on a busy machine it takes a while until another program has the port.
const PATIENT: &str = "500";

fn target_as_nobody(host: &Host) -> Actor {
    host.start_with("target", &[host.v4.to_string(), "2".into(), PATIENT.into()], &[(USER, NOBODY)])
}

fn mover(host: &Host) -> Actor {
    host.start("mover", &[host.v4.to_string(), "2".into(), PATIENT.into()])
}

pub fn users_share_the_port_with_each_other_and_with_other_hosts() {
    let Network { left, right } = &Network::new(1500);
    // The first comer has the port; the other's packets are forwarded.
    let mut first = target_as_nobody(left);
    let mut neighbour = mover(left);
    traffic::introduce(&mut neighbour, &mut first);
    let report = traffic::finish(neighbour);
    println!("  two users of one host: {:.1} MB in {:?}", report.bytes as f64 / 1e6, report.took);

    let mut remote = right.start("target", &[right.v4.to_string(), "2".into(), PATIENT.into()]);
    let mut forwarded = mover(left);
    traffic::introduce(&mut forwarded, &mut remote);
    let report = traffic::finish(forwarded);
    println!("  through another user's process: {:.1} MB in {:?}", report.bytes as f64 / 1e6, report.took);
    remote.end();

    // The one with the port is killed while it forwards: the other takes the port over, and loses nothing.
    let mut remote = right.start("target", &[right.v4.to_string(), "2".into(), PATIENT.into()]);
    let mut heir = mover(left);
    traffic::introduce(&mut heir, &mut remote);
    std::thread::sleep(Duration::from_millis(20));
    first.kill();
    println!("  through a process that was killed meanwhile: {:?}", traffic::finish(heir).took);
    remote.end();
}
