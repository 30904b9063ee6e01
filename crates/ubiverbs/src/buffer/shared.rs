//! Memory that peers reach while the program does.

use crate::allocation::Allocation;
use crate::domain::{ProtectionDomain, grantable};
use crate::own::FileMap;
use crate::registration::{empty, within};
use crate::remote::RemoteSlice;
use hca::Mapping;
use seam::Error;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use transport::Access;
use wire::refuse_if;

/// A window that local code and peers use at the same time.
///
/// Made by [`ProtectionDomain::share`](crate::ProtectionDomain::share), or of a file by
/// [`share_file`](crate::ProtectionDomain::share_file). Peers get at it through the [`RemoteSlice`] it gives out, until
/// it is revoked. Because a peer may write at any moment there is no `&[u8]` of it: bytes are copied in and out,
/// numbers are loaded and stored as atomics. Clones are handles of the same memory.
///
/// ```
/// # use ubiverbs::Access;
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let region = pd.share(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
/// region.write_at(100, b"for everyone")?;
/// let mut copy = [0; 12];
/// region.read_at(100, &mut copy)?;
/// assert_eq!(&copy, b"for everyone");
///
/// // What a peer needs to know: 24 bytes, to be sent to it in any way.
/// let ticket: [u8; 24] = region.remote_slice().to_bytes();
/// # Ok::<(), ubiverbs::Error>(())
/// ```
///
/// ```compile_fail,E0614
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// let region = pd.share(4096, ubiverbs::Access::REMOTE_WRITE)?;
/// let bytes: &[u8] = &*region; // error: a SharedRegion cannot be dereferenced
/// # Ok::<(), ubiverbs::Error>(())
/// ```
#[derive(Clone)]
#[doc(alias = "ibv_mr")]
pub struct SharedRegion {
    allocation: Arc<Allocation>,
    start: usize,
    length: usize,
}

impl ProtectionDomain {
    /// Allocates `length` zeroed bytes that peers may reach with these rights, while the program uses them too. With
    /// [`LOCAL_WRITE`](Access::LOCAL_WRITE) alone no peer reaches them, and work of this program may name them many
    /// times at once.
    ///
    /// # Errors
    /// [`Error::NoRights`] for no rights at all, [`Error::Rights`] for those that cannot be given.
    #[doc(alias = "ibv_reg_mr")]
    pub fn share(&self, length: usize, rights: Access) -> Result<SharedRegion, Error> {
        grantable(rights)?;
        refuse_if!(rights.is_empty(), Error::NoRights);
        Ok(SharedRegion::new(Allocation::shared(&self.core().opened, self.id, length, rights)?))
    }

    /// Lets peers, and work of this program, reach a part of a file where the kernel keeps it, without a copy: sends
    /// and WRITEs come from the file, receives and READs go into it. A file that was opened for reading only is never
    /// written, by anybody.
    ///
    /// ```
    /// # use std::io::Read;
    /// # use ubiverbs::{Access, Reliable};
    /// # let context = ubiverbs::device("ubi_lo")?.open()?;
    /// # let pd = context.alloc_pd()?;
    /// # let cq = context.completion_queue(16).create()?;
    /// # let [client, _server] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    /// # let path = std::env::temp_dir().join(format!("ubiverbs-share-file-{}", std::process::id()));
    /// # let io = |source| ubiverbs::Error::System { what: "file", source };
    /// let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).map_err(io)?;
    /// file.set_len(1 << 20).map_err(io)?;
    /// let region = pd.share_file(&file, 0..1 << 20, Access::REMOTE_WRITE)?;
    ///
    /// client.write_inline(b"straight into the file", region.remote_slice())?.wait()?;
    /// assert!(std::fs::read(&path).map_err(io)?.starts_with(b"straight into the file"));
    /// # std::fs::remove_file(&path).map_err(io)?;
    /// # Ok::<(), ubiverbs::Error>(())
    /// ```
    ///
    /// # Who else has the file
    ///
    /// Any process may change the file at any time. What it writes is seen here and by peers, and what they write is
    /// seen there, as between threads: eight aligned bytes are never torn, and everything else is for the programs to
    /// arrange. That is why there is no `&[u8]` of a file. One that is made **shorter** takes the memory behind its new
    /// end away: touching that ends this process with `SIGBUS`, as with every map. Where others may do so, add
    /// [`Access::ON_DEMAND`]: then the NIC's accesses go through the kernel and are refused instead, which is slower,
    /// and only `read_at`, `write_at` and the atomic operations of this program remain dangerous. The file's bytes
    /// reach the disk when the kernel writes them, at the latest with [`sync_all`](std::fs::File::sync_all), or by a
    /// FLUSH of a peer with [`Access::FLUSH_PERSISTENT`].
    ///
    /// # Errors
    /// [`Error::System`] if the file cannot be mapped, is shorter than that, or was not opened with the rights that
    /// peers are to have.
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "mmap")]
    pub fn share_file(&self, file: &impl AsFd, range: Range<u64>, rights: Access) -> Result<SharedRegion, Error> {
        const WHAT: &str = "cannot map the file";
        // Without any it is for work of this program.
        grantable(rights.difference(Access::ON_DEMAND))?;
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        refuse_if!(length == 0, empty());
        let mapped = |write| Mapping::of_file(file.as_fd(), range.start, length, write);
        let (mapping, access) = match mapped(true) {
            Ok(mapping) => (mapping, rights | Access::LOCAL_WRITE),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !rights.writes() => {
                (mapped(false).map_err(|source| Error::System { what: WHAT, source })?, rights)
            }
            Err(source) => return Err(Error::System { what: WHAT, source }),
        };
        let allocation = Allocation::keep(&self.core().opened, self.id, FileMap { mapping, length }, access);
        Ok(SharedRegion::new(allocation.map_err(|(error, _)| error)?))
    }
}

