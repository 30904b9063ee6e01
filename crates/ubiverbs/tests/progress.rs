//! Five kinds of program, each in a process of its own, answer messages that come at irregular times: one polls without pause, one spins on
//! memory and calls nothing, one arms its queue and sleeps in `epoll`, one blocks in the call that waits for a completion event, one has
//! two threads with a queue each. None may be kept waiting: a wake-up that is lost would show as a round trip that never ends, a rule that is
//! wrong as one of a millisecond and more.

use rustix::event::epoll;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ubiverbs::{
    Access, CompletionChannel, CompletionQueue, Context, Endpoint, Error, ProtectionDomain, QueuePair, Reliable,
    RemoteSlice, SharedRegion,
};

const KIND: &str = "UBIVERBS_TEST_PROGRAM";
const MESSAGES: u64 = 300;
/// What is in the memory when the program is to end.
const END: u64 = u64::MAX;

/// A queue pair with memory that its peer may write, and the peer's.
struct End {
    qp: QueuePair<Reliable>,
    cq: CompletionQueue,
    memory: SharedRegion,
    theirs: RemoteSlice,
    pd: ProtectionDomain,
}

impl End {
    /// Meets the peer through lines of text.
    fn meet(
        context: &Context,
        channel: Option<&CompletionChannel>,
        say: &mut impl FnMut(String),
        hear: &mut impl FnMut() -> Vec<u8>,
    ) -> Result<End, Error> {
        let pd = context.alloc_pd()?;
        let builder = context.completion_queue(64);
        let cq = match channel {
            Some(channel) => builder.channel(channel).create()?,
            None => builder.create()?,
        };
        let memory = pd.share(64, Access::REMOTE_WRITE)?;
        let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
        for _ in 0..8 {
            prepared.recv(pd.allocate(8)?)?.polled(1);
        }
        let mut here = prepared.endpoint().to_bytes().to_vec();
        here.extend(memory.remote_slice().to_bytes());
        say(here.iter().map(|byte| format!("{byte:02x}")).collect());
        let there = hear();
        let (endpoint, slice) = there.split_at(Endpoint::ENCODED);
        let qp = prepared.connect(&Endpoint::from_bytes(endpoint)?)?;
        Ok(End { qp, cq, memory, theirs: RemoteSlice::from_bytes(slice)?, pd })
    }

    /// Sends a number; its completion is polled with everything else.
    fn send(&self, number: u64) -> Result<(), Error> {
        self.qp.send_inline(&number.to_le_bytes())?.polled(0);
        Ok(())
    }

    /// Takes what the queue has: the numbers received. Receives that were used are posted again.
    fn take(&self) -> Result<Vec<u64>, Error> {
        let mut numbers = Vec::new();
        for completion in self.cq.poll()? {
            completion.result()?;
            if completion.wr_id() == 1 {
                let received = completion.into_received().map_err(|failed| failed.error)?;
                let bytes = received.payload().try_into().expect("eight bytes");
                numbers.push(u64::from_le_bytes(bytes));
                self.qp.recv(self.pd.allocate(8)?)?.polled(1);
            }
        }
        Ok(numbers)
    }

    /// Answers what has come; false when it was the last.
    fn answer(&self) -> Result<bool, Error> {
        for number in self.take()? {
            if number == END {
                return Ok(false);
            }
            self.send(number)?;
        }
        Ok(true)
    }
}

fn bytes_of(line: &str) -> Vec<u8> {
    let digits = line.trim().as_bytes();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or(""), 16).expect("two digits"))
        .collect()
}

/// The other process. Not a test of its own: without its environment variable it has nothing to do.
#[test]
fn the_program() -> Result<(), Error> {
    let Ok(kind) = std::env::var(KIND) else { return Ok(()) };
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let channel = context.completion_channel()?;
    let mut lines = std::io::stdin().lines();
    let mut say = |line: String| println!("\nhere {line}");
    let mut hear = || bytes_of(&lines.next().expect("the other end speaks").expect("and can be heard"));
    let mut meet = |channel: Option<&CompletionChannel>| End::meet(&context, channel, &mut say, &mut hear);
    match kind.as_str() {
        "poll" => {
            let end = meet(None)?;
            while end.answer()? {}
        }
        "memory" => {
            let end = meet(None)?;
            let mut last = 0;
            while last != END {
                let now = end.memory.load(0)?;
                if now != last && now != END {
                    // As `ib_write_lat` does: the answer's own completion is polled for before the memory is looked at again.
                    end.qp.write_inline(&now.to_le_bytes(), end.theirs.slice(0..8)?)?.polled(0);
                    while end.cq.poll()?.count() == 0 {}
                }
                last = now;
                std::hint::spin_loop();
            }
        }
        "epoll" => {
            let end = meet(Some(&channel))?;
            let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll descriptor");
            epoll::add(&waiting, &channel, epoll::EventData::new_u64(0), epoll::EventFlags::IN).expect("a channel");
            loop {
                end.cq.arm();
                if !end.answer()? {
                    break;
                }
                let mut events = Vec::with_capacity(4);
                // A signal may end it early: then there is just nothing.
                let _ = epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), None);
                while channel.try_next().is_some() {}
            }
        }
        "block" => {
            let end = meet(Some(&channel))?;
            loop {
                end.cq.arm();
                if !end.answer()? {
                    break;
                }
                channel.wait()?;
            }
        }
        _ => {
            let ends = [meet(None)?, meet(None)?];
            let threads = ends.map(|end| {
                std::thread::spawn(move || -> Result<(), Error> {
                    while end.answer()? {}
                    Ok(())
                })
            });
            for thread in threads {
                thread.join().expect("no panic")?;
            }
        }
    }
    Ok(())
}

struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Program {
    fn start(kind: &str) -> Program {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["the_program", "--exact", "--nocapture"])
            .env(KIND, kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Program { child, stdin, stdout }
    }

    fn meet(&mut self, context: &Context) -> Result<End, Error> {
        let stdin = &mut self.stdin;
        let stdout = &mut self.stdout;
        let mut say = |line: String| writeln!(stdin, "{line}").unwrap();
        let mut hear = || {
            let mut line = String::new();
            loop {
                line.clear();
                assert!(stdout.read_line(&mut line).unwrap() > 0, "the program ended without a word");
                if let Some(rest) = line.strip_prefix("here ") {
                    return bytes_of(rest);
                }
            }
        };
        End::meet(context, None, &mut say, &mut hear)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Pauses from none to three milliseconds, so that the program is met in every mood: awake, about to sleep, asleep, looked after by a tick.
fn pause(number: u64) -> Duration {
    Duration::from_micros(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0xfff).min(Duration::from_millis(3))
}

/// How long round trips take with a program of some kind: usually, and at worst.
#[derive(Clone, Copy, Debug)]
struct Times {
    median: Duration,
    worst: Duration,
}

impl Times {
    fn of(what: &str, mut times: Vec<Duration>) -> Times {
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{what}: median {median:?}, 99 in 100 within {:?}, worst {worst:?}", times[times.len() * 99 / 100]);
        Times { median, worst }
    }
}

/// Messages to a program of some kind, and back.
fn trips(context: &Context, kind: &str) -> Result<Times, Error> {
    let mut program = Program::start(kind);
    let mut ends = vec![program.meet(context)?];
    if kind == "two threads" {
        ends.push(program.meet(context)?);
    }
    let mut times = Vec::new();
    for number in 1..=MESSAGES {
        std::thread::sleep(pause(number));
        let end = &ends[number as usize % ends.len()];
        let began = Instant::now();
        let mut came = false;
        if kind == "memory" {
            end.qp.write_inline(&number.to_le_bytes(), end.theirs.slice(0..8)?)?.polled(0);
        } else {
            end.send(number)?;
        }
        while !came {
            came |= end.take()?.contains(&number) || kind == "memory" && end.memory.load(0)? == number;
            assert!(began.elapsed() < Duration::from_secs(60), "{kind}: message {number} was never answered");
        }
        times.push(began.elapsed());
    }
    for end in &ends {
        match kind {
            "memory" => end.qp.write_inline(&END.to_le_bytes(), end.theirs.slice(0..8)?)?.wait()?,
            _ => end.qp.send_inline(&END.to_le_bytes())?.wait()?,
        }
    }
    let began = Instant::now();
    while program.child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "{kind}: the program does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(program.child.wait().unwrap().success(), "{kind}");
    Ok(Times::of(kind, times))
}

/// The same between two threads that spin on a word, with nothing of ours in between: what this machine can do at the moment.
fn bare_trips() -> Times {
    let word = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=MESSAGES {
                while word.load(Ordering::Acquire) != 2 * number {
                    std::hint::spin_loop();
                }
                word.store(2 * number + 1, Ordering::Release);
            }
        });
        let trip = |number| {
            std::thread::sleep(pause(number));
            let began = Instant::now();
            word.store(2 * number, Ordering::Release);
            while word.load(Ordering::Acquire) != 2 * number + 1 {
                std::hint::spin_loop();
            }
            began.elapsed()
        };
        Times::of("bare", (1..=MESSAGES).map(trip).collect())
    })
}

#[test]
fn no_kind_of_program_is_kept_waiting() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    for kind in ["poll", "memory", "epoll", "block", "two threads"] {
        // Two processes with two threads each on two processors, which other tests use too: far above what is usual, far below what a lost
        // wake-up or a retransmission timer would cost every time. Where the machine does no better by itself, it is the machine that is
        // slow; and it may be slow for a while only.
        let mut tries = 0;
        loop {
            let times = trips(&context, kind)?;
            if times.median < Duration::from_millis(5) && times.worst < Duration::from_millis(1500) {
                break;
            }
            let bare = bare_trips();
            if times.median < 8 * bare.median && times.worst < Duration::from_millis(1500) + 8 * bare.worst {
                break;
            }
            tries += 1;
            assert!(tries < 4, "{kind}: {times:?}; threads that spin on a word take {bare:?}");
        }
    }
    Ok(())
}
