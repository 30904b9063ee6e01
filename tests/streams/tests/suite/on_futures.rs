//! The traits of the crate `futures`: bytes, completions and connections that come.
#![allow(missing_docs)]

use futures_core::Stream;
use futures_io::{AsyncRead, AsyncWrite};
use std::future::poll_fn;
use std::io::{IoSlice, IoSliceMut};
use std::pin::{Pin, pin};
use ubiverbs::stream::{RdmaListener, RdmaStream};
use ubiverbs::{Reliable, block_on, cm};

async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[test]
fn streams_come_one_after_the_other_and_are_read_and_written() {
    block_on(async {
        let listener = RdmaListener::bind("127.0.0.1:0").await.unwrap();
        let mut incoming = listener.incoming();
        for _ in 0..3 {
            let mut client = RdmaStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let mut server = next(&mut incoming).await.unwrap().unwrap();
            let pieces = [IoSlice::new(b"three "), IoSlice::new(b""), IoSlice::new(b"pieces")];
            let sent = poll_fn(|context| Pin::new(&mut client).poll_write_vectored(context, &pieces)).await;
            assert_eq!(sent.unwrap(), 12);
            poll_fn(|context| Pin::new(&mut client).poll_flush(context)).await.unwrap();
            let (mut first, mut second) = ([0; 5], [0; 20]);
            let mut room = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
            let read = poll_fn(|context| Pin::new(&mut server).poll_read_vectored(context, &mut room)).await;
            assert_eq!(read.unwrap(), 12);
            assert_eq!((&first, &second[..7]), (b"three", &b" pieces"[..]));
            poll_fn(|context| Pin::new(&mut client).poll_close(context)).await.unwrap();
            assert_eq!(poll_fn(|context| Pin::new(&mut &server).poll_read(context, &mut [0; 4])).await.unwrap(), 0);
            assert_eq!(poll_fn(|context| Pin::new(&mut &server).poll_write(context, b"bye")).await.unwrap(), 3);
        }
    });
}

#[test]
fn completions_are_a_stream() {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    let [alice, bob] = ubiverbs::connected_pair::<Reliable>(&pd, &cq).unwrap();
    block_on(async {
        for number in 0..10 {
            bob.recv(pd.allocate(8).unwrap()).unwrap().polled(number);
            alice.send_inline(&number.to_le_bytes()).unwrap().polled(100);
        }
        let mut completions = cq.completions();
        let mut received = Vec::new();
        for _ in 0..20 {
            let completion = next(&mut completions).await.unwrap().unwrap();
            if completion.wr_id() < 100 {
                received.push(completion.wr_id());
            }
        }
        assert_eq!(received, (0..10).collect::<Vec<_>>());
    });
}

#[test]
fn connections_are_a_stream() {
    let listener = cm::Listener::bind("127.0.0.1:0").unwrap();
    block_on(async {
        let mut incoming = pin!(listener.incoming());
        for _ in 0..3 {
            let asking = cm::connect(("localhost", listener.local_addr().port()));
            let server = next(&mut incoming).await.unwrap().unwrap();
            let client = asking.await.unwrap();
            let receiving = server.recv(server.pd().allocate(8).unwrap()).unwrap();
            client.send_inline(b"hello").unwrap().await.unwrap();
            assert_eq!(receiving.await.unwrap().payload(), b"hello");
        }
    });
}
