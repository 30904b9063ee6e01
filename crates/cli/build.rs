//! Links the compiler's support library into the program, so that it needs nothing but the C library where it runs. The
//! compiler asks for `libgcc_s`, and finds a script of that name which says to take the static parts instead.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, wanted: &str| env::var(name).is_ok_and(|value| value == wanted);
    let natively = env::var("HOST").ok() == env::var("TARGET").ok();
    // Cargo names it if a linker was set, as it must be for another machine.
    let linker = env::var("RUSTC_LINKER").ok().or_else(|| natively.then(|| "cc".to_owned()));
    let Some(linker) = linker.filter(|_| is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu"))
    else {
        return;
    };
    if !has_static_parts(&linker) {
        return;
    }
    let place = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(place.join("libgcc_s.so"), "INPUT ( -l:libgcc_eh.a -l:libgcc.a )\n").expect("the directory is ours");
    println!("cargo:rustc-link-arg-bins=-L{}", place.display());
}

/// Whether the linker would find them.
fn has_static_parts(linker: &str) -> bool {
    let found = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    found.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_absolute())
}
