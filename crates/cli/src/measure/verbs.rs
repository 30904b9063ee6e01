//! The RDMA carriers: one reliable connection, used in polling style. Both sides spin on their completion queue, or
//! sleep on its channel, or look only at memory.

use super::patience::Patience;
use super::{Carrier, End, Kind, Point, Run, WaitMode};
use crate::control::Gone;
use crate::exit::Failure;
use crate::station::Station;
use rustix::event::{Timespec, epoll};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use ubiverbs::{
    Access, CompletionChannel, CompletionKind, CompletionQueue, Endpoint, PreparedQueuePair, ProtectionDomain,
    QueuePair, RegisteredMut, Reliable, RemoteSlice, SharedRegion,
};

/// Up to this size a message travels inside its work request.
const MAX_INLINE_BYTES: usize = 256;

/// How many sends may be outstanding, and how many receives.
const SEND_QUEUE_DEPTH: u32 = 256;
const RECEIVE_QUEUE_DEPTH: u32 = 256;

/// How many are posted by one call, in batches.
pub const SENDS_PER_CALL: u64 = 32;

/// A connection to measure with.
pub struct Line {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: CompletionChannel,
    /// Watches the channel.
    epoll: OwnedFd,
    qp: QueuePair<Reliable>,
    /// Where the peer writes.
    here: SharedRegion,
    /// What is sent from, and read into.
    own: SharedRegion,
    there: RemoteSlice,
    /// Sends that have not completed.
    under_way: u64,
}

/// A line whose peer is not known yet.
pub struct Prepared {
    qp: PreparedQueuePair<Reliable>,
    cq: CompletionQueue,
    channel: CompletionChannel,
    here: SharedRegion,
    own: SharedRegion,
}

impl Prepared {
    /// For messages of up to `largest` bytes.
    pub fn new(station: &Station, largest: usize) -> Result<Prepared, Failure> {
        let channel = station.context.completion_channel()?;
        let cq = station.context.completion_queue(SEND_QUEUE_DEPTH + RECEIVE_QUEUE_DEPTH).channel(&channel).create()?;
        let qp = station
            .queue_pair::<Reliable>(&cq)
            .max_sends(SEND_QUEUE_DEPTH)
            .max_receives(RECEIVE_QUEUE_DEPTH)
            .prepare()?;
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        // Whole words, as the atomics want them.
        let length = largest.next_multiple_of(8).max(8);
        let (here, own) = (station.pd.share(length, rights)?, station.pd.share(length, Access::LOCAL_WRITE)?);
        Ok(Prepared { qp, cq, channel, here, own })
    }

    /// What the peer must know.
    pub fn end(&self) -> End {
        End { endpoint: self.qp.endpoint().to_string(), region: self.here.remote_slice().to_string() }
    }

