//! What the handles of a stream share: the socket, and the tasks that wait for it.

use super::error;
use latch::lock;
use seam::wake;
use sockets::{Error, Readiness, Receive, Scatter, Shutdown, Slices, Socket, Waitable};
use std::fmt;
use std::future::Future;
#[cfg(feature = "futures")]
use std::io::IoSliceMut;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long a blocking program that closes a stream waits at most until what it sent has arrived: as `rclose` does.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// The most pieces of a vectored write that are looked at in one call.
const MAX_PIECES: usize = 64;

/// A socket, and the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Core {
    socket: Arc<Socket>,
    tasks: Arc<Tasks>,
    /// The last handle is dropped by a thread that may wait.
    pub patient: AtomicBool,
}

/// What a task waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Bytes to read, or connections to take.
    Read,
    /// Room for bytes, the connection itself, or the end of everything that was sent.
    Write,
}

impl Core {
    /// From now on tasks are woken when something changes. By nobody else's doing: the NIC's engine tells.
    pub fn new(socket: Arc<Socket>) -> Arc<Core> {
        let tasks: Arc<Tasks> = Arc::default();
        let (told, of) = (Arc::clone(&tasks), Arc::downgrade(&socket));
        socket.observe(move || told.tell(&of));
        Arc::new(Core { socket, tasks, patient: AtomicBool::new(false) })
    }

    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Attempts something, and has the task woken if it cannot be done yet. Of several tasks that poll one side in this
    /// way the last is woken, as with any socket of an executor.
    pub fn poll<R>(
        &self,
        side: Side,
        context: &mut Context<'_>,
        mut attempt: impl FnMut(&Socket) -> Result<R, Error>,
    ) -> Poll<Result<R, Error>> {
        match attempt(&self.socket) {
            Err(Error::WOULD_BLOCK) => {}
            done => return Poll::Ready(done),
        }
        self.tasks.side(side, |waiting| waiting.polled = Some(context.waker().clone()));
        // What changed between the look and the waker was told to nobody.
        match attempt(&self.socket) {
            Err(Error::WOULD_BLOCK) => Poll::Pending,
            done => Poll::Ready(done),
        }
    }

    /// Attempts something as a future. Several tasks may wait so at once; dropping one takes nothing.
    pub fn when<R, A: FnMut(&Socket) -> Result<R, Error>>(&self, side: Side, attempt: A) -> When<'_, A> {
        When { core: self, side, key: None, attempt }
    }

    pub async fn read<S: Scatter + Send>(&self, into: &mut S, peek: bool) -> io::Result<usize> {
        let read = self.when(Side::Read, |socket| receive(socket, into, peek)).await;
        self.told(read)
    }

    pub async fn read_exact(&self, into: &mut [u8]) -> io::Result<()> {
        let mut left = into;
        while !left.is_empty() {
            match self.read(&mut &mut *left, false).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left = &mut left[read..],
            }
        }
        Ok(())
    }

    pub fn try_read(&self, mut into: &mut [u8]) -> io::Result<usize> {
        self.told(receive(&self.socket, &mut into, false))
    }

    /// As much of the pieces as there is room for.
    pub fn write_now(&self, pieces: &[&[u8]]) -> io::Result<usize> {
        self.told(send(&self.socket, pieces))
    }

    pub async fn write(&self, pieces: &[&[u8]]) -> io::Result<usize> {
        let sent = self.when(Side::Write, |socket| send(socket, pieces)).await;
        self.told(sent)
    }

    pub async fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let sent = self.when(Side::Write, |socket| with_pieces(pieces, |pieces| send(socket, pieces))).await;
        self.told(sent)
    }

    pub async fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            left = &left[self.write(&[left]).await?..];
        }
        Ok(())
    }

    /// Ends what is sent, and waits until everything has arrived.
    pub async fn shutdown(&self) -> io::Result<()> {
        let ended = self.when(Side::Write, end_and_flush).await;
        self.told(ended)
    }

    /// Until something may be read, or written.
    pub async fn ready(&self, side: Side) -> io::Result<()> {
        self.when(side, |socket| {
            let ready = socket.readiness();
            if side.is_ready(&ready) { Ok(()) } else { Err(Error::WOULD_BLOCK) }
        })
        .await
        .map_err(io::Error::from)
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_address().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_address().map_err(io::Error::from)
    }

    /// An error as its program should see it: why the connection is gone, if it is.
    fn told<R>(&self, result: Result<R, Error>) -> io::Result<R> {
        result.map_err(|error| match self.socket.broken() {
            Some(broken) if error != Error::WOULD_BLOCK => error::broken(broken),
            _ => error.into(),
        })
    }
}

