//! How streams end, and how they do not begin.

use super::other::Other;
use super::{TEST_TIMEOUT, bytes, pair, read_checked};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;
use ubiverbs::block_on;
use ubiverbs::stream::{RdmaListener, RdmaStream, blocking};

#[test]
fn a_peer_that_closes_is_an_end_and_one_that_aborts_is_an_error() {
    let (a, b) = pair().unwrap();
    block_on(async {
        a.write_all(b"before").await.unwrap();
        drop(a);
        let mut buffer = [0; 64];
        b.read_exact(&mut buffer[..6]).await.unwrap();
        assert_eq!(&buffer[..6], b"before");
        assert_eq!(b.read(&mut buffer).await.unwrap(), 0);
        assert_eq!(b.read(&mut buffer).await.unwrap(), 0, "the end stays the end");
        assert_eq!(b.read_exact(&mut buffer).await.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let error = b.write_all(b"too late").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    });
    let (a, b) = pair().unwrap();
    block_on(async {
        a.abort();
        for _ in 0..2 {
            assert_eq!(b.read(&mut [0; 64]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(b.write(b"too late").await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn half_a_stream_ends_and_the_other_half_goes_on() {
    let (a, b) = pair().unwrap();
    block_on(async {
        a.shutdown().await.unwrap();
        a.shutdown().await.unwrap();
        assert_eq!(a.write(b"no").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(b.read(&mut [0; 8]).await.unwrap(), 0);
        b.write_all(b"still here").await.unwrap();
        let mut buffer = [0; 10];
        a.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"still here");
        drop(b);
        assert_eq!(a.read(&mut buffer).await.unwrap(), 0);
    });
}

#[test]
fn a_peer_that_is_killed_is_an_error_after_what_it_sent() {
    for environment in [&[][..], &[("UBIVERBS_LINK", "udp")]] {
        let mut other = Other::start("victim", environment);
        let (address, _output) = other.address();
        let mut stream = blocking::RdmaStream::connect(address).unwrap();
        let mut words = [0; 10];
        stream.read_exact(&mut words).unwrap();
        assert_eq!(&words, b"last words");
        other.0.kill().unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let error = stream.read(&mut words).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        let error = stream.write(b"anybody?").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    }
}

#[test]
fn a_process_that_drops_its_stream_and_ends_has_sent_everything() {
    for environment in [&[][..], &[("UBIVERBS_LINK", "udp")]] {
        let mut other = Other::start("leaver", environment);
        let (address, _output) = other.address();
        let stream = block_on(RdmaStream::connect(address)).unwrap();
        assert_eq!(block_on(read_checked(&stream, 0)).unwrap(), 100_000);
        drop(other);
    }
}

#[test]
fn a_dropped_stream_still_sends_what_was_written() {
    for _ in 0..20 {
        let (a, b) = pair().unwrap();
        let sent = a.try_write(&bytes(0, 200_000)).unwrap();
        drop(a);
        assert_eq!(block_on(read_checked(&b, 0)).unwrap(), sent);
    }
}

#[test]
fn whoever_cannot_be_reached_is_an_error_of_the_kind_of_tcp() {
    block_on(async {
        let listener = RdmaListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let again = RdmaListener::bind(address).await.unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AddrInUse, "{again}");
        let (by_name, _) = (RdmaStream::connect(("localhost", address.port())).await.unwrap(), listener.accept().await);
        assert_eq!(by_name.peer_addr().unwrap(), address);
        drop(listener);
        let refused = RdmaStream::connect(address).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{refused}");
        assert!(refused.to_string().contains("nobody listens at 127.0.0.1"), "{refused}");
        let wrong = RdmaStream::connect("127.0.0.1").await.unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::InvalidInput, "{wrong}");
        let foreign = RdmaListener::bind("192.0.2.1:0").await.unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::AddrNotAvailable, "{foreign}");
    });
}

#[test]
fn a_peer_that_does_not_answer_is_waited_for_as_long_as_the_program_wants() {
    let mut other = Other::start("echo", &[]);
    let (address, _output) = other.address();
    other.stop();
    let limit = Duration::from_millis(30);
    let late = block_on(RdmaStream::connect_timeout(address, limit)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
    let late = blocking::RdmaStream::connect_timeout(address, limit).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut, "{late}");
}
