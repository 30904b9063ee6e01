//! All tuning constants of the NIC: what each bounds, in its own type, and why it has this value. What the mechanisms
//! gain is measured in `docs/performance.md`. Constants of protocols and layouts stay with the code that they belong
//! to.

use std::ops::RangeInclusive;
use std::time::Duration;

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A duration in the unit of the NIC's clock.
pub(crate) const fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

// ---- The engine, and when it leaves the driving to a polling program ----

/// Empty polls that earn a program the lease: some microseconds of polling, so a program that polls now and then never
/// has it.
pub(crate) const LEASE_POLLS_MIN: u64 = 64;
/// The most empty polls that are asked for after a program let something wait: some milliseconds of polling.
pub(crate) const LEASE_POLLS_MAX: u64 = 1 << 14;
/// The most empty polls that are asked for where the engine has a processor of its own, and takes none away from the
/// program.
pub(crate) const LEASE_POLLS_MAX_SPARE: u64 = 1 << 17;
/// How soon the engine looks in on a polling program that has just let something wait: about a wake-up.
pub(crate) const POLLER_CHECK_MIN: Duration = micros(50);
/// How late it looks in on one that never did: a lost packet waits this long at most.
pub(crate) const POLLER_CHECK_MAX: Duration = millis(1);
/// In between, this part of the time since something waited, so a program that polls now and then is mostly served.
pub(crate) const POLLER_CHECK_SHARE: u64 = 20;
/// So many polls between two looks prove that the program drives: the engine does nothing.
pub(crate) const BUSY_POLLS: u64 = 64;
/// So many are enough if they looked at the sockets: a poll that finds much there takes its time.
pub(crate) const BUSY_SOCKET_LOOKS: u64 = 4;
/// From this many processors on, both programs of a link may spin and so may their engines.
pub(crate) const SPARE_PROCESSORS: usize = 4;
/// With spare processors an engine that was rung for spins this long: a wake-up costs as much as many trains.
pub(crate) const SPARE_PROCESSOR_SPIN: Duration = micros(100);
/// An engine that has moved this much since it was rung for is in the middle of a stream: a few long trains.
pub(crate) const STREAM_BYTES: u64 = 192 * 1024;
/// Then it spins this long, wherever it runs: about what the peer needs for the next train.
pub(crate) const STREAM_SPIN: Duration = micros(15);
/// A train this long counts as part of a stream.
pub(crate) const LONG_TRAIN_BYTES: usize = 16 * 1024;
/// While the engine spins, one of so many empty looks goes beyond the rings.
pub(crate) const FULL_SCAN_EVERY: u32 = 16;
/// An engine that is rung for again and again looks at everything this often.
pub(crate) const FULL_SCAN_INTERVAL: Duration = millis(1);
/// Where rings are read the engine wakes this often though nothing rang: the only remedy for a peer that does not ring.
pub(crate) const UNHEARD_BELL_CHECK: Duration = millis(50);
/// How long until interfaces are listed again that could not be, for want of a descriptor.
pub(crate) const INTERFACE_RETRY: Duration = millis(200);
/// The engine leaves the sockets to a thread that waits for events of connections for this long after its wait has
/// ended, as it mostly waits again: waking the engine costs as much as a connection's message. What comes meanwhile
/// waits as it does for a polling thread, see [`SOCKET_LOOK_INTERVAL_IDLE`].
pub(crate) const CALLER_ABSENCE_MAX: Duration = millis(1);
/// With so few processors the engine stays off the one that its program sends from; with one there is no other.
pub(crate) const FEW_PROCESSORS: RangeInclusive<usize> = 2..=3;
/// The engine stays where it is at least this long: a program that moves is not followed at every step.
pub(crate) const AFFINITY_MIN_STAY: Duration = millis(10);

// ---- Memory of peers that is reached without them ----

/// The longest WRITE or READ that the posting thread carries out itself in memory that this process can map.
pub(crate) const MAPPED_COPY_MAX_BYTES: u32 = 1 << 20;
/// The same for other memory of the peer's, by a system call.
pub(crate) const KERNEL_COPY_MAX_BYTES: u32 = link::shared::direct::PIECE_BYTES as u32;
/// So many requests in a row have only waited for others before the next are held back until they can be carried out.
/// More than programs post before they send a message: its latency does not suffer.
pub(crate) const REQUESTS_BEFORE_HOLDING: u32 = 32;

