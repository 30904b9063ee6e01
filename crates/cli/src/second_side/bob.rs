//! Bob: shares memory, posts receives, and looks at what arrived. For WRITE, READ and the atomics his program does
//! nothing between "ready" and "look": his NIC serves alice.

use crate::acts::{Act, known};
use crate::exit::Failure;
use crate::meeting::Meeting;
use crate::peer::{Introduction, Order, PeerAnswer};
use crate::station::finish;
use std::collections::VecDeque;
use std::time::Duration;
use ubiverbs::{Access, Datagram, Endpoint, Error, GRH_LENGTH, QueuePair, Reliable, SharedRegion};

/// Bob's queue pairs and memory.
pub struct Bob {
    qp: QueuePair<Reliable>,
    /// Broken by the last act; only has to exist until then.
    _spare: QueuePair<Reliable>,
    datagram: QueuePair<Datagram>,
    region: SharedRegion,
}

impl Bob {
    /// Makes them, and tells alice.
    pub fn introduce(meeting: &mut Meeting, theirs: &Introduction) -> Result<Bob, Failure> {
        let station = &meeting.station;
        let (connected, spare) = (station.prepare::<Reliable>()?, station.prepare::<Reliable>()?);
        let datagram = station.prepare::<Datagram>()?.activate()?;
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = station.pd.share(known::REGION, rights)?;
        let ours = Introduction {
            connected: connected.endpoint().to_string(),
            spare: spare.endpoint().to_string(),
            datagram: datagram.endpoint().to_string(),
            region: Some(region.remote_slice().to_string()),
        };
        let qp = connected.connect(&theirs.connected.parse::<Endpoint>()?)?;
        let spare = spare.connect(&theirs.spare.parse::<Endpoint>()?)?;
        meeting.control.tell(&PeerAnswer::Introduced(ours))?;
        Ok(Bob { qp, _spare: spare, datagram, region })
    }

    /// Plays one act and gives a verdict. Returns it in words.
    pub fn play(&mut self, act: Act, meeting: &mut Meeting) -> Result<String, Failure> {
        let (right, said) = match act {
            Act::Send => self.receive_and_answer(meeting)?,
            Act::Datagram => self.receive_datagram(meeting)?,
            Act::WriteImmediate => self.receive_immediate(meeting)?,
            Act::Write => {
                self.region.write_at(0, &vec![0; known::SIZE])?;
                self.stand_by(meeting)?;
                let right = self.holds(Act::Write, known::SIZE)?;
                (right, format!("all {} bytes are in my memory, each as it should be", known::SIZE))
            }
            Act::Read => {
                self.region.write_at(0, &known::bytes(Act::Read as u64, known::SIZE))?;
                self.stand_by(meeting)?;
                let right = self.holds(Act::Read, known::SIZE)?;
                (right, "my memory is as it was".into())
            }
            Act::FetchAdd => {
                self.region.store(known::COUNTER_AT, known::COUNTER)?;
                self.stand_by(meeting)?;
                let now = self.region.load(known::COUNTER_AT)?;
                (now == known::COUNTER + known::ADDED, format!("the counter stands at {now}"))
            }
            Act::CompareSwap => {
                self.stand_by(meeting)?;
                let now = self.region.load(known::COUNTER_AT)?;
                (now == known::SWAPPED, format!("the number is {now} now"))
            }
            Act::WrongKey => {
                self.region.write_at(0, &known::bytes(Act::WrongKey as u64, known::SHORT))?;
                self.stand_by(meeting)?;
                (self.holds(Act::WrongKey, known::SHORT)?, "nothing was written into my memory".into())
            }
        };
        let said = if right { said } else { format!("WRONG, it is not so: {said}") };
        meeting.control.tell(&PeerAnswer::Verdict { right, said: said.clone() })?;
        Ok(format!("{act:?}: {said}"))
    }

    /// Says that all is prepared, and does nothing until alice says that it is done.
    fn stand_by(&self, meeting: &mut Meeting) -> Result<(), Failure> {
        meeting.control.tell(&PeerAnswer::Ready)?;
        match meeting.control.hear()? {
            Order::Look => Ok(()),
            other => Err(Failure::Nonsense(format!("{other:?} in the middle of an act"))),
        }
    }

    fn holds(&self, act: Act, length: usize) -> Result<bool, Error> {
        let mut bytes = vec![0; length];
        self.region.read_at(0, &mut bytes)?;
        Ok(bytes == known::bytes(act as u64, length))
    }

    fn receive_and_answer(&self, meeting: &mut Meeting) -> Result<(bool, String), Failure> {
        let receiving = self.qp.recv(meeting.station.pd.allocate(64)?)?;
        meeting.control.tell(&PeerAnswer::Ready)?;
        let received = finish(receiving, &meeting.control)?;
        let reply = meeting.station.pd.register(known::REPLY)?;
        finish(self.qp.send(reply)?, &meeting.control)?;
        let text = String::from_utf8_lossy(received.payload()).into_owned();
        Ok((received.payload() == known::GREETING, format!("received {:?}, {} bytes", text, received.bytes())))
    }

    fn receive_immediate(&self, meeting: &mut Meeting) -> Result<(bool, String), Failure> {
        let receiving = self.qp.recv(meeting.station.pd.allocate(8)?)?;
        meeting.control.tell(&PeerAnswer::Ready)?;
        let received = finish(receiving, &meeting.control)?;
        let right = received.immediate() == Some(known::IMMEDIATE) && received.bytes() == known::SHORT;
        let number = received.immediate().unwrap_or_default();
        let said = format!("{} bytes are in my memory, and the number {number} came with them", received.bytes());
        Ok((right && self.holds(Act::WriteImmediate, known::SHORT)?, said))
    }

    fn receive_datagram(&self, meeting: &mut Meeting) -> Result<(bool, String), Failure> {
        let pd = &meeting.station.pd;
        let mut waiting = VecDeque::new();
        // Alice asks again if a datagram or its answer is lost; each finds a receive of its own.
        for buffer in pd.allocate(known::TRIES * (GRH_LENGTH + known::DATAGRAM))?.chunks(GRH_LENGTH + known::DATAGRAM) {
            waiting.push_back(self.datagram.recv(buffer)?);
        }
        meeting.control.tell(&PeerAnswer::Ready)?;
        let expected = known::bytes(Act::Datagram as u64, known::DATAGRAM);
        let mut seen = (false, "no datagram came".to_owned());
        loop {
            if let Some(Order::Look) = meeting.control.heard()? {
                return Ok(seen);
            }
            let Some(receiving) = waiting.front_mut() else { return Ok(seen) };
            let Some(received) = receiving.wait_for(Duration::from_millis(5)) else { continue };
            waiting.pop_front();
            let received = received?;
            let Some(sender) = received.reply_address(&self.datagram) else { continue };
            let mut reply = received.payload().to_vec();
            let right = reply == expected;
            reply.reverse();
            finish(self.datagram.send_to(pd.register(reply)?, &sender)?, &meeting.control)?;
            let (qpn, from) = (sender.qpn(), sender.gid().to_ip());
            seen = (right, format!("received a datagram from queue pair {qpn} at {from}, and answered it"));
        }
    }
}
