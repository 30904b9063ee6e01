//! What a card writes into `ibv_wc`, and what becomes of a completion that meets a full queue. Programs read fields that
//! their card happens to fill: the opcode of failed work, the length of a SEND.

/// A field of `ibv_wc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// `wr_id`.
    WrId,
    /// `status`.
    Status,
    /// `opcode`.
    Opcode,
    /// `vendor_err`.
    VendorErr,
    /// `byte_len`.
    ByteLen,
    /// `imm_data`, and `invalidated_rkey` in its place.
    ImmData,
    /// `qp_num`.
    QpNum,
    /// `src_qp`.
    SrcQp,
    /// `wc_flags`.
    WcFlags,
    /// `pkey_index`.
    PkeyIndex,
    /// `slid`.
    Slid,
    /// `sl`.
    Sl,
    /// `dlid_path_bits`.
    DlidPathBits,
}

/// The fields by their names, in the order of [`Field`].
pub const FIELDS: &[(&str, Field)] = &[
    ("wr_id", Field::WrId),
    ("status", Field::Status),
    ("opcode", Field::Opcode),
    ("vendor_err", Field::VendorErr),
    ("byte_len", Field::ByteLen),
    ("imm_data", Field::ImmData),
    ("qp_num", Field::QpNum),
    ("src_qp", Field::SrcQp),
    ("wc_flags", Field::WcFlags),
    ("pkey_index", Field::PkeyIndex),
    ("slid", Field::Slid),
    ("sl", Field::Sl),
    ("dlid_path_bits", Field::DlidPathBits),
];

/// Fields of `ibv_wc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields(u16);

impl Fields {
    /// All of them.
    pub const ALL: Fields = Fields((1 << FIELDS.len()) - 1);
    /// None.
    pub const NONE: Fields = Fields(0);

    /// These and one more.
    #[must_use]
    pub const fn with(self, field: Field) -> Fields {
        Fields(self.0 | 1 << field as u16)
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn has(self, field: Field) -> bool {
        self.0 & 1 << field as u16 != 0
    }
}

/// Completions that a card fills in alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Work of the send queue that was done and brings no bytes back.
    Sends,
    /// READs and atomic operations that were done.
    Reads,
    /// Receives of connected queue pairs.
    Receives,
    /// Receives of datagrams.
    Datagrams,
    /// Work that failed or was flushed.
    Errors,
}

/// The classes by their words, in the order of [`Class`].
pub const CLASSES: &[(&str, Class)] = &[
    ("sends", Class::Sends),
    ("reads", Class::Reads),
    ("receives", Class::Receives),
    ("datagrams", Class::Datagrams),
    ("errors", Class::Errors),
];

/// What every completion says, or it would say nothing.
pub const NEEDED: &[Field] = &[Field::WrId, Field::Status];

/// What the table `completions` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Completions {
    /// A completion that meets a full queue is lost, with an event, and the queue goes on. If not, the queue is dead.
    pub drops: bool,
    /// What is not filled becomes zero. If not, it stays as the program left it.
    pub zeroes: bool,
    /// `src_qp` of a connected receive is the number of the queue pair itself, not of its peer.
    pub own_source: bool,
    /// Receives of connected queue pairs have the flag of a GRH, too.
    pub grh_of_all: bool,
    /// `vendor_err` of failed work is 0, unless the profile says a code for the status.
    pub no_vendor_errors: bool,
    pub(crate) filled: [Option<Fields>; CLASSES.len()],
}

impl Completions {
    /// Whether `ibv_wc` is filled in as without a profile.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        *self == Completions { drops: self.drops, no_vendor_errors: self.no_vendor_errors, ..Completions::default() }
    }

    /// Which fields completions of this class have.
    #[must_use]
    pub fn filled(&self, class: Class) -> Fields {
        self.filled[class as usize].unwrap_or(Fields::ALL)
    }
}
