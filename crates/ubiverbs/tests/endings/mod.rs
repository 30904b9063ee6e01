//! How connections end, with another process as the peer or with none: what `closed` says, what work says that was
//! flushed, and what the log says. Each is run through shared memory and over UDP.

/// The tests, each after the function `prepare`; and the peer of them, in a process of its own, which is no test.
macro_rules! tests {
    () => {
        tests! {
            a_peer_that_disconnects_says_so_with_its_words,
            a_peer_that_drops_its_connection_has_disconnected,
            a_peer_whose_process_ends_in_any_way_has_died,
            a_peer_that_dies_in_the_middle_of_work_has_died,
            what_this_program_ends_it_has_ended,
            work_that_fails_is_the_reason,
            a_peer_that_asks_for_too_much_is_the_reason,
            a_message_that_does_not_fit_is_the_reason_on_both_sides,
            queue_pairs_without_a_connection_have_a_reason_too,
            the_log_says_who_ended_it,
        }

        #[test]
        fn a_peer() {
            endings::peer();
        }
    };
    ($($name:ident,)*) => {
        $(
            #[test]
            fn $name() {
                prepare();
                endings::$name();
            }
        )*
    };
}

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use ubiverbs::cm::{self, Connection, Listener};
use ubiverbs::{
    Access, Class, CloseReason, Error, Failure, Key, Modify, Operation, Received, Reliable, RemoteSlice, State, Status,
    connected_pair,
};

/// Longer than anything takes that works.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The variable that makes this program a peer.
const ROLE: &str = "UBIVERBS_TEST_PEER";

/// A peer in a process of its own, and the connection to it.
struct Peer {
    process: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    connection: Connection,
    receiving: Operation<Received>,
}

/// The part of the other process: accepts one connection and does what it is told.
pub fn peer() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    // What the test runner has written stands on the same line.
    println!("\nat {}", listener.local_addr());
    let connection = listener.accept().wait().unwrap();
    let region = connection.pd().share(8, Access::REMOTE_READ).unwrap();
    println!("memory {}", region.remote_slice());
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "disconnect" => connection.disconnect_with(b"that was all").wait().unwrap(),
            "drop" => return drop(connection),
            "exit" => std::process::exit(0),
            "abort" => std::process::abort(),
            "wait" => println!("closed {}", connection.closed().wait().unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

impl Peer {
    fn start(configure: impl FnOnce(&mut Command)) -> (Peer, RemoteSlice) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "ending::a_peer", "--nocapture", "--test-threads=1"]).env(ROLE, "1");
        if ubiverbs_over_udp() {
            command.env("UBIVERBS_LINK", "udp");
        }
        configure(&mut command);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let address = hear(&mut stdout, "at ");
        let connection = cm::connect(address.as_str()).wait().unwrap();
        assert_eq!(connection.link(), if ubiverbs_over_udp() { "UDP" } else { "shared memory" });
        let memory = hear(&mut stdout, "memory ").parse().unwrap();
        let receiving = connection.recv(connection.pd().allocate(64).unwrap()).unwrap();
        (Peer { process, stdin, stdout, connection, receiving }, memory)
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    /// Waits for the end: `closed`, the receive that waits, and whatever is posted later all say the same.
    #[track_caller]
    fn ends(mut self) -> CloseReason {
        let reason = self.connection.closed().wait_for(TEST_TIMEOUT).expect("it ends").unwrap();
        assert_eq!(self.connection.close_reason(), Some(reason.clone()));
        assert!(!self.connection.is_connected());
        let failed = self.receiving.wait_for(TEST_TIMEOUT).expect("it comes back").unwrap_err();
        assert_eq!(failed.buffer.len(), 64);
        check(&failed.error, &reason);
        let later = self.connection.send_inline(b"too late").unwrap().wait().unwrap_err();
        check(&later.error, &reason);
        let buffer = self.connection.pd().allocate(8).unwrap();
        self.connection.recv(buffer).unwrap().polled(7);
        let completion = self.connection.completion_queue().wait_for(TEST_TIMEOUT).unwrap().expect("a completion");
        assert_eq!(completion.wr_id(), 7);
        check(&completion.result().unwrap_err().into(), &reason);
        let _ = self.process.kill();
        self.process.wait().unwrap();
        reason
    }
}

/// Work that was flushed names the reason, and refers to nothing that does not exist.
#[track_caller]
fn check(error: &Error, reason: &CloseReason) {
    let Error::Completion(flushed) = error else { panic!("{error}") };
    assert_eq!((flushed.class(), flushed.status), (Class::Flushed, Status::WorkRequestFlushed));
    assert_eq!(flushed.reason(), Some(reason));
    assert_eq!(flushed.hint(), reason.hint());
    let text = error.to_string();
    assert!(text.contains(&reason.to_string()) && !text.contains("earlier completion"), "{text}");
}

