//! Real programs on what people get: builds it, and runs the tests of `tests/programs` on it.

use std::path::Path;
use std::process::Command;

use crate::process;
use crate::toolchain::Toolchain;
use crate::{dist, downloads, newest, test, wheel};

/// Which tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Those that need nothing but Debian's packages.
    Installed,
    /// Those of them that are named, on the dev build.
    Quick,
    /// Those of programs that are downloaded.
    Downloaded,
    /// All, to write the scoreboard.
    Scoreboard,
    /// Those that need nothing but Debian's packages, with every rule of verbs checked.
    Checked,
}

/// Where the newest rdma-core is, and why it is not there; the tests read these variables.
pub const NEWEST_VARIABLE: &str = "UBIVERBS_TEST_NEWEST";
const NEWEST_MISSING: &str = "UBIVERBS_TEST_NEWEST_MISSING";

/// Builds everything and returns the command that runs these tests, or those of them whose names contain one of
/// `words`.
pub fn prepare(root: &Path, which: Which, words: &[String]) -> Result<Command, String> {
    let downloads = matches!(which, Which::Downloaded | Which::Scoreboard);
    let environment = downloads.then(|| downloads::provide(root)).transpose()?;
    let toolchain = Toolchain::system(root, None)?;
    let (toolchain, dist) = match which {
        Which::Quick => (toolchain.with_debug_profile(), "dist-debug"),
        _ => (toolchain, "dist"),
    };
    match which {
        Which::Quick if !process::is_built("build") => drop(dist::build(root, dist::Options::DEBUG)?),
        Which::Quick => {}
        _ if process::is_built("release") => {}
        _ => {
            dist::build(root, dist::Options::default())?;
            wheel::native(root)?;
        }
    }
    let mut command = Command::new(toolchain.build_bin(root, "programs")?);
    command.current_dir(root).arg(process::target_directory(root)?.join(dist));
    // Where it cannot be had, the tests that want it fail and say so.
    if process::is_built("build") {
        command.env(test::EXAMPLES, process::target_directory(root)?.join("debug/examples"));
    }
    if which != Which::Quick {
        match newest::provide(root) {
            Ok(place) => command.env(NEWEST_VARIABLE, place),
            Err(error) => command.env(NEWEST_MISSING, error),
        };
    }
    if let Some(environment) = environment {
        command.arg(if which == Which::Scoreboard { "--scoreboard" } else { "--python" }).arg(environment);
    }
    if which == Which::Checked {
        command.arg("--check");
    }
    command.args(words);
    Ok(command)
}
