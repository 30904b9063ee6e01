//! Every rule: its number, how bad it is to break it, what is wrong. Numbers never change meaning, and none is used again.

/// Declares the rules of all families: for each a constant with its number, and `RULES` with all of them. The page of
/// `UV-0201` is `pages/UV-0201.md`.
macro_rules! rules {
    ($( $family:ident $prefix:literal { $( $NAME:ident = $number:literal $severity:ident $title:literal; )* } )*) => {
        $(pub(crate) mod $family {
            use crate::rule::{Number, Rule, Severity};

            $(
                #[doc = $title]
                pub(crate) const $NAME: Number = Number($number);
            )*
            pub(super) const RULES: &[Rule] = &[$(
                Rule {
                    number: $NAME,
                    severity: Severity::$severity,
                    title: $title,
                    page: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/pages/", $prefix, stringify!($number), ".md")),
                },
            )*];
        })*

        /// The rules, family by family, in the order of their numbers.
        pub const RULES: &[&[crate::rule::Rule]] = &[$( $family::RULES, )*];
    };
}

rules! {
    work "UV-0" {
        LOCAL_KEY_UNKNOWN = 101 Error "a work request names local memory by a key that does not exist";
        LOCAL_OUT_OF_BOUNDS = 102 Error "a work request reaches outside the local memory that its key belongs to";
        LOCAL_OTHER_DOMAIN = 103 Error "local memory is of another protection domain than its queue pair";
        LOCAL_NOT_WRITABLE = 104 Error "local memory that the NIC must write is registered without LOCAL_WRITE";
        LOCAL_NOT_THERE = 106 Error "local memory is registered and not mapped any more";
        LOCAL_GPU = 107 Error "the driver of a GPU did not copy local memory";
        WINDOW_REFUSED = 108 Error "a memory window could not be bound, or a key not be invalidated";
        RECEIVE_TOO_SHORT = 110 Error "a message is longer than the receive that it met";
        DATAGRAM_TOO_LONG = 111 Error "a datagram is longer than the path MTU";
        ATOMIC_TOO_SHORT = 112 Error "the local memory of an atomic has fewer than 8 bytes";
        REMOTE_ACCESS = 120 Error "the peer refused the access to its memory";
        REMOTE_KEY_UNKNOWN = 121 Error "a work request names the peer's memory by a key that does not exist there";
        REMOTE_OUT_OF_BOUNDS = 122 Error "a work request reaches outside the peer's memory that its key belongs to";
        REMOTE_OTHER_DOMAIN = 123 Error "the peer's memory is of another protection domain than its queue pair";
        REMOTE_REGION_FORBIDS = 124 Error "the peer registered its memory without the right that the request needs";
        REMOTE_PAIR_FORBIDS = 125 Error "the peer's queue pair does not grant the right that the request needs";
        ATOMIC_MISALIGNED = 126 Error "an atomic at an address that is no multiple of 8";
        REMOTE_WINDOW = 127 Error "the peer's memory window is not bound, or bound to another queue pair";
        REMOTE_NOT_THERE = 128 Error "the peer's memory is registered and not mapped any more";
        REMOTE_RECEIVE_TOO_SHORT = 129 Error "a message is longer than the receive that the peer posted";
        TOO_MANY_READS = 130 Error "more READs and atomics at once than the peer takes";
        REMOTE_INVALID = 131 Error "the peer found the request invalid";
        REMOTE_RECEIVE_BAD = 132 Error "the peer could not store a message in the receive that it posted";
        REMOTE_MALFORMED = 133 Error "the peer could not make sense of the packets";
        REMOTE_GPU = 134 Error "the driver of the peer's GPU did not copy its memory";
        BAD_ANSWER = 136 Error "the peer's answer does not fit the request";
        REMOTE_LOCAL_KEY = 137 Error "a work request shows the peer's lkey in place of its rkey";
        NO_ANSWER = 140 Error "the peer never answered";
        PEER_GONE = 141 Error "the peer's process ended";
        NO_RECEIVE = 142 Error "the peer had no receive posted";
        NO_READS_ALLOWED = 145 Error "a READ or atomic on a queue pair whose max_rd_atomic is 0";
        NOT_CARRIED = 146 Error "a work request of an operation that the kind of queue pair does not have";
        PEER_MESSAGE_BAD = 150 Error "a receive failed because the peer's message was wrong";
        FLUSHED = 160 Note "work was flushed because its queue pair had stopped";
        TAG_MATCHING = 165 Error "an operation of tag matching failed";
    }

    memory "UV-0" {
        CHANGED_UNDER_WAY = 201 Error "a buffer was changed while its work was under way";
        RECEIVES_OVERLAP = 202 Warning "posted receives share part of their memory";
        RECEIVES_EQUAL = 203 Warning "a receive buffer is posted twice";
        RESULT_SHARED = 204 Warning "a READ or atomic puts its result where other work has its buffer";
        SOURCE_SHARED = 205 Warning "a buffer is sent while a receive is posted into it";
        RECEIVE_CHANGED = 206 Warning "a receive buffer was changed while it was posted";
        GONE_UNDER_WAY = 207 Error "memory was deregistered while work on it was under way";
        GONE_WHILE_POSTED = 208 Warning "memory was deregistered while receives in it were posted";
        UNMAPPED = 209 Warning "memory was unmapped while it was registered";
        UNMAPPED_UNDER_WAY = 210 Error "work is posted on memory that is not mapped";
        WRONG_DOMAIN = 211 Error "a work request uses a key of another protection domain";
        OUTSIDE_REGION = 212 Error "a piece of a work request reaches outside its region";
        KEY_IS_GONE = 213 Error "a work request uses the key of memory that was deregistered";
        NOT_WRITABLE = 214 Error "the NIC is to write into memory without LOCAL_WRITE";
        STACK_IS_OPEN = 215 Warning "peers may reach memory of a stack";
        REGISTERED_AGAIN = 216 Performance "the same memory is registered many times";
        RIGHTS_UNUSED = 217 Note "rights of peers were granted and never used";
        BINDING_UNUSED = 218 Note "a region allows windows and never had one";
        CHANGED_REGISTRATION = 219 Error "a registration was changed while work on it was under way";
        ATOMIC_MISALIGNED = 220 Error "the target of an atomic is not aligned to 8 bytes";
        ATOMIC_RESULT_SHORT = 221 Error "the result of an atomic has less than 8 bytes of room";
        MANY_SMALL_REGIONS = 222 Performance "many small regions lie close together";
        WINDOW_KEY_UNCHANGED = 223 Warning "a window is bound again under the key it had before";
        WINDOW_NEVER_BOUND = 224 Note "a window was never bound";
        PIECES_ADJACENT = 225 Performance "pieces of a list follow each other in memory";
        PIECE_EMPTY = 226 Note "a list has a piece of zero bytes beside others";
        PIECES_OVERLAP = 227 Error "pieces of one work request overlap where the NIC writes";
        EVERYTHING_IS_OPEN = 228 Warning "peers may reach the whole address space";
        KEY_NEVER_SET = 229 Error "a piece of a work request has key 0";
        ANSWERS_UNTOLD = 230 Warning "a program answers WRITEs that nothing has told it of";
    }

    posting "UV-0" {
        NEVER_REAPED = 301 Error "a send queue is full of work that is not signaled";
        NEVER_SIGNALED = 302 Warning "nothing that was sent on a queue pair was signaled";
        NOT_INLINE = 303 Performance "small messages are not sent inline";
        INLINE_TOO_LONG = 304 Error "more inline data than was granted";
        NO_READS_ALLOWED = 305 Error "a READ or atomic on a queue pair with max_rd_atomic 0";
        READS_WAIT = 306 Performance "READs wait for each other, as max_rd_atomic is 1";
        SENDS_ONE_BY_ONE = 307 Performance "sends are posted one by one";
        RECEIVES_ONE_BY_ONE = 308 Performance "receives are posted one by one";
        NO_ROOM_FOR_GRH = 311 Error "a receive for datagrams has no room for the 40 bytes before them";
        DATAGRAM_TOO_LONG = 312 Error "a datagram is longer than any packet";
        SOLICITED_IN_VAIN = 313 Note "a solicited event is asked for where the peer gets no completion";
        UNFENCED = 314 Error "data of a READ is sent on without a fence";
        NAME_IS_AMBIGUOUS = 315 Note "a failed work request shares its wr_id with others";
        REMOTE_KEY_NEVER_SET = 316 Error "a work request for the peer's memory has rkey 0";
        THREADS_TAKE_TURNS = 317 Performance "two threads post to one queue pair in turn";
        ALL_SIGNALED = 318 Performance "every work request of a deep queue is signaled";
        FENCE_IN_VAIN = 319 Performance "fences are set where nothing is to be waited for";
        WRITES_SPLIT = 320 Performance "small WRITEs to memory in one piece";
        POSTED_WHILE_DRAINING = 321 Note "work is posted to a send queue that is stopped";
        GROUP_WITHOUT_NUMBER = 322 Error "a datagram for a multicast group names a queue pair";
        OVERWRITES_READ = 323 Warning "a WRITE may overtake a READ of the same memory";
        NOTE_AFTER_WRITE = 324 Performance "a small SEND follows each WRITE";
        FENCE_WITHOUT_READS = 325 Warning "a fence on a queue pair that has no READs";
        MORE_THAN_THE_QUEUE_HOLDS = 326 Warning "more is posted than the send queue holds before a completion was polled";
        ASKED_FOR_NONE = 327 Warning "work is posted to a queue that was asked for with room for none";
        NEXT_NEVER_SET = 328 Error "next of a work request leads to memory that the program does not have";
    }

    completions "UV-0" {
        OVERFLOWED = 401 Error "a completion queue overflowed";
        CAN_OVERFLOW = 402 Warning "more work can complete than its completion queue holds";
        WRONG_QUEUE_POLLED = 403 Warning "a completion queue is polled on which nothing completes";
        ARMED_AFTER_LAST_POLL = 404 Warning "a completion queue is armed after the last poll: a wake-up can be lost";
        NOT_ARMED = 405 Error "the program waits for an event of a completion queue that is not armed";
        ARMED_AGAIN = 406 Performance "a completion queue that is armed is armed again";
        NOT_ACKNOWLEDGED = 407 Error "a completion queue is destroyed before its events are acknowledged";
        ACKNOWLEDGED_TOO_OFTEN = 408 Error "more completion events are acknowledged than were got";
        ACKNOWLEDGED_ONE_BY_ONE = 409 Performance "completion events are acknowledged one by one";
        LEFT_UNPOLLED = 410 Note "completions are left in their queue";
        FAILURE_UNPOLLED = 411 Warning "a failed completion was never polled";
        FAILURE_IGNORED = 412 Warning "the program goes on posting to a queue pair whose failure it has polled";
        ARMED_WITHOUT_CHANNEL = 413 Warning "a completion queue without a channel is armed";
        CHANNEL_UNREAD = 414 Note "completion events are asked for and never read";
        NOT_SOLICITED = 415 Warning "the program waits for solicited completions, and those that came are not";
        OTHER_QUEUE_POLLED = 416 Warning "an event of one completion queue is answered by polling another";
        ALL_OF_A_LIST_SIGNALED = 417 Performance "every work request of a list asks for a completion";
        POLLED_ONE_BY_ONE = 418 Performance "completions are polled one at a time while many wait";
        POLLED_WITHOUT_ROOM = 419 Warning "a completion queue is polled with room for nothing";
        HELD_BY_ROUNDING = 420 Note "more work can complete than the program asked its completion queue to hold";
        READ_UNASKED = 421 Error "a field of a completion is read that wc_flags did not ask for";
        POLL_NOT_ENDED = 422 Error "a poll is begun before the last one was ended";
        END_WITHOUT_START = 423 Error "a poll is ended that has not begun";
        PARTLY_POLLED = 424 Warning "the program waits for an event while completions of the one before are left";
    }

    connections "UV-0" {
        PATH_MTU_DIFFERS = 501 Error "the two ends of a connection have different path MTUs";
        PSN_DIFFERS = 502 Error "one end sends from another sequence number than the other expects";
        QKEY_DIFFERS = 503 Error "a datagram shows another Q_Key than its receiver has";
        PKEY_DIFFERS = 504 Error "a packet shows another P_Key than its receiver has";
        NO_SUCH_PEER = 505 Error "a queue pair is connected to one that does not exist";
        PEER_OF_ANOTHER = 506 Error "a queue pair is connected to one that is connected to another";
        KINDS_DIFFER = 507 Error "the two ends of a connection are of different types";
        ADDRESS_DIFFERS = 508 Error "one end sends from another address than the other expects";
        IP_VERSION_DIFFERS = 509 Error "source and destination GID are of different IP versions";
        LINK_LOCAL_SOURCE = 510 Warning "a link-local source GID goes to an address that is none";
        NO_HOPS = 511 Note "the hop limit lets no router pass the packets on";
        NO_RETRIES = 512 Warning "retry_cnt is 0: one lost packet ends the connection";
        NO_RNR_RETRIES = 513 Note "rnr_retry is 0: a receive posted late ends the connection";
        NO_TIMEOUT = 514 Warning "timeout is 0: a lost packet is waited for without end";
        LONG_TIMEOUT = 515 Note "a peer that is gone is noticed after more than five minutes";
        SHORT_TIMEOUT = 516 Performance "timeout is shorter than acknowledgements take on a busy host";
        LONG_RNR_TIMER = 517 Performance "min_rnr_timer is 0, which means 655 milliseconds";
        READS_EXCEED_PEER = 518 Warning "max_rd_atomic is larger than the peer's max_dest_rd_atomic";
        ACCESS_NOT_GRANTED = 519 Error "the peer's queue pair does not allow the operation";
        WAITS_FOR_RECEIVE = 520 Warning "a sender waits without end for a receive that nobody posts";
        PEER_NOT_READY = 521 Warning "work is posted while the peer cannot receive yet";
        NEVER_READY = 522 Warning "a queue pair got work and was never brought to the state that does it";
        SQE_NOT_HANDLED = 523 Error "work is posted to a send queue that has stopped (SQE)";
        POSTED_IN_ERROR = 524 Warning "work is posted to a queue pair that has failed";
        ERROR_NOT_SEEN = 525 Warning "a queue pair failed by what its peer did and the program never looked";
        DATAGRAM_TO_NOBODY = 526 Error "a datagram goes to a queue pair that cannot take it";
        FIRST_RECEIVE_LATE = 527 Warning "the peer's message came before the first receive was posted";
        SRQ_RAN_EMPTY = 528 Performance "a shared receive queue ran empty";
        SRQ_LIMIT_NOT_REARMED = 529 Warning "the limit of a shared receive queue was not set again";
        NUMBER_CUT = 530 Error "the number of the peer's queue pair has more than 24 bits";
    }

    processes "UV-0" {
        FORKED = 601 Warning "the program forks without ibv_fork_init while memory is registered";
        USED_IN_CHILD = 602 Error "a forked child uses an object of its parent";
        POLLED_BY_THREADS = 603 Performance "several threads poll one completion queue";
        REGISTERED_PER_MESSAGE = 604 Performance "memory is registered and deregistered between work requests";
        REGISTERED_AGAIN = 605 Performance "the same buffer is registered again and again";
        PAIR_PER_MESSAGE = 606 Performance "queue pairs are made and destroyed for a few work requests each";
        HANDLE_PER_MESSAGE = 607 Performance "an address handle is made for every message";
        MANY_SMALL_REGIONS = 608 Performance "very many small buffers are registered one by one";
        REGISTERED_IN_MANY_DOMAINS = 609 Performance "the same buffer is registered in several protection domains";
        OPENED_MANY_TIMES = 610 Performance "a device is open many times at once";
        LEAKED_CONTEXTS = 611 Note "devices are open at the end";
        LEAKED_DOMAINS = 612 Note "protection domains are left at the end";
        LEAKED_REGIONS = 613 Note "memory is registered at the end";
        LEAKED_WINDOWS = 614 Note "memory windows are left at the end";
        LEAKED_CHANNELS = 615 Note "completion channels are left at the end";
        LEAKED_CQS = 616 Note "completion queues are left at the end";
        LEAKED_SRQS = 617 Note "shared receive queues are left at the end";
        LEAKED_PAIRS = 618 Note "queue pairs are left at the end";
        LEAKED_HANDLES = 619 Note "address handles are left at the end";
        LEAKED_EVENT_CHANNELS = 621 Note "event channels of the connection manager are left at the end";
        DESTROY_REFUSED = 622 Warning "an object in use was to be destroyed, and stays";
        CLOSED_TOO_EARLY = 623 Warning "a device is closed before its objects are destroyed";
        ASYNC_UNREAD = 624 Warning "asynchronous events tell of failures and are never read";
        ASYNC_NOT_ACKNOWLEDGED = 625 Error "an object is destroyed before its asynchronous events are acknowledged";
        ENDED_UNDER_WAY = 626 Warning "the program ends while its sends are under way";
        DESTROYED_UNDER_WAY = 627 Warning "a queue pair is destroyed while its sends are under way";
        ENDED_CONNECTED = 628 Note "the program ends without disconnecting";
        CHANNEL_DESTROYED = 629 Error "a completion channel is destroyed while a thread waits at it";
    }

    manager "UV-0" {
        ROUTE_BEFORE_ADDRESS = 701 Error "rdma_resolve_route is called before RDMA_CM_EVENT_ADDR_RESOLVED was taken";
        CONNECT_BEFORE_ROUTE = 702 Error "rdma_connect is called before RDMA_CM_EVENT_ROUTE_RESOLVED was taken";
        DESTROY_WAITS_FOR_ACK = 703 Error "rdma_destroy_id waits for an event that is not acknowledged";
        ACKNOWLEDGED_TWICE = 704 Error "an event of the connection manager is acknowledged twice";
        NEVER_ACKNOWLEDGED = 705 Warning "events of the connection manager are never acknowledged";
        REQUEST_NOT_ANSWERED = 706 Warning "a connection request is neither accepted nor rejected";
        DISCONNECT_NOT_ANSWERED = 707 Warning "the peer's disconnect is not answered";
        DESTROYED_CONNECTED = 708 Note "an id is destroyed while its connection stands";
        RECEIVES_AFTER_ACCEPT = 709 Warning "the peer's message came before a receive was posted on a new connection";
        MORE_READS_THAN_OFFERED = 710 Error "rdma_accept takes more READs at a time than the peer offered";
        RETRIES_OUT_OF_RANGE = 711 Warning "a retry count of rdma_conn_param is larger than 7";
        PAIR_LEFT_BEHIND = 712 Warning "an id is destroyed before its queue pair";
        MOVED_BY_HAND = 714 Warning "the program moves a queue pair that the connection manager moves";
        QKEY_NOT_OF_EVENT = 715 Error "a datagram does not show the Q_Key that the connection manager told";
        GROUP_NOT_LEFT = 716 Warning "an id is destroyed while it is in a multicast group";
        SENDS_AFTER_END = 717 Warning "work is posted for a connection that has ended";
        SENDS_BEFORE_ESTABLISHED = 718 Warning "work is posted before RDMA_CM_EVENT_ESTABLISHED was taken";
        CHANNEL_DESTROYED_EARLY = 719 Error "an event channel is destroyed while ids report to it";
        NO_QUEUE_PAIR = 720 Error "a connection is asked for or accepted without a queue pair";
        USED_AFTER_ACK = 721 Error "private data of an event is used after the event was acknowledged";
        EMPTY_PRIVATE_DATA = 722 Note "private data is given with a length of 0";
    }

    calls "UV-0" {
        NOT_A_TRANSITION = 801 Error "a queue pair cannot go from its state to the one that was asked for";
        ATTRIBUTE_MISSING = 802 Error "a transition of a queue pair lacks an attribute";
        ATTRIBUTE_UNWANTED = 803 Error "a transition of a queue pair was given an attribute that it does not take";
        VALUE_OUT_OF_RANGE = 804 Error "a value is outside its range";
        WRONG_CURRENT_STATE = 805 Error "an object is not in the state that the program says it is in";
        NO_ROUTE = 806 Error "an address does not say how to reach the peer";
        WRONG_STATE = 810 Error "work was posted to a queue pair whose state takes none";
        SEND_QUEUE_FULL = 811 Error "the send queue is full";
        RECEIVE_QUEUE_FULL = 812 Error "the receive queue is full";
        TOO_MANY_PIECES = 813 Error "a scatter/gather list is longer than the queue takes";
        INLINE_TOO_LONG = 814 Error "inline data is longer than the queue takes";
        NOT_SUPPORTED = 816 Error "an operation that the kind of queue pair does not have";
        TARGET_MISSING = 817 Error "a datagram without an address, or an address where none belongs";
        NO_RECEIVE_QUEUE = 818 Error "a receive was posted to a queue pair that has no receive queue of its own";
        MESSAGE_LENGTH = 819 Error "a message of a length that cannot be sent";
        BUSY = 820 Error "an object was destroyed that others still use";
        LIMIT = 821 Error "more was asked for than the device or the system has";
        ACCESS_FLAGS = 822 Error "access flags that cannot be granted";
        NULL = 823 Error "an argument is a null pointer";
        NOT_MAPPED = 824 Error "memory was registered that the program does not have";
        UNKNOWN_BITS = 825 Error "a mask or flags have bits that are not known";
        UNSUPPORTED = 826 Error "the device does not do this";
        GONE = 827 Error "a call names an object that does not exist any more";
        LIST_LEADS_NOWHERE = 828 Error "a list of work requests leads to memory that the program does not have";
        CM_STATE = 830 Error "a call of the connection manager in the wrong order";
        CM_ADDRESS = 831 Error "an address cannot be used or not be reached";
        PRIVATE_DATA = 832 Error "more private data than the message has room for";
        CARD_REFUSES = 833 Error "the card that the NIC is like does not do this";
        REFUSED = 899 Error "a call was refused";
    }

    events "UV-0" {
        PEER_REFUSED = 901 Error "the peer asked for what it may not have";
        ROUTINE_EVENT = 902 Note "an asynchronous event that is no error";
        ASYNC_ERROR = 903 Error "an asynchronous event reports an error";
        NOT_ACKNOWLEDGED = 910 Warning "the peer has not acknowledged anything for a while";
        PEER_NOT_READY = 911 Warning "the peer has had no receive posted for a while";
        NEVER_SENT = 912 Warning "work was posted and is not sent";
        NOTHING_SIGNALED = 913 Error "the send queue is full and nothing in it was signaled";
        RECEIVE_QUEUE_EMPTY = 914 Warning "messages of the peer wait for a receive to be posted";
        NOTHING_TO_WAIT_FOR = 915 Note "the program waits for a completion, and nothing was ever sent";
        NONE_WAS_SIGNALED = 916 Warning "the program waits for the completion of a send that is not signaled";
        ONLY_THE_PEER_CAN_END_IT = 917 Note "the program waits after a send that is not signaled: only its peer can end it";
        WRITES_USE_NO_RECEIVE = 918 Note "the program waits for a receive to complete, and only WRITEs have come";
        KEY_MISMATCH = 920 Error "packets were dropped because their Q_Key or P_Key is not the queue pair's";
        PSN_MISMATCH = 922 Error "packets were dropped because both ends count from different PSNs";
        UNKNOWN_PAIR = 923 Warning "packets were dropped because no queue pair has their number";
        WRONG_STATE = 924 Warning "packets were dropped because the queue pair was not in a state to receive";
        LENGTH = 925 Error "packets were dropped because of their length";
        NO_RECEIVE = 926 Warning "messages were dropped because no receive was posted";
        WRITE_FORBIDDEN = 927 Error "a WRITE was dropped because the memory may not be touched that way";
        FOREIGN_ADDRESS = 928 Warning "packets were dropped because they do not come from the peer";
        UNREADABLE = 929 Warning "packets were dropped because they make no sense here";
        LOST = 930 Warning "packets were lost on this machine";
        ROUTINE_DROPS = 933 Note "packets were dropped that are no longer needed";
        REJECTED_BY_PROGRAM = 940 Warning "the peer's program rejected the connection";
        NOBODY_LISTENS = 941 Error "nobody listens at the address that was to be connected to";
        NOT_CONNECTED = 942 Error "a connection could not be made";
        CONNECTION_LOST = 945 Error "a connection ended without a program ending it";
        DISCONNECTED = 947 Note "the peer disconnected";
        REQUEST_UNANSWERED = 948 Warning "nobody answers a connection request";
        DISCONNECT_UNANSWERED = 949 Warning "a peer does not answer a disconnect";
        INJECTED = 950 Note "a failure script did this";
        ONLY_PEERS_CAN_CLOSE = 951 Note "the program waits for connections to end that only its peers can end";
    }

    races "UV-" {
        WRITES = 1001 Error "two operations write the same memory in no order";
        WRITE_AND_READ = 1002 Error "one operation reads memory that another writes, in no order";
        ATOMIC_AND_OTHER = 1003 Warning "an atomic operation and another access of the same memory are in no order";
        PEER_AND_OWN = 1004 Error "a peer's operation and own work use the same memory in no order";
        OWN_WORK = 1005 Error "work requests of one process use the same memory in no order";
    }
}