    pub fn connect(self, station: &Station, peer: &End) -> Result<Line, Failure> {
        let Prepared { qp, cq, channel, here, own } = self;
        let there = peer.region.parse()?;
        let failed = |error: rustix::io::Errno| Failure::System { what: "cannot use epoll", source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &channel, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        let qp = qp.connect(&peer.endpoint.parse::<Endpoint>()?)?;
        Ok(Line { pd: station.pd.clone(), cq, channel, epoll, qp, here, own, there, under_way: 0 })
    }
}

impl Line {
    /// The first side: one sample per round trip, or the time of the whole stream.
    pub fn first(&mut self, run: Run, gone: &Gone, sample: &mut dyn FnMut(u64)) -> Result<(), Failure> {
        let mut idle = Patience::new(gone);
        let Run { point, count } = run;
        let begun = Instant::now();
        match point.kind {
            Kind::RoundTrip => {
                let mut inbox = Inbox::for_round_trips(self, run)?;
                for number in 0..count {
                    let begun = Instant::now();
                    self.post(point, number)?;
                    inbox.refill(&self.qp)?;
                    self.drain_own(point, &mut idle)?;
                    if matches!(point.carrier, Carrier::Read | Carrier::Atomic) {
                        self.drain(0, point.waiting, &mut idle)?;
                    } else {
                        self.await_message(point, number, &mut inbox, &mut idle)?;
                    }
                    sample(begun.elapsed().as_nanos() as u64);
                }
                self.drain(0, point.waiting, &mut idle)
            }
            Kind::Stream => {
                let depth = point.depth();
                for number in 0..count {
                    self.drain(depth - 1, point.waiting, &mut idle)?;
                    self.post(point, number)?;
                }
                self.drain(0, point.waiting, &mut idle)?;
                sample(begun.elapsed().as_nanos() as u64);
                Ok(())
            }
            Kind::Connect | Kind::ManyQueuePairs(_) | Kind::Threads(_) => Ok(()),
            Kind::Batch => {
                let mut left = count;
                while left > 0 {
                    let together = left.min(SENDS_PER_CALL);
                    self.drain(u64::from(SEND_QUEUE_DEPTH) / SENDS_PER_CALL - 1, point.waiting, &mut idle)?;
                    self.post_batch(point, together)?;
                    left -= together;
                }
                self.drain(0, point.waiting, &mut idle)?;
                sample(begun.elapsed().as_nanos() as u64);
                Ok(())
            }
        }
    }

    /// What the second side needs before it is ready.
    pub fn prepare(&self, run: Run) -> Result<Inbox, Failure> {
        match run.point.kind {
            Kind::RoundTrip => Inbox::for_round_trips(self, run),
            _ => Inbox::for_stream(self, run),
        }
    }

    /// The second side, until its part is done.
    pub fn second(&mut self, run: Run, mut inbox: Inbox, gone: &Gone) -> Result<(), Failure> {
        let mut idle = Patience::new(gone);
        let Run { point, count } = run;
        match (point.kind, point.carrier) {
            (Kind::RoundTrip, Carrier::Send | Carrier::Write) => {
                for number in 0..count {
                    self.await_message(point, number, &mut inbox, &mut idle)?;
                    self.post(point, number)?;
                    inbox.refill(&self.qp)?;
                    self.drain_own(point, &mut idle)?;
                }
                self.drain(0, point.waiting, &mut idle)
            }
            (Kind::Stream, Carrier::Send) => {
                for number in 0..count {
                    self.await_message(point, number, &mut inbox, &mut idle)?;
                    inbox.refill(&self.qp)?;
                }
                Ok(())
            }
            // One-sided: nothing to do.
            _ => Ok(()),
        }
    }

    /// The peer's memory.
    pub fn there(&self) -> RemoteSlice {
        self.there
    }

    /// Looks at the NIC once, for a side that has nothing to do but to spin.
    pub fn look(&mut self) -> Result<(), Failure> {
        self.look_for(WaitMode::Spin, None).map(drop)
    }

    /// Makes ready for a run that is noticed by its bytes.
    fn clear(&self, point: Point) -> Result<(), Failure> {
        Ok(self.here.write_at(point.size - 1, &[0])?)
    }

    fn post(&mut self, point: Point, number: u64) -> Result<(), Failure> {
        let size = point.size;
        let whole = 0..size as u64;
        let mark = mark(number);
        match point.carrier {
            Carrier::Send if size <= MAX_INLINE_BYTES => {
                self.qp.send_inline(&[mark; MAX_INLINE_BYTES][..size])?.polled(0)
            }
            Carrier::Send => self.qp.send(self.own.part(0..size)?)?.polled(0),
            Carrier::Read => self.qp.read(self.own.part(0..size)?, self.there.slice(whole)?)?.polled(0),
            Carrier::Atomic => self.qp.fetch_add(self.there.slice(0..8)?, 1)?.polled(0),
            Carrier::Write if tells(point) => {
                let there = self.there.slice(whole)?;
                self.qp.write_imm(self.own.part(0..size)?, there, number as u32)?.polled(0);
            }
            Carrier::Write if size <= MAX_INLINE_BYTES => {
                self.qp.write_inline(&[mark; MAX_INLINE_BYTES][..size], self.there.slice(whole)?)?.polled(0);
            }
            Carrier::Write => {
                if point.kind == Kind::RoundTrip {
                    self.own.write_at(size - 1, &[mark])?;
                }
                self.qp.write(self.own.part(0..size)?, self.there.slice(whole)?)?.polled(0);
            }
            _ => return Ok(()),
        }
        self.under_way += 1;
        Ok(())
    }