// ---- Polling threads ----

/// One of so many polls looks at everything: a thread that others rely on may have stopped.
pub(crate) const FULL_POLL_EVERY: u64 = 32;
/// One of so many polls of a thread looks at rings that other threads poll for: each of them costs a cache line or two,
/// and its own thread mostly looks much sooner.
pub(crate) const OTHER_THREADS_RINGS_EVERY: u64 = 1024;
/// Empty polls before a thread offers its processor, where no other thread took it the last time: about ten
/// microseconds.
pub(crate) const EMPTY_POLLS_PER_YIELD: u32 = 256;
/// Empty polls before a thread offers its processor, where another thread took it the last time: about one microsecond.
pub(crate) const EMPTY_POLLS_PER_YIELD_CROWDED: u32 = 32;
/// An offer that takes longer than this was taken: a system call alone takes less.
pub(crate) const YIELD_WAS_TAKEN: Duration = micros(3);
/// A poll that looked at sockets counts as so many.
pub(crate) const SOCKET_LOOK_POLLS: u32 = 8;

// ---- Sockets ----

/// Where trains come through rings, polling threads leave sockets alone this long if queue pairs use UDP: a system call
/// costs as much as a message.
pub(crate) const SOCKET_LOOK_INTERVAL: Duration = micros(20);
/// How long polling threads leave sockets alone if no queue pair uses UDP: only connection requests come there.
pub(crate) const SOCKET_LOOK_INTERVAL_IDLE: Duration = millis(1);
/// After a packet came, polling threads look every time for this long.
pub(crate) const SOCKET_HOT: Duration = millis(1);
/// A polling thread looks only at the socket that brought packets last for at most this long, if the others had nothing
/// again and again.
pub(crate) const OTHER_SOCKETS_INTERVAL_MAX: Duration = micros(320);
/// A datagram of so many packets is one of many, mostly.
pub(crate) const FULL_DATAGRAM_PACKETS: u32 = 8;
/// Then up to so many looks are taken together, so that one acknowledgement serves them all.
pub(crate) const LOOKS_TOGETHER: u32 = 4;
/// Packets of one queue pair after which it is driven though more are at hand: the peer's window must not run dry.
pub(crate) const PACKETS_PER_DRIVE: u32 = 64;
/// So many timers are seen to before everything else is looked at again.
pub(crate) const TIMERS_PER_TURN: u32 = 256;
/// A timer that is due waits this long for a socket to be empty: what it waits for may be there.
pub(crate) const TIMER_GRACE: Duration = millis(2);
/// No retry is counted before so much time has passed without an answer, however short a program's timeout is: threads
/// wait longer than that for a processor. Hardware has such a limit too.
pub(crate) const UDP_PATIENCE: Duration = millis(20);
/// No retry is counted before so much time has passed on a link that loses nothing: only a queue pair that does not
/// exist, or a thread that waits, is silent.
pub(crate) const LOSSLESS_PATIENCE: Duration = millis(100);
/// So long after a packet of an unreliable connection inside the host one with an earlier number is late.
pub(crate) const OVERTAKEN_FOR: Duration = millis(100);
/// A port of this host that was found to be the peer's is believed to be this long: the kernel's table of sockets
/// tells.
pub(crate) const PEER_SOCKET_BELIEF: Duration = ::host::holders::SOCKET_TABLE_CACHE_TIME;
/// Sockets to send from, per family: queue pairs of different sockets do not wait for one another.
pub(crate) const SEND_SOCKETS: usize = 4;
/// How often a port is looked for that both families have free: others seldom have any of them.
pub(crate) const PORT_TRIES: usize = 16;
/// The most under way to one peer, in what it costs its buffer (twice the payload in packets of 4 KiB): more leaves the
/// cache.
pub(crate) const PEER_WINDOW_MAX_BYTES: u64 = 4 << 20;
/// A train of fewer packets is copied instead of lent to the system call.
pub(crate) const LEND_MIN_PACKETS: u32 = 3;
/// After a retransmission so many trains are sent from copies: perhaps the program changes what it sends.
pub(crate) const COPIES_AFTER_RETRANSMISSION: u32 = 256;

