//! A part of a buffer, for one piece of work.

use crate::buffer::{Buffer, Destination, Source, sealed::Lend};
use crate::registration::within;
use seam::{Error, Failed};
use std::fmt;
use std::ops::Range;
use transport::{ProtectionDomain, Sge};

/// A part of a buffer: what is posted with it sends, reads or receives these bytes only, and hands the whole buffer
/// back.
///
/// ```
/// # use ubiverbs::{Access, Part, Reliable};
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [qp, _peer] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
/// let table = pd.publish(b"0123456789".to_vec())?;
/// let there = table.remote_slice().expect("it is published");
///
/// // READ into the middle.
/// let buffer = pd.register(b"..........".to_vec())?;
/// let buffer = qp.read(Part::of(buffer, 3..7)?, there.slice(0..4)?)?.wait()?.into_inner();
/// assert_eq!(&*buffer, b"...0123...");
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// Where several parts of one buffer are to be in flight at once, cut it with
/// [`RegisteredMut::split_off`](crate::RegisteredMut::split_off).
pub struct Part<B> {
    buffer: B,
    range: Range<usize>,
}

impl<B: Lend> Part<B> {
    /// These bytes of `buffer`; of several buffers, counted from the first byte of the first.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`], with the buffer.
    pub fn of(buffer: B, range: Range<usize>) -> Result<Part<B>, Failed<B>> {
        let any = buffer.into_buffer();
        let size = usize::try_from(any.len()).unwrap_or(usize::MAX);
        let fits = match range.end.checked_sub(range.start) {
            Some(length) => within(size, range.start, length),
            None => Err(Error::OutOfBounds { offset: range.start as u64, length: 0, size: size as u64 }),
        };
        let buffer = B::from_buffer(any).expect("what was lent as one type comes back as the same");
        match fits {
            Ok(()) => Ok(Part { buffer, range }),
            Err(error) => Err(Failed { error, buffer }),
        }
    }
}

impl<B> Part<B> {
    /// Which bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// The whole buffer.
    pub fn buffer(&self) -> &B {
        &self.buffer
    }

    /// The whole buffer, back.
    pub fn into_inner(self) -> B {
        self.buffer
    }
}

impl<B: Lend> Lend for Part<B> {
    fn into_buffer(self) -> Buffer {
        Buffer::Part(Box::new(AnyPart { buffer: self.buffer.into_buffer(), range: self.range }))
    }

    fn from_buffer(buffer: Buffer) -> Option<Part<B>> {
        let Buffer::Part(part) = buffer else { return None };
        Some(Part { buffer: B::from_buffer(part.buffer)?, range: part.range })
    }
}

impl<B: Source> Source for Part<B> {}
impl<B: Destination> Destination for Part<B> {}

impl<B: fmt::Debug> fmt::Debug for Part<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?} of {:?})", self.range, self.buffer)
    }
}

/// A part of a buffer of any type, as a completion hands it back in polling style.
#[derive(Debug)]
pub struct AnyPart {
    /// The whole buffer.
    pub buffer: Buffer,
    range: Range<usize>,
}

impl AnyPart {
    /// Which bytes.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(crate) fn len(&self) -> u64 {
        self.range.len() as u64
    }

    pub(crate) fn pieces(&self, domain: ProtectionDomain, take: &mut dyn FnMut(Sge)) -> Result<(), Error> {
        let (mut skip, mut left) = (self.range.start as u64, self.len());
        self.buffer.pieces(domain, &mut |sge: Sge| {
            let skipped = skip.min(u64::from(sge.length));
            skip -= skipped;
            let length = (u64::from(sge.length) - skipped).min(left);
            left -= length;
            if length > 0 {
                take(Sge { address: sge.address + skipped, length: length as u32, key: sge.key });
            }
        })
    }
}
