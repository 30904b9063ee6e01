//! What a program called, as values: the other half of the stream of events. A call is recorded after it was done; one
//! that was refused is [`Call::Refused`]. Calls whose outcome another thread may see first are recorded when they begin:
//! posts, arming, acknowledgements, and those of the connection manager that an event follows.
//!
//! Numbers identify objects as the NIC does: queue pairs and shared receive queues by number, memory by key, the others
//! by a number that no other object of the process has.

use core::fmt;

use wire::access::Access;
use wire::{Key, Qkey, Qpn, Srqn};

#[cfg(feature = "std")]
use crate::packed::Unpacker;
use crate::packed::{Packed, Packer, slot_of};
use crate::text::Text;

/// What memory of the library's holds that a program may not use any more, while a checker listens. A number of such bytes
/// is the same in either byte order.
pub const POISON_BYTE: u8 = 0xdb;

/// A value of a field, for sinks that write fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A number.
    Number(u64),
    /// An errno or another number that may be negative.
    Signed(i64),
    /// Yes or no.
    Flag(bool),
    /// A word or a sentence.
    Text(&'a str),
    /// Rights.
    Access(Access),
    /// A scatter/gather list.
    Pieces(&'a Pieces),
    /// A GID, or another address.
    Bytes(&'a [u8; 16]),
}

/// A type that a field of a call may have.
trait Field {
    /// `None` where the field is absent.
    fn shown(&self) -> Option<Value<'_>>;
}

macro_rules! numbers {
    ($($Type:ty => $read:expr),+ $(,)?) => {
        $(impl Field for $Type {
            fn shown(&self) -> Option<Value<'_>> {
                let read: fn(&$Type) -> u64 = $read;
                Some(Value::Number(read(self)))
            }
        })+
    };
}

numbers! {
    u8 => |number| u64::from(*number),
    u32 => |number| u64::from(*number),
    u64 => |number| *number,
    Key => |key| key.value().into(),
    Qkey => |key| key.value().into(),
    Qpn => |number| number.value().into(),
    Srqn => |number| number.value().into(),
}

impl Field for i32 {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Signed(i64::from(*self)))
    }
}

impl Field for bool {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Flag(*self))
    }
}

impl Field for &'static str {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Text(self))
    }
}

impl<const N: usize> Field for Text<N> {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Text(self.as_str()))
    }
}

impl Field for Access {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Access(*self))
    }
}

impl Field for Pieces {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Pieces(self))
    }
}

impl Field for [u8; 16] {
    fn shown(&self) -> Option<Value<'_>> {
        Some(Value::Bytes(self))
    }
}

impl<T: Field> Field for Option<T> {
    fn shown(&self) -> Option<Value<'_>> {
        self.as_ref().and_then(Field::shown)
    }
}

