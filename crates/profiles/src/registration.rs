//! How a card names registered memory: keys, and the addresses that a program may choose for it.

/// What keys look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyLayout {
    /// Numbers that nobody guesses.
    #[default]
    Random,
    /// An index that counts up, and a variant in the low 8 bits.
    IndexAndVariant,
    /// Small numbers that count up.
    Small,
}

/// Which addresses a program may choose for registered memory (`ibv_reg_mr_iova`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IovaRule {
    /// Any.
    #[default]
    Any,
    /// Those at the same place of a page: cards map pages.
    PageOffset,
    /// The same, and what is chosen is ignored: the memory has its own addresses.
    Ignored,
}

/// What the table `memory` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// The L_Key of a region is its R_Key.
    pub equal_keys: bool,
    /// What keys look like.
    pub key_layout: KeyLayout,
    /// A region that peers may not use has the R_Key 0.
    pub hides_rkeys: bool,
    /// Which addresses a program may choose.
    pub iova: IovaRule,
    /// The bytes of a page: a power of two.
    pub page_size: u64,
    /// Regions of no bytes are refused with `EINVAL`.
    pub refuses_empty: bool,
}

impl Default for Registration {
    fn default() -> Registration {
        Registration {
            equal_keys: false,
            key_layout: KeyLayout::Random,
            hides_rkeys: false,
            iova: IovaRule::Any,
            page_size: 4096,
            refuses_empty: false,
        }
    }
}

impl Registration {
    /// Whether memory at `address` may have the addresses from `iova` on.
    #[must_use]
    pub const fn admits(&self, address: u64, iova: u64) -> bool {
        matches!(self.iova, IovaRule::Any) || (address ^ iova) & (self.page_size - 1) == 0
    }
}
