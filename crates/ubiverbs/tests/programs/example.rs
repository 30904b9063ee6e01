//! Examples as commands.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The example's program.
pub fn command(name: &str) -> Command {
    Command::new(directory().join(name))
}

/// A directory with all examples. A caller that has built them says so with this variable, and they are not built once
/// more.
const EXAMPLES_VARIABLE: &str = "UBIVERBS_TEST_EXAMPLES";

/// Where the examples are; unless they are there, built as people build them: with the features of this package alone.
fn directory() -> &'static PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        if let Some(directory) = std::env::var_os(EXAMPLES_VARIABLE) {
            return directory.into();
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--examples"]).current_dir(env!("CARGO_MANIFEST_DIR"));
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success());
        let test = std::env::current_exe().expect("a test has a path");
        test.parent().and_then(|deps| deps.parent()).expect("target/debug/deps").join("examples")
    })
}
