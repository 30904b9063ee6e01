//! Every kind of work between two hosts, every byte looked at: over clean cables, and over cables that lose, double,
//! damage and reorder.

use crate::actor::{self, Actor, Outcome, hear, say};
use crate::network::{Host, Network};
use std::error::Error;
use std::net::IpAddr;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::{
    Access, CompletionQueue, Context, Datagram, Endpoint, GRH_LENGTH, PreparedQueuePair, ProtectionDomain, QueuePair,
    Reliable, RemoteSlice, SharedRegion,
};

/// Lengths of messages: around words, packets and trains, and long ones.
const LENGTHS: [usize; 9] = [1, 8, 1023, 1024, 1025, 4097, 65_536, 300_001, QUEUE_PAIR_AREA_BYTES];

/// How much of the target's memory each queue pair has to itself.
const QUEUE_PAIR_AREA_BYTES: usize = 4 << 20;

/// The longest message; longer ones go by WRITE.
const LONGEST_SEND: usize = 300_001;

/// In front of the areas: the words that all queue pairs count in.
const COMMON: usize = 4096;

const COUNTS: u64 = 20;

/// How many datagrams are asked and answered, after everything else.
pub const DATAGRAMS: u64 = 20;

pub const RIGHTS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A process's objects, before it is connected.
pub struct End {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub source: IpAddr,
}

impl End {
    /// On the device that has this address.
    pub fn new(source: IpAddr) -> Result<End, Box<dyn Error>> {
        for device in ubiverbs::devices()? {
            let context = device.open()?;
            if context.port().gids.contains(&Some(ubiverbs::Gid::from_ip(source))) {
                let cq = context.completion_queue(256).create()?;
                return Ok(End { pd: context.alloc_pd()?, cq, context, source });
            }
        }
        Err(format!("no device has {source}").into())
    }

    /// A connection that gives its peer up after 134 ms.
    pub fn impatient(&self) -> Result<PreparedQueuePair<Reliable>, ubiverbs::Error> {
        self.pd.queue_pair(&self.cq).source(self.source).timeout(Duration::from_millis(16)).prepare()
    }

    /// A connection that gives its peer up after four seconds.
    pub fn patient(&self) -> Result<PreparedQueuePair<Reliable>, ubiverbs::Error> {
        self.pd.queue_pair(&self.cq).source(self.source).timeout(Duration::from_millis(500)).prepare()
    }

    /// As many connections as the first argument says; the second, if there is one, is how many milliseconds an answer
    /// may take.
    fn pairs(&self, arguments: &[String]) -> Result<Vec<PreparedQueuePair<Reliable>>, Box<dyn Error>> {
        let mut builder = self.pd.queue_pair(&self.cq).source(self.source);
        let [count, rest @ ..] = arguments else { return Err("how many queue pairs?".into()) };
        if let [timeout] = rest {
            builder = builder.timeout(Duration::from_millis(timeout.parse()?));
        }
        let prepared: Result<_, _> = (0..count.parse::<usize>()?).map(|_| builder.prepare()).collect();
        Ok(prepared?)
    }

    fn datagrams(&self) -> Result<QueuePair<Datagram>, ubiverbs::Error> {
        self.pd.queue_pair(&self.cq).source(self.source).prepare()?.activate()
    }
}

/// Things as text, with spaces between.
pub fn list<T: ToString>(things: impl IntoIterator<Item = T>) -> String {
    things.into_iter().map(|thing| thing.to_string()).collect::<Vec<_>>().join(" ")
}

/// Reads what [`list`] wrote.
pub fn parse<T: FromStr>(text: &str) -> Result<Vec<T>, T::Err> {
    text.split_whitespace().map(str::parse).collect()
}

