//! The protocol of sockets over RDMA on simulated queue pairs, over links that lose, double and reorder packets: random
//! programs on both sides against a model of TCP, which is two queues of bytes and two ends.
#![allow(missing_docs)]

use rsocket::{ControlWork, Local, Run, Shutdown, Sizes, Span, Stream, Target, Transfer, TransferMemory};
use sim::{ConnectOptions, HostConfig, LinkConfig, QpId, QpSpec, Region, Rng, SEED_VARIABLE, Sim, Work};
use transport::{Access, Capabilities, Queue, Remote, Status};

/// How many programs the default run has; the variable `UBIVERBS_STREAMS` asks for another number.
const PROGRAMS: u64 = 10_000;
/// What receives are called.
const RECEIVE: u64 = 1 << 63;

/// One end: a queue pair with its memory, and the protocol.
struct End {
    qp: QpId,
    protocol: Stream,
    send: Region,
    receive: Region,
    targets: Region,
}

impl End {
    fn new(sim: &mut Sim, name: &str, sizes: Sizes) -> End {
        let host = sim.add_host(HostConfig::named(name));
        let mut region = |length: usize, access| sim.register(host, QpSpec::PD, length, access | Access::LOCAL_WRITE);
        let send = region(sizes.send_buffer as usize, Access::empty());
        let receive = region(sizes.receive_buffer as usize, Access::REMOTE_WRITE);
        let targets = region(Stream::target_list_length(&sizes), Access::REMOTE_WRITE);
        let capabilities = Capabilities {
            max_send_wr: sizes.send_queue.into(),
            max_recv_wr: sizes.receive_queue.into(),
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let qp = sim.create_qp(host, QpSpec { capabilities, ..QpSpec::rc() });
        let span = |region: &Region| Span { address: region.address, key: region.key };
        let protocol = Stream::new(sizes, Local { receive: span(&receive), targets: span(&targets) });
        End { qp, protocol, send, receive, targets }
    }

    fn post_receives(&self, sim: &mut Sim, count: u16) {
        for _ in 0..count {
            sim.receive(self.qp, RECEIVE, &[]).expect("there is room for a receive");
        }
    }

    fn post(&mut self, sim: &mut Sim, wr_id: u64, to: Span, immediate: Option<u32>, fill: impl FnOnce(Work) -> Work) {
        let work = fill(Work::write(Remote { address: to.address, key: to.key }).id(wr_id));
        let work = match immediate {
            Some(immediate) => work.immediate(immediate),
            None => work,
        };
        if sim.post(self.qp, &work).is_err() {
            self.protocol.handle_sent(wr_id, false);
        }
    }

    fn post_control(&mut self, sim: &mut Sim) {
        while let Some(work) = self.protocol.poll_control() {
            match work {
                ControlWork::Message { immediate } => {
                    self.post(sim, immediate.into(), Span::default(), Some(immediate), |work| work);
                }
                ControlWork::Target { bytes, remote, immediate } => {
                    self.post(sim, immediate.into(), remote, Some(immediate), |work| work.inline(&bytes));
                }
                ControlWork::KeepAlive { wr_id } => self.post(sim, wr_id, Span::default(), None, |work| work),
            }
        }
    }

    /// Takes what has completed.
    fn progress(&mut self, sim: &mut Sim) {
        for completion in sim.completions(self.qp) {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            if completion.queue == Queue::Send {
                self.protocol.handle_sent(completion.wr_id, true);
                continue;
            }
            self.post_receives(sim, 1);
            let list = sim.bytes(&self.targets).get(..2 * Target::LENGTH).expect("two entries").to_vec();
            let immediate = completion.immediate.expect("every message has one");
            self.protocol.handle_received(immediate, completion.bytes, &list).expect("the peer keeps to the protocol");
        }
        self.post_control(sim);
    }

    /// Sends as much as there is room for, and answers how much.
    fn send(&mut self, sim: &mut Sim, bytes: &[u8]) -> usize {
        self.protocol.begin_send();
        let mut sent = 0;
        while let Some(Transfer { length, remote, place }) = self.protocol.next_transfer(bytes.len() - sent) {
            let piece = &bytes[sent..sent + length as usize];
            let transfer = Transfer { length, remote, place };
            let (wr_id, immediate) = (transfer.wr_id(), Some(transfer.immediate()));
            match place {
                TransferMemory::Inline => self.post(sim, wr_id, remote, immediate, |work| work.inline(piece)),
                TransferMemory::Buffer(runs) => {
                    let (mut sges, mut at) = (Vec::new(), 0);
                    for Run { offset, length } in runs.into_iter().filter(|run| run.length > 0) {
                        let room = &mut sim.bytes_mut(&self.send)[offset as usize..(offset + length) as usize];
                        room.copy_from_slice(&piece[at..at + length as usize]);
                        at += length as usize;
                        sges.push(self.send.sge(offset.into(), length));
                    }
                    self.post(sim, wr_id, remote, immediate, |work| work.sges(&sges));
                }
            }
            sent += length as usize;
        }
        sent
    }

    /// Receives up to so many bytes.
    fn receive(&mut self, sim: &mut Sim, most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for Run { offset, length } in self.protocol.unread_runs(most) {
            bytes.extend_from_slice(&sim.bytes(&self.receive)[offset as usize..(offset + length) as usize]);
        }
        self.protocol.consume(bytes.len());
        self.post_control(sim);
        bytes
    }
}

/// What TCP would have: bytes on their way in one direction, and whether more may follow.
#[derive(Default)]
struct Direction {
    sent: Vec<u8>,
    received: usize,
    ended: bool,
}

fn sizes(rng: &mut Rng) -> Sizes {
    let queue = |rng: &mut Rng| 16 + rng.below(40) as u16;
    let sizes = Sizes {
        send_buffer: 2048 << rng.below(4),
        receive_buffer: 64 << rng.below(9),
        send_queue: queue(rng),
        receive_queue: queue(rng),
        inline: rng.below(64) as u16,
        io_mappings: rng.below(4) as u16,
    };
    sizes.fitted(512)
}

/// A number of bytes, mostly a small one.
fn some(rng: &mut Rng) -> usize {
    let bound = 1 << rng.below(13);
    rng.below(bound) as usize
}

fn weather(rng: &mut Rng) -> LinkConfig {
    let wire = if rng.chance(0.3) { LinkConfig::WHOLE } else { LinkConfig::PERFECT };
    match (wire.kind, rng.below(3)) {
        (sim::LinkKind::Whole, _) | (_, 0) => wire,
        (_, 1) => LinkConfig { loss: 0.02, ..wire },
        _ => LinkConfig { loss: 0.05, duplication: 0.05, reordering: 0.05, jitter: 3000, ..wire },
    }
}

/// What a run has seen.
#[derive(Default, Debug)]
struct Tally {
    bytes: usize,
    full: u32,
    half_closed: u32,
    disconnected: u32,
}

fn play(seed: u64, tally: &mut Tally) {
    let mut rng = Rng::new(seed);
    let mut sim = Sim::with_seed(rng.next_u64());
    sim.set_default_link(weather(&mut rng));
    let mut ends =
        [("alice", sizes(&mut rng)), ("bob", sizes(&mut rng))].map(|(name, sizes)| End::new(&mut sim, name, sizes));
    sim.connect(ends[0].qp, ends[1].qp, &ConnectOptions { timeout: 6, ..ConnectOptions::default() });
    let said = ends.each_ref().map(|end| end.protocol.connection_data().to_bytes());
    for (at, end) in ends.iter_mut().enumerate() {
        end.post_receives(&mut sim, end.protocol.sizes().receive_queue);
        end.protocol.handle_connection_data(&said[1 - at]).expect("connection data");
        end.post_control(&mut sim);
    }
    // The bytes that the one sends are those that the other receives.
    let mut ways = [Direction::default(), Direction::default()];
    for _ in 0..10 + rng.below(30) {
        let at = rng.below(2) as usize;
        let end = &mut ends[at];
        match rng.below(16) {
            0..=5 => {
                let mut bytes = vec![0; 1 + some(&mut rng)];
                rng.fill(&mut bytes);
                let sent = end.send(&mut sim, &bytes);
                assert!(sent == 0 || !ways[at].ended, "sent after its end");
                tally.full += u32::from(sent < bytes.len() && !ways[at].ended);
                ways[at].sent.extend_from_slice(&bytes[..sent]);
            }
            6..=10 => take(&mut sim, end, &mut ways[1 - at], some(&mut rng)),
            11..=13 => {
                sim.run_for(rng.below(60_000));
                ends.iter_mut().for_each(|end| end.progress(&mut sim));
            }
            14 => end.progress(&mut sim),
            _ if rng.chance(0.3) => {
                let which = [Shutdown::Write, Shutdown::Write, Shutdown::Both][rng.below(3) as usize];
                end.protocol.shutdown(which);
                end.post_control(&mut sim);
                ways[at].ended = true;
                tally.half_closed += u32::from(which == Shutdown::Write);
            }
            _ => end.protocol.keep_alive(),
        }
    }
    // Everything that was sent arrives, in order, and then the end.
    for end in &mut ends {
        end.protocol.shutdown(Shutdown::Write);
        end.post_control(&mut sim);
    }
    for _ in 0..10_000 {
        sim.run_until_idle();
        for (at, end) in ends.iter_mut().enumerate() {
            end.progress(&mut sim);
            take(&mut sim, end, &mut ways[1 - at], usize::MAX);
        }
        let whole = |way: &Direction| way.received == way.sent.len();
        if ends.iter().all(|end| !end.protocol.is_connected() && end.protocol.unread() == 0) && ways.iter().all(whole) {
            break;
        }
    }
    for (at, end) in ends.iter().enumerate() {
        assert_eq!(ways[1 - at].received, ways[1 - at].sent.len(), "end {at} has not got everything");
        assert!(end.protocol.is_disconnected(), "end {at} does not know of the end: {:?}", end.protocol);
        tally.bytes += ways[at].sent.len();
        tally.disconnected += 1;
    }
}

/// Receives, and compares with what was sent.
fn take(sim: &mut Sim, end: &mut End, way: &mut Direction, most: usize) {
    let bytes = end.receive(sim, most);
    let expected = way.sent.get(way.received..way.received + bytes.len());
    assert_eq!(Some(bytes.as_slice()), expected, "other bytes than were sent");
    way.received += bytes.len();
}

fn named(seed: u64, tally: &mut Tally) {
    let mut own = Tally::default();
    let result = std::panic::catch_unwind(move || {
        play(seed, &mut own);
        own
    });
    match result {
        Ok(one) => {
            tally.bytes += one.bytes;
            tally.full += one.full;
            tally.half_closed += one.half_closed;
            tally.disconnected += one.disconnected;
        }
        Err(panic) => {
            eprintln!("the program was {SEED_VARIABLE}={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn whatever_programs_send_and_receive_they_see_what_tcp_would_show_them() {
    let mut tally = Tally::default();
    if let Some(seed) = std::env::var(SEED_VARIABLE).ok().and_then(|value| value.parse().ok()) {
        return named(seed, &mut tally);
    }
    let programs = std::env::var("UBIVERBS_STREAMS").ok().and_then(|value| value.parse().ok()).unwrap_or(PROGRAMS);
    (0..programs).for_each(|seed| named(seed, &mut tally));
    println!("{tally:?}");
    if programs >= PROGRAMS {
        assert!(tally.bytes > 1_000_000 && tally.full > 10_000 && tally.half_closed > 1000, "{tally:?}");
    }
}
