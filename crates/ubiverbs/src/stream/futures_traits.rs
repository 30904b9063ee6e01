//! The traits of the crate `futures`: a stream is what libraries for any executor take, and connections that come are a
//! `Stream`.

use super::shared::Slots;
use super::{OwnedReadHalf, OwnedWriteHalf, RdmaListener, RdmaStream};
use futures_core::Stream;
use futures_io::{AsyncRead, AsyncWrite};
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll};

macro_rules! reads {
    ($kind:ty) => {
        impl AsyncRead for $kind {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                mut into: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                self.core.poll_read(context, &mut into)
            }

            fn poll_read_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                self.core.poll_read(context, &mut Slots::new(pieces))
            }
        }
    };
}

macro_rules! writes {
    ($kind:ty) => {
        impl AsyncWrite for $kind {
            fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                self.core.poll_write(context, &[bytes])
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                pieces: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.core.poll_write_vectored(context, pieces)
            }

            /// Nothing to do: what is written is on its way.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.core.poll_shutdown(context)
            }
        }
    };
}

reads!(RdmaStream);
reads!(&RdmaStream);
reads!(OwnedReadHalf);
writes!(RdmaStream);
writes!(&RdmaStream);
writes!(OwnedWriteHalf);

/// The streams that a listener is asked for. Made by [`RdmaListener::incoming`].
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Incoming<'a> {
    listener: &'a RdmaListener,
}

impl RdmaListener {
    /// The streams that come, as a `Stream` that never ends.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }
}

impl Stream for Incoming<'_> {
    type Item = io::Result<RdmaStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.listener.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}
