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

reads!(RdmaStream);
reads!(OwnedReadHalf);
async_write!(RdmaStream, poll_shutdown, is_write_vectored);
async_write!(OwnedWriteHalf, poll_shutdown, is_write_vectored);
