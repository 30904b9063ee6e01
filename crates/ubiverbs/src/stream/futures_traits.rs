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

reads!(RdmaStream);
reads!(&RdmaStream);
reads!(OwnedReadHalf);
async_write!(RdmaStream, poll_close);
async_write!(&RdmaStream, poll_close);
async_write!(OwnedWriteHalf, poll_close);

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
