//! The numbers of `rdma/rdma_netlink.h` and `linux/netlink.h`, and of errors.

/// The client of devices.
pub const NLDEV: u16 = 5;

/// The type of a message: a client and a command.
pub const fn message_type(client: u16, command: u16) -> u16 {
    client << 10 | command
}

/// A request, and not an answer.
pub const REQUEST: u16 = 1;
/// One message of several.
pub const MULTI: u16 = 2;
/// Say also that it went well.
pub const ACK: u16 = 4;
/// Tell of all there are; either bit will do.
pub const DUMP: u16 = 0x300;
/// Only the header of the request comes back.
pub const CAPPED: u16 = 0x100;

/// The types below this are netlink's own.
pub const MIN_TYPE: u16 = 16;
/// An error, or none.
pub const ERROR: u16 = 2;
/// The end of several messages.
pub const DONE: u16 = 3;

/// Numbers of errors.
pub mod errno {
    /// Not permitted.
    pub const EPERM: i32 = 1;
    /// No such thing.
    pub const ENOENT: i32 = 2;
    /// The request makes no sense.
    pub const EINVAL: i32 = 22;
    /// Not here.
    pub const EOPNOTSUPP: i32 = 95;
}

macro_rules! numbered {
    ($(#[$doc:meta])* $module:ident: $type:ty { $($name:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[allow(missing_docs)] // the names are the header's
        pub mod $module {
            $(pub const $name: $type = $number;)*
        }
    };
}

numbered! {
    /// `enum rdma_nldev_command`.
    command: u16 {
        GET = 1, SET = 2, NEWLINK = 3, DELLINK = 4, PORT_GET = 5, SYS_GET = 6, SYS_SET = 7,
        RES_GET = 9, RES_QP_GET = 10, RES_CM_ID_GET = 11, RES_CQ_GET = 12, RES_MR_GET = 13, RES_PD_GET = 14,
        GET_CHARDEV = 15, STAT_SET = 16, STAT_GET = 17, STAT_DEL = 18,
        RES_QP_GET_RAW = 19, RES_CQ_GET_RAW = 20, RES_MR_GET_RAW = 21, RES_CTX_GET = 22, RES_SRQ_GET = 23,
        STAT_GET_STATUS = 24,
    }
}

numbered! {
    /// `enum rdma_nldev_attr`.
    attribute: u16 {
        DEV_INDEX = 1, DEV_NAME = 2, PORT_INDEX = 3, CAP_FLAGS = 4, FW_VERSION = 5, NODE_GUID = 6, SYS_IMAGE_GUID = 7,
        PORT_STATE = 12, PORT_PHYS_STATE = 13, DEV_NODE_TYPE = 14,
        RES_SUMMARY = 15, RES_SUMMARY_ENTRY = 16, RES_SUMMARY_ENTRY_NAME = 17, RES_SUMMARY_ENTRY_CURR = 18,
        RES_QP = 19, RES_QP_ENTRY = 20, RES_LQPN = 21, RES_RQPN = 22, RES_RQ_PSN = 23, RES_SQ_PSN = 24,
        RES_PATH_MIG_STATE = 25, RES_TYPE = 26, RES_STATE = 27, RES_PID = 28,
        RES_CM_ID = 30, RES_CM_ID_ENTRY = 31, RES_PS = 32, RES_SRC_ADDR = 33, RES_DST_ADDR = 34,
        RES_CQ = 35, RES_CQ_ENTRY = 36, RES_CQE = 37, RES_USECNT = 38,
        RES_MR = 40, RES_MR_ENTRY = 41, RES_RKEY = 42, RES_LKEY = 43, RES_IOVA = 44, RES_MRLEN = 45,
        RES_PD = 46, RES_PD_ENTRY = 47, NDEV_INDEX = 50, NDEV_NAME = 51,
        RES_PDN = 60, RES_CQN = 61, RES_MRN = 62, RES_CM_IDN = 63, RES_CTXN = 64,
        SYS_NETNS_MODE = 66, DEV_PROTOCOL = 67,
        CHARDEV_TYPE = 69, CHARDEV_NAME = 70, CHARDEV_ABI = 71, CHARDEV = 72,
        STAT_MODE = 74, STAT_RES = 75, STAT_COUNTER = 77, STAT_COUNTER_ENTRY = 78,
        STAT_COUNTER_ID = 79, STAT_HWCOUNTERS = 80, STAT_HWCOUNTER_ENTRY = 81, STAT_HWCOUNTER_ENTRY_NAME = 82,
        STAT_HWCOUNTER_ENTRY_VALUE = 83, DEV_DIM = 84, RES_CTX = 86, RES_CTX_ENTRY = 87,
        RES_SRQ = 88, RES_SRQ_ENTRY = 89, RES_SRQN = 90, SYS_COPY_ON_FORK = 93, STAT_HWCOUNTER_INDEX = 94,
    }
}
