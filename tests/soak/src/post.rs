//! Posting: a message of the plan becomes work on a queue pair, alone or in a batch.

use ubiverbs::{
    Access, AddressHandle, Batch, Datagram, Error, ProtectionDomain, QueuePair, Registered, RegisteredMut, Reliable,
    RemoteSlice, SharedRegion, Unreliable,
};

use crate::bytes::{FILL, stream};
use crate::harvest::{Slip, Style, slip};
use crate::plan::{GUARD, Message, Source, What};

/// A queue pair that is ready.
pub enum Qp {
    Reliable(QueuePair<Reliable>),
    Unreliable(QueuePair<Unreliable>),
    Datagram(QueuePair<Datagram>, AddressHandle),
}

/// Where the peer's memory is.
#[derive(Clone, Copy, Debug)]
pub struct Theirs {
    pub inbox: RemoteSlice,
    pub outbox: RemoteSlice,
    pub counters: RemoteSlice,
    pub together: RemoteSlice,
}

/// A message that is about to be posted.
#[derive(Clone)]
pub struct Job {
    pub message: Message,
    pub id: u64,
    /// What a word must hold for it to be replaced.
    pub compare: u64,
}

/// What all jobs of a burst have in common.
pub struct Poster<'a> {
    pub pd: &'a ProtectionDomain,
    pub style: Style,
    pub theirs: Theirs,
}

/// The bytes of a message, as they lie in memory.
enum Lying {
    Fresh(RegisteredMut),
    Frozen(Registered),
    Pieces(Vec<RegisteredMut>),
    Shared(SharedRegion),
}

impl Poster<'_> {
    fn bytes(&self, message: &Message) -> Result<Lying, Error> {
        let bytes = stream(message.key, message.length);
        self.lay(message, bytes, 0)
    }

    /// Room for a READ, with something behind it that must stay as it is.
    fn room(&self, message: &Message) -> Result<Lying, Error> {
        let length = message.length + GUARD;
        match message.source {
            Source::Frozen => {
                self.lay(&Message { source: Source::Fresh, ..message.clone() }, vec![FILL; length], length)
            }
            _ => self.lay(message, vec![FILL; length], length),
        }
    }

    fn lay(&self, message: &Message, bytes: Vec<u8>, least: usize) -> Result<Lying, Error> {
        let length = bytes.len();
        match message.source {
            Source::Shared if length > 0 => {
                let region = self.pd.share(length, Access::LOCAL_WRITE)?;
                region.write_at(0, &bytes)?;
                Ok(Lying::Shared(region))
            }
            Source::Pieces if length >= 4 => {
                let mut first = self.pd.register(bytes)?;
                let mut second = first.split_off(length / 3);
                let third = second.split_off((length / 2).min(second.len()));
                Ok(Lying::Pieces(vec![first, second, third]))
            }
            Source::Fresh if length > 0 => Ok(Lying::Fresh(self.pd.register(bytes)?)),
            _ if least > 0 => Ok(Lying::Fresh(self.pd.register(bytes)?)),
            _ => {
                let mut longer = bytes;
                longer.extend_from_slice(&[FILL; 9]);
                longer.rotate_right(4);
                Ok(Lying::Frozen(self.pd.register(longer)?.freeze().slice(4..4 + length)))
            }
        }
    }

    fn into(&self, message: &Message) -> Result<RemoteSlice, Error> {
        let from = message.place as u64;
        self.theirs.inbox.slice(from..from + message.length as u64)
    }

    fn from(&self, message: &Message) -> Result<RemoteSlice, Error> {
        let from = message.place as u64;
        self.theirs.outbox.slice(from..from + message.length as u64)
    }
}

/// Posts with a buffer of whichever type it is.
macro_rules! with_bytes {
    ($poster:expr, $job:expr, |$buffer:ident| $post:expr) => {
        match $poster.bytes(&$job.message)? {
            Lying::Fresh($buffer) => slip($poster.style, $job.id, $post?),
            Lying::Frozen($buffer) => slip($poster.style, $job.id, $post?),
            Lying::Pieces($buffer) => slip($poster.style, $job.id, $post?),
            Lying::Shared($buffer) => slip($poster.style, $job.id, $post?),
        }
    };
}