// ---- Acknowledgements ----

/// Messages answered in a row before an acknowledgement waits for the next answer.
pub(crate) const ANSWERS_IN_A_ROW: u32 = 16;
/// Over UDP an acknowledgement waits this long for the next message, once the answer has gone: a round trip and some.
pub(crate) const ACK_WAIT_FOR_NEXT: Duration = micros(60);
/// How long an acknowledgement waits in all, though messages still come.
pub(crate) const ACK_DELAY_MAX: Duration = micros(100);
/// How many messages an acknowledgement waits for: the peer's send queue may hold few more.
pub(crate) const ACK_DELAY_MESSAGES: u32 = 8;
/// Answers that take the acknowledgement along after what it waited for did not come, at first; it doubles each time.
pub(crate) const ACKS_WITH_ANSWER_MIN: u32 = 16;
/// Answers at most that take the acknowledgement along after what it waited for did not come.
pub(crate) const ACKS_WITH_ANSWER_MAX: u32 = 1 << 16;

// ---- Rings ----

/// Trains taken from one ring before the thread looks at something else.
pub(crate) const TRAINS_PER_TURN: u32 = 64;
/// Trains taken for one queue pair before what follows from them is sent.
pub(crate) const TRAINS_PER_RUN: u32 = 16;
/// Bytes taken for one queue pair before what follows from them is sent: what a second-level cache holds.
pub(crate) const BYTES_PER_RUN: usize = 256 * 1024;
/// A peer whose program polls has this long to take one-sided work before its engine is rung for.
pub(crate) const UNREAD_RING_AFTER: Duration = micros(10);
/// How long a full ring, or a link that does not come up, holds datagrams. With 30 busy processes on two processors a
/// reader waits for its turn for hundreds of milliseconds; one that was stopped holds up a sender once.
pub(crate) const DATAGRAM_WAIT_MAX: Duration = millis(2000);
/// A process that comes to it later than this was stopped itself: it waits as long again.
pub(crate) const DATAGRAM_LATENESS_MAX: Duration = millis(250);
/// How often rings are looked at before a peer that has gone is believed to have said nothing more.
pub(crate) const GONE_PEER_LOOKS: u32 = 1024;
/// Where the program has connections, work that a gone process has not acknowledged fails this much later: programs
/// expect to hear of the disconnection first.
pub(crate) const DISCONNECT_GRACE: Duration = millis(2);
/// How long a call that connects a queue pair waits for the network to say where the peer is: as long as kernels do.
pub(crate) const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(1);

// ---- The connection manager ----

/// How often a surviving process says that another has died: nothing tells it that it was heard.
pub(crate) const DEATH_NOTICES: u8 = 3;
/// How long a surviving process waits between two notices of a death.
pub(crate) const DEATH_NOTICE_INTERVAL: Duration = millis(300);
/// How long until a process that is alone looks again for another to keep its connection records.
pub(crate) const RECORD_KEEPER_SEARCH: Duration = Duration::from_secs(1);
/// How often a host that we are connected to is asked whether any process has port 4791 there: one packet each time.
pub(crate) const HOST_PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// How soon it is asked again when it said that none has.
pub(crate) const HOST_PROBE_AGAIN: Duration = millis(200);
/// How often it must say so in a row: a process that opens its socket anew is not taken for dead.
pub(crate) const HOST_PROBES_REFUSED: u8 = 2;
/// Packets that a host is made to send whose packets are held back: with one of those they prove how it counts.
pub(crate) const PROVOKED_PACKETS: u32 = 3;

/// A connection is suspected to be stale at most this often: a stranger that claims it makes us send little.
pub(crate) const STALE_SUSPICION_INTERVAL: Duration = Duration::from_secs(30);
/// How long a suspected peer has for each answer: its queue pair's ACK timeout, within these bounds.
pub(crate) const STALE_QUESTION_INTERVAL: RangeInclusive<Duration> = millis(250)..=Duration::from_secs(4);

// ---- The end of the process ----

