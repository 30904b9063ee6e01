//! `--nics` and `--nic`: so many NICs in place of the host's own devices, and which cards they are like, for this process
//! and those that it starts or becomes.

use crate::cards;
use crate::exit::Failure;
use clap::Args;
use hca::environment::{NIC_VARIABLE, NICS_VARIABLE};
use hca::interfaces::Nics;

/// The options.
#[derive(Args, Clone, Debug)]
pub struct NicsOption {
    /// Have so many NICs in place of the host's own devices, each with an address of its own: 1 to 64, or hgx
    ///
    /// ubi_0 has 127.0.0.1, ubi_1 has 127.0.0.2, and so on; they reach this host only. `2x4` is two NICs of four ports
    /// each (up to four), every port with an address: ubi_0 has 127.0.0.1 to 127.0.0.4. `hgx` is a server: eight, each
    /// behind a PCI switch of its own, with a GPU where the machine has as many, spread over its NUMA nodes.
    #[arg(long, value_name = "N[xPORTS]|hgx", value_parser = read)]
    nics: Option<String>,
    /// Be like this card: what it refuses, grants and tells; a name of `--nic list`, or a file of your own
    ///
    /// Several, with commas between them, are for the NICs in their order, as of --nics; the last holds for all that
    /// follow. `--nic show NAME` prints what a card is like and where that is known from; docs/profiles.md has the
    /// language of files.
    #[arg(long, value_name = "NAME|FILE|list|show", add = cards::candidates())]
    nic: Option<String>,
}

fn read(text: &str) -> Result<String, String> {
    text.parse::<Nics>().map(|_| text.to_owned())
}

impl NicsOption {
    /// What the user said of their number.
    pub fn word(&self) -> Option<&str> {
        self.nics.as_deref()
    }

    /// What the user said of the cards.
    pub fn cards(&self) -> Option<&str> {
        self.nic.as_deref()
    }

    /// From here on the environment says so.
    #[allow(unsafe_code, reason = "the environment has no safe form")]
    pub fn apply(&self) -> Result<(), Failure> {
        if let Some(nics) = &self.nics {
            // SAFETY: the command has only begun, and this is its only thread.
            unsafe { std::env::set_var(NICS_VARIABLE, nics) };
        }
        if let Some(text) = &self.nic {
            let places = cards::placed(text)?;
            // SAFETY: as above.
            unsafe { std::env::set_var(NIC_VARIABLE, places) };
        }
        Ok(())
    }
}
