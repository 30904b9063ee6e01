//! Hosts: real processes in network namespaces joined by a cable. What moves between them, what happens when packets
//! are lost, when a process is killed or stopped, when addresses change, and when a program asks for what cannot be.
//!
//! The tests need root, for the namespaces; as anybody else they say so and pass nothing. This program is also every
//! process they start: `hosts role NAME ARGUMENT…`. That is why it has a runner of its own: a role must be alone in its
//! process.

mod actor;
mod addresses;
mod asleep;
mod bad_input;
mod capture;
mod ending;
mod frames;
mod killing;
mod network;
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A test: its name, and what it does.
type Test = (&'static str, fn());

/// A part that a process plays: its name, and what it does with its arguments.
type Role = (&'static str, fn(&[String]) -> actor::Outcome);

macro_rules! list {
    ($($module:ident::$function:ident),* $(,)?) => { &[$((stringify!($function), $module::$function)),*] };
}

const TESTS: &[Test] = list![
    traffic::every_byte_is_right_between_hosts_over_ipv4,
    traffic::every_byte_is_right_between_hosts_over_ipv6,
    traffic::every_byte_is_right_between_link_local_addresses,
    traffic::a_host_without_network_and_a_user_without_rights_are_enough,
    traffic::nothing_is_lost_where_one_packet_in_a_hundred_is,
    traffic::nothing_is_lost_where_one_packet_in_twenty_is,
    traffic::nothing_is_lost_where_packets_are_doubled_damaged_and_out_of_order,
    capture::packets_on_the_cable_are_roce_over_ipv4,
    capture::packets_on_the_cable_are_roce_over_ipv6,
    capture::packets_sent_again_are_as_good,
    addresses::a_device_follows_its_addresses_and_its_cable,
    bad_input::what_cannot_be_is_told_clearly,
    bad_input::a_peer_that_is_not_there_is_given_up_in_bounded_time,
    bad_input::a_process_without_descriptors_gets_errors_and_recovers,
    bad_input::a_port_that_is_not_shared_leaves_the_host_alone_and_says_so,
    bad_input::users_share_the_port_with_each_other_and_with_other_hosts,
    asleep::one_sided_work_completes_while_the_target_sleeps,
    ending::a_peer_on_another_host_says_how_it_ends,
    ending::a_peer_on_another_host_that_is_killed_does_not_answer,
    ending::a_peer_on_another_host_that_is_killed_has_died_if_somebody_is_left_to_say_so,
    ending::an_idle_connection_ends_when_the_only_process_of_another_host_is_killed,
    ending::a_connection_to_a_process_that_is_stopped_stands,
    ending::a_device_that_goes_ends_its_connections,
    killing::a_process_that_stops_for_a_moment_loses_nothing,
    killing::a_process_that_stops_for_long_is_given_up_and_finds_out_when_it_goes_on,
    killing::a_cable_that_is_pulled_and_put_back_loses_nothing,
    killing::a_survivor_of_a_hundred_kills_hears_of_each_and_keeps_nothing,
];

const ROLES: &[Role] = list![
    network::hold,
    traffic::mover,
    traffic::target,
    asleep::sleeper,
    asleep::waker,
    ending::host_of_guest,
    ending::guest,
    killing::partner,
    addresses::watcher,
    bad_input::dreamer,
    bad_input::caller,
    bad_input::pauper,
    bad_input::hog,
    bad_input::crowded,
];

/// What the tests start, and the package that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("ethtool", "ethtool"),
    ("tshark", "tshark"),
    ("dumpcap", "wireshark-common"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, rest @ ..] = &arguments[..]
        && first == "role"
    {
        return actor::play(ROLES, name, rest);
    }
    if arguments.iter().any(|argument| argument == "--list") {
        TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !rustix::process::getuid().is_root() {
        println!("not root: there are no network namespaces to run these tests in");
        println!("test result: ok. 0 passed; 0 failed; {} ignored", TESTS.len());
        return ExitCode::SUCCESS;
    }
    for (program, package) in PROGRAMS {
        if Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
            println!("{program} is missing; install it with: apt-get install {package}");
            return ExitCode::FAILURE;
        }
    }
    run(&arguments.iter().filter(|argument| !argument.starts_with('-')).collect::<Vec<_>>())
}

/// Runs the tests whose names contain one of `filters`, one after the other: two processes at a time are enough for two
/// cores.
fn run(filters: &[&String]) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let begin = Instant::now();
    for (name, test) in TESTS {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let start = Instant::now();
        let ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {} ({} ms)", if ok { "ok" } else { "FAILED" }, start.elapsed().as_millis());
        if ok { passed += 1 } else { failed += 1 }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored; in {:?}", begin.elapsed());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Looks until it is so, for at most a minute.
#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(1));
    }
}