/// The name of a field in JSON: each line has an `event` of its own.
#[cfg(feature = "json")]
fn json_name(field: &'static str) -> &'static str {
    if field == "event" { "event_name" } else { field }
}

/// Declares the calls: the variant, its stable name, its fields.
macro_rules! calls {
    ($(
        $(#[$meta:meta])*
        $Variant:ident = $name:literal { $( $(#[$field_meta:meta])* $field:ident : $Type:ty ),* $(,)? }
    )+) => {
        /// A call of the program, and what it gave or got.
        ///
        /// Fields that no sentence explains are what verbs and the connection manager call so.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        #[allow(missing_docs)]
        pub enum Call {
            $( $(#[$meta])* $Variant { $( $(#[$field_meta])* $field: $Type, )* }, )+
        }

        impl Call {
            /// The names of all calls.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The stable name: what JSON lines and counters say.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self {
                    $( Self::$Variant { .. } => $name, )+
                }
            }

            /// The call of that name, with the fields that a log has of it.
            #[cfg(feature = "json")]
            pub(crate) fn read(name: &str, fields: &crate::json_fields::Object<'_>) -> Option<Self> {
                Some(match name {
                    $( $name => Self::$Variant { $( $field: fields.get(json_name(stringify!($field)))?, )* }, )+
                    _ => return None,
                })
            }

            /// Puts the fields into few bytes.
            pub(crate) fn pack_fields(&self, packer: &mut Packer<'_>) {
                match self {
                    $( Self::$Variant { $( $field, )* } => {
                        $( Packed::pack($field, const { slot_of(stringify!($field)) }, packer); )*
                        let _ = packer;
                    } )+
                }
            }

            /// The call of that name, with the packed fields that follow.
            #[cfg(feature = "std")]
            pub(crate) fn unpack_fields(name: &str, fields: &mut Unpacker<'_>) -> Option<Self> {
                Some(match name {
                    $( $name => {
                        $( let $field = Packed::unpack(const { slot_of(stringify!($field)) }, fields)?; )*
                        Self::$Variant { $( $field, )* }
                    } )+
                    _ => return None,
                })
            }

            /// Writes each field that is there.
            #[cfg(feature = "json")]
            pub(crate) fn write_arguments<M: serde::ser::SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
                match self {
                    $( Self::$Variant { $( $field, )* } => {
                        $( crate::json_fields::Field::write($field, json_name(stringify!($field)), object)?; )*
                    } )+
                }
                Ok(())
            }

            /// Shows each field that is there, with its stable name.
            pub fn each_field<'a>(&'a self, mut see: impl FnMut(&'static str, Value<'a>)) {
                match self {
                    $( Self::$Variant { $( $field, )* } => {
                        $( if let Some(value) = Field::shown($field) { see(stringify!($field), value); } )*
                        let _ = &mut see;
                    } )+
                }
            }
        }
    };
}

calls! {
    /// A device was opened.
    OpenDevice = "open_device" {
        context: u32,
        /// The device's name.
        device: Text<32>,
    }
    /// A context was closed.
    CloseDevice = "close_device" { context: u32 }
    /// A protection domain was made.
    AllocPd = "alloc_pd" {
        pd: u32,
        /// Its context.
        context: u32,
    }
    /// A protection domain was freed.
    DeallocPd = "dealloc_pd" { pd: u32 }
    /// Memory was registered.
    RegisterMemory = "register_memory" {
        /// Its `rkey`; the `lkey` follows from it (`wire::Key::local`).
        key: Key,
        /// The protection domain.
        pd: u32,
        /// Where the memory lies.
        address: u64,
        /// How many bytes.
        length: u64,
        /// The address under which it is known.
        iova: u64,
        access: Access,
    }
    /// A registration was changed.
    ReregisterMemory = "reregister_memory" {
        /// The key before.
        old_key: Key,
        /// The key from now on.
        key: Key,
        /// The protection domain.
        pd: u32,
        /// Where the memory lies.
        address: u64,
        /// How many bytes.
        length: u64,
        /// The address under which it is known.
        iova: u64,
        access: Access,
    }
    /// Memory was deregistered.
    DeregisterMemory = "deregister_memory" { key: Key }
    /// A memory window was made.
    AllocWindow = "alloc_window" {
        key: Key,
        /// The protection domain.
        pd: u32,
        /// Whether it is of type 2.
        type_2: bool,
    }
    /// A memory window was freed.
    FreeWindow = "free_window" { key: Key }
    /// A memory window is about to be bound, by the work request that is told next.
    BindWindow = "bind_window" {
        /// The key of the window until now.
        window: Key,
        /// Its key from then on.
        new_key: Key,
        /// The region.
        region: Key,
        /// The first byte.
        address: u64,
        /// How many bytes; 0 unbinds it.
        length: u64,
        /// The rights that it grants.
        access: Access,
    }
    /// A completion channel was made.
    CreateChannel = "create_channel" { channel: u32 }
    /// A completion channel was destroyed.
    DestroyChannel = "destroy_channel" { channel: u32 }
    /// A completion queue was made.
    CreateCq = "create_cq" {
        cq: u32,
        /// How many completions it holds.
        capacity: u32,
        /// How many the program asked for.
        wanted: u32,
        /// Its channel.
        channel: Option<u32>,
    }
    /// A completion queue got another size.
    ResizeCq = "resize_cq" {
        cq: u32,
        /// How many completions it holds.
        capacity: u32,
    }
    /// A completion queue was destroyed.
    DestroyCq = "destroy_cq" { cq: u32 }
    /// A shared receive queue was made.
    CreateSrq = "create_srq" {
        srq: Srqn,
        /// Its protection domain.
        pd: u32,
        /// How many receives it holds.
        max_wr: u32,
        /// How many pieces a receive may have.
        max_sge: u32,
    }
    /// A shared receive queue was changed.
    ModifySrq = "modify_srq" {
        srq: Srqn,
        /// The new limit below which an event is raised.
        limit: Option<u32>,
        /// The new size.
        max_wr: Option<u32>,
    }
    /// A shared receive queue was destroyed.
    DestroySrq = "destroy_srq" { srq: Srqn }
    /// A queue pair was made; the event has its number.
    CreateQp = "create_qp" {
        /// `RC`, `UC`, `UD`, `XRC_SEND`, `XRC_RECV`, `RAW_PACKET`.
        kind: &'static str,
        /// Its context.
        context: u32,
        /// Its protection domain.
        pd: u32,
        /// Where its sends complete.
        send_cq: Option<u32>,
        /// Where its receives complete.
        receive_cq: Option<u32>,
        /// Where its receives come from, if not from its own queue.
        srq: Option<Srqn>,
        /// What was granted, as `ibv_qp_cap` has it.
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
        /// Whether every send is signaled (`sq_sig_all`).
        signals_all: bool,
    }
    /// A queue pair was changed. Only what the call changed is there.
    ModifyQp = "modify_qp" {
        /// The state, as verbs spell it: `INIT`, `RTR`, …
        state: Option<&'static str>,
        /// See `ibv_qp_attr`.
        pkey_index: Option<u32>,
        port: Option<u8>,
        access: Option<Access>,
        qkey: Option<Qkey>,
        /// In bytes.
        path_mtu: Option<u32>,
        dest_qpn: Option<Qpn>,
        rq_psn: Option<u32>,
        sq_psn: Option<u32>,
        max_rd_atomic: Option<u32>,
        max_dest_rd_atomic: Option<u32>,
        /// As the number verbs have.
        min_rnr_timer: Option<u8>,
        /// As the number verbs have.
        timeout: Option<u8>,
        retry_cnt: Option<u8>,
        rnr_retry: Option<u8>,
        /// Where the peer is.
        dgid: Option<[u8; 16]>,
        /// The index of its own GID.
        sgid_index: Option<u8>,
    }
    /// The way that a queue pair sends from now on, as the call said that comes next or before.
    Path = "path" {
        /// Its own GID.
        sgid: Option<[u8; 16]>,
        /// Where the peer is.
        dgid: [u8; 16],
        /// How many routers its packets may pass, and one.
        hop_limit: u8,
    }
    /// What the process of the peer answered, or that no process of this host has the queue pair. Not a call: what a
    /// process of the same host was asked while the program is checked.
    PeerSeen = "peer_seen" {
        /// The peer's queue pair.
        peer: Qpn,
        /// Its process; 0 if no process has it.
        process: u32,
        /// `RC`, `UC`, `UD`, …; empty if no process has it.
        kind: &'static str,
        /// Its state, as verbs spell it.
        state: &'static str,
        /// The queue pair that it names as its peer.
        dest_qpn: Option<Qpn>,
        /// In bytes.
        path_mtu: Option<u32>,
        /// The sequence number that it expected first.
        rq_psn: Option<u32>,
        /// The sequence number that it sends first.
        sq_psn: Option<u32>,
        /// See `ibv_qp_attr`.
        qkey: Option<Qkey>,
        access: Option<Access>,
        max_rd_atomic: Option<u32>,
        max_dest_rd_atomic: Option<u32>,
        /// Where it sends to.
        dgid: Option<[u8; 16]>,
    }
    /// A queue pair was looked at.
    QueryQp = "query_qp" {
        /// The state that the program was told.
        state: &'static str,
    }
    /// A queue pair was destroyed.
    DestroyQp = "destroy_qp" {
        /// Work requests of its send queue that had not completed.
        sends: u32,
        /// Receives of its own that had not completed.
        receives: u32,
    }
    /// An address handle was made.
    CreateAh = "create_ah" {
        ah: u64,
        /// Its protection domain.
        pd: u32,
        /// Where it leads to.
        dgid: [u8; 16],
    }
    /// An address handle was destroyed.
    DestroyAh = "destroy_ah" { ah: u64 }
    /// Where the program makes the call that posts the next work requests of this thread.
    PostedFrom = "posted_from" {
        /// The same for the same stack, in this process.
        place: u64,
        /// Its callers, the innermost first; empty if they were told before.
        caller: Text<160>,
    }
    /// A work request of a list is about to be posted to a send queue.
    PostSend = "post_send" {
        /// The program's name for it.
        wr_id: u64,
        /// What it asks for, as verbs spell it.
        opcode: &'static str,
        /// Its place in the list, from 0.
        index: u32,
        /// Whether it asks for a completion.
        signaled: bool,
        /// Whether the bytes are taken at once.
        inline: bool,
        /// Whether it waits for READs before it.
        fence: bool,
        /// Whether it wakes the peer.
        solicited: bool,
        /// Its local memory.
        pieces: Pieces,
        /// The peer's memory.
        remote_address: Option<u64>,
        remote_key: Option<Key>,
        /// For datagrams: the queue pair it goes to.
        remote_qpn: Option<Qpn>,
        /// For datagrams: the key it shows.
        remote_qkey: Option<Qkey>,
        /// For datagrams: where it goes.
        remote_gid: Option<[u8; 16]>,
    }
    /// A work request of a list is about to be posted to a receive queue.
    PostReceive = "post_receive" {
        /// The program's name for it.
        wr_id: u64,
        /// The shared receive queue, if it is one.
        srq: Option<Srqn>,
        /// Its place in the list, from 0.
        index: u32,
        /// Its memory.
        pieces: Pieces,
    }
    /// A completion queue was polled. Of polls that find nothing only the first is told, until something else happens
    /// to the queue; while a checker listens, one more each time it has looked at what does not happen.
    Poll = "poll" {
        cq: u32,
        /// How many completions the program has room for.
        room: u32,
        /// How many it got.
        got: u32,
    }
    /// The program got a completion.
    Polled = "polled" {
        cq: u32,
        /// The program's name for the work.
        wr_id: u64,
        /// Its status, as verbs spell it.
        status: &'static str,
    }
    /// A field of a completion was read that the extended completion queue was not made with.
    ReadUnasked = "read_unasked" {
        cq: u32,
        /// The function that reads it, as C has it.
        function: &'static str,
        /// The bit of `wc_flags` that asks for it.
        flag: &'static str,
    }
    /// A poll of an extended completion queue was begun before the last one was ended (`ibv_start_poll`), or ended
    /// though none had begun (`ibv_end_poll`).
    PollOutOfOrder = "poll_out_of_order" { cq: u32, function: &'static str }
    /// The program asked to be woken by the next completion.
    ArmCq = "arm_cq" {
        cq: u32,
        /// Only for solicited ones.
        solicited_only: bool,
    }
    /// The program is about to sleep until a completion channel has an event: at this moment it has none.
    WaitCqEvent = "wait_cq_event" { channel: u32 }
    /// The thread sleeps no longer at a completion channel: there is an event, or its wait was ended.
    StopWaiting = "stop_waiting" {}
    /// The program waits for the end of the connection of this queue pair; Rust's `Connection::closed`.
    AwaitClose = "await_close" {}
    /// The program took an event of a completion channel.
    GetCqEvent = "get_cq_event" { channel: u32, cq: u32 }
    /// The program acknowledged events of a completion queue.
    AckCqEvents = "ack_cq_events" {
        cq: u32,
        /// How many.
        count: u32,
    }
    /// The program is about to wait until its events are acknowledged, as it destroys an object.
    WaitForAcks = "wait_for_acks" {
        /// What is to be destroyed: `cq`, `qp`, `srq`, `id`.
        object: &'static str,
        /// Its number.
        number: u64,
        /// How many are not acknowledged.
        missing: u32,
    }
    /// The program took an asynchronous event.
    GetAsyncEvent = "get_async_event" {
        /// Its name, as verbs spell it.
        event: &'static str,
        /// The completion queue, queue pair or shared receive queue it is about.
        about: u64,
    }
    /// The program acknowledged an asynchronous event.
    AckAsyncEvent = "ack_async_event" {
        /// Its name, as verbs spell it.
        event: &'static str,
        /// What it was about.
        about: u64,
    }
    /// `ibv_create_qp` was asked for a queue pair with a capability of 0, of which it has granted 1: what was asked for,
    /// as `ibv_qp_cap` has it. The event of the creation comes before.
    AskedForNone = "asked_for_none" { max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32 }
    /// `ibv_modify_qp` was given a number of the peer's queue pair that has more than 24 bits: the upper ones are cut.
    NumberCut = "number_cut" {
        /// `dest_qp_num`, as it was given.
        given: u32,
    }
    /// A call of the connection manager, other than those below.
    CmCall = "cm_call" {
        function: &'static str,
        /// The `rdma_cm_id`, or the event channel.
        id: u64,
        /// The queue pair of the id.
        id_qpn: Option<Qpn>,
    }
    /// `rdma_connect`, `rdma_accept`: what each side offers.
    CmOffer = "cm_offer" {
        function: &'static str,
        id: u64,
        /// The queue pair.
        id_qpn: Option<Qpn>,
        /// See `rdma_conn_param`.
        responder_resources: u8,
        initiator_depth: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        /// Bytes of private data.
        private_data_len: u32,
        /// The queue pair that is offered to the peer; none where none is offered.
        offered_qpn: Option<Qpn>,
    }
    /// `rdma_resolve_addr` and `rdma_listen`: where an id connects to, or listens at.
    CmPlace = "cm_place" {
        function: &'static str,
        id: u64,
        /// The port space.
        space: &'static str,
        /// The address, as a GID.
        address: [u8; 16],
        /// The port, in the host's byte order.
        port: u32,
    }
    /// The program got an event of the connection manager.
    CmEvent = "cm_event" {
        /// Its name, as `rdma_event_str` has it.
        event: &'static str,
        id: u64,
        /// The listening id, for a request.
        listen_id: Option<u64>,
        status: i32,
        /// The queue pair of the id.
        id_qpn: Option<Qpn>,
    }
    /// The program acknowledged an event of the connection manager.
    CmAck = "cm_ack" {
        /// Its name.
        event: &'static str,
        id: u64,
    }
    /// `rdma_connect` or `rdma_accept` was given private data, and a length of 0 for it.
    CmEmptyData = "cm_empty_data" { function: &'static str, id: u64 }
    /// The connection manager is about to change the queue pair of an id; the change itself is told next.
    CmMovesQp = "cm_moves_qp" {
        id: u64,
        /// The state it is moved to.
        state: &'static str,
    }
    /// An id reports to this event channel from now on.
    CmChannel = "cm_channel" {
        id: u64,
        /// The event channel.
        channel: u64,
        /// The channel is the id's own: its calls wait for their events.
        synchronous: bool,
    }
    /// What came with the event of the connection manager that was told before.
    CmPeer = "cm_peer" {
        /// The name of the event, as `rdma_event_str` has it.
        event: &'static str,
        id: u64,
        /// How many READs and atomics of the peer's we are asked to answer at a time.
        responder_resources: Option<u8>,
        /// How many of ours the peer answers at a time.
        initiator_depth: Option<u8>,
        /// The peer's queue pair, or the number that stands for a group.
        peer_qpn: Option<Qpn>,
        /// The key that its datagrams show.
        peer_qkey: Option<Qkey>,
    }
    /// `ibv_fork_init` was called.
    ForkInit = "fork_init" {}
    /// The process forked, and this is the parent.
    Fork = "fork" {}
    /// The program is ending.
    Exit = "exit" {}
    /// A call was refused.
    Refused = "refused" {
        function: &'static str,
        /// The errno it answered.
        errno: i32,
        /// Why, in the NIC's words.
        reason: Text<120>,
    }
}

/// How many pieces of a list are kept.
const KEPT_PIECES: usize = 4;

/// A scatter/gather list: the first pieces of it, and what they are together.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Pieces {
    first: [Piece; KEPT_PIECES],
    /// How many there are.
    pub count: u32,
    /// All their bytes.
    pub bytes: u64,
}

/// A piece of local memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The address.
    pub address: u64,
    /// How many bytes.
    pub length: u32,
    /// The key shown for it.
    pub key: Key,
}

impl Default for Piece {
    fn default() -> Self {
        Self { address: 0, length: 0, key: Key::new(0) }
    }
}

impl Pieces {
    /// How many pieces of a list are kept.
    #[cfg(feature = "std")]
    pub(crate) const KEPT_PIECES: u32 = KEPT_PIECES as u32;

    /// The pieces that are kept: all of them in most lists.
    #[must_use]
    pub fn kept(&self) -> &[Piece] {
        &self.first[..(self.count as usize).min(KEPT_PIECES)]
    }
}

impl FromIterator<Piece> for Pieces {
    fn from_iter<I: IntoIterator<Item = Piece>>(pieces: I) -> Self {
        let mut all = Self::default();
        for piece in pieces {
            if let Some(place) = all.first.get_mut(all.count as usize) {
                *place = piece;
            }
            all.count += 1;
            all.bytes += u64::from(piece.length);
        }
        all
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pieces of {} bytes: {:?}", self.count, self.bytes, self.kept())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let mut result = Ok(());
        self.each_field(|name, value| {
            if result.is_ok() {
                result = write!(f, " {name}={value}");
            }
        });
        result
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Addresses and keys are known by their digits in this form.
            Self::Number(number) if *number >= 1 << 24 => write!(f, "{number:#x}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(text),
            Self::Access(access) => write!(f, "{access}"),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            Self::Pieces(pieces) => {
                f.write_str("[")?;
                for (index, piece) in pieces.kept().iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{:#x}+{} key {}", piece.address, piece.length, piece.key)?;
                }
                f.write_str(if pieces.count as usize > KEPT_PIECES { ", …]" } else { "]" })
            }
        }
    }
}
