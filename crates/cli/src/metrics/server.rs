//! As much of HTTP as Prometheus needs: `GET /metrics`. A client that says nothing, or reads nothing, costs a thread for
//! some seconds, and there are few of them; the processes of the host are asked once a second at most, however many ask.

use crate::exit::{Exit, Failure};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest request, headers and all.
const MAX_REQUEST_BYTES: usize = 8192;

/// Clients at a time; another one is hung up on.
const MAX_CLIENTS: usize = 16;

/// How long a client may take to ask, and then to read.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long figures are good for everybody who asks.
const FIGURES_MAX_AGE: Duration = Duration::from_secs(1);

/// Between two tries to accept, where there is no descriptor for it.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The content type of OpenMetrics, and of the format before it, which its text also fits.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Figures, and since when.
struct Figures<F> {
    text: Option<(Instant, String)>,
    make: F,
}

impl<F: FnMut() -> Result<String, Failure>> Figures<F> {
    fn text(&mut self) -> Result<String, Failure> {
        match &self.text {
            Some((made, text)) if made.elapsed() < FIGURES_MAX_AGE => Ok(text.clone()),
            _ => {
                let text = (self.make)()?;
                self.text = Some((Instant::now(), text.clone()));
                Ok(text)
            }
        }
    }
}

/// Serves until the program is ended.
pub fn serve(
    address: &str,
    out: &mut impl Write,
    make: impl FnMut() -> Result<String, Failure> + Send + 'static,
) -> Result<Exit, Failure> {
    let failed = |source| Failure::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let place = listener.local_addr().map_err(failed)?;
    writeln!(out, "Serving http://{place}/metrics").and_then(|()| out.flush()).map_err(Failure::Output)?;
    let figures = Arc::new(Mutex::new(Figures { text: None, make }));
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (figures, count) = (Arc::clone(&figures), Arc::clone(&clients));
        let answer = move || {
            let _ = answer(stream, || figures.lock().unwrap_or_else(PoisonError::into_inner).text());
            count.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().name("ubiverbs-metrics".into()).spawn(answer).is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Reads a request and answers it.
fn answer(mut stream: TcpStream, text: impl FnOnce() -> Result<String, Failure>) -> io::Result<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let request = read_request(&mut stream)?;
    let (status, kind, body) = match asked_for(&request) {
        Ok(accepts_open_metrics) => match text() {
            Ok(text) => ("200 OK", if accepts_open_metrics { OPEN_METRICS } else { PLAIN_TEXT }, text),
            Err(failure) => ("503 Service Unavailable", PLAIN_TEXT, format!("{}\n", failure.told())),
        },
        Err(status) => (status, PLAIN_TEXT, format!("{status}: only GET /metrics is answered\n")),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}

/// Reads up to the end of the headers, or as much as a request may be.
fn read_request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + CLIENT_TIMEOUT;
    let (mut request, mut part) = (Vec::new(), [0; 1024]);
    while request.len() < MAX_REQUEST_BYTES && !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    Ok(request)
}

/// Whether a request that can be answered accepts OpenMetrics; else why it cannot.
fn asked_for(request: &[u8]) -> Result<bool, &'static str> {
    let Some(end) = request.windows(4).position(|end| end == b"\r\n\r\n") else {
        return Err("431 Request Header Fields Too Large");
    };
    let Ok(head) = str::from_utf8(&request[..end]) else { return Err("400 Bad Request") };
    let mut lines = head.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, path, version] = words[..] else { return Err("400 Bad Request") };
    if !version.starts_with("HTTP/1.") {
        return Err("505 HTTP Version Not Supported");
    }
    if path.split('?').next() != Some("/metrics") {
        return Err("404 Not Found");
    }
    if method != "GET" {
        return Err("405 Method Not Allowed");
    }
    let mut accepted =
        lines.filter_map(|line| line.split_once(':')).filter(|(name, _)| name.eq_ignore_ascii_case("accept"));
    Ok(accepted.any(|(_, value)| value.contains("application/openmetrics-text")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_path_is_answered() {
        let ask = |request: &str| asked_for(request.as_bytes());
        assert_eq!(ask("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(false));
        assert_eq!(ask("GET /metrics?x=1 HTTP/1.0\r\naccept: application/openmetrics-text;q=0.5\r\n\r\n"), Ok(true));
        for (request, status) in [
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics HTTP/3\r\n\r\n", "505"),
            ("GET\r\n\r\n", "400"),
            ("\r\n\r\n", "400"),
            ("GET /metrics HTTP/1.1\r\n", "431"),
        ] {
            assert!(ask(request).unwrap_err().starts_with(status), "{request:?}");
        }
        assert!(asked_for(b"GET /\xff HTTP/1.1\r\n\r\n").unwrap_err().starts_with("400"));
    }

    #[test]
    fn figures_are_made_once_a_second_at_most() {
        let mut made = 0;
        let mut figures = Figures {
            text: None,
            make: || {
                made += 1;
                Ok(made.to_string())
            },
        };
        let first = figures.text().unwrap();
        assert_eq!(first, "1");
        figures.text = Some((Instant::now() + FIGURES_MAX_AGE, first));
        assert_eq!(figures.text().unwrap(), "1");
        figures.text = None;
        assert_eq!(figures.text().unwrap(), "2");
    }
}
