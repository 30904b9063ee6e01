//! What processes of a host say to each other: messages of forwarded packets, greetings with descriptors, connection
//! records. A process that does not keep to the rules gets nothing out of it, and every descriptor it passes is closed.

use crate::choices::Choices;
use crate::descriptors::open_descriptors;
use host::connection_records::{self, RECORD_BYTES};
use host::descriptor::Descriptor;
use host::forward::{Inbox, message};
use host::names::{self, Name};
use host::slots::Slots;
use host::{greeting, passing};
use link::shared::Reader;
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// A process with a name, that others call.
struct Desk {
    slots: Slots,
    name: Name,
    inbox: Inbox,
    /// Files to pass: an empty one, and one as long as a ring, which is not sealed.
    files: [File; 2],
    /// How many the process has when nobody calls.
    descriptors: usize,
}

/// Connections that a thread is just opening or closing. What is not closed adds up over the inputs.
const UNDER_WAY: usize = 3;

/// So long without a new descriptor, and there are all that a process keeps.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// How long a busy machine may take to close what has come.
const CLOSED_WITHIN: Duration = Duration::from_secs(20);

thread_local! {
    /// Made once: names and sets of descriptors take their time.
    static DESK: RefCell<Option<Desk>> = const { RefCell::new(None) };
}

fn memory(name: &std::ffi::CStr) -> File {
    // SAFETY: a name that ends with a zero, and a number; the descriptor that comes back is ours.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0, "memory for a file");
        OwnedFd::from_raw_fd(fd).into()
    }
}

impl Desk {
    fn new() -> Desk {
        let slots = Slots::open().expect("a set of descriptors");
        let name = Name::Slot(slots.take().expect("a free slot"));
        let inbox = Inbox::new(&slots);
        let files = [memory(c"empty"), memory(c"long")];
        files[1].set_len((4096 + link::shared::SMALL_RING_BYTES) as u64).expect("room");
        let mut desk = Desk { slots, name, inbox, files, descriptors: 0 };
        desk.settle();
        desk
    }

    /// Waits until the thread that accepts has opened what it needs: it has when it has served a connection.
    fn settle(&mut self) {
        let caller = names::socket().expect("a socket");
        names::connect(&caller, self.name).expect("it listens");
        drop(caller);
        let (mut before, mut since) = (0, Instant::now());
        while since.elapsed() < SETTLED_AFTER {
            serve(self);
            let now = open_descriptors();
            if std::mem::replace(&mut before, now) != now {
                since = Instant::now();
            }
        }
        self.descriptors = before;
    }
}

/// Lets bytes decide what a process says to another, and with which descriptors.
///
/// # Panics
/// If a rule is broken.
pub fn messages(bytes: &[u8]) {
    forwarded(bytes);
    DESK.with_borrow_mut(|desk| call(desk.get_or_insert_with(Desk::new), &mut Choices { bytes }));
}

/// What reads as packets is written the same.
fn forwarded(bytes: &[u8]) {
    let mut again = Vec::new();
    let mut packets = 0;
    let malformed = message::read(bytes, |arrival| {
        packets += 1;
        assert!(message::append(&mut again, arrival), "what fits one message fits another");
    });
    assert!(packets + malformed <= message::count(bytes) + 1);
    if packets > 0 {
        let mut twice = Vec::new();
        assert_eq!(message::read(&again, |arrival| assert!(message::append(&mut twice, arrival))), 0);
        assert_eq!(twice, again);
    }
    if let Some(kind) = greeting::kind(bytes) {
        assert_eq!(greeting::of(kind), bytes);
    }
}

/// One connection to a process: messages, and its end.
fn call(desk: &mut Desk, choices: &mut Choices<'_>) {
    let caller = names::socket().expect("a socket");
    names::connect(&caller, desk.name).expect("it listens");
    while !choices.bytes.is_empty() {
        let kind = choices.byte() % 8;
        let mut said = match kind {
            0 | 1 => greeting::of(greeting::RING_OFFER).to_vec(),
            2 | 3 => greeting::of(greeting::CONNECTION_RECORDS).to_vec(),
            4 => greeting::of(choices.byte()).to_vec(),
            5 => b"UbiF\x01\x01\x00\x01".to_vec(),
            _ => Vec::new(),
        };
        let length = if kind < 5 && !choices.one_in(4) { 0 } else { usize::from(choices.byte()) };
        said.extend(choices.slice(length));
        let files = [desk.files[0].as_raw_fd(), desk.files[1].as_raw_fd()];
        let count = choices.of(&[0, 1, 1, 2, 3, 4, 9, 60]);
        let passed: Vec<RawFd> = (0..count).map(|_| choices.of(&files)).collect();
        send(&caller, &said, &passed);
        if choices.one_in(2) {
            serve(desk);
        }
    }
    serve(desk);
    drop(caller);
    // Threads of the process accept, and close what strangers sent.
    let deadline = Instant::now() + CLOSED_WITHIN;
    loop {
        serve(desk);
        let left = open_descriptors();
        if left <= desk.descriptors + UNDER_WAY {
            return;
        }
        assert!(Instant::now() < deadline, "{left} descriptors, {} at first: some are not closed", desk.descriptors);
        std::thread::yield_now();
    }
}

/// The process that is called does what it does.
fn serve(desk: &mut Desk) {
    while desk
        .inbox
        .receive(|arrival| assert!(arrival.bytes.len() <= message::MAX_MESSAGE_BYTES))
        .expect("the set works")
    {}
    for offer in desk.slots.registry().take_offers() {
        for file in &offer.descriptors {
            assert!(Reader::accept(file.as_fd()).is_err(), "nobody passed a ring");
        }
        let _ = passing::send(&offer.socket, &greeting::of(greeting::RING_REFUSAL), &[]);
    }
    // The NIC's thread for reports would answer them.
    drop(desk.slots.registry().take_inquiries());
    for will in desk.slots.registry().take_connection_records() {
        if let Ok(memory) = connection_records::open(&will) {
            assert!(connection_records::read(memory).0.is_empty(), "nobody wrote any");
        }
    }
}

/// Sends any number of descriptors, more than `passing::send` would.
fn send(socket: &Descriptor, bytes: &[u8], descriptors: &[RawFd]) {
    let mut control = [0u64; 64];
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a message; all that it points to lives until the call has returned, and the control message
    // fits: at most 60 descriptors and its header are less than 512 bytes.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        if !descriptors.is_empty() {
            let length = size_of_val(descriptors) as u32;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(descriptors.as_ptr().cast::<u8>(), libc::CMSG_DATA(header), length as usize);
        }
        // It may have hung up, or may not read: that is its right.
        libc::sendmsg(socket.raw(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

/// Takes bytes for the connection records of a process that has ended.
///
/// # Panics
/// If records are read that are not written the same.
pub fn records(bytes: &[u8]) {
    let mut file = memory(c"records");
    file.write_all(bytes).expect("room");
    let (found, unreadable) = connection_records::read(file.into());
    let mut places = bytes.chunks_exact(RECORD_BYTES).filter(|place| **place != [0; RECORD_BYTES]);
    assert_eq!(found.len() + unreadable as usize, places.clone().count());
    for record in found {
        let encoded = record.encode();
        // Bits of a queue pair number that mean nothing are not kept.
        let same = |place: &[u8]| place[..40] == encoded[..40] && place[41..] == encoded[41..];
        assert!(places.any(same), "{record:?} is written another way");
    }
}
