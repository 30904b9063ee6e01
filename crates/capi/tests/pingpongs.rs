//! The example programs of rdma-core, as Debian ships them.

mod library;

use library::{alone, on_library, pair, succeed};

#[test]
fn devices_are_listed_and_described() {
    let listed = succeed(&mut on_library("ibv_devices"));
    assert!(listed.contains("ubi_lo"), "{listed}");
    let described = succeed(on_library("ibv_devinfo").args(["-v", "-d", "ubi_lo"]));
    for expected in ["PORT_ACTIVE", "link_layer:\t\tEthernet", "RoCE v2", "ODP_SUPPORT_IMPLICIT", "MEM_WINDOW_TYPE_2B"]
    {
        assert!(described.contains(expected), "no {expected} in\n{described}");
    }
}

/// Polling and waiting for events, checking data where the program can.
fn pingpong(program: &str, variants: &[&[&str]]) {
    let _turn = alone();
    for variant in variants {
        let mut arguments = vec!["-d", "ubi_lo", "-g", "0"];
        arguments.extend_from_slice(variant);
        pair(program, &arguments);
    }
}

#[test]
fn rc() {
    pingpong(
        "ibv_rc_pingpong",
        &[
            &["-c"],
            &["-e", "-c"],
            &["-s", "65536", "-m", "4096", "-n", "200", "-c"],
            &["-o", "-c"],
            &["-t"],
            &["-N"],
            &["-j"],
        ],
    );
}

#[test]
fn uc() {
    pingpong("ibv_uc_pingpong", &[&["-c"], &["-e", "-c"], &["-s", "1", "-m", "256"]]);
}

#[test]
fn ud() {
    pingpong("ibv_ud_pingpong", &[&["-c"], &["-e", "-c"], &["-s", "1024"]]);
}

#[test]
fn srq() {
    pingpong("ibv_srq_pingpong", &[&["-c"], &["-e", "-c"], &["-q", "4", "-s", "8192", "-n", "200", "-c"]]);
}

#[test]
fn xrc_srq() {
    pingpong("ibv_xsrq_pingpong", &[&[], &["-e"], &["-s", "1024"]]);
}
