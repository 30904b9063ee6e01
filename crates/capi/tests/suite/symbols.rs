//! What the libraries export, beside what the distribution's own export; and that they are libraries one can copy, load
//! and link against.

use crate::library::{compile, directory, newest, on_library, succeed};
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

/// The libraries, and how many symbols the distribution's have at least.
const LIBRARIES: [(&str, usize); 3] = [("libibverbs.so.1", 150), ("librdmacm.so.1", 70), ("libibumad.so.3", 38)];

/// The distribution's own library of that name.
fn original(name: &str) -> PathBuf {
    let entries = fs::read_dir("/usr/lib").expect("/usr/lib").flatten();
    let found = entries.map(|entry| entry.path().join(name)).find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is missing: apt-get install libibverbs1 librdmacm1 libibumad3"))
}

#[test]
fn every_symbol_of_the_original_is_there_with_its_version() {
    for (name, least) in LIBRARIES {
        let (theirs, ours) = (exports(&original(name)), exports(&directory().join(name)));
        assert!(theirs.len() > least, "only {} symbols of {name} were read", theirs.len());
        let missing: Vec<_> = theirs.difference(&ours).collect();
        assert!(missing.is_empty(), "{name}: {missing:#?}");
    }
}

/// The library of that name of the newest release.
fn newest_original(name: &str) -> PathBuf {
    newest().join(format!("root/usr/lib/{}-linux-gnu", std::env::consts::ARCH)).join(name)
}

/// The newest release whose symbols were looked at. A later one may have more, which is no error of ours.
const KNOWN: &str = "65.";

fn newest_is_known() -> bool {
    fs::read_to_string(newest().join("version")).is_ok_and(|version| version.starts_with(KNOWN))
}

#[test]
fn so_is_every_symbol_of_the_newest_release_and_nothing_else() {
    for (name, least) in LIBRARIES {
        // Which of the private nodes is the default is nobody's business: drivers name the node.
        let read = |file: &Path| -> BTreeSet<String> {
            exports(file).into_iter().map(|symbol| symbol.replace("@@IBVERBS_PRIVATE", "@IBVERBS_PRIVATE")).collect()
        };
        let (theirs, ours) = (read(&newest_original(name)), read(&directory().join(name)));
        assert!(theirs.len() > least + 5, "only {} symbols of {name} were read", theirs.len());
        let missing: Vec<_> = theirs.difference(&ours).collect();
        match newest_is_known() {
            true => assert!(missing.is_empty(), "{name}: {missing:#?}"),
            false => println!("{name} of a release after {KNOWN} has more: {missing:#?}"),
        }
        // Private symbols of releases in between are for drivers of those.
        let is_private = |symbol: &&String| symbol.contains("IBVERBS_PRIVATE_") || symbol.contains("UBIVERBS_PRIVATE");
        let stray: Vec<_> = ours.difference(&theirs).filter(|symbol| !is_private(symbol)).collect();
        assert!(stray.is_empty(), "{name}: {stray:#?}");
    }
}

/// The dynamic loader of the newest release: its libraries want a newer C library than the distribution may have.
fn loader_of_the_newest(libraries: &Path) -> PathBuf {
    let mut entries = fs::read_dir(libraries).expect("the newest release").flatten().map(|entry| entry.path());
    entries.find(|path| path.to_string_lossy().contains("/ld-linux")).expect("a dynamic loader")
}

#[test]
fn drivers_of_the_newest_release_load_beside_it() {
    let libraries = newest_original("");
    let loader = loader_of_the_newest(&libraries);
    for driver in ["libmlx5.so.1", "libefa.so.1"] {
        let path = std::env::join_paths([directory(), &libraries]).unwrap();
        let mut load = Command::new(&loader);
        load.args(["--list", "--library-path"]).arg(path).arg(libraries.join(driver)).env("LD_BIND_NOW", "1");
        let said = succeed(&mut load);
        assert!(said.contains(&directory().join("libibverbs.so.1").display().to_string()), "{said}");
    }
}

/// What a release says nothing of may have a name in a later one.
const NAMELESS: [&str; 3] = [": unknown", ": UNKNOWN EVENT", ": absent"];

#[test]
fn names_for_people_are_those_of_the_original_letter_by_letter() {
    let program = compile("cc", "verbs_names.c");
    let ours = succeed(&mut on_library(&program));
    let theirs = succeed(Command::new(&program).env_remove("LD_LIBRARY_PATH"));
    let libraries = newest_original("");
    let mut newest = Command::new(loader_of_the_newest(&libraries));
    let newest = succeed(newest.arg("--library-path").arg(&libraries).arg(&program));
    for lines in [&ours, &theirs, &newest] {
        assert_eq!(lines.lines().count(), 6 * 303);
    }
    let differ = |other: &str, is_nameless: fn(&str) -> bool| -> Vec<(String, String)> {
        let pairs = ours.lines().zip(other.lines());
        let differing = pairs.filter(|(ours, other)| ours != other && !is_nameless(other));
        differing.map(|(ours, other)| (ours.to_owned(), other.to_owned())).collect()
    };
    assert_eq!(differ(&theirs, |line| NAMELESS.iter().any(|end| line.ends_with(end))), []);
    match newest_is_known() {
        true => assert_eq!(differ(&newest, |_| false), []),
        false => println!("names of a release after {KNOWN}: {:#?}", differ(&newest, |_| false)),
    }
}

#[test]
fn they_need_nothing_but_the_c_library_and_each_other() {
    for (library, allowed) in [
        ("libibverbs.so.1", &["libc.so", "ld-linux"][..]),
        ("librdmacm.so.1", &["libibverbs.so.1"]),
        ("libibumad.so.3", &["libibverbs.so.1"]),
    ] {
        let text = succeed(Command::new("readelf").arg("-d").arg(directory().join(library)));
        let lines = text.lines().filter(|line| line.contains("(NEEDED)"));
        let needed: Vec<&str> = lines.filter_map(|line| line.split(['[', ']']).nth(1)).collect();
        let is_allowed = |name: &&str| allowed.iter().any(|allowed| name.starts_with(allowed));
        assert!(needed.iter().all(is_allowed), "{needed:?}");
        assert!(text.contains(&format!("Library soname: [{library}]")), "{text}");
        assert!(text.contains("NODELETE"), "{text}");
    }
}

#[test]
fn the_connection_manager_without_its_other_half_says_so() {
    // Beside the distribution's libibverbs it must not half work.
    let lonely = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lonely");
    let _ = fs::remove_dir_all(&lonely);
    fs::create_dir_all(&lonely).unwrap();
    fs::copy(directory().join("librdmacm.so.1"), lonely.join("librdmacm.so.1")).unwrap();
    let output = on_library("rping").arg("-c").env("LD_LIBRARY_PATH", &lonely).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("version `UBIVERBS_PRIVATE' not found"), "{said}");
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
        let path = original("libibverbs.so.1").with_file_name(driver);
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
