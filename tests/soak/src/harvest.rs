//! How a thread learns of the end of its work: it polls, waits, sleeps on a channel, or awaits each operation.

use std::collections::{HashMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ubiverbs::{
    Buffer, Completion, CompletionChannel, CompletionQueue, Context, DeviceRegion, Error, Failed, Operation, Outcome,
    Received, Registered, RegisteredMut, SharedRegion,
};

use crate::watch::{Result, Trouble, Watch};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Polls the completion queue.
    Poll,
    /// Waits for the next completion.
    Wait,
    /// Arms the completion queue, and sleeps until its channel tells.
    Channel,
    /// Awaits the operations.
    Await,
}

/// What came of work.
#[derive(Debug)]
pub enum Got {
    Nothing,
    Word(u64),
    Message(Received),
    Buffer(Buffer),
}

/// Work that ended, by the number it was given.
#[derive(Debug)]
pub struct Event {
    pub id: u64,
    pub result: std::result::Result<Got, Error>,
}

/// An outcome of the crate's, as one of ours.
pub trait Gives: Outcome + Send + 'static {
    fn got(self) -> Got;
}

impl Gives for () {
    fn got(self) -> Got {
        Got::Nothing
    }
}

impl Gives for u64 {
    fn got(self) -> Got {
        Got::Word(self)
    }
}

impl Gives for Received {
    fn got(self) -> Got {
        Got::Message(self)
    }
}

impl Gives for RegisteredMut {
    fn got(self) -> Got {
        Got::Buffer(Buffer::Mut(self))
    }
}

impl Gives for Registered {
    fn got(self) -> Got {
        Got::Buffer(Buffer::Registered(self))
    }
}

impl Gives for SharedRegion {
    fn got(self) -> Got {
        Got::Buffer(Buffer::Shared(self))
    }
}

impl Gives for DeviceRegion {
    fn got(self) -> Got {
        Got::Buffer(Buffer::Device(self))
    }
}

impl Gives for Vec<RegisteredMut> {
    fn got(self) -> Got {
        Got::Buffer(Buffer::Several(self.into_iter().map(Buffer::Mut).collect()))
    }
}

type PendingResult = Pin<Box<dyn Future<Output = std::result::Result<Got, Error>> + Send>>;

/// Work that a task has to await; none if the completion queue will tell of it.
pub type Slip = Option<(u64, PendingResult)>;

/// Leaves an operation to the completion queue, or to the task that awaits it.
pub fn slip<R: Gives, B: Send + 'static>(style: Style, id: u64, operation: Operation<R>) -> Slip
where
    Operation<R>: Future<Output = std::result::Result<R, Failed<B>>> + Send + 'static,
{
    if style != Style::Await {
        operation.polled(id);
        return None;
    }
    Some((id, Box::pin(async move { operation.await.map(Gives::got).map_err(Error::from) })))
}

pub struct Harvest {
    pub style: Style,
    pub cq: CompletionQueue,
    /// Where receives complete; the same one, or another.
    pub receive_cq: CompletionQueue,
    channel: CompletionChannel,
    ready: VecDeque<Event>,
    /// Those with the same number are awaited in their order, as receives of one queue end: only the first can tell
    /// which message is the next.
    awaited: HashMap<u64, VecDeque<PendingResult>>,
    watch: Arc<Watch>,
}

impl Harvest {
    /// With a completion queue for everything, or with two.
    pub fn new(context: &Context, style: Style, apart: bool, watch: &Arc<Watch>) -> Result<Harvest> {
        let failed = |e| Trouble::setup("a completion queue", e);
        let channel = context.completion_channel().map_err(failed)?;
        let queue = || context.completion_queue(64).channel(&channel).create().map_err(failed);
        let cq = queue()?;
        // Who waits for the next completion waits on one queue.
        let receive_cq = if apart && style != Style::Wait { queue()? } else { cq.clone() };
        let (ready, awaited) = (VecDeque::new(), HashMap::new());
        Ok(Harvest { style, cq, receive_cq, channel, ready, awaited, watch: Arc::clone(watch) })
    }

    /// Takes what is in the queues.
    fn poll(&mut self) -> Result<()> {
        let overflowed = |e: Error| Trouble::wrong(format!("the completion queue: {e}"));
        self.ready.extend(self.cq.poll().map_err(overflowed)?.map(event));
        if self.receive_cq != self.cq {
            self.ready.extend(self.receive_cq.poll().map_err(overflowed)?.map(event));
        }
        Ok(())
    }

    pub fn add(&mut self, slip: Slip) {
        if let Some((id, answer)) = slip {
            self.awaited.entry(id).or_default().push_back(answer);
        }
    }

    /// How many operations are awaited; none in the other styles.
    pub fn awaited(&self) -> usize {
        self.awaited.values().map(VecDeque::len).sum()
    }

    /// The next work that ended, if there is one before `limit` is over.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Event>> {
        if let Some(event) = self.ready.pop_front() {
            return Ok(Some(event));
        }
        let overflowed = |e: Error| Trouble::wrong(format!("the completion queue: {e}"));
        match self.style {
            Style::Poll => {
                let deadline = Instant::now() + limit;
                loop {
                    self.poll()?;
                    if !self.ready.is_empty() || Instant::now() >= deadline {
                        break;
                    }
                }
            }
            Style::Wait => {
                self.ready.extend(self.cq.wait_for(limit).map_err(overflowed)?.map(event));
            }
            Style::Channel => {
                self.cq.arm();
                self.receive_cq.arm();
                self.poll()?;
                if self.ready.is_empty() && self.channel.wait_for(limit).map_err(overflowed)?.is_some() {
                    self.poll()?;
                }
            }
            Style::Await => {
                self.look(limit);
                // Work that is quiet tells of its failure here in any style.
                self.poll()?;
            }
        }
        Ok(self.ready.pop_front())
    }

    /// Awaits all operations at once, until one is done or the time is over.
    fn look(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let Harvest { awaited, ready, watch, .. } = self;
        ubiverbs::block_on(poll_fn(|context| {
            awaited.retain(|id, queue| {
                while let Some(answer) = queue.front_mut() {
                    let Poll::Ready(result) = answer.as_mut().poll(context) else { break };
                    ready.push_back(Event { id: *id, result });
                    queue.pop_front();
                }
                !queue.is_empty()
            });
            if !ready.is_empty() || Instant::now() >= deadline {
                return Poll::Ready(());
            }
            watch.tick(context.waker());
            Poll::Pending
        }));
    }
}

fn event(completion: Completion) -> Event {
    let id = completion.wr_id();
    if let Err(error) = completion.result() {
        return Event { id, result: Err(error.into()) };
    }
    if let Some(word) = completion.value() {
        return Event { id, result: Ok(Got::Word(word)) };
    }
    use ubiverbs::CompletionKind::{Receive, ReceiveWriteImmediate};
    let got = match completion.kind() {
        Receive | ReceiveWriteImmediate => completion.into_received().map(Got::Message).map_err(Error::from),
        _ => Ok(completion.into_buffer().map_or(Got::Nothing, Got::Buffer)),
    };
    Event { id, result: got }
}
