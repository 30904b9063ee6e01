//! The victims: a server and a client that exchange messages over every kind of queue pair, look at every byte, and
//! say `hurt` when something comes that the other did not send, or when work fails. They use the safe API, like
//! any program.

use std::net::IpAddr;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use ubiverbs::cm::{self, Connection, Listener};
use ubiverbs::{
    Access, AddressHandle, CompletionQueue, Connected, Datagram, Endpoint, GRH_LENGTH, Gid, Operation,
    PreparedQueuePair, ProtectionDomain, Qkey, QueuePair, Received, Reliable, RemoteSlice, SharedRegion, Unreliable,
};

use crate::actor::{Outcome, hear, lines, say};
use crate::message::{Flow, message, pattern, read};

/// What the client writes into, and the server compares.
pub const AREA: usize = 4096;

/// What nobody may write into; it follows the area.
pub const CANARY: usize = 4096;

/// What measurements write into; it comes last.
const STREAM: usize = 256 << 10;

/// The longest message, with room.
const MAX_MESSAGE_BYTES: usize = 32 << 10;

/// How long an answer may take that cannot be lost.
const REPLY_TIMEOUT: Duration = Duration::from_secs(25);

/// How long a datagram is waited for that may be lost.
const LOST: Duration = Duration::from_millis(300);

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    address: IpAddr,
}

impl End {
    fn new(address: IpAddr) -> Outcome<End> {
        for device in ubiverbs::devices()? {
            let context = device.open()?;
            if context.port().gids.contains(&Some(Gid::from_ip(address))) {
                let cq = context.completion_queue(1024).create()?;
                return Ok(End { pd: context.alloc_pd()?, cq, address });
            }
        }
        Err(format!("no device has {address}").into())
    }

    /// A queue pair whose peer may be held up for seconds, on a busy machine, too.
    fn patient_pair(&self) -> Outcome<PreparedQueuePair<Reliable>> {
        let builder = self.pd.queue_pair(&self.cq).source(self.address).timeout(Duration::from_millis(500));
        Ok(builder.prepare()?)
    }

    fn datagrams(&self, qkey: u32) -> Outcome<QueuePair<Datagram>> {
        Ok(self.pd.queue_pair(&self.cq).source(self.address).qkey(Qkey::new(qkey)).prepare()?.activate()?)
    }
}

fn parse<T: std::str::FromStr>(word: Option<&str>) -> Outcome<T> {
    word.and_then(|word| word.parse().ok()).ok_or_else(|| format!("not understood: {word:?}").into())
}

/// What the director needs to know of queue pairs: number, the PSN expected, the next PSN, the peer's number.
fn numbers<T: ubiverbs::Transport>(qp: &QueuePair<T>) -> String {
    let attributes = qp.attributes();
    let (expected, next) = (attributes.rq_psn.value(), attributes.sq_psn.value());
    format!("{} {expected} {next} {}", qp.qpn().value(), attributes.dest_qpn.value())
}

/// Answers the client, and compares.
pub fn server(arguments: &[String]) -> Outcome {
    let end = End::new(parse(arguments.first().map(String::as_str))?)?;
    let (reliable, for_connection) = (end.patient_pair()?, end.patient_pair()?);
    let unreliable = end.pd.queue_pair::<Unreliable>(&end.cq).source(end.address).prepare()?;
    let qkey = host::random() as u32 >> 1;
    let datagrams = end.datagrams(qkey)?;
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let region = end.pd.share(AREA + CANARY + STREAM, rights)?;
    let listener = Listener::bind((end.address, 0))?;
    let (port, slice) = (listener.local_addr().port(), region.remote_slice());
    let endpoints = [reliable.endpoint(), unreliable.endpoint(), datagrams.endpoint()].map(|it| it.to_string());
    say("here", format_args!("{} {slice} {port}", endpoints.join(" ")));

    let peers = hear("peers")?;
    let mut peers = peers.split(' ');
    let (first, second): (Endpoint, Endpoint) = (parse(peers.next())?, parse(peers.next())?);
    let waiting =
        [reliable.recv(end.pd.allocate(MAX_MESSAGE_BYTES)?)?, unreliable.recv(end.pd.allocate(MAX_MESSAGE_BYTES)?)?];
    let [one, other] = waiting;
    let (reliable, unreliable) = (reliable.connect(&first)?, unreliable.connect(&second)?);
    say("connected", "");
    let mut all = vec![numbers_of(&reliable), numbers_of(&unreliable)];
    let pd = end.pd.clone();
    thread::spawn(move || echo(Flow::Reliable, &pd, &reliable, one, &region));
    let pd = end.pd.clone();
    let nothing = end.pd.share(64, rights)?;
    thread::spawn(move || echo(Flow::Unreliable, &pd, &unreliable, other, &nothing));
    let pd = end.pd.clone();
    thread::spawn(move || echo_datagrams(&pd, &datagrams).unwrap_or_else(|error| say("hurt", error)));
    let connection = listener.next().wait()?.accept().queue_pair(for_connection).wait()?;
    all.push(numbers_of(connection.queue_pair()));
    watch_end(&connection);
    let nothing = connection.pd().share(64, rights)?;
    let waiting = connection.recv(connection.pd().allocate(MAX_MESSAGE_BYTES)?)?;
    say("accepted", "");
    thread::spawn(move || echo(Flow::Connection, &connection.pd(), connection.queue_pair(), waiting, &nothing));
    for line in lines() {
        if line.starts_with("numbers") {
            let all: Vec<String> = all.iter().map(|one| one()).collect();
            say("numbers", format_args!("{} {qkey}", all.join(" ")));
        }
    }
    Ok(())
}

