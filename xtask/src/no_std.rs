//! The proof that the core needs no standard library: a program without one links it. On the host, so that it needs no
//! other target installed; if `std` slips in, its panic handler and the program's own are one too many.

use std::path::Path;

use crate::process;

/// Builds `tests/no_std`.
pub fn check(root: &Path) -> Result<String, String> {
    let target = process::target_directory(root)?.join("no_std");
    let manifest = root.join("tests/no_std/Cargo.toml");
    process::run(
        process::cargo(root)
            .args(["build", "--quiet", "--manifest-path"])
            .arg(&manifest)
            .arg("--target-dir")
            .arg(&target),
    )?;
    Ok("the core links into a program without the standard library".into())
}
