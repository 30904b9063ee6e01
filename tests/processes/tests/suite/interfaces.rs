//! Interfaces that come and go. The other process plays it all, in a network of its own.

use stage::turn;
use std::process::Command;

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

/// Starts the other process in a network of its own, and waits until it has ended well.
fn in_a_network_of_its_own(role: &str) {
    let mut command = Command::new("unshare");
    // Any user but root needs a user namespace, in which that user may make a network.
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    let status = command.args(["--net", PEER, role]).status().expect("unshare is missing: apt-get install util-linux");
    assert!(status.success(), "{role}: {status}; if this user may make no namespaces, run it as root");
}

#[test]
fn devices_follow_the_interfaces() {
    let _turn = turn();
    in_a_network_of_its_own("interfaces");
}

#[test]
fn an_id_hears_that_its_device_is_gone() {
    let _turn = turn();
    in_a_network_of_its_own("removal");
}
