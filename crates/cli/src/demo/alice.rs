//! Alice: asks for everything, and checks what comes back. Each act tells what her NIC and bob's do for it.

use crate::acts::{Act, known};
use crate::exit::Failure;
use crate::meeting::Meeting;
use crate::peer::{self, Introduction, Order, PeerAnswer};
use crate::station::finish;
use std::time::{Duration, Instant};
use ubiverbs::{Datagram, Endpoint, Error, GRH_LENGTH, Key, QueuePair, Reliable, RemoteSlice, State, Status};

/// Alice's queue pairs, and what she knows of bob's memory.
pub struct Alice {
    pub qp: QueuePair<Reliable>,
    /// For the request that fails: a failed request is the end of its queue pair.
    spare: QueuePair<Reliable>,
    datagram: QueuePair<Datagram>,
    /// Bob's ends.
    pub bob: Endpoint,
    bobs_datagram: Endpoint,
    pub there: RemoteSlice,
    /// The path MTU of the connection.
    pub mtu: usize,
}

/// How an act ended.
pub struct Step {
    pub act: Act,
    pub right: bool,
    /// The status of alice's work, as C programs know it.
    pub status: Status,
    pub bytes: usize,
    /// From the post to the completion.
    pub took: Duration,
    /// What alice found, and what bob says.
    pub alice: String,
    pub bob: String,
}

/// What alice found: whether it is right, how many bytes moved, how long it took, in words, and the status of her work.
type Found = (bool, usize, Duration, String, Status);

impl Alice {
    /// Makes her queue pairs and connects them to bob's.
    pub fn introduce(meeting: &mut Meeting) -> Result<Alice, Failure> {
        let station = &meeting.station;
        let (connected, spare) = (station.prepare::<Reliable>()?, station.prepare::<Reliable>()?);
        let datagram = station.prepare::<Datagram>()?.activate()?;
        let ours = Introduction {
            connected: connected.endpoint().to_string(),
            spare: spare.endpoint().to_string(),
            datagram: datagram.endpoint().to_string(),
            region: None,
        };
        let theirs = match peer::ask(meeting, &Order::Introduce(ours))? {
            PeerAnswer::Introduced(theirs) => theirs,
            other => return Err(peer::unexpected(&other)),
        };
        let bob: Endpoint = theirs.connected.parse()?;
        let mtu = connected.endpoint().mtu().min(bob.mtu()).bytes() as usize;
        Ok(Alice {
            qp: connected.connect(&bob)?,
            spare: spare.connect(&theirs.spare.parse()?)?,
            datagram,
            bob,
            bobs_datagram: theirs.datagram.parse()?,
            there: theirs.region.as_deref().unwrap_or_default().parse()?,
            mtu,
        })
    }

    /// Plays one act.
    pub fn play(&self, act: Act, meeting: &mut Meeting) -> Result<Step, Failure> {
        meeting.control.tell(&Order::Play(act))?;
        // The receive for an answer is posted before bob can answer.
        peer::ready(meeting)?;
        let (right, bytes, took, alice, status) = match act {
            Act::Send => self.send(meeting)?,
            Act::Write => self.write(meeting)?,
            Act::WriteImmediate => self.write_immediate(meeting)?,
            Act::Read => self.read(meeting)?,
            Act::FetchAdd => self.fetch_add(meeting)?,
            Act::CompareSwap => self.compare_swap(meeting)?,
            Act::Datagram => self.datagram(meeting)?,
            Act::WrongKey => self.wrong_key(meeting)?,
        };
        if !matches!(act, Act::Send | Act::WriteImmediate) {
            meeting.control.tell(&Order::Look)?;
        }
        match peer::answer(meeting)? {
            PeerAnswer::Verdict { right: agreed, said: bob } => {
                Ok(Step { act, right: right && agreed, status, bytes, took, alice, bob })
            }
            other => Err(peer::unexpected(&other)),
        }
    }

    fn send(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let answer = self.qp.recv(meeting.station.pd.allocate(64)?)?;
        let message = meeting.station.pd.register(known::GREETING)?;
        let begun = Instant::now();
        finish(self.qp.send(message)?, &meeting.control)?;
        let took = begun.elapsed();
        let answer = finish(answer, &meeting.control)?;
        let text = String::from_utf8_lossy(answer.payload()).into_owned();
        let right = answer.payload() == known::REPLY;
        Ok((right, known::GREETING.len(), took, format!("bob answered {text:?}"), Status::Success))
    }

    fn write(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let source = meeting.station.pd.register(known::bytes(Act::Write as u64, known::SIZE))?;
        let target = self.there.slice(0..known::SIZE as u64)?;
        let begun = Instant::now();
        finish(self.qp.write(source, target)?, &meeting.control)?;
        Ok((true, known::SIZE, begun.elapsed(), "the WRITE completed".into(), Status::Success))
    }

