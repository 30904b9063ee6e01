//! `librspreload.so`: a program of sockets, run on rsockets. The programs are in `c/sockets.c` and
//! `c/sockets_processes.c`; what they test holds for the kernel's TCP as well, and that is tested, too.

use crate::library::{Link, alone, compile, directory, on_link, show};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program that has a test.
fn program(test: &str) -> PathBuf {
    const OF_ONE_PROCESS: &str = "plain calls names epoll_level epoll_edge nonblocking full copies files mixed stdio \
                                  gone tcp settings many_closed stopped few_descriptors";
    let one = OF_ONE_PROCESS.split_whitespace().any(|name| name == test);
    compile("cc", if one { "sockets.c" } else { "sockets_processes.c" })
}

/// A test, over rsockets.
fn sockets(link: Link, test: &str) -> Command {
    let mut command = on_link(link, program(test));
    command.arg(test).env("LD_PRELOAD", directory().join("librspreload.so"));
    command
}

fn output_of(command: &mut Command) -> Output {
    let _turn = alone();
    let output = command.output().expect("timeout runs");
    assert!(output.status.success(), "{}", show("sockets", &output));
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

macro_rules! everywhere {
    ($($name:ident: $test:literal,)*) => {
        mod shared_memory {
            $(#[test]
            fn $name() {
                assert_eq!(super::said(&super::output_of(&mut super::sockets(super::Link::SharedMemory, $test))), "");
            })*
        }
        mod udp {
            $(#[test]
            fn $name() {
                assert_eq!(super::said(&super::output_of(&mut super::sockets(super::Link::Udp, $test))), "");
            })*
        }
        #[test]
        fn what_is_tested_holds_for_tcp() {
            for test in [$($test),*] {
                output_of(Command::new("timeout").arg("300").arg(program(test)).args([test, "tcp"]));
            }
        }
    };
}

everywhere! {
    bytes_go_there_and_back: "plain",
    every_call_reads_and_writes: "calls",
    names_and_options_are_those_of_a_socket: "names",
    a_server_forks_for_each_connection: "fork_server",
    a_client_forks_and_both_go_on: "fork_client",
    a_parent_that_ends_leaves_its_child_the_stream: "orphan",
    a_program_that_ends_has_sent_everything: "last_words",
    children_accept_from_one_listening_socket: "prefork",
    epoll_waits_for_many_level_triggered: "epoll_level",
    epoll_waits_for_many_edge_triggered: "epoll_edge",
    a_connection_need_not_be_waited_for: "nonblocking",
    a_full_stream_stops_its_writer: "full",
    descriptors_are_copied: "copies",
    files_and_pipes_are_sent: "files",
    other_programs_inherit_streams: "programs",
    a_descriptor_is_passed_to_another_process: "passed",
    rsockets_and_pipes_are_waited_for_together: "mixed",
    a_stream_of_stdio_is_one: "stdio",
    a_peer_that_has_gone_is_noticed: "gone",
    a_thread_reads_while_others_fork: "threads",
    a_program_is_executed_in_place_of_this: "executed",
    a_server_without_rsockets_is_reached_by_tcp: "tcp",
    what_rsockets_need_is_not_closed_with_the_rest: "many_closed",
    a_thread_that_accepts_is_ended_by_another: "stopped",
    a_connection_takes_two_descriptors_at_most: "few_descriptors",
    a_peer_that_does_not_read_keeps_no_program: "unread",
}

#[test]
fn what_would_lose_bytes_is_refused_with_a_message() {
    let said = said(&output_of(&mut sockets(Link::SharedMemory, "refused")));
    assert!(said.contains("ubiverbs: exec is refused (EBUSY)"), "{said}");
    assert!(said.contains("ubiverbs: io_uring is refused (ENOSYS)"), "{said}");
}

#[test]
fn the_end_of_the_process_that_moves_bytes_is_not_the_end_of_a_stream() {
    for link in [Link::SharedMemory, Link::Udp] {
        output_of(&mut sockets(link, "killed"));
    }
}

/// A file of settings.
fn settings(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a place for files");
    path
}

#[test]
fn the_file_of_settings_says_which_sockets_are_meant() {
    for text in ["* INET6 STREAM *\n", "other INET STREAM TCP\n", "# a comment\nsockets * DGRAM *\n"] {
        let file = settings("preload_config", text);
        output_of(sockets(Link::SharedMemory, "settings").env("UBIVERBS_PRELOAD_CONFIG", file));
    }
    let file = settings("preload_config_2", "* * DGRAM *\nSock inet stream tcp\n");
    output_of(sockets(Link::SharedMemory, "plain").env("UBIVERBS_PRELOAD_CONFIG", file));
}

#[test]
fn sizes_of_queues_come_from_the_environment() {
    let mut command = sockets(Link::SharedMemory, "plain");
    output_of(command.env("RS_SQ_SIZE", "16").env("RS_RQ_SIZE", "16").env("RS_INLINE", "0"));
}

#[test]
fn it_is_found_where_rdma_core_has_it() {
    for name in ["librspreload.so.1", "rsocket/librspreload.so", "rsocket/librspreload.so.1"] {
        let mut command = Command::new(program("plain"));
        output_of(command.arg("plain").env("LD_PRELOAD", directory().join(name)).env_remove("LD_LIBRARY_PATH"));
    }
}