    /// Posts so many WRITEs by one call. Only the last is told of, as programs do that want the rate.
    fn post_batch(&mut self, point: Point, together: u64) -> Result<(), Failure> {
        let bytes = [1; MAX_INLINE_BYTES];
        let size = point.size.min(MAX_INLINE_BYTES);
        let mut batch = self.qp.batch();
        let there = self.there.slice(0..size as u64)?;
        for _ in 1..together {
            batch.write_quietly(&bytes[..size], there, 0)?;
        }
        batch.write_inline(&bytes[..size], there)?.polled(0);
        batch.post()?;
        self.under_way += 1;
        Ok(())
    }

    /// Who waits for memory looks at the completion queue for what it has sent itself, each time.
    fn drain_own(&mut self, point: Point, idle: &mut Patience<'_>) -> Result<(), Failure> {
        if point.waiting == WaitMode::Memory { self.drain(0, WaitMode::Spin, idle) } else { Ok(()) }
    }

    /// Waits for the peer's message of that number.
    fn await_message(
        &mut self,
        point: Point,
        number: u64,
        inbox: &mut Inbox,
        idle: &mut Patience<'_>,
    ) -> Result<(), Failure> {
        if point.carrier == Carrier::Write && !tells(point) {
            // The program spins on the last byte of its memory; and on its completion queue, unless it is to look at
            // nothing else.
            let mut last = [0];
            loop {
                if self.under_way > u64::from(SEND_QUEUE_DEPTH / 2) {
                    self.take(None)?;
                }
                self.here.read_at(point.size - 1, &mut last)?;
                if last == [mark(number)] {
                    idle.renew();
                    return Ok(());
                }
                if point.waiting == WaitMode::Memory || !self.look_for(WaitMode::Spin, None)? {
                    idle.wear()?;
                }
            }
        }
        while inbox.arrived == 0 {
            let some = self.look_for(point.waiting, Some(inbox))?;
            if some { idle.renew() } else { worn(point.waiting, idle)? }
        }
        inbox.arrived -= 1;
        Ok(())
    }

    /// Waits until no more than `most` sends are under way.
    fn drain(&mut self, most: u64, waiting: WaitMode, idle: &mut Patience<'_>) -> Result<(), Failure> {
        while self.under_way > most {
            let some = self.look_for(waiting, None)?;
            if some { idle.renew() } else { worn(waiting, idle)? }
        }
        Ok(())
    }

    /// Takes what has completed; if nothing has, and `waiting` says so, sleeps for a while. Says whether there was
    /// something. Messages go to `inbox`; where there is none, none may come.
    fn look_for(&mut self, waiting: WaitMode, mut inbox: Option<&mut Inbox>) -> Result<bool, Failure> {
        if self.take(inbox.as_deref_mut())? {
            return Ok(true);
        }
        if !waiting.sleeps() {
            return Ok(false);
        }
        self.cq.arm();
        if self.take(inbox.as_deref_mut())? {
            return Ok(true);
        }
        let a_while = Duration::from_millis(100);
        if waiting == WaitMode::Sleep {
            self.channel.wait_for(a_while)?;
        } else {
            self.await_descriptor(a_while)?;
        }
        self.take(inbox)
    }