fn hear(stdout: &mut BufReader<ChildStdout>, word: &str) -> String {
    let mut line = String::new();
    while stdout.read_line(&mut line).unwrap() > 0 {
        if let Some(rest) = line.trim().strip_prefix(word) {
            return rest.to_owned();
        }
        line.clear();
    }
    panic!("the peer ended without {word:?}");
}

fn ubiverbs_over_udp() -> bool {
    super::OVER_UDP
}

fn pair() -> (Connection, Connection) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let client = cm::connect(listener.local_addr());
    let server = listener.accept().wait().unwrap();
    (client.wait().unwrap(), server)
}

#[track_caller]
fn closed(connection: &Connection) -> CloseReason {
    connection.closed().wait_for(TEST_TIMEOUT).expect("it ends").unwrap()
}

pub fn a_peer_that_disconnects_says_so_with_its_words() {
    let (mut peer, _) = Peer::start(|_| {});
    peer.tell("disconnect");
    let CloseReason::PeerDisconnected { private_data } = peer.ends() else { panic!() };
    assert_eq!((private_data.len(), &private_data[..13]), (220, &b"that was all\0"[..]));
}

pub fn a_peer_that_drops_its_connection_has_disconnected() {
    let (mut peer, _) = Peer::start(|_| {});
    peer.tell("drop");
    assert_eq!(peer.ends(), CloseReason::PeerDisconnected { private_data: Vec::new() });
}

pub fn a_peer_whose_process_ends_in_any_way_has_died() {
    for way in ["exit", "abort", "kill"] {
        let (mut peer, _) = Peer::start(|command| {
            command.stderr(Stdio::null());
        });
        match way {
            "kill" => peer.process.kill().unwrap(),
            way => peer.tell(way),
        }
        assert_eq!(peer.ends(), CloseReason::PeerDied, "{way}");
    }
}

pub fn a_peer_that_dies_in_the_middle_of_work_has_died() {
    let (mut peer, _) = Peer::start(|_| {});
    // It posts no receive: this waits for ever.
    let sending = peer.connection.send_inline(b"anybody there?").unwrap();
    peer.process.kill().unwrap();
    let failed = sending.wait().unwrap_err();
    let Error::Completion(error) = &failed.error else { panic!("{failed}") };
    // Flushed, or the first to be given up.
    let gone = matches!(error.cause, Some(Failure::PeerGone { .. })) && error.status == Status::RetryExceeded;
    assert!(gone || error.reason() == Some(&CloseReason::PeerDied), "{failed}");
    assert_eq!(peer.ends(), CloseReason::PeerDied);
}

pub fn what_this_program_ends_it_has_ended() {
    let (peer, _) = Peer::start(|_| {});
    let connection = peer.connection.clone();
    let waiting = connection.closed();
    let ending = connection.disconnect();
    assert_eq!(waiting.wait().unwrap(), CloseReason::LocalClose);
    ending.wait().unwrap();
    assert_eq!(peer.ends(), CloseReason::LocalClose);
    // A queue pair that outlives its connection.
    let (client, server) = pair();
    let qp = client.queue_pair().clone();
    drop(client);
    assert_eq!(qp.close_reason(), Some(CloseReason::LocalClose));
    assert_eq!(closed(&server), CloseReason::PeerDisconnected { private_data: Vec::new() });
    // More words than there is room for end nothing.
    let (client, server) = pair();
    let error = client.disconnect_with(&[1; 221]).wait().unwrap_err();
    assert!(matches!(error, Error::Connect(cm::ConnectError::PrivateData { length: 221, room: 220 })), "{error}");
    assert!(client.is_connected() && server.is_connected());
}

pub fn work_that_fails_is_the_reason() {
    let (peer, memory) = Peer::start(|_| {});
    // It may read there, and not write.
    let failed = peer.connection.write_inline(&[1; 8], memory).unwrap().wait().unwrap_err();
    let Error::Completion(error) = failed.error else { panic!("{failed}") };
    assert_eq!((error.status, error.reason()), (Status::RemoteAccess, None));
    // Between processes of a host the peer's reason comes along; in packets there is no room for it.
    let said = "and said: the region of key";
    let needs = "and the request needs REMOTE_WRITE";
    let text = format!("{:?}", Error::Completion(error.clone()));
    assert_eq!(text.contains(said) && text.contains(needs), !ubiverbs_over_udp(), "{text}");
    assert_eq!(peer.ends(), CloseReason::Failed(error));
}

pub fn a_peer_that_asks_for_too_much_is_the_reason() {
    let (client, server) = pair();
    let waiting = client.recv(client.pd().allocate(64).unwrap()).unwrap();
    let heard = client.closed();
    let nobodys = RemoteSlice::new(0x1000, 8, Key::new(0x0077_0077));
    server.read(server.pd().allocate(8).unwrap(), nobodys).unwrap().wait().unwrap_err();
    // No work of the client failed, and it had not posted any that could.
    let reason = heard.wait().unwrap();
    assert!(matches!(reason, CloseReason::PeerFault { cause: Failure::Refused(_) }), "{reason}");
    check(&waiting.wait().unwrap_err().error, &reason);
    assert!(matches!(closed(&server), CloseReason::Failed(error) if error.status == Status::RemoteAccess));
}

