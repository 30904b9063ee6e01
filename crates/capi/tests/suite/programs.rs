//! C and C++ programs written for the headers, compiled here, run on the library: over both links where what they do
//! has to do with one.

use crate::library::{self, Link, alone, compile, in_namespace, on_library, on_link, succeed};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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
    what_releases_after_44_added: "cc" "newer.c",
    what_they_added_to_the_connection_manager: "cc" "cm_newer.c",
    both_ends_of_a_connection_hear_what_they_should: "cc" "cm_events.c",
    endpoints_wait_for_their_own_events: "cc" "cm_endpoints.c",
    connections_come_and_go_in_many_threads: "cc" "cm_threads.c",
    sockets_over_rdma_answer_as_sockets_do: "cc" "rsockets.c",
    no_child_hangs_that_is_forked_under_traffic: "cc" "forks.c",
    a_thread_that_is_cancelled_ends_and_the_process_goes_on: "cc" "cancelled.c",
    signals_are_the_programs_and_a_program_may_end_anywhere: "cc" "signals.c",
    a_limit_of_the_rate_holds_and_what_is_none_is_refused: "cc" "pacing.c",
    what_a_sender_asks_of_the_network_is_in_the_header_of_its_datagram: "cc" "global_route.c",
    messages_find_the_buffers_that_their_tags_match: "cc" "tag_matching.c",
    threads_with_little_stack_are_refused_and_not_ended: "cc" "stacks.c",
    nics_of_one_host_reach_one_another: "cc" "several_nics.c",
    ports_of_a_nic_are_used_and_broken_one_by_one: "cc" "several_ports.c",
    programs_hear_what_a_failure_script_breaks: "cc" "broken_on_purpose.c",
    processes_fork_and_close_and_become_another_while_a_script_breaks_them: "cc" "broken_processes.c",
}

/// The stand-in for a GPU's driver, which a program loads as it would load the driver.
pub fn gpu_driver() -> PathBuf {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    let compile = || {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in-libcuda.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/gpu/driver.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o"]);
        succeed(compiler.arg(&library).arg(source).arg("-lpthread"));
        library
    };
    COMPILED.get_or_init(compile).clone()
}

#[test]
fn memory_of_a_gpu_is_moved_and_its_faults_are_told() {
    let program = compile("cc", "gpu.c");
    let _turn = alone();
    for link in [Link::SharedMemory, Link::Udp] {
        succeed(on_link(link, &program).arg(gpu_driver()));
    }
}

/// Between processes payload is named and copied inside the GPU; where that cannot be, it goes through the ring.
#[test]
fn memory_of_a_gpu_moves_between_processes() {
    let program = compile("cc", "gpu_pair.c");
    let _turn = alone();
    let shared = Link::SharedMemory;
    for (link, how) in [
        (shared, &["open"][..]),
        (shared, &["closed"]),
        (shared, &["open", "created"]),
        (shared, &["closed", "created"]),
        (shared, &["killed"]),
        (Link::Udp, &[]),
    ] {
        succeed(on_link(link, &program).arg(gpu_driver()).args(how));
    }
}

/// Where packets meet faults, trains are cut into packets, and the name of a payload cannot be cut.
#[test]
fn memory_of_a_gpu_moves_between_processes_whose_packets_meet_faults() {
    let program = compile("cc", "gpu_pair.c");
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-duplicates.toml");
    std::fs::write(&script, "[[failure]]\ndo = 'duplicate'\nchance = '1%'\n").expect("a place for the script");
    let _turn = alone();
    succeed(on_link(Link::SharedMemory, &program).arg(gpu_driver()).arg("closed").env("UBIVERBS_SCRIPT", &script));
}

fn run_to_its_end(link: Link, compiler: &str, source: &str) {
    let program = compile(compiler, source);
    let _turn = alone();
    succeed(&mut on_link(link, program));
}

#[test]
fn raw_packets_go_where_flows_say() {
    let program = compile("cc", "raw_packets.c");
    let _turn = alone();
    succeed(&mut in_namespace(program));
}