/// Bytes that follow from `seed` and show when one is missing, doubled or elsewhere.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Says where its queue pairs and its memory are, connects, and answers: messages with themselves, and questions about
/// its memory.
pub fn target(arguments: &[String]) -> Outcome {
    let [source, pairs @ ..] = arguments else { return Err("an address and a number of queue pairs".into()) };
    let end = End::new(source.parse()?)?;
    let prepared = end.pairs(pairs)?;
    let region = end.pd.share(COMMON + QUEUE_PAIR_AREA_BYTES * prepared.len(), RIGHTS)?;
    let datagrams = end.datagrams()?;
    say("endpoints", &list(prepared.iter().map(PreparedQueuePair::endpoint)));
    say("datagrams", &datagrams.endpoint().to_string());
    say("memory", &region.remote_slice().to_string());
    let peers: Vec<Endpoint> = parse(&hear("endpoints")?)?;
    for (index, (prepared, peer)) in prepared.into_iter().zip(&peers).enumerate() {
        let waiting = prepared.recv(end.pd.allocate(LONGEST_SEND)?)?;
        let qp = prepared.connect(peer)?;
        let area = region.part(COMMON + QUEUE_PAIR_AREA_BYTES * index..COMMON + QUEUE_PAIR_AREA_BYTES * (index + 1))?;
        let pd = end.pd.clone();
        thread::spawn(move || {
            // It ends when the process does, or with the peer.
            if let Err(error) = echo(&pd, &qp, waiting, &area) {
                say("failed", &error.to_string());
            }
        });
    }
    say("connected", "");
    let pd = end.pd.clone();
    thread::spawn(move || echo_datagrams(&pd, &datagrams).map_err(|error| say("failed", &error.to_string())));
    actor::wait_for_end();
    Ok(())
}

type Waiting = ubiverbs::Operation<ubiverbs::Received>;

fn echo(
    pd: &ProtectionDomain,
    qp: &QueuePair<Reliable>,
    mut waiting: Waiting,
    area: &SharedRegion,
) -> Result<(), ubiverbs::Error> {
    loop {
        let message = waiting.wait()?;
        let answer = match message.immediate() {
            // Who asks by a number wants to know whether the memory is as its WRITE should have left it.
            Some(length) => {
                let mut bytes = vec![0; length as usize];
                area.read_at(0, &mut bytes)?;
                let seed = u64::from_be_bytes(*message.payload().first_chunk().unwrap_or(&[0; 8]));
                vec![u8::from(bytes == pattern(seed, bytes.len()))]
            }
            None => message.payload().to_vec(),
        };
        // The next receive is there before the peer can send again.
        waiting = qp.recv(message.into_buffer())?;
        qp.send(pd.register(answer)?)?.wait()?;
    }
}

fn echo_datagrams(pd: &ProtectionDomain, qp: &QueuePair<Datagram>) -> Result<(), ubiverbs::Error> {
    let length = GRH_LENGTH + 1024;
    let receives: Result<Vec<_>, _> =
        pd.allocate(16 * length)?.chunks(length).into_iter().map(|buffer| qp.recv(buffer)).collect();
    let mut waiting: std::collections::VecDeque<_> = receives?.into();
    while let Some(next) = waiting.pop_front() {
        let message = next.wait()?;
        if let Some(sender) = message.reply_address(qp) {
            qp.send_to(pd.register(message.payload().to_vec())?, &sender)?.wait()?;
        }
        waiting.push_back(qp.recv(message.into_buffer())?);
    }
    Ok(())
}

/// Connects, does every kind of work over every queue pair at once, looks at every byte, and says how long it took.
pub fn mover(arguments: &[String]) -> Outcome {
    let [source, pairs @ ..] = arguments else { return Err("an address and a number of queue pairs".into()) };
    let end = End::new(source.parse()?)?;
    let prepared = end.pairs(pairs)?;
    say("endpoints", &list(prepared.iter().map(PreparedQueuePair::endpoint)));
    let peers: Vec<Endpoint> = parse(&hear("endpoints")?)?;
    let datagrams: Endpoint = hear("datagrams")?.parse()?;
    let memory: RemoteSlice = hear("memory")?.parse()?;
    let count = prepared.len() as u64;
    let start = Instant::now();
    let mut workers = Vec::new();
    for (index, (prepared, peer)) in prepared.into_iter().zip(&peers).enumerate() {
        let qp = prepared.connect(peer)?;
        let pd = end.pd.clone();
        workers.push(thread::spawn(move || work(&pd, &qp, memory, index as u64).map_err(|error| error.to_string())));
    }
    let mut moved = 0;
    let last = workers.pop().ok_or("no queue pair")?;
    for worker in workers {
        moved += worker.join().map_err(|_| "a worker panicked")??.1;
    }
    let (qp, bytes) = last.join().map_err(|_| "a worker panicked")??;
    moved += bytes;
    let took = start.elapsed();
    // All together they have counted this far.
    let counted = qp.fetch_add(memory, 0)?.wait()?;
    if counted != count * COUNTS {
        return Err(format!("{} atomic operations counted {counted}", count * COUNTS).into());
    }
    let lost = ask(&end, &datagrams)?;
    say("done", &format!("{} {moved} {lost}", took.as_micros()));
    Ok(())
}

