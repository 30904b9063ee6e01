//! Streams: every byte arrives, in order, over every link; what ends them is told; nothing is left behind.
//!
//! What needs another process, or a link of its own, runs in a second process: this program once more, with one part.
#![allow(missing_docs)]

mod ends;
mod other;

use other::Other;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::block_on;
use ubiverbs::stream::{RdmaListener, RdmaSocket, RdmaStream, blocking};

/// Long enough for anything on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Sizes around those at which the protocol does something else.
const SIZES: [usize; 13] = [1, 2, 63, 64, 65, 4095, 4097, 16_384, 65_535, 65_537, 131_072, 262_145, 1_000_003];

/// The byte at each place of a stream: no two neighbouring runs of it are alike.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn bytes(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(byte).collect()
}

fn pair() -> io::Result<(RdmaStream, RdmaStream)> {
    block_on(async {
        let listener = RdmaListener::bind("127.0.0.1:0").await?;
        let client = RdmaStream::connect(listener.local_addr()?).await?;
        Ok((client, listener.accept().await?.0))
    })
}

/// Reads to the end, and looks at every byte.
async fn read_checked(stream: &RdmaStream, from: usize) -> io::Result<usize> {
    let mut buffer = vec![0; 50_000];
    let mut at = from;
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(at - from);
        }
        assert_eq!(buffer[..length], bytes(at, length), "from byte {at}");
        at += length;
    }
}

/// Sends back what comes, until the peer sends no more.
fn echo(stream: &blocking::RdmaStream) -> io::Result<()> {
    let (mut from, mut to) = (stream, stream);
    let mut buffer = vec![0; 30_000];
    loop {
        match from.read(&mut buffer)? {
            0 => return stream.shutdown(Shutdown::Write),
            length => to.write_all(&buffer[..length])?,
        }
    }
}

/// Sends streams of many sizes to an echo, and looks at every byte that comes back. One thread writes, one reads.
fn exchange_with(address: SocketAddr) -> io::Result<()> {
    for size in SIZES {
        let stream = blocking::RdmaStream::connect(address)?;
        let writer = stream.try_clone()?;
        let sending = thread::spawn(move || {
            (&writer).write_all(&bytes(size, size))?;
            writer.shutdown(Shutdown::Write)
        });
        let mut back = Vec::new();
        (&stream).read_to_end(&mut back)?;
        assert_eq!(back.len(), size);
        assert_eq!(back, bytes(size, size));
        sending.join().unwrap()?;
    }
    Ok(())
}

fn serve_echo(listener: &blocking::RdmaListener) -> io::Result<()> {
    SIZES.iter().try_for_each(|_| echo(&listener.accept()?.0))
}

/// Both ends in this process.
fn exchange() -> io::Result<()> {
    let listener = blocking::RdmaListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || serve_echo(&listener));
    exchange_with(address)?;
    server.join().unwrap()
}

/// What the second process does.
#[test]
#[ignore = "a part of other tests, which start it in a process of its own"]
fn part() {
    let Ok(part) = std::env::var("STREAMS_PART") else { return };
    let listen = || {
        let listener = blocking::RdmaListener::bind("127.0.0.1:0").unwrap();
        println!("listening at {}", listener.local_addr().unwrap());
        listener
    };
    match part.as_str() {
        "exchange" => exchange().unwrap(),
        "echo" => serve_echo(&listen()).unwrap(),
        // Sends a few bytes, and lives until it is killed.
        "victim" => {
            let (mut stream, _) = listen().accept().unwrap();
            stream.write_all(b"last words").unwrap();
            let _ = stream.read(&mut [0]);
        }
        // Drops its stream and ends at once.
        "leaver" => {
            let (stream, _) = listen().into_async_accept();
            block_on(stream.write_all(&bytes(0, 100_000))).unwrap();
            drop(stream);
            std::process::exit(0);
        }
        "idle" => idle().unwrap(),
        other => panic!("no part {other:?}"),
    }
    println!("done");
}

trait IntoAsyncAccept {
    fn into_async_accept(self) -> (RdmaStream, SocketAddr);
}

impl IntoAsyncAccept for blocking::RdmaListener {
    fn into_async_accept(self) -> (RdmaStream, SocketAddr) {
        block_on(self.into_async().accept()).unwrap()
    }
}

#[test]
fn every_byte_comes_back_inside_a_process() {
    exchange().unwrap();
}

#[test]
fn every_byte_comes_back_through_shared_memory() {
    let mut other = Other::start("echo", &[]);
    let (address, _output) = other.address();
    exchange_with(address).unwrap();
    other.succeed();
}

