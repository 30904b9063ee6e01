//! Streams on tokio: what tokio's own functions do with a TCP stream they do with this.
#![allow(missing_docs)]

use std::io::{ErrorKind, IoSlice};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, copy, copy_bidirectional};
use tokio::time::timeout;
use ubiverbs::stream::{OwnedReadHalf, OwnedWriteHalf, RdmaListener, RdmaStream};

async fn pair() -> (RdmaStream, RdmaStream) {
    let listener = RdmaListener::bind("127.0.0.1:0").await.unwrap();
    let client = RdmaStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (client, listener.accept().await.unwrap().0)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

#[test]
fn streams_and_halves_are_what_libraries_want() {
    fn reads<T: AsyncRead + Send + Sync + Unpin + 'static>() {}
    fn writes<T: AsyncWrite + Send + Sync + Unpin + 'static>() {}
    fn futures_reads<T: futures_io::AsyncRead + Send + Sync + Unpin + 'static>() {}
    fn futures_writes<T: futures_io::AsyncWrite + Send + Sync + Unpin + 'static>() {}
    reads::<RdmaStream>();
    reads::<OwnedReadHalf>();
    writes::<RdmaStream>();
    writes::<OwnedWriteHalf>();
    futures_reads::<RdmaStream>();
    futures_reads::<OwnedReadHalf>();
    futures_writes::<RdmaStream>();
    futures_writes::<OwnedWriteHalf>();
}

#[tokio::test]
async fn what_is_copied_in_comes_out_on_one_thread() {
    let (client, mut server) = pair().await;
    let echo = tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(&mut server);
        let copied = copy(&mut read, &mut write).await.unwrap();
        AsyncWriteExt::shutdown(&mut write).await.unwrap();
        copied
    });
    let sent = pattern(3_000_000);
    let (mut read, mut write) = client.into_split();
    let writing = {
        let sent = sent.clone();
        tokio::spawn(async move { AsyncWriteExt::write_all(&mut write, &sent).await.unwrap() })
    };
    let mut back = Vec::new();
    read.read_to_end(&mut back).await.unwrap();
    writing.await.unwrap();
    assert!(back == sent, "{} bytes of {} came back, or not the same", back.len(), sent.len());
    assert_eq!(echo.await.unwrap(), sent.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_carries_streams_between_threads() {
    let origin = RdmaListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = RdmaListener::bind("127.0.0.1:0").await.unwrap();
    let (at_origin, at_proxy) = (origin.local_addr().unwrap(), proxy.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = origin.accept().await {
            tokio::spawn(async move {
                let mut said = Vec::new();
                stream.read_to_end(&mut said).await.unwrap();
                said.reverse();
                AsyncWriteExt::write_all(&mut stream, &said).await.unwrap();
            });
        }
    });
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = proxy.accept().await {
            tokio::spawn(async move {
                let mut outside = RdmaStream::connect(at_origin).await.unwrap();
                copy_bidirectional(&mut inside, &mut outside).await.unwrap();
            });
        }
    });
    let clients: Vec<_> = (0..20usize)
        .map(|number| {
            tokio::spawn(async move {
                let mut stream = RdmaStream::connect(at_proxy).await.unwrap();
                let mut said = pattern(1000 * number + 1);
                AsyncWriteExt::write_all(&mut stream, &said).await.unwrap();
                AsyncWriteExt::shutdown(&mut stream).await.unwrap();
                let mut back = Vec::new();
                stream.read_to_end(&mut back).await.unwrap();
                said.reverse();
                assert!(back == said, "client {number}");
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test]
async fn reads_that_time_out_lose_nothing() {
    let (mut client, server) = pair().await;
    let sent = pattern(40_000);
    let writing = {
        let sent = sent.clone();
        tokio::spawn(async move {
            for piece in sent.chunks(997) {
                server.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_micros(700)).await;
            }
        })
    };
    let (mut back, mut cancelled) = (Vec::new(), 0);
    while back.len() < sent.len() {
        let mut buffer = [0; 300];
        match timeout(Duration::from_micros(200), AsyncReadExt::read(&mut client, &mut buffer)).await {
            Ok(length) => back.extend_from_slice(&buffer[..length.unwrap()]),
            Err(_) => cancelled += 1,
        }
    }
    assert!(back == sent, "after {cancelled} reads that were given up");
    writing.await.unwrap();
    let mut rest = Vec::new();
    assert_eq!(client.read_to_end(&mut rest).await.unwrap(), 0);
}

#[tokio::test]
async fn pieces_are_written_together() {
    let (mut client, server) = pair().await;
    assert!(client.is_write_vectored());
    let sent = AsyncWriteExt::write_vectored(&mut client, &[IoSlice::new(b"one "), IoSlice::new(b"two\n")]).await;
    assert_eq!(sent.unwrap(), 8);
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut BufReader::new(server), &mut line).await.unwrap();
    assert_eq!(line, "one two\n");
}

#[tokio::test]
async fn ends_are_those_of_tcp() {
    let (mut client, server) = pair().await;
    server.write_all(b"half").await.unwrap();
    drop(server);
    let error = AsyncReadExt::read_exact(&mut client, &mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    let error = AsyncWriteExt::write_all(&mut client, &[0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);

    let (mut client, server) = pair().await;
    AsyncWriteExt::shutdown(&mut client).await.unwrap();
    let error = AsyncWriteExt::write_all(&mut client, &[0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    server.abort();
    let error = AsyncReadExt::read(&mut client, &mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn an_executor_goes_on_while_names_are_looked_up_and_streams_wait() {
    let (client, _server) = pair().await;
    let ticking = tokio::spawn(async {
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let reading = tokio::spawn(async move { client.read(&mut [0; 8]).await });
    let connecting = tokio::spawn(RdmaStream::connect("no-such-name.invalid:1"));
    ticking.await.unwrap();
    assert!(connecting.await.unwrap().is_err());
    drop(_server);
    assert_eq!(reading.await.unwrap().unwrap(), 0);
}
