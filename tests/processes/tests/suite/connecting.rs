//! A connection whose peer is another process, made with the safe API and with the NIC's ids, and what one process hears of
//! the other's end. (Connections inside one process: `connecting.rs` of each crate.)

use hca::cm::EventKind;
use stage::ids::{anybody, channel, expect, id};
use stage::{Other, turn};
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use ubiverbs::Error;
use ubiverbs::cm::Listener;

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// Within this time a process hears of its peer's end, even on a busy machine. A peer that says nothing is given up after a
/// minute and more.
const DISCONNECTED_WITHIN: Duration = Duration::from_secs(10);

/// Ends the other process in one of two ways, and answers when.
fn end(other: &mut Other, kill: bool) -> Instant {
    let began = Instant::now();
    if kill {
        other.child.kill().unwrap();
    } else {
        writeln!(other.stdin).unwrap();
    }
    began
}

#[test]
fn a_peer_that_is_killed_or_ends_has_disconnected() -> Result<(), Error> {
    let _turn = turn();
    let listener: Listener = Listener::bind("127.0.0.1:0")?;
    for kill in [true, false] {
        let mut other = Other::start(Command::new(PEER).args(["connecting", &listener.local_addr().to_string()]));
        let connection = listener.accept().wait()?;
        let pd = connection.pd();
        assert_eq!(connection.recv(pd.allocate(8)?)?.wait()?.payload(), b"here");
        let waiting = connection.recv(pd.allocate(8)?)?;
        let began = end(&mut other, kill);
        waiting.wait().expect_err("nothing is sent any more");
        connection.closed().wait()?;
        assert!(began.elapsed() < DISCONNECTED_WITHIN, "{:?}", began.elapsed());
        other.child.wait().unwrap();
    }
    Ok(())
}

#[test]
fn a_process_that_is_killed_has_disconnected_and_so_has_one_that_ends() {
    let _turn = turn();
    let server = channel();
    let listener = id(&server);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let port = listener.source().unwrap().port();
    for kill in [true, false] {
        let mut other = Other::start(Command::new(PEER).args(["ids", &port.to_string()]));
        let passive = expect(&server, EventKind::ConnectRequest).id;
        passive.accept(&anybody()).unwrap();
        expect(&server, EventKind::Established);
        let began = end(&mut other, kill);
        expect(&server, EventKind::Disconnected);
        assert!(began.elapsed() < DISCONNECTED_WITHIN, "{:?}", began.elapsed());
        passive.disconnect().unwrap();
        other.child.wait().unwrap();
        expect(&server, EventKind::TimewaitExit);
    }
}

/// It has not been answered, so its last word does not name whom it asked.
#[test]
fn a_process_that_gives_up_is_not_accepted_any_more() {
    let _turn = turn();
    let server = channel();
    let listener = id(&server);
    listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    listener.listen(0).unwrap();
    let port = listener.source().unwrap().port();
    let mut other = Other::start(Command::new(PEER).args(["giving_up", &port.to_string()]));
    let passive = expect(&server, EventKind::ConnectRequest).id;
    assert!(passive.disconnect().is_err(), "there is no connection yet");
    writeln!(other.stdin).unwrap();
    // An id at its end is disconnected already.
    let deadline = Instant::now() + DISCONNECTED_WITHIN;
    while passive.disconnect().is_err() {
        assert!(Instant::now() < deadline, "the peer gave up, and it was not heard here");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(passive.accept(&anybody()).is_err());
    assert!(server.try_take().is_none(), "no event of an id that was never accepted");
    writeln!(other.stdin).unwrap();
    assert!(other.child.wait().unwrap().success());
}