#[test]
fn every_byte_comes_back_over_udp_and_over_a_bad_network() {
    let bad = "drop=1%,dup=1%,reorder=1%";
    for environment in [
        &[("UBIVERBS_LINK", "udp")][..],
        &[("UBIVERBS_LINK", "udp"), ("UBIVERBS_FAULTS", bad)],
        &[("UBIVERBS_FAULTS", bad)],
    ] {
        Other::start("exchange", environment).succeed();
    }
}

#[test]
fn a_slow_reader_stops_the_writer_and_nothing_is_lost() {
    let (writer, reader) = pair().unwrap();
    let mut sent = 0;
    let mut refused_at = None;
    // Until there is no room, and what was on its way has arrived.
    while refused_at != Some(sent) {
        refused_at = Some(sent);
        loop {
            match writer.try_write(&bytes(sent, 10_000)) {
                Ok(length) => sent += length,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    assert!((64 << 10..4 << 20).contains(&sent), "{sent} bytes before the writer was stopped");
    let writing = thread::spawn(move || {
        block_on(async {
            writer.write_all(&bytes(sent, 500_000)).await?;
            writer.shutdown().await
        })
    });
    assert_eq!(block_on(read_checked(&reader, 0)).unwrap(), sent + 500_000);
    writing.join().unwrap().unwrap();
}

/// Polls a future once, and drops it.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn cancelled_reads_writes_and_accepts_lose_nothing() {
    let (a, b) = pair().unwrap();
    let total = 300_000;
    let writing = thread::spawn(move || {
        let mut sent = 0;
        while sent < total {
            let piece = bytes(sent, (total - sent).min(7001));
            match poll_once(a.write(&piece)) {
                Some(length) => sent += length.unwrap(),
                // Cancelled; the next attempt waits.
                None => block_on(a.writable()).unwrap(),
            }
        }
        block_on(a.shutdown()).unwrap();
    });
    let (mut at, mut cancelled) = (0, 0);
    let mut buffer = [0; 1234];
    loop {
        let length = match poll_once(b.read(&mut buffer)) {
            Some(length) => length.unwrap(),
            None => {
                cancelled += 1;
                block_on(b.readable()).unwrap();
                continue;
            }
        };
        if length == 0 {
            break;
        }
        assert_eq!(buffer[..length], bytes(at, length));
        at += length;
    }
    assert_eq!(at, total, "{cancelled} reads were cancelled");
    writing.join().unwrap();

    let listener = block_on(RdmaListener::bind("127.0.0.1:0")).unwrap();
    assert!(poll_once(listener.accept()).is_none());
    let client = block_on(RdmaStream::connect(listener.local_addr().unwrap())).unwrap();
    let (server, peer) = block_on(listener.accept()).unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert!(poll_once(server.read(&mut [0])).is_none());
    // An attempt to connect that is given up leaves a listener that works.
    drop(poll_once(RdmaStream::connect(listener.local_addr().unwrap())));
    block_on(RdmaStream::connect(listener.local_addr().unwrap())).unwrap();
}

#[test]
fn several_tasks_wait_for_one_stream() {
    let (a, b) = pair().unwrap();
    let b = std::sync::Arc::new(b);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let b = std::sync::Arc::clone(&b);
            thread::spawn(move || block_on(b.read(&mut [0; 1])).unwrap())
        })
        .collect();
    for _ in 0..4 {
        block_on(a.write_all(b"x")).unwrap();
    }
    assert_eq!(readers.into_iter().map(|reader| reader.join().unwrap()).sum::<usize>(), 4);
}

