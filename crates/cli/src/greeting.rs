//! What the two sides of a demo or a benchmark say first when they meet over TCP: each proves that it knows the secret
//! that a person gave to both. Nothing else is read from a caller before that.
//!
//! ```text
//! server                                    caller
//!   ubiverbs 2 NUMBER              ----->
//!                                  <-----   NUMBER TAG
//!   TAG                            ----->
//! ```

use crate::control::ANSWER_TIMEOUT;
use crate::exit::Failure;
use ::cluster::Secret;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The variable that has the secret: a command line would show it to every user of the host.
pub const SECRET_VARIABLE: &str = "UBIVERBS_SECRET";

const FIRST_WORDS: &str = "ubiverbs 2";

/// How long a caller may take to prove itself.
const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// How many callers may be about to prove themselves.
const MOST_CALLERS: usize = 8;

/// The longest line.
const MAX_LINE_BYTES: usize = 80;

/// The secret that the environment has.
pub fn secret() -> Option<String> {
    std::env::var(SECRET_VARIABLE).ok().filter(|secret| !secret.is_empty())
}

/// Waits for one who knows the secret. Others are let go, and keep nobody from coming.
pub fn await_caller(listener: &TcpListener, secret: &str) -> Result<TcpStream, Failure> {
    let system = |what| move |source| Failure::System { what, source };
    let (sender, proven) = mpsc::channel();
    let secret = Secret::new(secret);
    for _ in 0..MOST_CALLERS {
        let (listener, sender) = (listener.try_clone().map_err(system("cannot listen"))?, sender.clone());
        let greet_callers = move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if greet(&mut stream, &secret).is_ok() {
                    let _ = sender.send(stream);
                }
            }
        };
        let started = thread::Builder::new().name("greeting".into()).spawn(greet_callers);
        started.map_err(system("cannot start a thread"))?;
    }
    drop(sender);
    let caller = proven.recv().map_err(|_| system("cannot accept")(io::ErrorKind::NotConnected.into()));
    // One is enough: the threads end.
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
    caller
}

/// The server's part.
fn greet(stream: &mut TcpStream, secret: &Secret) -> Result<(), Failure> {
    let until = Instant::now() + GREETING_LIMIT;
    let ours = hex(&Secret::number());
    say(stream, &format!("{FIRST_WORDS} {ours}"))?;
    let answer = line(stream, until)?;
    let said = |who: &'static str, theirs: &str| [who, &ours, theirs].map(str::to_owned);
    match answer.split_once(' ') {
        Some((theirs, tag)) if tag == sign(secret, &said("caller", theirs)) => {
            say(stream, &sign(secret, &said("server", theirs)))
        }
        _ => Err(Failure::Nonsense(answer)),
    }
}

/// The caller's part.
pub fn call(stream: &mut TcpStream) -> Result<(), Failure> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    let first = line(stream, until)?;
    let Some(theirs) = first.strip_prefix(FIRST_WORDS).and_then(|rest| rest.strip_prefix(' ')) else {
        return Err(Failure::Nonsense(first));
    };
    let secret = Secret::new(secret().ok_or(Failure::NoSecret(SECRET_VARIABLE))?);
    let ours = hex(&Secret::number());
    let said = |who: &'static str| [who, theirs, &ours].map(str::to_owned);
    say(stream, &format!("{ours} {}", sign(&secret, &said("caller"))))?;
    match line(stream, until) {
        Ok(tag) if tag == sign(&secret, &said("server")) => Ok(()),
        _ => Err(Failure::OtherSecret(SECRET_VARIABLE)),
    }
}

fn sign(secret: &Secret, said: &[String]) -> String {
    let said: Vec<&[u8]> = said.iter().map(String::as_bytes).collect();
    hex(&secret.tag(&said))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn say(stream: &mut TcpStream, text: &str) -> Result<(), Failure> {
    stream.write_all(format!("{text}\n").as_bytes()).map_err(|_| Failure::PeerGone)
}

/// One line, and not a byte of what follows it.
fn line(stream: &mut TcpStream, until: Instant) -> Result<String, Failure> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < MAX_LINE_BYTES {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.set_read_timeout(Some(left)).map_err(|_| Failure::PeerGone)?;
        stream.read_exact(&mut byte).map_err(|_| Failure::PeerGone)?;
        if byte == *b"\n" {
            break;
        }
        line.extend(byte);
    }
    stream.set_read_timeout(None).map_err(|_| Failure::PeerGone)?;
    Ok(String::from_utf8_lossy(&line).into_owned())
}
