//! The page for browsers of this host: one answer to every request, and nothing else of the files here.

use crate::exit::Failure;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use web::timeline::Timeline;

/// So long a browser may take for its request, and for each part of the answer.
const BROWSER_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest request that is read.
const MAX_REQUEST_BYTES: u64 = 16 << 10;

/// Serves the page until the program is ended.
pub fn page(run: &Timeline, address: &str, out: &mut impl Write) -> Result<(), Failure> {
    let mut page = Vec::new();
    web::page(run, &mut page).map_err(Failure::Output)?;
    let failed = |source| Failure::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    writeln!(out, "http://{local}/").and_then(|()| out.flush()).map_err(Failure::Output)?;
    for caller in listener.incoming() {
        // One that breaks off is its own loss.
        let _ = caller.and_then(|caller| answer(caller, &page));
    }
    Ok(())
}

fn answer(caller: TcpStream, page: &[u8]) -> std::io::Result<()> {
    caller.set_read_timeout(Some(BROWSER_TIMEOUT))?;
    caller.set_write_timeout(Some(BROWSER_TIMEOUT))?;
    let mut request = BufReader::new((&caller).take(MAX_REQUEST_BYTES));
    let mut first = String::new();
    request.read_line(&mut first)?;
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    let (status, body) = match first.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/", ..] => ("200 OK", page),
        ["GET", ..] => ("404 Not Found", &b"<!doctype html>there is one page here: /"[..]),
        _ => ("405 Method Not Allowed", &b""[..]),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let mut caller = &caller;
    caller.write_all(head.as_bytes())?;
    caller.write_all(body)
}