#[test]
fn pieces_are_written_as_one_and_peeking_takes_nothing() {
    let (a, b) = pair().unwrap();
    block_on(async {
        let pieces: Vec<Vec<u8>> = (0..100).map(|i| bytes(i * 10, 10)).collect();
        let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let sent = a.write_vectored(&slices).await.unwrap();
        assert!(sent >= 64 * 10, "{sent}");
        assert_eq!(a.write_vectored(&[IoSlice::new(b""), IoSlice::new(b"")]).await.unwrap(), 0);
        let mut buffer = vec![0; 5];
        assert_eq!(b.peek(&mut buffer).await.unwrap(), 5);
        assert_eq!(buffer, bytes(0, 5));
        let mut all = vec![0; sent];
        b.read_exact(&mut all).await.unwrap();
        assert_eq!(all, bytes(0, sent));
        assert_eq!(b.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(b.read(&mut []).await.map_err(|error| error.kind()).unwrap_or(0), 0);
    });
}

#[test]
fn halves_end_their_direction_and_find_together_again() {
    let ((a, b), (c, d)) = (pair().unwrap(), pair().unwrap());
    block_on(async {
        let ((read_a, write_a), (read_c, write_c)) = (a.into_split(), c.into_split());
        let wrong = read_a.reunite(write_c).unwrap_err();
        let (read_a, write_c) = (wrong.0, wrong.1);
        write_a.write_all(b"one").await.unwrap();
        let a = read_a.reunite(write_a).unwrap();
        a.write_all(b"two").await.unwrap();
        let mut said = [0; 6];
        b.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"onetwo");

        write_c.write_all(b"end").await.unwrap();
        drop(write_c);
        let mut said = [0; 3];
        d.read_exact(&mut said).await.unwrap();
        assert_eq!(d.read(&mut said).await.unwrap(), 0, "a half that is dropped sends no more");
        d.write_all(b"yes").await.unwrap();
        read_c.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"yes");

        let (read_a, write_a) = a.into_split();
        write_a.forget();
        b.write_all(b"abc").await.unwrap();
        read_a.read_exact(&mut said).await.unwrap();
        assert!(poll_once(b.read(&mut said)).is_none(), "a half that is forgotten has not shut down");
    });
}

#[test]
fn a_thread_waits_as_long_as_it_wants() {
    let (a, b) = pair().unwrap();
    let (mut a, b) = (a.into_blocking(), b.into_blocking());
    assert_eq!(a.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    a.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(a.read_timeout().unwrap(), Some(Duration::from_millis(1)));
    assert_eq!(a.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    a.set_write_timeout(Some(Duration::from_millis(1))).unwrap();
    let full = loop {
        if let Err(error) = a.write(&[0; 10_000]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    drop(b);
    a.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(a.read(&mut [0]).unwrap(), 0);
    let mut async_again = a.into_async().into_blocking();
    assert_eq!(async_again.read(&mut [0]).unwrap(), 0);
}

#[test]
fn sizes_are_chosen_before_there_is_a_stream() {
    block_on(async {
        let socket = RdmaSocket::new().unwrap();
        socket.set_receive_buffer_size(8192).unwrap();
        socket.set_send_buffer_size(8192).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(4).unwrap();
        let socket = RdmaSocket::new().unwrap();
        socket.set_keepalive(Some(Duration::from_secs(60)));
        let client = socket.connect(listener.local_addr().unwrap()).await.unwrap();
        let mut sent = 0;
        while let Ok(length) = client.try_write(&bytes(sent, 1000)) {
            sent += length;
        }
        assert!(sent <= 8192, "{sent} bytes fit into a buffer of 8192");
        let (server, _) = listener.accept().await.unwrap();
        drop(client);
        assert_eq!(read_checked(&server, 0).await.unwrap(), sent);
    });
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_short_connections_leave_no_descriptor_behind() {
    // Others of this program come and go meanwhile, but not by hundreds.
    let before = open_descriptors();
    let listener = blocking::RdmaListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        for stream in listener.incoming().take(1000) {
            echo(&stream.unwrap()).unwrap();
        }
    });
    for number in 0..1000u32 {
        let mut stream = blocking::RdmaStream::connect(address).unwrap();
        stream.write_all(&number.to_le_bytes()).unwrap();
        let mut back = [0; 4];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back, number.to_le_bytes());
    }
    server.join().unwrap();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while open_descriptors() > before + 200 {
        assert!(Instant::now() < deadline, "{} descriptors, {before} before", open_descriptors());
        thread::sleep(Duration::from_millis(10));
    }
}

/// Two tasks wait, for reading and for a connection, and nothing happens.
fn idle() -> io::Result<()> {
    let (a, b) = pair()?;
    let listener = block_on(RdmaListener::bind("127.0.0.1:0"))?;
    let waiting = [
        thread::spawn(move || drop(block_on(b.read(&mut [0])))),
        thread::spawn(move || {
            drop(block_on(listener.accept()));
        }),
    ];
    // The NIC's engine and the threads look a little before they sleep.
    thread::sleep(Duration::from_millis(300));
    let processor_time = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // Ticks of 10 ms, in the program and in the kernel for it.
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
    };
    let before = processor_time();
    thread::sleep(Duration::from_secs(1));
    let used = processor_time() - before;
    assert!(used <= 200, "{used} ms of processor time in a second in which nothing happened");
    drop(a);
    let [reader, _] = waiting;
    reader.join().unwrap();
    Ok(())
}

#[test]
fn whoever_waits_for_nothing_costs_nothing() {
    for environment in [&[][..], &[("UBIVERBS_LINK", "udp")]] {
        Other::start("idle", environment).succeed();
    }
}