type Numbers = Box<dyn Fn() -> String>;

/// The numbers of a queue pair, whenever they are asked for.
fn numbers_of<T: Connected>(qp: &QueuePair<T>) -> Numbers {
    let qp = qp.clone();
    Box::new(move || numbers(&qp))
}

/// Says it when a connection ends: nobody wants it to.
fn watch_end(connection: &Connection<Reliable>) {
    let closed = connection.closed();
    thread::spawn(move || {
        let reason = closed.wait().map_or_else(|error| error.to_string(), |reason| reason.to_string());
        say("hurt", format!("Connection: it was ended: {reason}"));
    });
}

fn echo<T: Connected>(
    flow: Flow,
    pd: &ProtectionDomain,
    qp: &QueuePair<T>,
    waiting: Operation<Received>,
    region: &SharedRegion,
) {
    if let Err(error) = echoes(flow, pd, qp, waiting, region) {
        say("hurt", format_args!("{flow:?}: {error}"));
    }
}

fn echoes<T: Connected>(
    flow: Flow,
    pd: &ProtectionDomain,
    qp: &QueuePair<T>,
    mut waiting: Operation<Received>,
    region: &SharedRegion,
) -> Outcome {
    let mut last = None;
    loop {
        let received = waiting.wait().map_err(|failed| failed.error)?;
        let (number, check) = match read(flow, received.payload()) {
            Ok(message) => message,
            Err(what) => {
                say("hurt", what);
                waiting = qp.recv(received.into_buffer()).map_err(|failed| failed.error)?;
                continue;
            }
        };
        let due = last.map_or(0, |last| last + 1);
        if number < due || (flow != Flow::Unreliable && number != due) {
            say("hurt", format_args!("{flow:?}: message {number} instead of {due}"));
        }
        last = Some(number);
        if check && let Some(what) = compare(region, number)? {
            say("hurt", what);
        }
        let answer = received.payload().to_vec();
        // The next receive is there before the peer can send again.
        waiting = qp.recv(received.into_buffer()).map_err(|failed| failed.error)?;
        let sending = qp.send(pd.register(answer).map_err(|failed| failed.error)?).map_err(|failed| failed.error)?;
        sending.wait().map_err(|failed| failed.error)?;
    }
}

/// What is wrong with the memory after the client has written as message `number` says.
fn compare(region: &SharedRegion, number: u64) -> Outcome<Option<String>> {
    let mut bytes = vec![0; AREA + CANARY];
    region.read_at(0, &mut bytes)?;
    let (area, canary) = bytes.split_at(AREA);
    Ok(if area != pattern(number, AREA) {
        Some(format!("memory: not what write {number} left there"))
    } else if canary.iter().any(|byte| *byte != 0) {
        Some("memory: something was written where no peer writes".into())
    } else {
        None
    })
}

fn echo_datagrams(pd: &ProtectionDomain, qp: &QueuePair<Datagram>) -> Outcome {
    let length = GRH_LENGTH + 2048;
    let receives: Result<Vec<_>, _> =
        pd.allocate(16 * length)?.chunks(length).into_iter().map(|buffer| qp.recv(buffer)).collect();
    let mut waiting: std::collections::VecDeque<_> = receives.map_err(|failed| failed.error)?.into();
    while let Some(next) = waiting.pop_front() {
        let received = next.wait().map_err(|failed| failed.error)?;
        match read(Flow::Datagram, received.payload()) {
            Err(what) => say("hurt", what),
            Ok(_) => {
                if let Some(sender) = received.reply_address(qp) {
                    let answer = pd.register(received.payload().to_vec()).map_err(|failed| failed.error)?;
                    qp.send_to(answer, &sender)
                        .map_err(|failed| failed.error)?
                        .wait()
                        .map_err(|failed| failed.error)?;
                }
            }
        }
        waiting.push_back(qp.recv(received.into_buffer()).map_err(|failed| failed.error)?);
    }
    Ok(())
}