impl SharedRegion {
    pub(crate) fn new(allocation: Arc<Allocation>) -> SharedRegion {
        let length = allocation.len();
        SharedRegion { allocation, start: 0, length }
    }

    /// How many bytes.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.length
    }

    /// A handle of a part, to send from or read into.
    pub fn part(&self, range: Range<usize>) -> Result<SharedRegion, Error> {
        let length = range.end.saturating_sub(range.start);
        self.check(range.start, length)?;
        Ok(SharedRegion { allocation: Arc::clone(&self.allocation), start: self.start + range.start, length })
    }

    /// What a peer uses to reach it.
    pub fn remote_slice(&self) -> RemoteSlice {
        RemoteSlice::new(
            self.allocation.address() + self.start as u64,
            self.length as u64,
            self.allocation.registration().key(),
        )
    }

    /// Copies bytes out. Aligned groups of eight are never torn; whether different groups are of one age is for the
    /// peers to arrange.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.allocation.load(self.start + offset, out)
    }

    /// Copies bytes in, ascending, the last up to eight last.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(offset, bytes.len())?;
        self.check_writable()?;
        self.allocation.store(self.start + offset, bytes)
    }

    /// The number in eight aligned bytes, and everything that was written before it.
    pub fn load(&self, offset: usize) -> Result<u64, Error> {
        self.check(offset, 8)?;
        Ok(self.allocation.word(self.start + offset)?.load(Ordering::Acquire))
    }

    /// Stores a number into eight aligned bytes, after everything that was written before.
    pub fn store(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.check(offset, 8)?;
        self.check_writable()?;
        self.allocation.word(self.start + offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to the number in eight aligned bytes and returns what it was. Atomic towards peers' operations as well.
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Error> {
        self.check(offset, 8)?;
        self.check_writable()?;
        Ok(self.allocation.word(self.start + offset)?.fetch_add(add, Ordering::SeqCst))
    }

    /// Replaces the number in eight aligned bytes if it is `compare`, and returns what it was. Atomic towards peers'
    /// operations as well.
    pub fn compare_swap(&self, offset: usize, compare: u64, swap: u64) -> Result<u64, Error> {
        self.check(offset, 8)?;
        self.check_writable()?;
        let word = self.allocation.word(self.start + offset)?;
        match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(before) | Err(before) => Ok(before),
        }
    }

    /// Takes the memory away from peers: when this returns, none touches it, and no key they hold opens anything. Work
    /// of our own that is in flight for it fails. Local access goes on.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn revoke(&self) -> Result<(), Error> {
        self.allocation.registration().revoke()
    }

    /// Whether peers' access was taken away.
    pub fn is_revoked(&self) -> bool {
        self.allocation.registration().is_revoked()
    }

    pub(crate) fn into_allocation(self) -> Arc<Allocation> {
        self.allocation
    }

    pub(crate) fn place(&self) -> (&Allocation, usize, usize) {
        (&self.allocation, self.start, self.length)
    }

    fn check_writable(&self) -> Result<(), Error> {
        if self.allocation.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    fn check(&self, offset: usize, length: usize) -> Result<(), Error> {
        within(self.length, offset, length)
    }
}

impl fmt::Debug for SharedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRegion({} bytes{})", self.length, if self.is_revoked() { ", revoked" } else { "" })
    }
}
