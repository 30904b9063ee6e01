//! What the library exports, beside what the distribution's own exports; and that it is a library one can copy, load and link against.

mod library;

use library::{compile, directory, on_library, succeed};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names with their versions, and whether they are code or data.
fn exports(file: &Path) -> BTreeSet<String> {
    let text = succeed(Command::new("nm").args(["-D", "--with-symbol-versions", "--defined-only"]).arg(file));
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (kind, name) = (words.next()?, words.next()?);
            // Absolute symbols are the versions themselves.
            let kind = match kind {
                "A" => "version",
                "T" => "code",
                _ => "data",
            };
            Some(format!("{kind} {name}"))
        })
        .collect()
}

/// The distribution's own library.
fn original() -> PathBuf {
    let found = fs::read_dir("/usr/lib")
        .expect("/usr/lib")
        .flatten()
        .map(|entry| entry.path().join("libibverbs.so.1"))
        .find(|path| path.exists());
    found.expect("the original is missing: apt-get install libibverbs1")
}

#[test]
fn every_symbol_of_the_original_is_there_with_its_version() {
    let (theirs, ours) = (exports(&original()), exports(&directory().join("libibverbs.so.1")));
    assert!(theirs.len() > 150, "only {} symbols were read", theirs.len());
    let missing: Vec<_> = theirs.difference(&ours).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn nothing_else_is_exported() {
    let stray: Vec<_> = exports(&directory().join("libibverbs.so.1"))
        .into_iter()
        .filter(|symbol| !symbol.contains("IBVERBS_"))
        .collect();
    assert!(stray.is_empty(), "{stray:#?}");
}

#[test]
fn it_needs_nothing_but_the_c_library() {
    let text = succeed(Command::new("readelf").arg("-d").arg(directory().join("libibverbs.so.1")));
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let allowed = |name: &&&str| name.starts_with("libc.so") || name.starts_with("ld-linux");
    assert_eq!(needed.iter().filter(|name| !allowed(name)).count(), 0, "{needed:?}");
    assert!(text.contains("Library soname: [libibverbs.so.1]"), "{text}");
    assert!(text.contains("NODELETE"), "{text}");
}

#[test]
fn a_copy_of_it_works_and_so_does_opening_it_by_hand() {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("copied");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir_all(&copy).unwrap();
    fs::copy(directory().join("libibverbs.so.1"), copy.join("libibverbs.so.1")).unwrap();
    let listed = succeed(on_library("ibv_devices").env("LD_LIBRARY_PATH", &copy));
    assert!(listed.contains("ubi_lo"), "{listed}");
    succeed(on_library(compile("cc", "by_hand.c")).arg(copy.join("libibverbs.so.1")));
}

#[test]
fn drivers_of_other_hardware_load_beside_it() {
    for driver in ["libmlx5.so.1", "libefa.so.1"] {
        let path = original().with_file_name(driver);
        assert!(path.exists(), "{driver} is missing: apt-get install ibverbs-providers");
        let said = succeed(on_library("ldd").arg("-r").arg(&path).env("LD_BIND_NOW", "1"));
        assert!(!said.contains("undefined") && !said.contains("not found"), "{said}");
    }
}

#[test]
fn a_program_linked_against_it_runs_on_the_original_too() {
    let program = compile("cc", "list.c");
    let ours = succeed(&mut on_library(&program));
    assert!(ours.contains("ubi_lo"), "{ours}");
    // There it finds no device, or another one; what counts is that it starts.
    succeed(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
}
