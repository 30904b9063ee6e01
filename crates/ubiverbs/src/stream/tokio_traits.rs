//! The traits of tokio: a stream is what any library on tokio takes.

use super::shared::Core;
use super::{OwnedReadHalf, OwnedWriteHalf, RdmaStream};
use sockets::Scatter;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The free part of a buffer. Only what is filled is made ready to be filled.
struct Free<'a, 'b> {
    buffer: &'a mut ReadBuf<'b>,
    /// Bytes at the beginning of it that have been handed out.
    used: usize,
}

impl Scatter for Free<'_, '_> {
    fn room(&self) -> usize {
        self.buffer.remaining() - self.used
    }

    fn next(&mut self, most: usize) -> &mut [u8] {
        let from = self.used;
        self.used += most.min(self.room());
        &mut self.buffer.initialize_unfilled_to(self.used)[from..]
    }

    /// None: nobody knows yet how much of it will be filled.
    fn peek(&mut self) -> &mut [u8] {
        &mut []
    }
}

fn poll_read(core: &Core, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
    let read = ready!(core.poll_read(context, &mut Free { buffer, used: 0 }))?;
    buffer.advance(read);
    Poll::Ready(Ok(()))
}

macro_rules! reads {
    ($kind:ty) => {
        impl AsyncRead for $kind {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                buffer: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                poll_read(&self.core, context, buffer)
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

            fn is_write_vectored(&self) -> bool {
                true
            }

            /// Nothing to do: what is written is on its way.
            fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready(Ok(()))
            }

            fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.core.poll_shutdown(context)
            }
        }
    };
}

reads!(RdmaStream);
reads!(OwnedReadHalf);
writes!(RdmaStream);
writes!(OwnedWriteHalf);
