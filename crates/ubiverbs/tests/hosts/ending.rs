//! How connections between hosts end, and what both sides say of it: the peer disconnects, its process ends or is
//! killed, a device goes.

use crate::actor::{self, Actor, Outcome, hear, say};
use crate::network::{DEVICE, Host, Network};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::Duration;
use ubiverbs::cm::{self, Connection, Listener};
use ubiverbs::{CloseReason, Error, Reliable, Status};

/// Longer than anything takes that works.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One word for what `closed` says. What was flushed must say the same.
fn end(connection: &Connection) -> Result<String, Box<dyn std::error::Error>> {
    let reason = connection.closed().wait_for(TEST_TIMEOUT).ok_or("it does not end")??;
    let flushed = connection.recv(connection.pd().allocate(8)?)?.wait().map_err(|failed| failed.error);
    if !matches!(&flushed, Err(Error::Completion(error)) if error.reason() == Some(&reason)) {
        return Err(format!("{reason}, but {flushed:?}").into());
    }
    Ok(match reason {
        CloseReason::PeerDisconnected { private_data } if private_data.is_empty() => "disconnected".into(),
        CloseReason::PeerDisconnected { .. } => "disconnected with words".into(),
        CloseReason::PeerDied => "died".into(),
        CloseReason::Failed(error) if error.status == Status::RetryExceeded => "unanswered".into(),
        CloseReason::DeviceGone => "device gone".into(),
        other => other.to_string(),
    })
}

/// Accepts one connection, and ends it as it is told.
pub fn host_of_guest(arguments: &[String]) -> Outcome {
    let [address] = arguments else { return Err("an address".into()) };
    let listener = Listener::bind(SocketAddr::new(address.parse()?, 0))?;
    say("at", &listener.local_addr().to_string());
    let connection = listener.accept().wait()?;
    say("connected", connection.link());
    match hear("")?.as_str() {
        "disconnect" => connection.disconnect_with(b"enough").wait()?,
        "drop" => drop(connection),
        "exit" => std::process::exit(0),
        "wait" => say("ended", &end(&connection)?),
        other => return Err(format!("{other:?}?").into()),
    }
    actor::wait_for_end();
    Ok(())
}

/// Connects, and says how that ends. It is impatient, and asks its peer all the time if it is told to.
pub fn guest(arguments: &[String]) -> Outcome {
    let [address] = arguments else { return Err("an address".into()) };
    let route = cm::resolve(address.as_str()).wait()?;
    let context = route.context()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let qp = pd.queue_pair::<Reliable>(&cq).timeout(Duration::from_millis(16)).prepare()?;
    let connection = route.connect().queue_pair(qp).wait()?;
    say("connected", connection.link());
    if hear("")? == "ask" {
        // The server posts no receive: this side asks again and again, and the server answers as long as it lives.
        let asking = connection.send_inline(b"are you there?")?;
        say("asking", "");
        if let Err(Error::Completion(error)) = asking.wait().map_err(|failed| failed.error) {
            say("failed", &error.status.to_string());
        }
    }
    say("ended", &end(&connection)?);
    Ok(())
}

/// Two that are connected.
fn meet(host: &Host, at: &Host, link: &str) -> (Actor, Actor) {
    let mut server = host.start("host_of_guest", &[host.v4.to_string()]);
    let address = server.hear("at");
    let mut client = at.start("guest", &[address]);
    assert_eq!((server.hear("connected"), client.hear("connected")), (link.to_owned(), link.to_owned()));
    (server, client)
}

pub fn a_peer_on_another_host_says_how_it_ends() {
    let Network { left, right } = &Network::new(1500);
    for (way, ends) in [("disconnect", "disconnected with words"), ("drop", "disconnected"), ("exit", "died")] {
        let (mut server, mut client) = meet(right, left, "UDP");
        client.say("wait", "");
        server.say(way, "");
        assert_eq!(client.hear("ended"), ends, "{way}");
    }
}

pub fn a_peer_on_another_host_that_is_killed_does_not_answer() {
    let Network { left, right } = &Network::new(1500);
    let (mut server, mut client) = meet(right, left, "UDP");
    client.say("ask", "");
    client.hear("asking");
    server.kill();
    // Nobody is left on that host who could say what happened.
    assert_eq!(client.hear("failed"), Status::RetryExceeded.to_string());
    assert_eq!(client.hear("ended"), "unanswered");
}

pub fn a_peer_on_another_host_that_is_killed_has_died_if_somebody_is_left_to_say_so() {
    let Network { left, right } = &Network::new(1500);
    // It keeps the records of the other processes of its host.
    let mut survivor = right.start("host_of_guest", &[right.v4.to_string()]);
    survivor.hear("at");
    let (mut server, mut client) = meet(right, left, "UDP");
    client.say("wait", "");
    server.kill();
    assert_eq!(client.hear("ended"), "died");
}

pub fn an_idle_connection_ends_when_the_only_process_of_another_host_is_killed() {
    let Network { left, right } = &Network::new(1500);
    for host in [right.v4, right.v6] {
        let mut server = right.start("host_of_guest", &[host.to_string()]);
        let mut client = left.start("guest", &[server.hear("at")]);
        server.hear("connected");
        client.hear("connected");
        client.say("wait", "");
        server.kill();
        assert_eq!(client.hear("ended"), "died", "{host}");
    }
}

pub fn a_connection_to_a_process_that_is_stopped_stands() {
    let Network { left, right } = &Network::new(1500);
    let (mut server, mut client) = meet(right, left, "UDP");
    client.say("wait", "");
    server.signal(Signal::STOP);
    // A killed one would be noticed within this time.
    std::thread::sleep(Duration::from_secs(4));
    server.signal(Signal::CONT);
    server.say("disconnect", "");
    assert_eq!(client.hear("ended"), "disconnected with words");
}

pub fn a_device_that_goes_ends_its_connections() {
    for (between_hosts, link) in [(true, "UDP"), (false, "shared memory")] {
        let Network { left, right } = &Network::new(1500);
        let (mut server, mut client) = meet(if between_hosts { right } else { left }, left, link);
        client.say("wait", "");
        server.say("wait", "");
        // Both ends of a cable like this go together.
        left.run(&format!("ip link del {DEVICE}"));
        assert_eq!(client.hear("ended"), "device gone", "{link}");
        assert_eq!(server.hear("ended"), "device gone", "{link}");
    }
}