/// All kinds of work over one queue pair. Answers it, and how many bytes went one way or the other.
fn work(
    pd: &ProtectionDomain,
    qp: &QueuePair<Reliable>,
    memory: RemoteSlice,
    index: u64,
) -> Result<(QueuePair<Reliable>, usize), Box<dyn Error>> {
    let start = COMMON as u64 + QUEUE_PAIR_AREA_BYTES as u64 * index;
    let area = memory.slice(start..start + QUEUE_PAIR_AREA_BYTES as u64)?;
    let mut answer = pd.allocate(LONGEST_SEND)?;
    let mut moved = 0;
    for (round, length) in LENGTHS.into_iter().enumerate() {
        let seed = index << 32 | round as u64;
        let bytes = pattern(seed, length);
        let there = area.slice(0..length as u64)?;
        let source = qp.write(pd.register(bytes.clone())?, there)?.wait()?;
        let receiving = qp.recv(answer)?;
        qp.send_imm(pd.register(seed.to_be_bytes().to_vec())?, length as u32)?.wait()?;
        let right = receiving.wait()?;
        if right.payload() != [1] {
            return Err(format!("a WRITE of {length} bytes left something else").into());
        }
        answer = right.into_buffer();
        if *qp.read(pd.allocate(length)?, there)?.wait()? != *bytes {
            return Err(format!("a READ of {length} bytes brought something else").into());
        }
        moved += 2 * length;
        if length <= LONGEST_SEND {
            let receiving = qp.recv(answer)?;
            qp.send(source)?.wait()?;
            let echo = receiving.wait()?;
            if echo.payload() != bytes {
                return Err(format!("a SEND of {length} bytes came back as something else").into());
            }
            answer = echo.into_buffer();
            moved += 2 * length;
        }
    }
    let own = memory.slice(8 * (index + 1)..8 * (index + 2))?;
    for number in 0..COUNTS {
        qp.fetch_add(memory, 1)?.wait()?;
        let before = qp.compare_swap(own, number, number + 1)?.wait()?;
        if before != number {
            return Err(format!("compare-and-swap found {before} instead of {number}").into());
        }
    }
    Ok((qp.clone(), moved))
}

/// Sends datagrams until each has been answered. Answers how many had to be sent again.
fn ask(end: &End, target: &Endpoint) -> Result<u64, Box<dyn Error>> {
    let qp = end.datagrams()?;
    let to = end.pd.address(target)?;
    let mut again = 0;
    // Where nothing gets lost nothing has to be sent again, however busy the machine is.
    let lossy = std::env::var("UBIVERBS_FAULTS").is_ok_and(|plan| !plan.is_empty());
    let patience = Duration::from_millis(if lossy { 500 } else { 20_000 });
    for number in 0..DATAGRAMS {
        let question = pattern(number, 1 + 50 * number as usize);
        let mut answer = None;
        let mut receiving = qp.recv(end.pd.allocate(GRH_LENGTH + 1024)?)?;
        while answer.is_none() {
            qp.send_to(end.pd.register(question.clone())?, &to)?.wait()?;
            match receiving.wait_for(patience) {
                // A late answer to an earlier question is no answer to this one.
                Some(received) if received.as_ref().is_ok_and(|received| received.payload() != question) => {
                    receiving = qp.recv(received?.into_buffer())?;
                }
                Some(received) => answer = Some(received?),
                None => again += 1,
            }
            if again > 1000 {
                return Err("datagrams are not answered".into());
            }
        }
    }
    Ok(again)
}

