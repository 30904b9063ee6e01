//! A thread of a round: it sets its queue pairs up, plays burst after burst with the same thread of the peer, and lets
//! them go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ubiverbs::{Context, Endpoint, ProtectionDomain, Qpn, RegisteredMut, RemoteSlice, SharedReceiveQueue};

use crate::bytes::{Dice, key};
use crate::connect::{Kept, Prepared};
use crate::control::Control;
use crate::harvest::{Event, Got, Harvest, Style, slip};
use crate::memory::{Counters, Inbox, Written, look_behind, outbox, receive_buffers};
use crate::options::{Connect, Options, Role};
use crate::pair::{INDEX, Pair, RECEIVE, SENT};
use crate::plan::{Kind, MAX_BURST_MESSAGES, Message, PairPlan, RoundPlan, burst};
use crate::post::{self, Poster, Qp, Theirs};
use crate::watch::{Result, Trouble, Watch};

/// Stands for the shared receive queue where a queue pair's index would.
const SHARED: u64 = 0xffff;

/// How often what a thread waits for is told anew.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// So long may what must come take to come, stops and faults included.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(50);

/// What a thread works with.
pub struct Worker<'a> {
    pub options: &'a Options,
    pub round: &'a RoundPlan,
    pub number: usize,
    pub context: &'a Context,
    pub pd: &'a ProtectionDomain,
    pub control: &'a mut Control,
    pub watch: &'a Arc<Watch>,
    /// When the client wants to end.
    pub end: Instant,
    pub harvest: Harvest,
    pub pairs: Vec<Pair>,
    pub shared: Option<SharedReceiveQueue>,
    shared_guards: Vec<RegisteredMut>,
    together: Counters,
    their_together: RemoteSlice,
    counted_together: u64,
    by_number: HashMap<Qpn, usize>,
    dice: Dice,
}

fn number_of(qp: &Qp) -> Qpn {
    match qp {
        Qp::Reliable(qp) => qp.qpn(),
        Qp::Unreliable(qp) => qp.qpn(),
        Qp::Datagram(qp, _) => qp.qpn(),
    }
}

