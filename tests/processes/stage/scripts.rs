//! Messages from one process to another, one of which a failure script breaks: the sender says how long they took and what
//! was sent again, the receiver what came twice or too early.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use ubiverbs::cm::{self, Connection, Listener};
use ubiverbs::{Access, Failed, RegisteredMut, RemoteSlice};

/// How many receives are posted: more than messages that are under way.
const RECEIVES: usize = 16;

fn millis(time: Duration) -> u128 {
    time.as_millis()
}

/// `server COUNT LENGTH`, or `client ADDRESS COUNT LENGTH WINDOW`: so many messages of this length, so many at a time.
/// `target`, or `writer ADDRESS COUNT`: so many WRITEs and READs, of which the target hears nothing.
pub fn peer(arguments: &str) {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let number = |at: usize| words[at].parse::<usize>().unwrap();
    match words[0] {
        "server" => server(number(1), number(2)),
        "target" => target(),
        "writer" => writer(words[1], number(2)),
        _ => client(words[1], number(2), number(3), number(4)),
    }
}

fn fill(bytes: &mut [u8], message: usize) {
    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + message) as u8);
}

fn server(count: usize, length: usize) {
    let listener: Listener = Listener::bind("127.0.0.1:0").unwrap();
    println!("listening {}", listener.local_addr().port());
    let connection = listener.accept().wait().unwrap();
    println!("link {}", connection.link());
    let pd = connection.pd();
    let post = |connection: &Connection| connection.recv(pd.allocate(length).unwrap()).unwrap();
    let mut receives: VecDeque<_> = (0..RECEIVES.min(count)).map(|_| post(&connection)).collect();
    println!("ready 1");
    let mut expected = vec![0; length];
    for message in 0..count {
        let received = receives.pop_front().unwrap().wait().unwrap();
        fill(&mut expected, message);
        assert_eq!(received.payload(), expected, "message {message}");
        if message + RECEIVES < count {
            receives.push_back(post(&connection));
        }
    }
    let incidents = connection.stats().incidents;
    println!("received {count} {} {}", incidents.duplicate_requests, incidents.out_of_sequence_requests);
    connection.closed().wait().unwrap();
    println!("closed 1");
}

fn target() {
    let listener: Listener = Listener::bind("127.0.0.1:0").unwrap();
    println!("listening {}", listener.local_addr().port());
    let connection = listener.accept().wait().unwrap();
    let region = connection.pd().share(4096, Access::REMOTE_READ | Access::REMOTE_WRITE).unwrap();
    println!("slice {}", region.remote_slice());
    connection.closed().wait().unwrap();
    println!("closed 1");
}

fn writer(address: &str, count: usize) {
    let connection = cm::connect(address).wait().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let slice: RemoteSlice = line.trim().parse().unwrap();
    let begun = Instant::now();
    for message in 0..count {
        let buffer = connection.pd().allocate(4096).unwrap();
        let done = match message % 2 {
            0 => connection.write(buffer, slice).map(|work| work.wait().is_ok()),
            _ => connection.read(buffer, slice).map(|work| work.wait().is_ok()),
        };
        assert!(done.is_ok_and(|done| done));
    }
    println!("sent {}", millis(begun.elapsed()));
    connection.disconnect().wait().unwrap();
}

fn client(address: &str, count: usize, length: usize, window: usize) {
    let begun = Instant::now();
    let connection = cm::connect(address).wait().unwrap();
    println!("connected {}", millis(begun.elapsed()));
    // The other one is ready.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let pd = connection.pd();
    let (begun, mut longest) = (Instant::now(), Duration::ZERO);
    let mut under_way = VecDeque::new();
    for message in 0..count {
        if under_way.len() == window {
            end_one(&mut under_way, &mut longest);
        }
        let mut buffer = pd.allocate(length).unwrap();
        fill(&mut buffer, message);
        let sent = connection.send(buffer).map_err(|Failed::<RegisteredMut> { error, .. }| error).unwrap();
        under_way.push_back((Instant::now(), sent));
    }
    while !under_way.is_empty() {
        end_one(&mut under_way, &mut longest);
    }
    let retries = connection.stats().incidents.retries;
    println!("sent {} {} {retries}", millis(begun.elapsed()), millis(longest));
    let begun = Instant::now();
    connection.disconnect().wait().unwrap();
    println!("ended {}", millis(begun.elapsed()));
}

fn end_one(under_way: &mut VecDeque<(Instant, ubiverbs::Operation<RegisteredMut>)>, longest: &mut Duration) {
    let Some((begun, sent)) = under_way.pop_front() else { return };
    sent.wait().unwrap();
    *longest = begun.elapsed().max(*longest);
}
