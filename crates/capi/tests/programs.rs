//! C and C++ programs written for the headers, compiled here, run on the library: over both links where what they do has to do with one.

mod library;

use library::{Link, alone, compile, on_library, on_link, succeed};

macro_rules! on_both_links {
    ($($name:ident: $compiler:literal $source:literal,)*) => {
        mod shared_memory {
            $(#[test]
            fn $name() {
                super::run_to_its_end(super::Link::SharedMemory, $compiler, $source);
            })*
        }
        mod udp {
            $(#[test]
            fn $name() {
                super::run_to_its_end(super::Link::Udp, $compiler, $source);
            })*
        }
    };
}

on_both_links! {
    it_answers_as_the_manual_pages_say: "cc" "semantics.c",
    events_wake_wait_and_are_waited_for: "cc" "events.c",
    threads_make_use_and_destroy_everything_at_once: "cc" "threads.c",
    a_sender_hears_of_what_arrived_although_the_receiver_ends_at_once: "cc" "last_words.c",
    a_group_gets_what_is_sent_to_it_once_each: "cc" "multicast.c",
    device_memory_timestamps_and_built_work_requests: "c++" "extended.cpp",
    both_ends_of_a_connection_hear_what_they_should: "cc" "cm_events.c",
    endpoints_wait_for_their_own_events: "cc" "cm_endpoints.c",
    connections_come_and_go_in_many_threads: "cc" "cm_threads.c",
}

fn run_to_its_end(link: Link, compiler: &str, source: &str) {
    let program = compile(compiler, source);
    let _turn = alone();
    succeed(&mut on_link(link, program));
}

#[test]
fn the_connection_manager_refuses_what_makes_no_sense() {
    let program = compile("cc", "cm_arguments.c");
    let _turn = alone();
    let output = on_library(program).output().unwrap();
    assert!(output.status.success(), "{}", library::show("arguments", &output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "ubiverbs: rsocket: sockets over RDMA are not offered; the call fails with ENOSYS");
}

#[test]
fn a_panic_is_an_errno_and_an_event_and_the_program_goes_on() {
    let program = compile("cc", "panic.c");
    let output = on_library(program).env("UBIVERBS_PANIC_IN", "ibv_alloc_pd").output().unwrap();
    assert!(output.status.success(), "{}", library::show("panic", &output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ibv_alloc_pd fails with EIO"), "{said}");
}

#[test]
fn a_failing_call_says_why_if_one_wants_to_know() {
    let program = compile("cc", "semantics.c");
    let _turn = alone();
    let output = on_library(program).env("UBIVERBS_LOG", "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ibv_reg_mr fails: Bad address (os error 14): nothing is mapped at"), "{said}");
    assert!(said.contains("ibv_modify_qp fails: Invalid argument"), "{said}");
}
