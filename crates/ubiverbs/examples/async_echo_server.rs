//! # 6. Async: an echo server without a runtime
//!
//! Every operation is a future: `qp.recv(buffer)?.await?`. The work is posted when the method is called, not when the
//! future is first polled, and the future needs nothing but a waker, so any executor will do. When a completion comes,
//! the NIC's thread (or whichever thread made the progress) wakes the one task that waits for it.
//!
//! To show how little that takes, this example brings its own executor: a list of tasks and a channel of "poll me"
//! messages, forty lines. On it one thread serves all clients, each by a task that reads like a blocking program. The
//! clients use `block_on`.
//!
//! ```text
//! cargo run --example async_echo_server
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread;
use ubiverbs::{Class, Error, ProtectionDomain, QueuePair, Reliable};

const CLIENTS: usize = 8;
const MESSAGES: usize = 20;

/// One connection: echo until the client goes.
async fn serve(pd: ProtectionDomain, qp: QueuePair<Reliable>) -> Result<usize, Error> {
    let mut buffer = pd.allocate(256)?;
    let mut echoed = 0;
    loop {
        let message = qp.recv(buffer)?.await?;
        if message.payload() == b"bye" {
            return Ok(echoed);
        }
        // Send from the buffer the message lies in, as much of it as the message is; then receive into it again.
        let length = message.bytes();
        let mut full = message.into_buffer();
        let rest = full.split_off(length);
        full = match qp.send(full)?.await {
            Ok(full) => full,
            // A client that left without a word is no reason to stop the server.
            Err(failed) if is_gone(&failed.error) => return Ok(echoed),
            Err(failed) => return Err(failed.into()),
        };
        full.unsplit(rest).expect("they were one");
        buffer = full;
        echoed += 1;
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Completion(error) if matches!(error.class(), Class::Unreachable | Class::Flushed))
}

/// A client, in a thread of its own.
async fn client(pd: ProtectionDomain, qp: QueuePair<Reliable>, number: usize) -> Result<(), Error> {
    let mut buffer = pd.allocate(256)?;
    for message in 0..MESSAGES {
        let text = format!("client {number}, message {message}");
        // Post the receive first; both are under way before the first is awaited.
        let echo = qp.recv(buffer)?;
        qp.send_inline(text.as_bytes())?.await?;
        let echo = echo.await?;
        assert_eq!(echo.payload(), text.as_bytes());
        buffer = echo.into_buffer();
    }
    qp.send_inline(b"bye")?.await?;
    Ok(())
}

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let server_pd = context.alloc_pd()?;
    let server_cq = context.completion_queue(64).create()?;
    let mut executor = Executor::default();
    let total = Arc::new(Mutex::new(0));
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let pd = context.alloc_pd()?;
        let here = pd.queue_pair::<Reliable>(&context.completion_queue(16).create()?).prepare()?;
        let there = server_pd.queue_pair::<Reliable>(&server_cq).prepare()?;
        let (at_here, at_there) = (here.endpoint(), there.endpoint());
        let (here, there) = (here.connect(&at_there)?, there.connect(&at_here)?);
        clients.push(thread::spawn(move || ubiverbs::block_on(client(pd, here, number))));
        let (pd, total) = (server_pd.clone(), Arc::clone(&total));
        executor.spawn(async move {
            match serve(pd, there).await {
                Ok(echoed) => *total.lock().expect("no task panics") += echoed,
                Err(error) => eprintln!("client {number}: {error}"),
            }
        });
    }
    executor.run();
    for client in clients {
        client.join().expect("no client panics")?;
    }
    let total = *total.lock().expect("no task panics");
    println!("echoed {total} messages to {CLIENTS} clients in one thread");
    assert_eq!(total, CLIENTS * MESSAGES);
    Ok(())
}

/// Tasks, and the channel on which their wakers ask for them to be polled.
struct Executor {
    tasks: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    ready: mpsc::Receiver<usize>,
    wake: Sender<usize>,
}

impl Default for Executor {
    fn default() -> Executor {
        let (wake, ready) = mpsc::channel();
        Executor { tasks: Vec::new(), ready, wake }
    }
}

struct TaskWaker {
    task: usize,
    wake: Sender<usize>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<TaskWaker>) {
        // The executor may be gone by now; then there is no thread to wake.
        let _ = self.wake.send(self.task);
    }
}

impl Executor {
    fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        self.wake.send(self.tasks.len()).expect("we hold the other end");
        self.tasks.push(Some(Box::pin(future)));
    }

    /// Polls the tasks that were woken, until all are done. In between the thread sleeps; the NIC has its own.
    fn run(&mut self) {
        let mut left = self.tasks.len();
        while left > 0 {
            let task = self.ready.recv().expect("we hold the other end");
            let waker = Waker::from(Arc::new(TaskWaker { task, wake: self.wake.clone() }));
            let Some(future) = &mut self.tasks[task] else { continue };
            if let Poll::Ready(()) = future.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
                self.tasks[task] = None;
                left -= 1;
            }
        }
    }
}
