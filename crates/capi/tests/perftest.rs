//! perftest, as Debian ships it: it links drivers of other hardware, so it also proves that they load beside the library.

mod library;

use library::{alone, pair};

fn runs(program: &str, variants: &[&[&str]]) {
    let _turn = alone();
    for variant in variants {
        let mut arguments = vec!["-d", "ubi_lo", "-n", "200"];
        arguments.extend_from_slice(variant);
        let said = pair(program, &arguments);
        assert!(said.contains("#bytes"), "no results from {program} {variant:?}:\n{said}");
    }
}

#[test]
fn sends() {
    runs("ib_send_lat", &[&[], &["-c", "UC"], &["-c", "UD"], &["-c", "XRC"], &["-I", "64", "-s", "64"], &["-e"]]);
    runs(
        "ib_send_bw",
        &[
            &[],
            &["-e"],
            &["-q", "4"],
            &["-b"],
            &["--use-srq", "-r", "128"],
            &["-c", "UD", "-s", "1024"],
            &["-c", "XRC"],
        ],
    );
}

#[test]
fn writes() {
    runs("ib_write_lat", &[&["-s", "8"]]);
    runs("ib_write_bw", &[&[], &["-q", "4", "-b"], &["-c", "XRC"], &["-s", "1048576"]]);
}

#[test]
fn reads() {
    runs("ib_read_lat", &[&[], &["-e"]]);
    runs("ib_read_bw", &[&[], &["-s", "1000000"]]);
}

#[test]
fn atomics() {
    runs("ib_atomic_lat", &[&[]]);
    runs("ib_atomic_bw", &[&[], &["-A", "CMP_AND_SWAP"]]);
}
