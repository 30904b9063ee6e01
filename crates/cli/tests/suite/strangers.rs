//! Strangers at a `--server`: without its secret nothing is done, and with it nothing but what a demo or a benchmark
//! needs.
#![allow(missing_docs)]

use crate::program::{Running, SECRET, code, document, scratch, stderr, ubiverbs_with};
use cluster::Secret;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than a busy machine takes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A server with a secret that it has drawn; where it waits, and the secret.
fn server(command: &str) -> (Running, String, String) {
    let mut server = Running::start_with(&[command, "--server", "127.0.0.1:0"], "");
    let line = server.line_with("Waiting on");
    let place = line.split_whitespace().nth(2).expect("an address").to_owned();
    let secret = line.split(&format!("{SECRET}=")).nth(1).and_then(|rest| rest.split(' ').next()).expect("a secret");
    (server, place, secret.to_owned())
}

/// A stranger that has heard the first line: the server's number.
fn stranger(place: &str) -> (BufReader<TcpStream>, String) {
    let stream = TcpStream::connect(place).expect("it listens");
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).expect("a timeout");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).expect("a line");
    let number = line.trim().rsplit(' ').next().expect("a number").to_owned();
    (stream, number)
}

/// One who knows the secret, and has said who it is.
fn caller(place: &str, secret: &str) -> BufReader<TcpStream> {
    let (mut stream, theirs) = stranger(place);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let tag = Secret::new(secret).tag(&[b"caller", theirs.as_bytes(), b"mine"]);
    writeln!(stream.get_mut(), "mine {}", hex(&tag)).expect("it hears");
    let hello = r#"{"ubiverbs":2,"process":1,"device":"ubi_lo","address":"127.0.0.1"}"#;
    writeln!(stream.get_mut(), "{hello}").expect("it hears");
    let mut said = String::new();
    for _ in ["a proof", "what it is"] {
        stream.read_line(&mut said).expect("a line");
    }
    assert!(said.contains("\"ubiverbs\":2"), "{said}");
    stream
}

#[test]
fn strangers_get_nothing_and_the_server_waits_for_one_who_knows_its_secret() {
    let (server, place, secret) = server("demo");
    // They say nothing, for as long as they like.
    let silent: Vec<_> = (0..3).map(|_| stranger(&place)).collect();
    let tag = "0123456789abcdef0123456789abcdef";
    for said in ["", "GET / HTTP/1.1", &format!("{tag} {tag}"), &"x".repeat(9999), r#"{"measure":"welcome"}"#] {
        let (mut stream, _) = stranger(&place);
        let _ = writeln!(stream.get_mut(), "{said}");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"", "it answered {said:?}");
    }
    for (secret, reason) in [("another", "has another secret"), ("", "no secret: set UBIVERBS_SECRET")] {
        let output = ubiverbs_with(&[(SECRET, secret)], &["demo", "--connect", &place]);
        assert_eq!(code(&output), 1, "{}", stderr(&output));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    let output = ubiverbs_with(&[(SECRET, &secret)], &["demo", "--quick", "--json", "--connect", &place]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(document(&output)["ok"], true);
    assert_eq!(server.end_within(REPLY_TIMEOUT).0, Some(0));
    drop(silent);
}

#[test]
fn a_caller_can_make_a_server_open_nothing_and_keep_little() {
    let file = scratch("of-the-server");
    let precious = vec![0x5a; 5 << 20];
    fs::write(&file, &precious).expect("written");
    let path = file.to_str().expect("text");
    let end = r#""end":{"endpoint":"x","region":"y"}"#;
    let point = |size: &str| {
        format!(r#""point":{{"kind":"round_trip","size":{size},"carrier":"tcp","waiting":"sleep","udp":false}}"#)
    };
    for (order, reason) in [
        // What the first versions took: the server maps the file, and writes.
        (format!(r#"{{"bare":{{"ring":"{path}","largest":8}}}}"#), "only a process of this program"),
        (r#"{"bare":{"largest":8}}"#.to_owned(), "only a process of this program"),
        (r#"{"lead":{"largest":8}}"#.to_owned(), "only a process of this program"),
        (r#""welcome""#.to_owned(), "only a process of this program"),
        (format!(r#"{{"connect":{{{end},"largest":99999999999}}}}"#), "more than is ever measured"),
        (format!(r#"{{"run":{{{},"count":5}}}}"#, point("99999999999")), "more than is ever measured"),
        (format!(r#"{{"run":{{{},"count":5}}}}"#, point("0")), "more than is ever measured"),
        (format!(r#"{{"run":{{{},"count":99999999999}}}}"#, point("8")), "more than is ever measured"),
        (format!(r#"{{"run":{{{},"count":5}}}}"#, point("65536")), "before the connections were made"),
    ] {
        let (server, place, secret) = server("bench");
        let mut stream = caller(&place, &secret);
        writeln!(stream.get_mut(), r#"{{"measure":{order}}}"#).expect("it hears");
        let mut answer = String::new();
        stream.read_line(&mut answer).expect("a line");
        assert!(answer.contains("failed") && answer.contains(reason), "{order}: {answer}");
        assert_eq!(server.end_within(REPLY_TIMEOUT).0, Some(1));
    }
    assert!(fs::read(&file).expect("there") == precious, "the server has written to a file that its caller named");
}