impl<'a> Worker<'a> {
    /// Makes the queue pairs of this thread and connects them.
    #[allow(clippy::too_many_arguments)] // its surroundings
    pub fn new(
        options: &'a Options,
        round: &'a RoundPlan,
        number: usize,
        (context, pd): (&'a Context, &'a ProtectionDomain),
        control: &'a mut Control,
        watch: &'a Arc<Watch>,
        end: Instant,
    ) -> Result<Worker<'a>> {
        let mut dice = Dice::new(&[options.seed, round.number, number as u64, options.role.number(), 6]);
        let style = dice.pick(&[Style::Poll, Style::Poll, Style::Wait, Style::Channel, Style::Await]);
        watch.doing(number, format!("thread {number} sets up round {} ({style:?})", round.number));
        let harvest = Harvest::new(context, style, dice.once_in(3), watch)?;
        let together = Counters::new(context, pd, round.device_counters)?;
        let said = control.exchange("together", &together.remote_slice().to_string())?;
        let their_together = said.parse().map_err(|e| Trouble::wrong(format!("no slice: {e}")))?;
        let mut worker = Worker {
            options,
            round,
            number,
            context,
            pd,
            control,
            watch,
            end,
            harvest,
            pairs: Vec::new(),
            shared: None,
            shared_guards: Vec::new(),
            together,
            their_together,
            counted_together: 0,
            by_number: HashMap::new(),
            dice,
        };
        let plans = round.pairs.iter().filter(|plan| plan.id as usize % options.threads as usize == number);
        let plans: Vec<PairPlan> = plans.cloned().collect();
        worker.share_receives(&plans)?;
        for plan in plans {
            worker.add(plan)?;
        }
        Ok(worker)
    }

    /// The queue of receives that some queue pairs share.
    fn share_receives(&mut self, plans: &[PairPlan]) -> Result<()> {
        let sharing = || plans.iter().filter(|plan| plan.shared_receives);
        let Some(longest) = sharing().map(|plan| plan.longest_send).max() else { return Ok(()) };
        let count = sharing().map(|plan| plan.receives).sum::<usize>().min(48);
        let queue = self.pd.shared_receive_queue(count as u32).map_err(|e| Trouble::setup("a shared queue", e))?;
        let (buffers, guards) = receive_buffers(self.pd, count, longest)?;
        self.shared = Some(queue);
        self.shared_guards = guards;
        // Its completions come to any of the queue pairs, of which each may get all.
        self.harvest.receive_cq.resize(4096).map_err(|e| Trouble::setup("a larger completion queue", e))?;
        buffers.into_iter().try_for_each(|buffer| self.receive(None, buffer))
    }

    fn outbox_key(&self, plan: &PairPlan, of: Role) -> u64 {
        key(&[self.options.seed, self.round.number, u64::from(plan.id), of.number(), 7])
    }

    /// One more queue pair.
    fn add(&mut self, plan: PairPlan) -> Result<()> {
        let (options, index) = (self.options, self.pairs.len());
        self.watch.doing(self.number, format!("thread {} connects qp {}", self.number, plan.id));
        let inbox = Inbox::new(self.pd, plan.inbox())?;
        let ours = outbox(self.pd, plan.outbox(), self.outbox_key(&plan, options.role))?;
        let counters = Counters::new(self.context, self.pd, self.round.device_counters && plan.id.is_multiple_of(2))?;
        let shared = self.shared.as_ref().filter(|_| plan.shared_receives);
        let prepared = Prepared::new(options, &plan, self.pd, &self.harvest, shared)?;
        let mut receives = (Vec::new(), Vec::new());
        if !plan.shared_receives {
            let header = if plan.kind == Kind::Datagram { ubiverbs::GRH_LENGTH } else { 0 };
            receives = receive_buffers(self.pd, plan.receives, plan.longest_send.max(16) + header)?;
        }
        let (buffers, guards) = receives;
        let count = buffers.len();
        for buffer in buffers {
            let id = RECEIVE | (index as u64) << INDEX;
            self.harvest.add(slip(self.harvest.style, id, prepared.recv(buffer)?));
        }
        let line = format!(
            "{} {} {} {}",
            prepared.endpoint(),
            inbox.region.remote_slice(),
            ours.remote_slice(),
            counters.remote_slice()
        );
        let line = self.control.exchange("pair", &line)?;
        let bad = |e: ubiverbs::Error| Trouble::wrong(format!("a line of the peer's: {e}"));
        let [endpoint, slices @ ..] = &line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(Trouble::wrong("a line without an endpoint"));
        };
        let endpoint: Endpoint = endpoint.parse().map_err(bad)?;
        let slices: std::result::Result<Vec<RemoteSlice>, _> = slices.iter().map(|slice| slice.parse()).collect();
        let theirs = slices.map_err(bad)?.try_into().map_err(|_| Trouble::wrong("a line without three slices"))?;
        let connected = match options.connect {
            Connect::Manual => {
                let qp = prepared.connect(self.pd, &endpoint);
                (qp.map_err(|e| Trouble::Broken(format!("connecting: {e}")))?, Kept::Nothing)
            }
            Connect::Cm => prepared.introduce(options, &plan, self.pd, self.round.number, self.control)?,
        };
        self.by_number.insert(number_of(&connected.0), index);
        let their_key = self.outbox_key(&plan, options.role.other());
        let mut pair = Pair::new(plan, index, inbox, ours, counters, theirs, their_key, connected);
        (pair.receives, pair.guards) = (count, guards);
        self.pairs.push(pair);
        Ok(())
    }

    /// Posts a receive to a queue pair, or to the shared queue.
    pub fn receive(&mut self, index: Option<usize>, buffer: RegisteredMut) -> Result<()> {
        let refused = |e: ubiverbs::Failed<RegisteredMut>| Trouble::Broken(format!("a receive: {}", e.error));
        let operation = match (index.and_then(|index| self.pairs.get_mut(index)), &self.shared) {
            (Some(pair), _) => {
                let operation = match &pair.qp {
                    Some(Qp::Reliable(qp)) => qp.recv(buffer),
                    Some(Qp::Unreliable(qp)) => qp.recv(buffer),
                    Some(Qp::Datagram(qp, _)) => qp.recv(buffer),
                    None => return Ok(()),
                };
                pair.receives += 1;
                operation.map_err(refused)?
            }
            (None, Some(shared)) => shared.recv(buffer).map_err(refused)?,
            (None, None) => return Ok(()),
        };
        let id = RECEIVE | index.map_or(SHARED, |index| index as u64) << INDEX;
        self.harvest.add(slip(self.harvest.style, id, operation));
        Ok(())
    }

    /// Takes what has ended for up to `limit`. Says whether there was anything.
    pub fn harvest(&mut self, limit: Duration) -> Result<bool> {
        let Some(Event { id, result }) = self.harvest.next(limit)? else { return Ok(false) };
        let index = (id & !(SENT | RECEIVE)) >> INDEX;
        if id & RECEIVE != 0 {
            self.came(index, result)?;
        } else if id & SENT != 0 {
            let in_order = self.harvest.style != Style::Await;
            self.pairs[index as usize].ended(id, result, in_order, self.watch)?;
        } else if self.pairs.iter().all(|pair| !pair.closing) {
            return Err(Trouble::Broken(format!("quiet message {id}: expected to hear nothing, seen {result:?}")));
        }
        Ok(true)
    }

    fn came(&mut self, index: u64, result: std::result::Result<Got, ubiverbs::Error>) -> Result<()> {
        let own = (index != SHARED).then_some(index as usize);
        if let Some(index) = own {
            let pair = &mut self.pairs[index];
            if pair.gone {
                return Ok(());
            }
            pair.receives = pair.receives.checked_sub(1).ok_or_else(|| {
                Trouble::wrong(format!("qp {}: a receive ended that was not posted: {result:?}", pair.plan.id))
            })?;
        }
        let received = match result {
            Ok(Got::Message(received)) => received,
            Ok(other) => return Err(Trouble::wrong(format!("a receive that brings {other:?}"))),
            Err(error) => {
                let closing = own.map_or_else(
                    || self.pairs.iter().any(|pair| pair.closing && pair.plan.shared_receives),
                    |index| self.pairs[index].closing,
                );
                let plan = own.map(|index| self.pairs[index].plan.id);
                return match closing {
                    true => Ok(()),
                    false => Err(Trouble::Broken(format!("qp {plan:?}: a receive ended with {error}"))),
                };
            }
        };
        let found = self.by_number.get(&received.qpn()).copied();
        let index = found.ok_or_else(|| Trouble::wrong(format!("a message of no queue pair: {}", received.qpn())))?;
        if own.is_some_and(|own| own != index) {
            return Err(Trouble::wrong(format!("a receive of qp {own:?} was taken by {index}")));
        }
        let pair = &mut self.pairs[index];
        let buffer = pair.came(received, self.options.lossless, self.watch)?;
        // One that goes gets no more receives, except where others share them.
        if own.is_some() && pair.closing {
            return Ok(());
        }
        self.receive(own, buffer)
    }

    /// A WRITE of an unreliable queue pair has ended for the peer when it was sent. Where nothing is lost it comes, soon.
    fn await_unreliable_writes(&mut self) -> Result<()> {
        let written = |worker: &Worker<'_>| {
            let mut unreliable = worker.pairs.iter().filter(|pair| pair.plan.kind == Kind::Unreliable);
            unreliable.all(|pair| pair.inbox.has_all(pair.current()))
        };
        if self.options.lossless {
            // What has not come by then is told, with its place, when everything is looked at.
            self.until("unreliable WRITEs", MESSAGE_TIMEOUT, written)?;
        }
        Ok(())
    }

    /// Takes what ends until `done`, or until nothing has ended for `limit`. Answers whether it is done.
    pub fn until(&mut self, what: &str, limit: Duration, done: impl Fn(&Worker<'_>) -> bool) -> Result<bool> {
        let mut deadline = Instant::now() + limit;
        // What is missing at first may come: it is told again.
        let mut tell = Instant::now();
        while !done(self) {
            if self.harvest(Duration::from_millis(10))? {
                deadline = Instant::now() + limit;
                continue;
            }
            if Instant::now() >= tell {
                tell = Instant::now() + TELL_EVERY;
                let stuck = self.pairs.iter().filter(|pair| pair.outstanding() + pair.missing() > 0);
                let stuck: Vec<_> = stuck.map(Pair::first_missing).collect();
                let text = format!("thread {} ({:?}), {what}: {}", self.number, self.harvest.style, stuck.join(", "));
                self.watch.doing(self.number, text);
            }
            if !self.pairs.iter().any(|pair| pair.closing) {
                self.control.has_line()?;
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All bursts of the round.
    pub fn play(&mut self) -> Result<()> {
        for number in 0..self.round.bursts {
            let over = Instant::now() >= self.end;
            let said = self.control.exchange("ready", &format!("{number} {}", if over { "last" } else { "more" }))?;
            self.burst(number)?;
            let last = match self.options.role {
                Role::Client => over,
                Role::Server => said.ends_with("last"),
            };
            if last || number + 1 == self.round.bursts {
                break;
            }
            self.change(number)?;
        }
        Ok(())
    }

    fn burst(&mut self, number: u32) -> Result<()> {
        let Worker { options, round, .. } = *self;
        for index in 0..self.pairs.len() {
            // A network may double a WRITE and bring the second late: it must not meet what was written since.
            if self.pairs[index].plan.kind == Kind::Unreliable && !options.lossless {
                self.renew(index, Some(number))?;
            }
            // Both ends expect before either can send: the peer sends when it has heard of this.
            let pair = &mut self.pairs[index];
            pair.expect(burst(options, round.number, &pair.plan, options.role.other(), number));
        }
        self.control.exchange("go", &number.to_string())?;
        for index in 0..self.pairs.len() {
            let pair = &self.pairs[index];
            let messages = burst(options, round.number, &pair.plan, options.role, number);
            self.send(index, messages)?;
            while self.harvest(Duration::ZERO)? {}
        }
        let what = format!("round {} burst {number}", round.number);
        let done = |worker: &Worker<'_>| {
            worker
                .pairs
                .iter()
                .all(|pair| pair.outstanding() == 0 && (pair.plan.kind != Kind::Reliable || pair.missing() == 0))
        };
        if !self.until(&what, MESSAGE_TIMEOUT, done)? {
            return Err(self.stuck(&what));
        }
        // The peer's WRITEs have ended when it says so.
        self.control.exchange("sent", &number.to_string())?;
        self.settle(&what)?;
        self.await_unreliable_writes()?;
        for pair in &self.pairs {
            let certain = pair.plan.kind == Kind::Reliable || options.lossless;
            let written = if certain { Written::All } else { Written::Perhaps };
            pair.about(pair.inbox.look_around_all(pair.current(), written))?;
            pair.look_at_counters()?;
            self.counted_together = self.counted_together.wrapping_add(pair.added_together());
        }
        self.together.look(self.counted_together, 0)
    }

    pub fn stuck(&self, what: &str) -> Trouble {
        let stuck = self.pairs.iter().filter(|pair| pair.outstanding() + pair.missing() > 0);
        let stuck: Vec<_> = stuck.map(Pair::first_missing).collect();
        Trouble::Broken(format!("{what} ({:?}): nothing more came: {}", self.harvest.style, stuck.join(", ")))
    }

    /// Posts messages as their queue pair does: singly, in batches, or from several threads.
    pub fn send(&mut self, index: usize, messages: Vec<Message>) -> Result<()> {
        let pair = &mut self.pairs[index];
        let [inbox, outbox, counters] = pair.theirs;
        let theirs = Theirs { inbox, outbox, counters, together: self.their_together };
        let poster = Poster { pd: self.pd, style: self.harvest.style, theirs };
        let jobs = pair.jobs(messages);
        let Some(qp) = &pair.qp else { return Ok(()) };
        let batches = pair.plan.batches;
        let post = |jobs: &[post::Job]| match batches {
            true => post::together(qp, &poster, jobs),
            false => post::singly(qp, &poster, jobs),
        };
        let slips = match pair.plan.crowd {
            1 => {
                let parts = if batches { 1 + self.dice.below(16) } else { MAX_BURST_MESSAGES };
                jobs.chunks(parts).map(post).collect::<std::result::Result<Vec<_>, _>>()
            }
            crowd => std::thread::scope(|scope| {
                let part = |thread: usize| -> Vec<_> { jobs.iter().skip(thread).step_by(crowd).cloned().collect() };
                let post = &post;
                let threads: Vec<_> = (0..crowd).map(part).map(|jobs| scope.spawn(move || post(&jobs))).collect();
                threads.into_iter().map(|thread| thread.join().expect("posting does not panic")).collect()
            }),
        };
        let slips = slips.map_err(|e| Trouble::Broken(format!("qp {}: posting: {e}", pair.plan.id)))?;
        slips.into_iter().flatten().for_each(|slip| self.harvest.add(slip));
        Ok(())
    }

    /// Waits for what may be lost; where nothing gets lost, until all has come.
    fn settle(&mut self, what: &str) -> Result<()> {
        let all = |worker: &Worker<'_>| worker.pairs.iter().all(|pair| pair.missing() == 0);
        if !self.options.lossless {
            // What comes later is known all the same.
            return self.until(what, Duration::from_millis(30), all).map(drop);
        }
        if self.until(what, MESSAGE_TIMEOUT, all)? { Ok(()) } else { Err(self.stuck(what)) }
    }

    pub fn look_behind_receives(&self) -> Result<()> {
        look_behind(&self.shared_guards)?;
        self.pairs.iter().try_for_each(|pair| pair.about(look_behind(&pair.guards)))
    }
}