pub fn a_message_that_does_not_fit_is_the_reason_on_both_sides() {
    let (client, server) = pair();
    // Two wait: the first fails, the second is flushed because of it. Neither was waited for when it happened.
    let waiting = [1, 2].map(|_| server.recv(server.pd().allocate(4).unwrap()).unwrap());
    let failed = client.send_inline(b"longer than that").unwrap().wait().unwrap_err();
    let Error::Completion(error) = failed.error else { panic!("{failed}") };
    let Some(Failure::Nak { peer, .. }) = error.cause else { panic!("{error}") };
    let reason = format!("{peer:?}");
    let expected = if ubiverbs_over_udp() { "None" } else { "Some(TooLong { length: 16, space: 4 })" };
    assert_eq!(reason, expected);
    assert_eq!((error.status, closed(&client)), (Status::RemoteInvalidRequest, CloseReason::Failed(error)));
    let reason = closed(&server);
    let CloseReason::Failed(error) = &reason else { panic!("{reason}") };
    assert!(matches!(
        (error.status, error.cause),
        (Status::LocalLength, Some(Failure::TooLong { length: 16, space: 4 }))
    ));
    let [first, second] = waiting.map(|waiting| waiting.wait().unwrap_err().error);
    assert!(matches!(&first, Error::Completion(first) if first == error), "{first}");
    check(&second, &reason);
}

pub fn queue_pairs_without_a_connection_have_a_reason_too() {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let (sends, receives) =
        (context.completion_queue(8).create().unwrap(), context.completion_queue(8).create().unwrap());
    let prepare = || pd.queue_pair::<Reliable>(&sends).receive_cq(&receives).prepare().unwrap();
    let (a, b) = (prepare(), prepare());
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b).unwrap(), b.connect(&at_a).unwrap());
    // In another completion queue than the work that fails, and looked at first.
    a.recv(pd.allocate(8).unwrap()).unwrap().polled(1);
    drop(a.write_inline(&[1; 8], RemoteSlice::new(0, 8, Key::new(1))).unwrap());
    let flushed = receives.wait_for(TEST_TIMEOUT).unwrap().expect("a completion").result().unwrap_err();
    assert!(matches!(flushed.reason(), Some(CloseReason::Failed(error)) if error.status == Status::RemoteAccess));
    assert!(matches!(b.close_reason(), Some(CloseReason::PeerFault { .. })));
    // Begun anew, it has no reason.
    let again = a.reset().unwrap();
    let (at_again, c) = (again.endpoint(), prepare());
    let (again, c) = (again.connect(&c.endpoint()).unwrap(), c.connect(&at_again).unwrap());
    assert_eq!((again.close_reason(), c.close_reason()), (None, None));
    // What the program stops, and with a shared receive queue.
    c.modify(&Modify { state: Some(State::Error), ..Modify::default() }).unwrap();
    assert_eq!(c.close_reason(), Some(CloseReason::LocalClose));
    let failed = c.send_inline(b"stopped").unwrap().wait().unwrap_err();
    check(&failed.error, &CloseReason::LocalClose);
    // Asked when the queue pair is gone.
    let [d, e] = connected_pair::<Reliable>(&pd, &sends).unwrap();
    let waiting = d.recv(pd.allocate(8).unwrap()).unwrap();
    d.write_inline(&[1; 8], RemoteSlice::new(0, 8, Key::new(1))).unwrap().wait().unwrap_err();
    drop((d, e));
    let Error::Completion(error) = waiting.wait().unwrap_err().error else { panic!() };
    assert!(matches!(error.reason(), Some(CloseReason::Failed(_))), "{error}");
}

pub fn the_log_says_who_ended_it() {
    let log = |peer: Peer, ends: fn(&mut Peer)| {
        let mut peer = peer;
        ends(&mut peer);
        drop(peer.stdin);
        let output = peer.process.wait_with_output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let start = || {
        Peer::start(|command| {
            command.env("UBIVERBS_LOG", "events").stderr(Stdio::piped());
        })
        .0
    };
    let by_peer = log(start(), |peer| {
        peer.tell("wait");
        peer.connection.disconnect().wait().unwrap();
        assert_eq!(hear(&mut peer.stdout, "closed "), "the peer disconnected");
    });
    assert!(by_peer.contains("ended: the peer ended it"), "{by_peer}");
    assert!(
        by_peer.contains("the connection ended"),
        "the queue pair did not stop because its program asked: {by_peer}"
    );
    let by_itself = log(start(), |peer| {
        peer.tell("disconnect");
        closed(&peer.connection);
    });
    assert!(by_itself.contains("ended: this program ended it"), "{by_itself}");
}
