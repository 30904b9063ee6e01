//! What peers may reach: an inbox they write into, with guards around every message; an outbox they read; words they
//! count in.

use ubiverbs::{
    Access, Context, DeviceMemory, DeviceRegion, ProtectionDomain, RegisteredMut, RemoteSlice, SharedRegion,
};

use crate::bytes::{FILL, difference, fill, touched};
use crate::plan::{GUARD, Message};
use crate::watch::{Result, Trouble};

fn failed(e: ubiverbs::Error) -> Trouble {
    Trouble::setup("memory", e)
}

/// Where the peer writes.
pub struct Inbox {
    pub region: SharedRegion,
}

/// What must have become of the messages that write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Each has come.
    All,
    /// Each byte is as before or as the peer sent it.
    Perhaps,
}

impl Inbox {
    pub fn new(pd: &ProtectionDomain, length: usize) -> Result<Inbox> {
        let region = pd.share(length, Access::REMOTE_WRITE | Access::REMOTE_READ).map_err(failed)?;
        region.write_at(0, &vec![FILL; length]).map_err(failed)?;
        Ok(Inbox { region })
    }

    fn bytes(&self, from: usize, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.region.read_at(from, &mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    /// Looks at one message.
    pub fn look(&self, message: &Message) -> Result<()> {
        let bytes = self.bytes(message.place, message.length)?;
        match difference(message.key, 0, &bytes) {
            None => Ok(()),
            Some((at, expected, seen)) => Err(Trouble::wrong(format!(
                "message {} {:?} of {} bytes, in the inbox at {}: byte {at}: expected {expected:#04x}, seen {seen:#04x}",
                message.number, message.what, message.length, message.place
            ))),
        }
    }

    /// Whether all messages that write have come.
    pub fn has_all(&self, messages: &[Message]) -> bool {
        messages.iter().filter(|message| message.what.writes()).all(|message| self.look(message).is_ok())
    }

    /// Looks at all messages and at everything around them. Where each has come, makes it as if nobody had written.
    pub fn look_around_all(&self, messages: &[Message], written: Written) -> Result<()> {
        let mut at = 0;
        for message in messages.iter().filter(|message| message.what.writes()) {
            self.look_around(at, message.place, message)?;
            match written {
                Written::All => self.look(message)?,
                Written::Perhaps => self.look_perhaps(message)?,
            }
            at = message.place + message.length;
        }
        if let Some(last) = messages.iter().rfind(|message| message.what.writes()) {
            self.look_around(at, self.region.len(), last)?;
            if written == Written::All {
                self.region.write_at(0, &vec![FILL; at]).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// What lies between messages.
    fn look_around(&self, from: usize, to: usize, near: &Message) -> Result<()> {
        // The end of the region, and what is next to a message; the rest is looked at now and then.
        let far = to - from > 4 * GUARD && !near.number.is_multiple_of(8);
        let parts = if far { [(from, GUARD), (to - GUARD, GUARD)] } else { [(from, to - from), (to, 0)] };
        for (at, length) in parts {
            if let Some((place, seen)) = touched(&self.bytes(at, length)?) {
                return Err(Trouble::wrong(format!(
                    "inbox, byte {}, where nobody may write, near message {} {:?} of {} bytes at {}: expected {FILL:#04x}, seen {seen:#04x}",
                    at + place,
                    near.number,
                    near.what,
                    near.length,
                    near.place
                )));
            }
        }
        Ok(())
    }

    fn look_perhaps(&self, message: &Message) -> Result<()> {
        let bytes = self.bytes(message.place, message.length)?;
        let mut sent = vec![0; bytes.len()];
        fill(message.key, 0, &mut sent);
        let odd = bytes.iter().zip(&sent).position(|(seen, sent)| seen != sent && *seen != FILL);
        match odd {
            None => Ok(()),
            Some(at) => Err(Trouble::wrong(format!(
                "message {} {:?} of {} bytes, in the inbox at {}: byte {at}: expected {:#04x} or {FILL:#04x}, seen {:#04x}",
                message.number, message.what, message.length, message.place, sent[at], bytes[at]
            ))),
        }
    }
}

/// What peers read: the bytes of one stream.
pub fn outbox(pd: &ProtectionDomain, length: usize, key: u64) -> Result<SharedRegion> {
    let region = pd.share(length, Access::REMOTE_READ).map_err(failed)?;
    region.write_at(0, &crate::bytes::stream(key, length)).map_err(failed)?;
    Ok(region)
}

/// Words that peers count in. Those at either end are nobody's.
pub enum Counters {
    Own(SharedRegion),
    Device(DeviceMemory, DeviceRegion),
}

/// How many words there are.
const WORDS: usize = 4;

const GUARD_WORD: u64 = 0xa5a5_a5a5_a5a5_a5a5;

impl Counters {
    pub fn new(context: &Context, pd: &ProtectionDomain, in_device: bool) -> Result<Counters> {
        let rights = Access::REMOTE_ATOMIC | Access::REMOTE_READ;
        let counters = match in_device {
            true => {
                let memory = context.device_memory(8 * WORDS).allocate().map_err(failed)?;
                let region = pd.share_device(&memory, 0..8 * WORDS, rights).map_err(failed)?;
                Counters::Device(memory, region)
            }
            false => Counters::Own(pd.share(8 * WORDS, rights).map_err(failed)?),
        };
        for (index, value) in [GUARD_WORD, 0, 0, GUARD_WORD].into_iter().enumerate() {
            match &counters {
                Counters::Own(region) => region.store(8 * index, value),
                Counters::Device(memory, _) => memory.write_at(8 * index, &value.to_ne_bytes()),
            }
            .map_err(failed)?;
        }
        Ok(counters)
    }

    pub fn remote_slice(&self) -> RemoteSlice {
        match self {
            Counters::Own(region) => region.remote_slice(),
            Counters::Device(_, region) => region.remote_slice(),
        }
    }

    fn word(&self, index: usize) -> Result<u64> {
        match self {
            Counters::Own(region) => region.load(8 * index).map_err(failed),
            Counters::Device(memory, _) => {
                let mut bytes = [0; 8];
                memory.read_at(8 * index, &mut bytes).map_err(failed)?;
                Ok(u64::from_ne_bytes(bytes))
            }
        }
    }

    /// Compares the two words in the middle with what the peer's atomic operations must have made of them.
    pub fn look(&self, first: u64, second: u64) -> Result<()> {
        for (index, expected) in [GUARD_WORD, first, second, GUARD_WORD].into_iter().enumerate() {
            let seen = self.word(index)?;
            if seen != expected {
                let place = if matches!(self, Counters::Own(_)) { "memory" } else { "the device" };
                return Err(Trouble::wrong(format!(
                    "counter {index} in {place}: expected {expected:#x}, seen {seen:#x}"
                )));
            }
        }
        Ok(())
    }
}

/// Buffers for receives of up to `length` bytes, and what lies behind each, which nobody may touch.
pub fn receive_buffers(
    pd: &ProtectionDomain,
    count: usize,
    length: usize,
) -> Result<(Vec<RegisteredMut>, Vec<RegisteredMut>)> {
    let mut whole = pd.allocate(count * (length + GUARD)).map_err(failed)?;
    whole.fill(FILL);
    let mut buffers = whole.chunks(length + GUARD);
    let guards = buffers.iter_mut().map(|buffer| buffer.split_off(length)).collect();
    Ok((buffers, guards))
}

/// Looks at what lies behind receives.
pub fn look_behind(guards: &[RegisteredMut]) -> Result<()> {
    for guard in guards {
        if let Some((at, seen)) = touched(guard) {
            return Err(Trouble::wrong(format!("byte {at} behind a receive: expected {FILL:#04x}, seen {seen:#04x}")));
        }
    }
    Ok(())
}
