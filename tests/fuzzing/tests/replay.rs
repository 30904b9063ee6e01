//! The corpora of the fuzz targets whose bodies are in this crate, and random bytes, some of them inputs with a few
//! bytes changed. Those that make C calls have the host's UDP port, so they are a program of their own (`c_calls`).
#![allow(missing_docs)]

mod corpus;

use corpus::{play, random};

#[test]
fn rings_replay() {
    play("ring", 3000, fuzzing::ring);
}

#[test]
fn a_writer_that_changes_the_ring_while_it_is_read_gets_nothing_out_of_it() {
    for (name, bytes) in corpus::inputs("ring").into_iter().take(40) {
        println!("{name}");
        fuzzing::ring_under_attack(&bytes, 100);
    }
    for seed in 0..40 {
        fuzzing::ring_under_attack(&random(seed, 300), 100);
    }
}

#[test]
fn messages_of_sockets_replay() {
    play("socket_messages", 20_000, fuzzing::socket_messages);
}

#[test]
fn management_agents_replay() {
    play("agents", 20_000, fuzzing::agents);
}

#[test]
fn records_replay() {
    play("records", 3000, fuzzing::records);
}

#[test]
fn probes_replay() {
    play("probes", 20_000, fuzzing::probes);
}

#[test]
fn tables_of_the_kernel_replay() {
    play("tables", 5000, fuzzing::tables);
}

#[test]
fn scripts_replay() {
    play("scripts", 1000, fuzzing::scripts);
}

#[test]
fn what_members_of_groups_say_replays() {
    play("groups", 50_000, fuzzing::groups);
}

#[test]
fn settings_replay() {
    play("settings", 20_000, fuzzing::settings);
}

#[test]
fn logs_replay() {
    play("logs", 5000, fuzzing::logs);
}

#[test]
fn recordings_replay() {
    play("recordings", 400, fuzzing::recordings);
}

#[test]
fn endpoints_replay() {
    play("endpoint", 20_000, fuzzing::endpoint);
}

#[test]
fn requests_of_netlink_replay() {
    play("netlink", 5000, fuzzing::netlink);
}

#[test]
fn reports_of_processes_replay() {
    play("reports", 5000, fuzzing::reports);
}

#[test]
fn flows_and_frames_replay() {
    play("flows", 20_000, fuzzing::flows);
}
