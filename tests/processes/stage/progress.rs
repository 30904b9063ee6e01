//! A program of one of five kinds, which answers messages.

use rustix::event::epoll;
use ubiverbs::{
    Access, CompletionChannel, CompletionQueue, Context, Endpoint, Error, ProtectionDomain, QueuePair, Reliable,
    RemoteSlice, SharedRegion,
};

/// What is in the memory when the program is to end.
pub const END: u64 = u64::MAX;

/// A queue pair with memory that its peer may write, and the peer's.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: QueuePair<Reliable>,
    /// Where its work completes.
    pub cq: CompletionQueue,
    /// Memory that the peer may write.
    pub memory: SharedRegion,
    /// The peer's.
    pub theirs: RemoteSlice,
    pd: ProtectionDomain,
}

impl End {
    /// Meets the peer through lines of text.
    pub fn meet(
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
    pub fn send(&self, number: u64) -> Result<(), Error> {
        self.qp.send_inline(&number.to_le_bytes())?.polled(0);
        Ok(())
    }

    /// Takes what the queue has: the numbers received. Receives that were used are posted again.
    pub fn take(&self) -> Result<Vec<u64>, Error> {
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
    pub fn answer(&self) -> Result<bool, Error> {
        for number in self.take()? {
            if number == END {
                return Ok(false);
            }
            self.send(number)?;
        }
        Ok(true)
    }
}

/// The bytes of a line of hexadecimal digits.
pub fn bytes_of(line: &str) -> Vec<u8> {
    let digits = line.trim().as_bytes();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap_or(""), 16).expect("two digits"))
        .collect()
}

/// The other process, a program of some kind.
pub fn peer(kind: &str) {
    run(kind).unwrap();
}

fn run(kind: &str) -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let channel = context.completion_channel()?;
    let mut lines = std::io::stdin().lines();
    let mut say = |line: String| println!("here {line}");
    let mut hear = || bytes_of(&lines.next().expect("the other end speaks").expect("and can be heard"));
    let mut meet = |channel: Option<&CompletionChannel>| End::meet(&context, channel, &mut say, &mut hear);
    match kind {
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