    fn await_descriptor(&self, limit: Duration) -> Result<(), Failure> {
        let limit = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut events = [const { MaybeUninit::uninit() }; 1];
        let (readable, _) = match epoll::wait(&self.epoll, &mut events, Some(&limit)) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            waited => {
                waited.map_err(|error| Failure::System { what: "cannot wait with epoll", source: error.into() })?
            }
        };
        if !readable.is_empty() {
            self.channel.try_next();
        }
        Ok(())
    }

    fn take(&mut self, mut inbox: Option<&mut Inbox>) -> Result<bool, Failure> {
        let mut any = false;
        for completion in self.cq.poll()? {
            any = true;
            completion.result().map_err(ubiverbs::Error::from)?;
            match (completion.kind(), &mut inbox) {
                (CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate, Some(inbox)) => {
                    inbox.add(completion.into_received()?.into_buffer());
                }
                (CompletionKind::Receive | CompletionKind::ReceiveWriteImmediate, None) => {
                    return Err(Failure::Nonsense("a message too many".into()));
                }
                _ => self.under_way -= 1,
            }
        }
        Ok(any)
    }
}

/// A side that sleeps has slept a tenth of a second; one that spins only looked.
fn worn(waiting: WaitMode, idle: &mut Patience<'_>) -> Result<(), Failure> {
    if waiting.sleeps() { idle.check() } else { idle.wear() }
}

/// A WRITE that tells its target: who sleeps cannot look at memory.
fn tells(point: Point) -> bool {
    point.carrier == Carrier::Write && point.waiting.sleeps() && point.kind == Kind::RoundTrip
}

/// What the last byte is when message `number` has come; never zero.
fn mark(number: u64) -> u8 {
    (number % 255) as u8 + 1
}

/// Receives: posted ahead, and posted again until there were as many as messages, so that none is left over.
pub struct Inbox {
    /// How many may still be posted.
    left: u64,
    /// Messages that came and were not asked for yet.
    arrived: u64,
    /// Their buffers, until they are posted again: after the answer, which the peer waits for.
    spare: Vec<RegisteredMut>,
}

impl Inbox {
    /// For runs without messages.
    pub fn empty() -> Inbox {
        Inbox { left: 0, arrived: 0, spare: Vec::new() }
    }

    fn for_round_trips(line: &Line, run: Run) -> Result<Inbox, Failure> {
        let point = run.point;
        match point.carrier {
            Carrier::Send => Inbox::fill(line, run.count, 4, point.size),
            Carrier::Write if tells(point) => Inbox::fill(line, run.count, 4, 8),
            Carrier::Write => {
                line.clear(point)?;
                Ok(Inbox::empty())
            }
            _ => Ok(Inbox::empty()),
        }
    }

    fn for_stream(line: &Line, run: Run) -> Result<Inbox, Failure> {
        match run.point.carrier {
            Carrier::Send => {
                // A peer that finds none waits. So as many as there is room for in a cache, and more than are under
                // way: what has been acknowledged may not have been taken yet.
                let fits = (3 << 19) / run.point.size.max(1) as u64;
                Inbox::fill(line, run.count, fits.max(run.point.depth() + 1), run.point.size)
            }
            _ => Ok(Inbox::empty()),
        }
    }

    fn fill(line: &Line, count: u64, ahead: u64, size: usize) -> Result<Inbox, Failure> {
        let ahead = ahead.min(count).min(RECEIVE_QUEUE_DEPTH.into());
        let spare = line.pd.allocate(size * ahead as usize)?.chunks(size);
        let mut inbox = Inbox { left: count, arrived: 0, spare };
        inbox.refill(&line.qp)?;
        Ok(inbox)
    }

    /// A message came.
    fn add(&mut self, buffer: RegisteredMut) {
        self.arrived += 1;
        self.spare.push(buffer);
    }

    /// Posts the buffers of messages that came.
    fn refill(&mut self, qp: &QueuePair<Reliable>) -> Result<(), Failure> {
        for buffer in self.spare.drain(..) {
            if self.left > 0 {
                self.left -= 1;
                qp.recv(buffer)?.polled(1);
            }
        }
        Ok(())
    }
}