/// What the traits of runtimes ask for.
#[cfg(any(feature = "tokio", feature = "futures"))]
impl Core {
    pub fn poll_read(&self, context: &mut Context<'_>, into: &mut dyn Scatter) -> Poll<io::Result<usize>> {
        let read = self.poll(Side::Read, context, |socket| receive(socket, into, false));
        read.map(|read| self.told(read))
    }

    pub fn poll_write(&self, context: &mut Context<'_>, pieces: &[&[u8]]) -> Poll<io::Result<usize>> {
        self.poll(Side::Write, context, |socket| send(socket, pieces)).map(|sent| self.told(sent))
    }

    pub fn poll_write_vectored(&self, context: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        with_pieces(pieces, |pieces| self.poll_write(context, pieces))
    }

    /// Ends what is sent, and waits until everything has arrived.
    pub fn poll_shutdown(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(Side::Write, context, end_and_flush).map(|ended| self.told(ended))
    }
}

impl Side {
    fn is_ready(self, ready: &Readiness) -> bool {
        match self {
            Side::Read => ready.readable || ready.hung_up || ready.failed,
            Side::Write => ready.writable || ready.hung_up || ready.failed,
        }
    }
}

/// What is there. The end of a stream that nobody has closed is an error, each time.
fn receive(socket: &Socket, into: &mut dyn Scatter, peek: bool) -> Result<usize, Error> {
    if into.room() == 0 {
        return Ok(0);
    }
    match socket.receive(into, Receive { peek })? {
        0 if socket.broken().is_some() => Err(error::BROKEN_CONNECTION),
        read => Ok(read),
    }
}

fn send(socket: &Socket, pieces: &[&[u8]]) -> Result<usize, Error> {
    socket.send(&mut Slices::new(pieces))
}

fn end_and_flush(socket: &Socket) -> Result<(), Error> {
    socket.shutdown(Shutdown::Write)?;
    match (socket.is_flushed(), socket.broken()) {
        (false, _) => Err(Error::WOULD_BLOCK),
        (true, Some(_)) => Err(error::BROKEN_CONNECTION),
        (true, None) => Ok(()),
    }
}

/// Does something with the pieces of a vectored write that are not empty: those that fit into one call.
pub(super) fn with_pieces<R>(pieces: &[IoSlice<'_>], attempt: impl FnOnce(&[&[u8]]) -> R) -> R {
    let mut list: [&[u8]; MAX_PIECES] = [&[]; MAX_PIECES];
    let mut count = 0;
    for (place, piece) in list.iter_mut().zip(pieces.iter().filter(|piece| !piece.is_empty())) {
        *place = piece;
        count += 1;
    }
    attempt(&list[..count])
}

impl Drop for Core {
    fn drop(&mut self) {
        let patient = self.patient.load(Ordering::Relaxed);
        self.socket.close(if patient { CLOSE_PATIENCE } else { Duration::ZERO });
    }
}

/// Something of a stream that is attempted until it is done.
#[must_use = "futures do nothing unless awaited"]
pub(crate) struct When<'a, A> {
    core: &'a Core,
    side: Side,
    /// Its number among those that wait.
    key: Option<u64>,
    attempt: A,
}

impl<A> Unpin for When<'_, A> {}

impl<R, A: FnMut(&Socket) -> Result<R, Error>> Future for When<'_, A> {
    type Output = Result<R, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        match (this.attempt)(&this.core.socket) {
            Err(Error::WOULD_BLOCK) => {}
            done => return Poll::Ready(done),
        }
        this.core.tasks.side(this.side, |waiting| this.key = Some(waiting.wait(this.key, context.waker())));
        match (this.attempt)(&this.core.socket) {
            Err(Error::WOULD_BLOCK) => Poll::Pending,
            done => Poll::Ready(done),
        }
    }
}