/// How long a process that ends waits for its peers to confirm: long enough to ask twice.
pub(crate) const EXIT_DISCONNECT_WAIT: Duration = millis(300);
/// How long a process that ends waits at most until its closed sockets have sent everything.
pub(crate) const EXIT_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long it waits for the engine to send what waits, the above included: the thread that ends the process may hold a
/// lock that the engine needs.
pub(crate) const EXIT_FLUSH_MAX: Duration = Duration::from_secs(1);
/// How long it waits then for the engine to say what a checker has found: on a busy machine the engine has its turn
/// late.
pub(crate) const EXIT_SUMMARY_MAX: Duration = Duration::from_secs(5);
/// How often the thread that ends the process looks whether that is done.
pub(crate) const EXIT_LOOK_INTERVAL: Duration = micros(50);
/// How long after a queue pair was connected its peer is asked for, while the program is checked, and how long until it
/// is asked again if it could not say all yet.
pub(crate) const PEER_QUESTION_INTERVAL: Duration = Duration::from_millis(200);
/// How often it is asked.
pub(crate) const PEER_QUESTIONS: u32 = 8;
/// How long after strangers made this process ask others what they have counted they can make it ask again.
pub(crate) const COUNT_INTERVAL: Duration = millis(100);
/// How often it looks for packets then: more often than its sockets can have packets, and bounded, as they may come as
/// fast as they are taken.
pub(crate) const EXIT_LOOKS: u32 = 8192;
/// How often it tries for the lock of a queue pair, a tenth of a millisecond apart: the thread that ends the process
/// may hold it.
pub(crate) const EXIT_LOCK_TRIES: u32 = 200;

// ---- Reports of what there is ----

/// How often a report tries for locks that threads of the program hold, all of them together; what it does not get by
/// then it leaves out. With the pauses a process answers within the 50 ms that `ubiverbs ps` waits.
pub(crate) const REPORT_LOCK_TRIES: u32 = 100;
/// How long it leaves a lock alone between two tries.
pub(crate) const REPORT_LOCK_PAUSE: Duration = Duration::from_micros(100);

// ---- Records ----

/// How often a checker hears that time has passed, while the program does something.
#[cfg(feature = "checks")]
pub(crate) const CHECK_TICK: Duration = millis(100);
/// How often at least, while it does nothing.
#[cfg(feature = "checks")]
pub(crate) const CHECK_TICK_MAX: Duration = Duration::from_secs(1);
/// After so long without an event a checker hears nothing more until the next.
#[cfg(feature = "checks")]
pub(crate) const CHECK_TICKS_END: Duration = Duration::from_secs(60);

/// How long the processor's counter is watched before the clock believes it.
pub(crate) const CLOCK_CALIBRATION: Duration = millis(10);
/// By how much the processor's counter and the system's clock may disagree within a second or so that it counts: more
/// is a jump, as when the machine sleeps.
pub(crate) const CLOCK_JUMP: Duration = millis(100);
/// What a capture collects before it is written.
pub(crate) const CAPTURE_BUFFER_BYTES: usize = 16 << 10;
/// A queue pair number rests until so many others were given back after it: late packets of the old one find nothing.
pub(crate) const NUMBERS_AT_REST: usize = 1024;
/// Packets of one look at the sockets that are kept for queue pairs which are about to exist.
pub(crate) const EARLY_PACKETS: usize = 32;

/// Management datagrams that wait for a program which opened a port. Beyond that they are dropped: anybody may send
/// them.
pub(crate) const WAITING_DATAGRAMS: usize = 4096;

// ---- Raw packets ----

/// How long a frame of a raw queue pair waits for a receive.
pub(crate) const FRAME_WAIT_MAX: Duration = millis(100);
/// How many bytes of frames wait for receives of one queue pair at most.
pub(crate) const UNRECEIVED_MAX_BYTES: usize = 4 << 20;
/// How often a sender waits for the kernel to have room, a millisecond each, before a frame is lost.
pub(crate) const FRAME_SEND_WAITS: u32 = 100;
/// Batches of frames that a thread takes at once if no poll waits for it.
pub(crate) const FRAME_BATCHES: u32 = 8;
