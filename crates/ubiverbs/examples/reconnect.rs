//! # 16. Reconnecting: a client that outlives its connections
//!
//! Cables are pulled, servers start again, NICs are replaced. A queue pair that has failed does not come back: a program
//! that is to go on makes a new connection, and sends again what has had no answer.
//!
//! Was the request lost, or its answer? The client cannot know. So each request has a **number**, and the server keeps,
//! for each client, the number and the answer of the last one: what it has done already it answers, and does not do
//! again.
//!
//! | what goes wrong | how the client knows | what it does |
//! |---|---|---|
//! | the connection ends, or its work fails | the receive fails | connects again, sends again |
//! | nothing comes at all | the time for an answer is over | the same |
//! | nobody listens, or there is no device | connecting fails | tries again, each time later |
//! | that goes on for too long | its patience is over | tells its caller |
//!
//! Here the server lets every tenth request down: it does the work, and ends the connection instead of answering.
//! `ubiverbs torture` has worse ideas:
//!
//! ```text
//! cargo run --example reconnect
//! cargo build --example reconnect --features scripts     # so that failure scripts reach it
//! ubiverbs torture --server 'reconnect server 127.0.0.1:7471' -- reconnect client 127.0.0.1:7471
//! ```

use std::collections::HashMap;
use std::error::Error as StdError;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::{Operation, Received, Reliable, block_on, cm, timeout};

type Outcome<T = ()> = Result<T, Box<dyn StdError + Send + Sync>>;

const REQUESTS: u64 = 100;

/// A request and an answer are two numbers: the request's, and what is to be added or what came of it.
const BYTES: usize = 16;

/// Without an answer for so long, the connection counts as broken.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How long a client goes on trying.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two attempts: twice as long each time, up to a bound, so that a server that comes back is not overrun.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

fn message(number: u64, value: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes[8..].copy_from_slice(&value.to_be_bytes());
    bytes
}

fn numbers(bytes: &[u8]) -> Option<(u64, u64)> {
    let (number, value) = bytes.split_at_checked(8)?;
    Some((u64::from_be_bytes(number.try_into().ok()?), u64::from_be_bytes(value.try_into().ok()?)))
}

/// For each client: the number of its last request, and the sum of all.
type Sums = Arc<Mutex<HashMap<u64, (u64, u64)>>>;

/// Serves one connection until it ends. What a request asks for is done once, however often it comes.
fn serve(request: cm::Request<Reliable>, sums: &Sums, lets_down: bool) -> Outcome {
    let client = u64::from_be_bytes(request.private_data().get(..8).ok_or("no client")?.try_into()?);
    let context = request.context()?;
    let pd = context.alloc_pd()?;
    let prepared = pd.queue_pair::<Reliable>(&context.completion_queue(8).create()?).prepare()?;
    let mut receiving = prepared.recv(pd.allocate(BYTES)?)?;
    let connection = request.accept().queue_pair(prepared).wait()?;
    loop {
        let arrived = receiving.wait()?;
        let (number, value) = numbers(arrived.payload()).ok_or("no request")?;
        receiving = connection.recv(arrived.into_buffer())?;
        let (is_new, sum) = {
            let mut sums = sums.lock().expect("no thread panics with it");
            let (last, sum) = sums.entry(client).or_default();
            let is_new = number > *last;
            if is_new {
                (*last, *sum) = (number, *sum + value);
            }
            (is_new, *sum)
        };
        if lets_down && is_new && number % 10 == 0 {
            return Ok(());
        }
        connection.send_inline(&message(number, sum))?.wait()?;
    }
}

/// A server that no connection's end can end.
fn listen(listener: &cm::Listener, lets_down: bool) -> Outcome {
    let sums = Sums::default();
    loop {
        let request = listener.next().wait()?;
        let sums = Arc::clone(&sums);
        thread::spawn(move || {
            if let Err(error) = serve(request, &sums, lets_down) {
                println!("server: a connection has ended: {error}");
            }
        });
    }
}

struct Client {
    to: SocketAddr,
    /// By this the server knows it, whichever connection it comes by.
    number: u64,
    connection: Option<cm::Connection>,
    connections: u32,
}

impl Client {
    /// Asks until there is an answer, or patience is over.
    fn ask(&mut self, number: u64, value: u64) -> Outcome<u64> {
        let (begun, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            match self.try_to_ask(number, value) {
                Ok(sum) => return Ok(sum),
                Err(error) if begun.elapsed() > PATIENCE => return Err(error),
                Err(error) => {
                    println!("client: request {number}: {error}; again in {pause:?}");
                    self.connection = None;
                    thread::sleep(pause);
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn try_to_ask(&mut self, number: u64, value: u64) -> Outcome<u64> {
        let connection = match &self.connection {
            Some(connection) => connection,
            None => {
                let route = cm::resolve(self.to).wait_for(ANSWER_TIME).ok_or("the address is not resolved")??;
                let connecting = route.connect().private_data(&self.number.to_be_bytes());
                self.connections += 1;
                self.connection.insert(connecting.wait_for(ANSWER_TIME)?)
            }
        };
        let answer: Operation<Received> = connection.recv(connection.pd().allocate(BYTES)?)?;
        // If this fails the receive fails, too: one of them is waited for.
        drop(connection.send_inline(&message(number, value))?);
        let answer = block_on(timeout(ANSWER_TIME, answer)).map_err(|_| "no answer")??;
        match numbers(answer.payload()) {
            Some((answered, sum)) if answered == number => Ok(sum),
            _ => Err("an answer to another request".into()),
        }
    }
}

fn call(to: SocketAddr) -> Outcome<Client> {
    let number = u64::from(std::process::id());
    let mut client = Client { to, number, connection: None, connections: 0 };
    for request in 1..=REQUESTS {
        let sum = client.ask(request, request)?;
        // Whatever happened on the way, everything was added once.
        assert_eq!(sum, (1..=request).sum::<u64>(), "request {request}");
    }
    println!("client: {REQUESTS} requests by {} connections, each done once", client.connections);
    Ok(client)
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", at] => listen(&cm::Listener::bind(at)?, false)?,
        ["client", to] => drop(call(to.parse()?)?),
        _ => {
            let listener = cm::Listener::bind("127.0.0.1:0")?;
            let at = listener.local_addr();
            thread::spawn(move || listen(&listener, true));
            let client = call(at)?;
            assert!(client.connections > 1, "every tenth request was let down");
        }
    }
    Ok(())
}