/// One flow, as the client has it.
struct Asking<T: Connected> {
    flow: Flow,
    pd: ProtectionDomain,
    qp: QueuePair<T>,
    waiting: Option<Operation<Received>>,
    last: Option<u64>,
}

impl<T: Connected> Asking<T> {
    /// Sends a message and waits for it to come back. Where it may be lost, it is.
    fn ask(&mut self, number: u64, check: bool, may_be_lost: bool) -> Outcome {
        let bytes = message(self.flow, number, check);
        let mut sending = self.qp.send(self.pd.register(bytes).map_err(|f| f.error)?).map_err(|f| f.error)?;
        sending.wait_for(REPLY_TIMEOUT).ok_or("a send does not complete")?.map_err(|failed| failed.error)?;
        let deadline = Instant::now() + if may_be_lost { LOST } else { REPLY_TIMEOUT };
        loop {
            let mut waiting = self.waiting.take().ok_or("no receive")?;
            let Some(received) = waiting.wait_for(deadline.saturating_duration_since(Instant::now())) else {
                self.waiting = Some(waiting);
                return if may_be_lost { Ok(()) } else { Err("no answer comes".into()) };
            };
            let received = received.map_err(|failed| failed.error)?;
            let (answered, _) = read(self.flow, received.payload())?;
            self.waiting = Some(self.qp.recv(received.into_buffer()).map_err(|failed| failed.error)?);
            if answered > number || self.last.is_some_and(|last| answered <= last) {
                return Err(format!("answer {answered} after {:?}, to question {number}", self.last).into());
            }
            self.last = Some(answered);
            if answered == number {
                return Ok(());
            }
        }
    }
}

struct Client {
    end: End,
    memory: RemoteSlice,
    reliable: Asking<Reliable>,
    unreliable: Asking<Unreliable>,
    connected: Asking<Reliable>,
    _connection: Connection<Reliable>,
    datagrams: QueuePair<Datagram>,
    to: AddressHandle,
    answers: std::collections::VecDeque<Operation<Received>>,
    /// Unreliable flows lose nothing on this link.
    lossless: bool,
    number: u64,
}

impl Client {
    fn new(arguments: &[String]) -> Outcome<Client> {
        let [address, lossless] = arguments else { return Err("an address and a word".into()) };
        let end = End::new(address.parse()?)?;
        let (reliable, for_connection) = (end.patient_pair()?, end.patient_pair()?);
        let unreliable = end.pd.queue_pair::<Unreliable>(&end.cq).source(end.address).prepare()?;
        say("here", format_args!("{} {}", reliable.endpoint(), unreliable.endpoint()));
        let server = hear("peers")?;
        let mut words = server.split(' ');
        let endpoints: [Endpoint; 3] = [parse(words.next())?, parse(words.next())?, parse(words.next())?];
        let (memory, port): (RemoteSlice, u16) = (parse(words.next())?, parse(words.next())?);
        let [waiting, other] = [
            reliable.recv(end.pd.allocate(MAX_MESSAGE_BYTES)?)?,
            unreliable.recv(end.pd.allocate(MAX_MESSAGE_BYTES)?)?,
        ]
        .map(Some);
        let (reliable, unreliable) = (reliable.connect(&endpoints[0])?, unreliable.connect(&endpoints[1])?);
        let datagrams = end.datagrams(endpoints[2].qkey().value())?;
        let to = end.pd.address(&endpoints[2])?;
        let route = cm::resolve((endpoints[0].gid().to_ip(), port)).wait()?;
        let connection = route.connect().queue_pair(for_connection).wait_for(REPLY_TIMEOUT)?;
        watch_end(&connection);
        let pd = connection.pd();
        let third = Some(connection.recv(pd.allocate(MAX_MESSAGE_BYTES)?)?);
        let (flow, qp) = (Flow::Connection, connection.queue_pair().clone());
        let connected = Asking { flow, pd, qp, waiting: third, last: None };
        let pd = end.pd.clone();
        let reliable = Asking { flow: Flow::Reliable, pd, qp: reliable, waiting, last: None };
        let pd = end.pd.clone();
        let unreliable = Asking { flow: Flow::Unreliable, pd, qp: unreliable, waiting: other, last: None };
        let length = GRH_LENGTH + 2048;
        let buffers = end.pd.allocate(8 * length)?.chunks(length);
        let answers = buffers.into_iter().map(|buffer| datagrams.recv(buffer)).collect::<Result<_, _>>();
        let (answers, lossless) = (answers.map_err(|failed| failed.error)?, lossless == "lossless");
        let _connection = connection;
        Ok(Client {
            end,
            memory,
            reliable,
            unreliable,
            connected,
            _connection,
            datagrams,
            to,
            answers,
            lossless,
            number: 0,
        })
    }