/// Both ends of a cable are in one namespace, whose addresses give the kernel no reason to say something.
#[test]
fn raw_packets_that_a_host_sends_to_itself_come_back() {
    let program = compile("cc", "raw_loopback.c");
    let _turn = alone();
    let cable = "ip link add ubr0 type veth peer name ubr1 && for end in ubr0 ubr1; do \
                 ip link set $end addrgenmode none; ip addr add 10.78.0.${end#ubr}/32 dev $end; ip link set $end up || exit; done; \
                 exec \"$@\"";
    succeed(in_namespace("sh").args(["-c", cable, "sh"]).arg(program));
}

#[test]
fn faults_strike_raw_packets() {
    let program = compile("cc", "raw_loopback.c");
    let _turn = alone();
    let plan = "to=10.77.0.2,drop@1,dup@2,corrupt@3,mark@4..5,reorder@6,hold=2s";
    succeed(in_namespace(program).arg("faults").env("UBIVERBS_FAULTS", plan));
}

#[test]
fn calls_about_raw_packets_that_cannot_be_are_refused() {
    let program = compile("cc", "raw_misuse.c");
    let _turn = alone();
    succeed(&mut in_namespace(program));
}

/// Without `CAP_NET_RAW` there are none, and the log says why.
#[test]
fn raw_packets_need_a_right() {
    let program = compile("cc", "raw_misuse.c");
    let _turn = alone();
    let mut command = in_namespace("setpriv");
    command.args(["--bounding-set", "-net_raw", "--inh-caps", "-net_raw"]).arg(program);
    let output = command.env("UBIVERBS_LOG", "errors").output().unwrap();
    let said = library::show("without the right", &output);
    let reason = "ibv_create_qp fails: Operation not permitted (os error 1): raw packets need CAP_NET_RAW";
    assert!(!output.status.success() && said.contains(reason), "{said}");
}

#[test]
fn what_is_read_for_a_tag_is_whole_when_packets_get_lost() {
    let program = compile("cc", "tag_matching.c");
    let _turn = alone();
    succeed(on_link(Link::Udp, program).env("UBIVERBS_FAULTS", "drop=2%,dup=2%,reorder=2%"));
}

#[test]
#[ignore = "takes minutes: cargo test -p ubiverbs-capi --test c_library -- --ignored"]
fn no_child_hangs_of_ten_thousand() {
    let program = compile("cc", "forks.c");
    let _turn = alone();
    succeed(on_library(program).arg("10000"));
}

/// Runs a program that is short of something, and answers what it said.
fn short_of(what: &str, environment: &[(&str, &str)]) -> String {
    let program = compile("cc", "surroundings.c");
    let _turn = alone();
    let output = on_library(program).arg(what).envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", library::show(what, &output));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn no_descriptor_of_ours_is_standard_input_or_output() {
    short_of("standard", &[]);
}

#[test]
fn want_of_descriptors_and_a_bad_plan_are_named() {
    short_of("descriptors", &[]);
    let said = short_of("plan", &[("UBIVERBS_FAULTS", "drop=often")]);
    assert!(said.contains("cannot read UBIVERBS_FAULTS: drop=\"often\""), "{said}");
}

/// `exit` ends what a thread has of its own before it calls destructors.
#[test]
fn destructors_of_a_program_may_call_while_failures_are_logged() {
    for log in ["errors", "events"] {
        let said = short_of("destructors", &[("UBIVERBS_LOG", log)]);
        assert_eq!(said.matches("ibv_dealloc_pd fails: Device or resource busy").count(), 2, "{said}");
    }
}

