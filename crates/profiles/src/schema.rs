//! The words of profiles. Each table of the language has a list here; a word that is in none is a mistake.

use core::fmt;

/// An enumeration whose values are words of a profile's tables.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($table:literal { $($variant:ident = $word:literal),* $(,)? })* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[doc = concat!("`", $word, "` of the table `", $table, "`.")] $variant,)*)* }

        impl $name {
            /// All of them, in the order of the tables.
            pub const ALL: &[$name] = &[$($($name::$variant),*),*];

            /// The word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $($($name::$variant => $word,)*)* }
            }

            /// The table that it stands in.
            #[must_use]
            pub const fn table(self) -> &'static str {
                match self { $($($name::$variant => $table,)*)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

words! {
    /// A number that a device or a port tells, or that it does not exceed.
    Limit {
        "limits" {
            MaxMrSize = "max-mr-size",
            PageSizeCap = "page-size-cap",
            MaxQp = "max-qp",
            MaxQpWr = "max-qp-wr",
            MaxSendWr = "max-send-wr",
            MaxRecvWr = "max-recv-wr",
            MaxSge = "max-sge",
            MaxSendSge = "max-send-sge",
            MaxRecvSge = "max-recv-sge",
            MaxSgeRd = "max-sge-rd",
            MaxInline = "max-inline",
            MaxCq = "max-cq",
            MaxCqe = "max-cqe",
            MaxMr = "max-mr",
            MaxPd = "max-pd",
            MaxQpRdAtom = "max-qp-rd-atom",
            MaxResRdAtom = "max-res-rd-atom",
            MaxQpInitRdAtom = "max-qp-init-rd-atom",
            MaxMw = "max-mw",
            MaxRawEthyQp = "max-raw-ethy-qp",
            MaxMcastGrp = "max-mcast-grp",
            MaxMcastQpAttach = "max-mcast-qp-attach",
            MaxTotalMcastQpAttach = "max-total-mcast-qp-attach",
            MaxAh = "max-ah",
            MaxSrq = "max-srq",
            MaxSrqWr = "max-srq-wr",
            MaxSrqSge = "max-srq-sge",
            MaxPkeys = "max-pkeys",
            LocalCaAckDelay = "local-ca-ack-delay",
            MaxDmSize = "max-dm-size",
            MaxTags = "max-tags",
            CompletionVectors = "completion-vectors",
        }
        "port" {
            MaxMtu = "max-mtu",
            GidEntries = "gid-entries",
            PkeyEntries = "pkey-entries",
            MaxMessage = "max-message",
            CapFlags = "cap-flags",
            MaxVl = "max-vl",
            Lid = "lid",
        }
        "device" {
            VendorId = "vendor-id",
            PartId = "part-id",
            HardwareVersion = "hardware-version",
        }
    }
}

impl Limit {
    /// The smallest and the largest number that it may be.
    #[must_use]
    pub const fn range(self) -> (u64, u64) {
        match self {
            Limit::MaxMrSize | Limit::PageSizeCap | Limit::MaxDmSize => (0, u64::MAX),
            Limit::MaxMtu => (256, 4096),
            Limit::GidEntries => (1, 4096),
            Limit::PkeyEntries | Limit::MaxPkeys | Limit::Lid => (0, 0xffff),
            Limit::LocalCaAckDelay => (0, 31),
            Limit::MaxVl => (0, 15),
            Limit::MaxSge | Limit::MaxSendSge | Limit::MaxRecvSge | Limit::MaxQpWr => (1, i32::MAX as u64),
            Limit::CompletionVectors => (1, 4096),
            Limit::MaxQpRdAtom | Limit::MaxQpInitRdAtom => (0, 255),
            Limit::MaxMessage
            | Limit::CapFlags
            | Limit::VendorId
            | Limit::PartId
            | Limit::HardwareVersion
            | Limit::MaxInline
            | Limit::MaxTags => (0, u32::MAX as u64),
            _ => (0, i32::MAX as u64),
        }
    }

    /// Whether it is a number of objects, so that a request beyond it is refused for want of room.
    #[must_use]
    pub const fn counts_objects(self) -> bool {
        matches!(
            self,
            Limit::MaxQp | Limit::MaxCq | Limit::MaxMr | Limit::MaxPd | Limit::MaxMw | Limit::MaxAh | Limit::MaxSrq
        )
    }

    /// The feature without which it must be 0.
    #[must_use]
    pub const fn needs(self) -> Option<Feature> {
        Some(match self {
            Limit::MaxSrq | Limit::MaxSrqWr | Limit::MaxSrqSge => Feature::CreateSrq,
            Limit::MaxMw => Feature::AllocMw,
            Limit::MaxRawEthyQp => Feature::RawPacket,
            Limit::MaxMcastGrp | Limit::MaxMcastQpAttach | Limit::MaxTotalMcastQpAttach => Feature::AttachMcast,
            Limit::MaxDmSize => Feature::AllocDm,
            Limit::MaxTags => Feature::TagMatching,
            Limit::MaxAh => Feature::CreateAh,
            _ => return None,
        })
    }
}

words! {
    /// What a device has or refuses.
    Feature {
        "refuses.pairs" {
            Rc = "RC",
            Uc = "UC",
            Ud = "UD",
            Xrc = "XRC",
            RawPacket = "RAW_PACKET",
        }
        "refuses.calls" {
            CreateSrq = "ibv_create_srq",
            XrcSrq = "xrc-srq",
            TagMatching = "tag-matching",
            ModifySrq = "ibv_modify_srq",
            ResizeSrq = "srq-resize",
            AllocMw = "ibv_alloc_mw",
            AllocDm = "ibv_alloc_dm",
            OpenXrcd = "ibv_open_xrcd",
            ResizeCq = "ibv_resize_cq",
            ModerateCq = "cq-moderation",
            CreateCqEx = "ibv_create_cq_ex",
            CreateQpEx = "ibv_create_qp_ex",
            SendOperations = "send-operations",
            AllocNullMr = "ibv_alloc_null_mr",
            RegDmabuf = "ibv_reg_dmabuf_mr",
            ReregMr = "ibv_rereg_mr",
            AdviseMr = "ibv_advise_mr",
            CreateFlow = "ibv_create_flow",
            AttachMcast = "ibv_attach_mcast",
            CreateWq = "ibv_create_wq",
            RateLimit = "rate-limit",
            CreateAh = "ibv_create_ah",
            ByHand = "connect-by-hand",
            Manager = "connection-manager",
            PathMigration = "path-migration",
            SendQueueDrain = "send-queue-drain",
            CompletionCounter = "ibv_create_comp_cntr",
        }
        "refuses.work" {
            Send = "SEND",
            SendWithImm = "SEND_WITH_IMM",
            SendWithInv = "SEND_WITH_INV",
            RdmaWrite = "RDMA_WRITE",
            RdmaWriteWithImm = "RDMA_WRITE_WITH_IMM",
            RdmaRead = "RDMA_READ",
            AtomicCmpAndSwp = "ATOMIC_CMP_AND_SWP",
            AtomicFetchAndAdd = "ATOMIC_FETCH_AND_ADD",
            AtomicWrite = "ATOMIC_WRITE",
            Flush = "FLUSH",
            LocalInv = "LOCAL_INV",
            BindMw = "BIND_MW",
        }
        "refuses.access" {
            RemoteWrite = "REMOTE_WRITE",
            RemoteRead = "REMOTE_READ",
            RemoteAtomic = "REMOTE_ATOMIC",
            MwBind = "MW_BIND",
            ZeroBased = "ZERO_BASED",
            OnDemand = "ON_DEMAND",
            HugeTlb = "HUGETLB",
            FlushGlobal = "FLUSH_GLOBAL",
            FlushPersistent = "FLUSH_PERSISTENT",
        }
    }
}

words! {
    /// What is granted in a size of its own.
    Grant {
        "granted" {
            SendWr = "send-wr",
            RecvWr = "recv-wr",
            SrqWr = "srq-wr",
            Cqe = "cqe",
            SendSge = "send-sge",
            RecvSge = "recv-sge",
            Inline = "inline",
        }
    }
}

/// How far atomic operations are atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Atomics {
    /// There are none.
    None,
    /// Among those of the device.
    Device,
    /// Among everything in the host.
    Global,
}