    /// One message of each flow.
    fn round(&mut self) -> Outcome {
        let number = self.number;
        self.number += 1;
        let check = number.is_multiple_of(4);
        if check {
            let bytes = self.end.pd.register(pattern(number, AREA)).map_err(|failed| failed.error)?;
            let writing = self.reliable.qp.write(bytes, self.memory.slice(0..AREA as u64)?);
            writing.map_err(|failed| failed.error)?.wait().map_err(|failed| failed.error)?;
        }
        self.reliable.ask(number, check, false).map_err(|error| format!("Reliable: {error}"))?;
        self.unreliable.ask(number, false, !self.lossless).map_err(|error| format!("Unreliable: {error}"))?;
        self.connected.ask(number, false, false).map_err(|error| format!("Connection: {error}"))?;
        self.ask_datagram(number).map_err(|error| format!("Datagram: {error}").into())
    }

    fn ask_datagram(&mut self, number: u64) -> Outcome {
        let bytes = self.end.pd.register(message(Flow::Datagram, number, false)).map_err(|failed| failed.error)?;
        let sending = self.datagrams.send_to(bytes, &self.to).map_err(|failed| failed.error)?;
        sending.wait().map_err(|failed| failed.error)?;
        let deadline = Instant::now() + if self.lossless { REPLY_TIMEOUT } else { LOST };
        loop {
            let mut waiting = self.answers.pop_front().ok_or("no receive")?;
            let Some(received) = waiting.wait_for(deadline.saturating_duration_since(Instant::now())) else {
                self.answers.push_front(waiting);
                return if self.lossless { Err("no answer comes".into()) } else { Ok(()) };
            };
            let received = received.map_err(|failed| failed.error)?;
            let (answered, _) = read(Flow::Datagram, received.payload())?;
            self.answers.push_back(self.datagrams.recv(received.into_buffer()).map_err(|failed| failed.error)?);
            if answered == number {
                return Ok(());
            }
        }
    }

    /// Writes so many times 64 KiB, and answers how long that took.
    fn stream(&self, count: usize) -> Outcome<Duration> {
        let to = self.memory.slice((AREA + CANARY) as u64..(AREA + CANARY + (64 << 10)) as u64)?;
        let begin = Instant::now();
        for _ in 0..count {
            let bytes = self.end.pd.register(vec![7; 64 << 10]).map_err(|failed| failed.error)?;
            let writing = self.reliable.qp.write(bytes, to).map_err(|failed| failed.error)?;
            writing.wait().map_err(|failed| failed.error)?;
        }
        Ok(begin.elapsed())
    }
}

/// Asks the server, round after round, unless told to pause.
pub fn client(arguments: &[String]) -> Outcome {
    let mut client = Client::new(arguments)?;
    say("connected", "");
    let (sender, told) = mpsc::channel();
    thread::spawn(move || lines().try_for_each(|line| sender.send(line)));
    let mut well = true;
    while let Some(line) = next(&told, well) {
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some("rounds") => {
                say("rounds", client.number);
                continue;
            }
            Some("pause") => {
                let all = [numbers(&client.reliable.qp), numbers(&client.unreliable.qp), numbers(&client.connected.qp)];
                say("paused", all.join(" "));
                while told.recv().is_ok_and(|line| !line.starts_with("go")) {}
                say("going", client.number);
                continue;
            }
            Some("stream") => {
                match client.stream(words.next().and_then(|count| count.parse().ok()).unwrap_or(1)) {
                    Ok(took) => say("streamed", took.as_micros()),
                    Err(error) => say("hurt", error),
                }
                continue;
            }
            Some(other) => return Err(format!("not understood: {other}").into()),
        }
        if let Err(error) = client.round() {
            say("hurt", error);
            well = false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// What the director says; an empty line if it says nothing and there is work to do; nothing at the end.
fn next(told: &Receiver<String>, work: bool) -> Option<String> {
    if !work {
        return told.recv().ok();
    }
    match told.try_recv() {
        Ok(line) => Some(line),
        Err(mpsc::TryRecvError::Empty) => Some(String::new()),
        Err(mpsc::TryRecvError::Disconnected) => None,
    }
}