/// What a mover said at its end.
#[derive(Debug)]
pub struct Report {
    /// How long the work took, datagrams not counted.
    pub took: Duration,
    /// How many bytes were moved.
    pub bytes: u64,
    /// How many datagrams were sent again.
    pub again: u64,
}

impl Report {
    fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.took.as_micros() as f64
    }
}

/// Joins two processes that have said where their queue pairs are.
pub fn introduce(mover: &mut Actor, target: &mut Actor) {
    let endpoints = mover.hear("endpoints");
    target.say("endpoints", &endpoints);
    for word in ["endpoints", "datagrams", "memory"] {
        mover.say(word, &target.hear(word));
    }
    target.hear("connected");
}

/// Everything between two addresses, over `pairs` queue pairs at once; `faults` strike both hosts.
pub fn everything(hosts: [(&Host, IpAddr); 2], pairs: u32, faults: &str) -> Report {
    let [mut mover, mut target] = ["mover", "target"].map(|role| {
        let (host, address) = hosts[usize::from(role == "target")];
        host.start_with(role, &[address.to_string(), pairs.to_string()], &[("UBIVERBS_FAULTS", faults)])
    });
    introduce(&mut mover, &mut target);
    let report = finish(mover);
    target.end();
    report
}

/// Lets a mover come to its end.
pub fn finish(mut mover: Actor) -> Report {
    mover.patience = Duration::from_secs(120);
    let numbers: Vec<u64> = parse(&mover.hear("done")).expect("numbers");
    let [took, bytes, again] = numbers[..] else { panic!("three numbers") };
    mover.end();
    Report { took: Duration::from_micros(took), bytes, again }
}

fn lossy(mtu: u32, pairs: u32, faults: &str) -> Report {
    let network = Network::new(mtu);
    let report = everything([(&network.left, network.left.v4), (&network.right, network.right.v4)], pairs, faults);
    println!(
        "  {pairs} queue pairs, interface MTU {mtu}, {}: {:.1} MB in {:?}, {:.1} MB/s, {} datagrams again",
        if faults.is_empty() { "no faults" } else { faults },
        report.bytes as f64 / 1e6,
        report.took,
        report.megabytes_per_second(),
        report.again
    );
    report
}

pub fn every_byte_is_right_between_hosts_over_ipv4() {
    for mtu in [1500, 9000] {
        for pairs in [1, 8] {
            assert_eq!(lossy(mtu, pairs, "").again, 0, "nothing is lost on this cable");
        }
    }
}

pub fn every_byte_is_right_between_hosts_over_ipv6() {
    let Network { left, right } = &Network::new(1500);
    assert_eq!(everything([(left, left.v6), (right, right.v6)], 4, "").again, 0);
}

pub fn a_host_without_network_and_a_user_without_rights_are_enough() {
    let host = Host::alone();
    for address in ["127.0.0.1", "::1"] {
        let [mut mover, mut target] = ["mover", "target"]
            .map(|role| host.start_with(role, &[address.into(), "2".into()], &[(actor::USER, actor::NOBODY)]));
        introduce(&mut mover, &mut target);
        finish(mover);
        target.end();
    }
    assert_eq!(host.names(), [""; 0], "names that nobody has");
}

pub fn every_byte_is_right_between_link_local_addresses() {
    let Network { left, right } = &Network::new(1500);
    assert_eq!(everything([(left, left.link_local), (right, right.link_local)], 2, "").again, 0);
}

pub fn nothing_is_lost_where_one_packet_in_a_hundred_is() {
    lossy(1500, 1, "drop=1%");
    lossy(9000, 4, "drop=1%");
}

pub fn nothing_is_lost_where_one_packet_in_twenty_is() {
    lossy(1500, 1, "drop=5%");
    lossy(9000, 4, "drop=5%");
}

pub fn nothing_is_lost_where_packets_are_doubled_damaged_and_out_of_order() {
    lossy(1500, 4, "drop=1%,dup=2%,reorder=2%,corrupt=1%,hold=200us");
}
