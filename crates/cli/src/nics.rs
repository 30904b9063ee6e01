//! `--nics`: so many NICs in place of the host's own devices, for this process and those that it starts or becomes.

use clap::Args;
use hca::environment::NICS_VARIABLE;
use hca::interfaces::Nics;

/// The option.
#[derive(Args, Clone, Debug)]
pub struct NicsOption {
    /// Have so many NICs in place of the host's own devices, each with an address of its own: 1 to 64, or hgx
    ///
    /// ubi_0 has 127.0.0.1, ubi_1 has 127.0.0.2, and so on; they reach this host only. `2x4` is two NICs of four ports
    /// each (up to four), every port with an address: ubi_0 has 127.0.0.1 to 127.0.0.4. `hgx` is a server: eight, each
    /// behind a PCI switch of its own, with a GPU where the machine has as many, spread over its NUMA nodes.
    #[arg(long, value_name = "N[xPORTS]|hgx", value_parser = read)]
    nics: Option<String>,
}

fn read(text: &str) -> Result<String, String> {
    text.parse::<Nics>().map(|_| text.to_owned())
}

impl NicsOption {
    /// What the user said.
    pub fn word(&self) -> Option<&str> {
        self.nics.as_deref()
    }

    /// From here on the environment says so.
    #[allow(unsafe_code, reason = "the environment has no safe form")]
    pub fn apply(&self) {
        if let Some(nics) = &self.nics {
            // SAFETY: the command has only begun, and this is its only thread.
            unsafe { std::env::set_var(NICS_VARIABLE, nics) };
        }
    }
}