/// The time, the process and the thread stand before what happened, and the flushes of a disconnection are one line.
#[test]
fn lines_of_a_log_are_stamped_and_flushes_are_counted() {
    let said = short_of("flushes", &[("UBIVERBS_LOG", "errors")]);
    let flushes: Vec<&str> = said.lines().filter(|line| line.to_lowercase().contains("flush")).collect();
    assert_eq!(flushes.len(), 1, "{said}");
    let [prefix, time, process, _queue_pair] = *flushes[0].split(' ').take(4).collect::<Vec<_>>() else {
        panic!("{said}")
    };
    assert!(prefix == "ubiverbs:" && time.ends_with('Z') && time.contains('T'), "{said}");
    let (process, thread) = process.split_once('/').unwrap();
    assert!(process.parse::<u32>().is_ok() && thread.parse::<u32>().is_ok(), "{said}");
    assert!(flushes[0].ends_with("flushed: 3 work requests of the send queue, 500 of the receive queue"), "{said}");
}

#[test]
fn a_word_that_is_no_level_makes_no_file() {
    let said = short_of("", &[("UBIVERBS_LOG", "debug")]);
    assert_eq!(said.matches("ubiverbs: UBIVERBS_LOG: there is no level debug").count(), 1, "{said}");
    assert!(!std::path::Path::new("debug").exists());
}

#[test]
fn without_memory_to_share_there_is_udp() {
    for what in ["memfd", "no-memfd"] {
        assert_eq!(short_of(what, &[("UBIVERBS_LINK", "udp")]), "");
        let said = short_of(what, &[]);
        assert_eq!(said.matches("ubiverbs: no shared memory").count(), 1, "{said}");
    }
}

#[test]
fn an_engine_sleeps_where_a_sandbox_knows_no_epoll_pwait2() {
    for what in ["epoll", "no-epoll"] {
        assert_eq!(short_of(what, &[]), "");
    }
}

#[test]
fn packets_come_and_go_one_by_one_where_a_sandbox_refuses_many() {
    for what in ["many", "no-many"] {
        assert_eq!(short_of(what, &[("UBIVERBS_LINK", "udp")]), "");
    }
}

/// Shared memory is a file, and one beyond the limit would be SIGXFSZ.
#[test]
fn with_a_limit_of_file_sizes_there_is_udp() {
    let programs = ["global_route.c", "cm_events.c"].map(|source| compile("cc", source));
    let _turn = alone();
    for limit in ["64", "0"] {
        for program in &programs {
            let script = format!("ulimit -f {limit}; exec \"$0\"");
            let output = on_library("bash").args(["-c", &script]).arg(program).output().unwrap();
            assert!(output.status.success(), "{limit}: {}", library::show("small files", &output));
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("ubiverbs: no shared memory (File too large"), "{said}");
        }
    }
}