impl<A> Drop for When<'_, A> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.core.tasks.side(self.side, |waiting| waiting.tasks.retain(|(one, _)| *one != key));
        }
    }
}

/// The tasks that wait for a socket.
#[derive(Debug, Default)]
struct Tasks {
    readers: Mutex<WaitingTasks>,
    writers: Mutex<WaitingTasks>,
}

/// The tasks that wait for one side of it.
#[derive(Debug, Default)]
struct WaitingTasks {
    /// The last that has polled.
    polled: Option<Waker>,
    /// Those that wait by a future, each under a number.
    tasks: Vec<(u64, Waker)>,
    next: u64,
}

impl WaitingTasks {
    fn wait(&mut self, key: Option<u64>, waker: &Waker) -> u64 {
        if let Some(key) = key {
            match self.tasks.iter_mut().find(|(one, _)| *one == key) {
                Some((_, known)) => known.clone_from(waker),
                None => self.tasks.push((key, waker.clone())),
            }
            return key;
        }
        self.next += 1;
        self.tasks.push((self.next, waker.clone()));
        self.next
    }

    fn is_empty(&self) -> bool {
        self.polled.is_none() && self.tasks.is_empty()
    }

    fn take(&mut self) -> impl Iterator<Item = Waker> + use<> {
        self.polled.take().into_iter().chain(std::mem::take(&mut self.tasks).into_iter().map(|(_, waker)| waker))
    }
}

impl Tasks {
    fn side<R>(&self, side: Side, with: impl FnOnce(&mut WaitingTasks) -> R) -> R {
        with(&mut lock(match side {
            Side::Read => &self.readers,
            Side::Write => &self.writers,
        }))
    }

    /// Something may have changed: wakes the tasks that can go on. Called with no lock held.
    fn tell(&self, of: &Weak<Socket>) {
        let waits = |side| !self.side(side, |waiting| waiting.is_empty());
        if !waits(Side::Read) && !waits(Side::Write) {
            return;
        }
        let Some(socket) = of.upgrade() else { return };
        let ready = socket.readiness();
        for side in [Side::Read, Side::Write] {
            if side.is_ready(&ready) {
                self.side(side, WaitingTasks::take).for_each(wake);
            }
        }
    }
}

/// The name of a handle with its addresses.
pub(super) fn show(f: &mut fmt::Formatter<'_>, name: &str, core: &Core) -> fmt::Result {
    let mut shown = f.debug_struct(name);
    if let Ok(local) = core.local_addr() {
        shown.field("local", &local);
    }
    if let Ok(peer) = core.peer_addr() {
        shown.field("peer", &peer);
    }
    shown.finish()
}

/// Room in several pieces.
#[cfg(feature = "futures")]
pub(super) struct Slots<'a, 'b> {
    pieces: &'a mut [IoSliceMut<'b>],
    /// How far the first is filled.
    used: usize,
}

#[cfg(feature = "futures")]
impl<'a, 'b> Slots<'a, 'b> {
    pub fn new(pieces: &'a mut [IoSliceMut<'b>]) -> Slots<'a, 'b> {
        Slots { pieces, used: 0 }
    }
}

#[cfg(feature = "futures")]
impl Scatter for Slots<'_, '_> {
    fn room(&self) -> usize {
        self.pieces.iter().map(|piece| piece.len()).sum::<usize>() - self.used
    }

    fn next(&mut self, most: usize) -> &mut [u8] {
        while self.pieces.first().is_some_and(|first| first.len() == self.used) {
            self.pieces = &mut std::mem::take(&mut self.pieces)[1..];
            self.used = 0;
        }
        let Some(first) = self.pieces.first_mut() else { return &mut [] };
        let from = self.used;
        self.used = first.len().min(from + most);
        &mut first[from..self.used]
    }

    fn peek(&mut self) -> &mut [u8] {
        let used = self.used;
        self.pieces.first_mut().map_or(&mut [], |first| &mut first[used..])
    }
}