impl Atomics {
    /// The words.
    pub const WORDS: &[&str] = &["none", "device", "global"];

    /// The one of this word.
    #[must_use]
    pub fn of(word: &str) -> Option<Atomics> {
        Some(match word {
            "none" => Atomics::None,
            "device" => Atomics::Device,
            "global" => Atomics::Global,
            _ => return None,
        })
    }
}

/// The bits of `device_cap_flags`, as `verbs.h` and `ibv_devinfo` name them.
pub const DEVICE_FLAGS: failures::words::Table = &[
    ("RESIZE_MAX_WR", 1),
    ("BAD_PKEY_CNTR", 1 << 1),
    ("BAD_QKEY_CNTR", 1 << 2),
    ("RAW_MULTI", 1 << 3),
    ("AUTO_PATH_MIG", 1 << 4),
    ("CHANGE_PHY_PORT", 1 << 5),
    ("UD_AV_PORT_ENFORCE", 1 << 6),
    ("CURR_QP_STATE_MOD", 1 << 7),
    ("SHUTDOWN_PORT", 1 << 8),
    ("INIT_TYPE", 1 << 9),
    ("PORT_ACTIVE_EVENT", 1 << 10),
    ("SYS_IMAGE_GUID", 1 << 11),
    ("RC_RNR_NAK_GEN", 1 << 12),
    ("SRQ_RESIZE", 1 << 13),
    ("N_NOTIFY_CQ", 1 << 14),
    ("MEM_WINDOW", 1 << 17),
    ("UD_IP_CSUM", 1 << 18),
    ("XRC", 1 << 20),
    ("MEM_MGT_EXTENSIONS", 1 << 21),
    ("MEM_WINDOW_TYPE_2A", 1 << 23),
    ("MEM_WINDOW_TYPE_2B", 1 << 24),
    ("RC_IP_CSUM", 1 << 25),
    ("RAW_IP_CSUM", 1 << 26),
    ("MANAGED_FLOW_STEERING", 1 << 29),
];

/// The access flags of `verbs.h` with the features that stand for them.
pub const ACCESS_FLAGS: &[(u32, Feature)] = &[
    (1 << 1, Feature::RemoteWrite),
    (1 << 2, Feature::RemoteRead),
    (1 << 3, Feature::RemoteAtomic),
    (1 << 4, Feature::MwBind),
    (1 << 5, Feature::ZeroBased),
    (1 << 6, Feature::OnDemand),
    (1 << 7, Feature::HugeTlb),
    (1 << 8, Feature::FlushGlobal),
    (1 << 9, Feature::FlushPersistent),
];