/// What every connected queue pair can do, and its batches by the same names.
macro_rules! post_connected {
    ($target:expr, $poster:expr, $job:expr) => {{
        let (message, style, id) = (&$job.message, $poster.style, $job.id);
        let short = || stream(message.key, message.length);
        match message.what {
            What::Send => with_bytes!($poster, $job, |buffer| $target.send(buffer)),
            What::SendImmediate => {
                with_bytes!($poster, $job, |buffer| $target.send_imm(buffer, message.immediate))
            }
            What::SendInline => slip(style, id, $target.send_inline(&short())?),
            What::SendQuietly => {
                $target.send_quietly(&short(), message.number as u32)?;
                None
            }
            What::Write => {
                with_bytes!($poster, $job, |buffer| $target.write(buffer, $poster.into(message)?))
            }
            What::WriteImmediate => with_bytes!($poster, $job, |buffer| $target.write_imm(
                buffer,
                $poster.into(message)?,
                message.immediate
            )),
            What::WriteInline => slip(style, id, $target.write_inline(&short(), $poster.into(message)?)?),
            What::WriteQuietly => {
                $target.write_quietly(&short(), $poster.into(message)?, message.number as u32)?;
                None
            }
            _ => unreachable!("plans give a transport what it can do"),
        }
    }};
}

macro_rules! post_reliable {
    ($target:expr, $poster:expr, $job:expr) => {{
        let (message, style, id) = (&$job.message, $poster.style, $job.id);
        let own = $poster.theirs.counters;
        match message.what {
            What::Read => match $poster.room(message)? {
                Lying::Fresh(buffer) => slip(style, id, $target.read(buffer, $poster.from(message)?)?),
                Lying::Pieces(buffer) => slip(style, id, $target.read(buffer, $poster.from(message)?)?),
                Lying::Shared(buffer) => slip(style, id, $target.read(buffer, $poster.from(message)?)?),
                Lying::Frozen(_) => unreachable!("nothing is read into what is read-only"),
            },
            What::Add => slip(style, id, $target.fetch_add(own.slice(8..16)?, message.value)?),
            What::AddTogether => {
                slip(style, id, $target.fetch_add($poster.theirs.together.slice(8..16)?, message.value)?)
            }
            What::Swap { .. } => {
                slip(style, id, $target.compare_swap(own.slice(16..24)?, $job.compare, message.value)?)
            }
            _ => post_connected!($target, $poster, $job),
        }
    }};
}

macro_rules! post_datagram {
    ($target:expr, $to:expr, $poster:expr, $job:expr) => {{
        let message = &$job.message;
        let short = || stream(message.key, message.length);
        match message.what {
            What::SendInline => slip($poster.style, $job.id, $target.send_inline_to(&short(), $to)?),
            What::SendQuietly => {
                $target.send_quietly_to(&short(), $to, message.number as u32)?;
                None
            }
            _ => with_bytes!($poster, $job, |buffer| $target.send_to(buffer, $to)),
        }
    }};
}

/// Posts one after the other.
pub fn singly(qp: &Qp, poster: &Poster<'_>, jobs: &[Job]) -> Result<Vec<Slip>, Error> {
    jobs.iter()
        .map(|job| {
            Ok(match qp {
                Qp::Reliable(qp) => post_reliable!(qp, poster, job),
                Qp::Unreliable(qp) => post_connected!(qp, poster, job),
                Qp::Datagram(qp, to) => post_datagram!(qp, to, poster, job),
            })
        })
        .collect()
}

/// Posts together.
pub fn together(qp: &Qp, poster: &Poster<'_>, jobs: &[Job]) -> Result<Vec<Slip>, Error> {
    let mut slips = Vec::with_capacity(jobs.len());
    match qp {
        Qp::Reliable(qp) => {
            let mut batch: Batch<'_, Reliable> = qp.batch();
            for job in jobs {
                if job.message.fence {
                    batch.fence();
                }
                slips.push(post_reliable!(batch, poster, job));
            }
            batch.post()?;
        }
        Qp::Unreliable(qp) => {
            let mut batch = qp.batch();
            for job in jobs {
                slips.push(post_connected!(batch, poster, job));
            }
            batch.post()?;
        }
        Qp::Datagram(qp, to) => {
            let mut batch = qp.batch();
            for job in jobs {
                slips.push(post_datagram!(batch, to, poster, job));
            }
            batch.post()?;
        }
    }
    Ok(slips)
}