    fn write_immediate(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let source = meeting.station.pd.register(known::bytes(Act::WriteImmediate as u64, known::SHORT))?;
        let target = self.there.slice(0..known::SHORT as u64)?;
        let begun = Instant::now();
        finish(self.qp.write_imm(source, target, known::IMMEDIATE)?, &meeting.control)?;
        Ok((true, known::SHORT, begun.elapsed(), "the WRITE completed".into(), Status::Success))
    }

    fn read(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let buffer = meeting.station.pd.allocate(known::SIZE)?;
        let source = self.there.slice(0..known::SIZE as u64)?;
        let begun = Instant::now();
        let buffer = finish(self.qp.read(buffer, source)?, &meeting.control)?;
        let took = begun.elapsed();
        let expected = known::bytes(Act::Read as u64, known::SIZE);
        let different: Vec<usize> = (0..known::SIZE).filter(|at| buffer.get(*at) != expected.get(*at)).collect();
        let said = match (different.first(), different.last()) {
            (Some(first), Some(last)) => {
                format!("WRONG: {} bytes between {first} and {last} are not as bob has them", different.len())
            }
            _ => format!("all {} bytes are here, each as bob has it", known::SIZE),
        };
        Ok((different.is_empty(), known::SIZE, took, said, Status::Success))
    }

    fn counter(&self) -> Result<RemoteSlice, Error> {
        self.there.slice(known::COUNTER_AT as u64..known::COUNTER_AT as u64 + 8)
    }

    fn fetch_add(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let begun = Instant::now();
        let before = finish(self.qp.fetch_add(self.counter()?, known::ADDED)?, &meeting.control)?;
        let right = before == known::COUNTER;
        Ok((right, 8, begun.elapsed(), format!("the counter stood at {before}"), Status::Success))
    }

    fn compare_swap(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let expected = known::COUNTER + known::ADDED;
        let begun = Instant::now();
        let first = finish(self.qp.compare_swap(self.counter()?, expected, known::SWAPPED)?, &meeting.control)?;
        let took = begun.elapsed();
        // The same again finds another number than it expects, and changes nothing.
        let second = finish(self.qp.compare_swap(self.counter()?, expected, 1)?, &meeting.control)?;
        let said = format!("the first found {first} and swapped, the second found {second} and changed nothing");
        Ok((first == expected && second == known::SWAPPED, 8, took, said, Status::Success))
    }

    fn datagram(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let pd = &meeting.station.pd;
        let to = pd.address(&self.bobs_datagram)?;
        let bytes = known::bytes(Act::Datagram as u64, known::DATAGRAM);
        let mut answer = self.datagram.recv(pd.allocate(GRH_LENGTH + known::DATAGRAM)?)?;
        for attempt in 1..=known::TRIES {
            let begun = Instant::now();
            finish(self.datagram.send_to(pd.register(bytes.clone())?, &to)?, &meeting.control)?;
            if let Some(answer) = answer.wait_for(Duration::from_millis(500)) {
                let answer = answer?;
                let right = answer.payload().iter().rev().eq(&bytes);
                let again = if attempt > 1 { format!(", at attempt {attempt}") } else { String::new() };
                let said = format!("bob's answer has the same {} bytes, backwards{again}", answer.bytes());
                return Ok((right, known::DATAGRAM, begun.elapsed(), said, Status::Success));
            }
            if meeting.control.is_gone() {
                return Err(Failure::PeerGone);
            }
        }
        Ok((false, 0, Duration::ZERO, format!("no answer to {} datagrams", known::TRIES), Status::Success))
    }

    fn wrong_key(&self, meeting: &Meeting) -> Result<Found, Failure> {
        let wrong = Key::new(self.there.key().value() ^ 1);
        let forged = RemoteSlice::new(self.there.address(), known::SHORT as u64, wrong);
        let source = meeting.station.pd.register(vec![0; known::SHORT])?;
        let begun = Instant::now();
        let ended = finish(self.spare.write(source, forged)?, &meeting.control);
        let took = begun.elapsed();
        match ended {
            Err(Failure::Verbs(Error::Completion(error))) => {
                // Where packets are lost the refusal may be, and a queue pair in ERR, as bob's is then, does not answer
                // twice.
                let refused = matches!(error.status, Status::RemoteAccess | Status::RetryExceeded);
                let right = refused && self.spare.state() == State::Error;
                Ok((right, 0, took, error.to_string(), error.status))
            }
            Err(other) => Err(other),
            Ok(_) => Ok((false, known::SHORT, took, "it was carried out!".into(), Status::Success)),
        }
    }
}