/// A program that belongs to another user, and runs as that user, writes no files that the first one names.
#[test]
fn a_set_uid_program_believes_no_variable() {
    const NOBODY_UID: u32 = 65_534;
    // In a directory of its own, where that user may look: the path to the library must be in the program, too.
    let place = std::env::temp_dir().join(format!("ubiverbs-set-uid-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    std::fs::set_permissions(&place, Permissions::from_mode(0o777)).unwrap();
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        std::fs::copy(library::directory().join(library), place.join(library)).unwrap();
    }
    let (program, capture, log) = (place.join("program"), place.join("capture.pcapng"), place.join("events.json"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/surroundings.c");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-o"]).arg(&program).arg(source).arg(format!("-Wl,-rpath,{}", place.display()));
    succeed(compiler.arg("-L").arg(library::directory()).args(["-lrdmacm", "-libverbs"]));
    let _turn = alone();
    for set_uid in [true, false] {
        let owner = if set_uid { Some(NOBODY_UID) } else { Some(0) };
        std::os::unix::fs::chown(&program, owner, None).expect("root runs the tests that need another user");
        std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
        let mut command = on_library(&program);
        let output = command.env("UBIVERBS_PCAP", &capture).env("UBIVERBS_LOG", &log).output().unwrap();
        assert!(output.status.success(), "{}", library::show("set-uid", &output));
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!((capture.exists(), log.exists()), (!set_uid, !set_uid));
    }
    std::fs::remove_dir_all(place).unwrap();
}

/// The kernel would send SIGXFSZ.
#[test]
fn a_capture_that_becomes_too_large_ends_and_the_program_goes_on() {
    let program = compile("cc", "threads.c");
    let place = std::env::temp_dir().join(format!("ubiverbs-large-{}.pcapng", std::process::id()));
    let limited = std::env::temp_dir().join(format!("ubiverbs-large-{}.sh", std::process::id()));
    std::fs::write(&limited, format!("#!/bin/bash\nulimit -f 64\nexec {}\n", program.display())).unwrap();
    std::fs::set_permissions(&limited, Permissions::from_mode(0o755)).unwrap();
    let _turn = alone();
    let mut command = on_link(Link::Udp, &limited);
    let output = command.env("UBIVERBS_PCAP", &place).env("UBIVERBS_LOG", "errors").output().unwrap();
    assert!(output.status.success(), "{}", library::show("limited", &output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("ubiverbs: nothing more is written to").count(), 1, "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert_eq!(said.matches("the capture ends: its file cannot be written (errno 27)").count(), 1, "{said}");
    let bytes = std::fs::read(&place).unwrap();
    // Blocks follow one another to the end: each begins with a type and a length, and ends with the length again.
    let mut rest = bytes.as_slice();
    let length = |bytes: &[u8]| bytes.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes) as usize);
    while !rest.is_empty() {
        let block = length(&rest[4..]).unwrap();
        assert_eq!(length(&rest[block - 4..]), Some(block));
        rest = &rest[block..];
    }
    assert!(bytes.len() > 32 << 10, "{}", bytes.len());
    std::fs::remove_file(place).unwrap();
    std::fs::remove_file(limited).unwrap();
}

#[test]
fn the_connection_manager_refuses_what_makes_no_sense() {
    let program = compile("cc", "cm_arguments.c");
    let _turn = alone();
    let output = on_library(program).output().unwrap();
    assert!(output.status.success(), "{}", library::show("arguments", &output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn management_datagrams_answer_as_the_manual_pages_say() {
    let program = compile("cc", "umad.c");
    let _turn = alone();
    // It compares the port's packets with its bytes, and knows of its own only.
    succeed(&mut in_namespace(program));
}

/// The distribution's libibmad on our libibumad.
#[test]
fn libibmad_asks_a_port_for_its_counters() {
    let program = compile("cc", "libibmad.c");
    let _turn = alone();
    succeed(&mut in_namespace(program));
}

/// A program prints on the distribution's library what it prints on ours, but for the number of its process.
#[test]
fn names_of_management_are_those_of_the_original() {
    let program = compile("cc", "umad_names.c");
    let said = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", library::show("names", &output));
        let errors = String::from_utf8(output.stderr).unwrap();
        let lines = errors.lines().map(|line| line.split_once(']').map_or(line, |(_, rest)| rest).to_owned());
        (String::from_utf8(output.stdout).unwrap(), lines.collect::<Vec<_>>())
    };
    let ours = said(&mut on_library(&program));
    let theirs = said(std::process::Command::new(&program).env_remove("LD_LIBRARY_PATH"));
    assert!(ours.0.lines().count() > 250_000 && ours.1.len() > 6, "{} {}", ours.0.len(), ours.1.len());
    assert!(ours == theirs, "{:?}", ours.0.lines().zip(theirs.0.lines()).find(|(ours, theirs)| ours != theirs));
}

#[test]
fn a_panic_is_an_errno_and_an_event_and_the_program_goes_on() {
    let program = compile("cc", "panic.c");
    let output = on_library(program).env("UBIVERBS_PANIC_IN", "ibv_alloc_pd").output().unwrap();
    assert!(output.status.success(), "{}", library::show("panic", &output));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ibv_alloc_pd fails with EIO"), "{said}");
}

/// What was freed is overwritten, so that a look at it does not go unnoticed.
#[test]
fn what_makes_no_sense_is_refused_as_the_manual_pages_say() {
    let program = compile("cc", "arguments.c");
    let _turn = alone();
    succeed(&mut on_library(program));
}

#[test]
fn misused_objects_are_refused_and_freed_once() {
    let program = compile("cc", "misused_objects.c");
    let _turn = alone();
    succeed(on_library(program).env("MALLOC_PERTURB_", "90"));
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
