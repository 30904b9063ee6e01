//! Scripts against what happens: which strikes come, and when.

use alloc::format;
use alloc::string::{String, ToString};
use std::println;

use super::*;
use crate::moment::{DeviceView, PairView};

const S: Nanos = 1_000_000_000;

/// A machine, and the strikes that it has given so far, as text.
struct Run {
    machine: Machine,
    now: Nanos,
}

impl Run {
    fn of(script: &str) -> Run {
        Run::with(script, 1, &Who::default())
    }

    fn with(script: &str, seed: u64, who: &Who) -> Run {
        let mut run = Run { machine: Machine::new(&Script::parse(script).unwrap(), seed, who), now: 0 };
        assert_eq!(run.feed(&Moment::Opened(Scene::default())), "");
        run
    }

    fn feed(&mut self, moment: &Moment<'_>) -> String {
        let mut strikes = Vec::new();
        self.machine.feed(self.now, moment, &mut strikes);
        shown(&strikes)
    }

    /// Lets time pass until then, as an owner does: it asks at each time that the machine names.
    fn until(&mut self, then: Nanos) -> String {
        let mut all = String::new();
        while let Some(next) = self.machine.next_time().filter(|next| *next <= then) {
            self.now = next.max(self.now);
            let said = self.feed(&Moment::Time);
            if !said.is_empty() {
                all += &format!("{}ms: {said}; ", self.now / 1_000_000);
            }
        }
        self.now = then;
        all
    }

    fn call(&mut self, name: &str) -> String {
        self.feed(&Moment::Call { scene: Scene::default(), name })
    }

    fn message(&mut self, order: u32, bytes: u64) -> String {
        self.feed(&Moment::Message { scene: pair(order), bytes })
    }

    fn completion(&mut self, order: u32) -> String {
        self.completion_of(order, false)
    }

    fn completion_of(&mut self, order: u32, is_receive: bool) -> String {
        self.feed(&Moment::Completion { scene: pair(order), bytes: 8, is_receive })
    }
}

/// A scene of the how manieth queue pair.
fn pair(order: u32) -> Scene<'static> {
    Scene {
        device: Some(DeviceView { name: "ubi0", index: 0 }),
        port: Some(1),
        pair: Some(PairView { number: 16 + order, kind: "RC", peer: Some([10, 0, 0, 2].into()), order }),
        ..Scene::default()
    }
}

fn shown(strikes: &[Strike]) -> String {
    let one = |strike: &Strike| {
        let phase = if strike.phase == Phase::Begin { "" } else { " ends" };
        format!("{}{phase}", strike.action.name())
    };
    strikes.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn a_time_is_counted_from_the_first_device_or_the_first_message() {
    let mut run = Run::of("[[failure]]\nat = '2s'\ndo = 'sm-change'");
    assert_eq!(run.until(10 * S), "2000ms: sm-change; ");
    let mut run = Run::of("[[failure]]\nat = '2s'\nsince = 'message'\ndo = 'sm-change'");
    assert_eq!(run.until(10 * S), "");
    assert_eq!(run.message(1, 1), "");
    assert_eq!(run.until(20 * S), "12000ms: sm-change; ");
    assert_eq!(run.message(1, 1), "");
    assert_eq!(run.machine.next_time(), None);
}

#[test]
fn what_lasts_ends_and_comes_again() {
    let mut run = Run::of("[[failure]]\nat = '1s'\nfor = '2s'\nevery = '10s'\ntimes = 2\ndo = 'port-down'");
    let expected = "1000ms: port-down; 3000ms: port-down ends; 11000ms: port-down; 13000ms: port-down ends; ";
    assert_eq!(run.until(100 * S), expected);
    let mut strikes = Vec::new();
    run.machine.finish(&mut strikes);
    assert_eq!(shown(&strikes), "");
}

#[test]
fn at_the_end_of_a_script_all_is_whole_again_unless_it_says_otherwise() {
    let text = "end = '5s'\n[[failure]]\nat = '1s'\ndo = 'port-down'\n[[failure]]\nat = '6s'\ndo = 'sm-change'";
    assert_eq!(Run::of(text).until(10 * S), "1000ms: port-down; 5000ms: port-down ends; ");
    assert_eq!(Run::of(&format!("restore = false\n{text}")).until(10 * S), "1000ms: port-down; ");
    let mut run = Run::of("[[failure]]\nat = '1s'\ndo = 'port-down'");
    run.until(2 * S);
    let mut strikes = Vec::new();
    run.machine.finish(&mut strikes);
    run.machine.finish(&mut strikes);
    assert_eq!(shown(&strikes), "port-down ends");
    assert_eq!(run.call("ibv_reg_mr"), "");
}

#[test]
fn a_port_flaps_until_it_ends_and_is_up_then() {
    let mut run = Run::of("[[failure]]\nat = '1s'\nfor = '3500ms'\ndo = 'flap'\nperiod = '2s'");
    let said = run.until(10 * S);
    let expected = "1000ms: port-down; 2000ms: port-down ends; 3000ms: port-down; 4000ms: port-down ends; ";
    assert_eq!(said, expected);
    let mut run = Run::of("[[failure]]\nat = '1s'\nfor = '2500ms'\ndo = 'flap'\nperiod = '2s'");
    assert!(run.until(10 * S).ends_with("3000ms: port-down; 3500ms: port-down ends; "));
    // Late by a day: it is where it would be.
    let mut run = Run::of("[[failure]]\nat = '1s'\ndo = 'flap'\nperiod = '1ms'");
    run.until(S);
    run.now = 86_400 * S;
    assert_eq!(run.feed(&Moment::Time), "");
    assert!(run.machine.next_time().unwrap() > run.now);
}

#[test]
fn calls_are_counted_and_the_how_manieth_fails() {
    let mut run = Run::of("[[failure]]\ncall = 'ibv_reg_mr'\nnth = 3\ndo = 'fail'\nerrno = 'ENOMEM'");
    let said: Vec<String> = (0..7).map(|_| run.call("ibv_reg_mr_iova2")).collect();
    assert_eq!(said, ["", "", "fail", "", "", "", ""]);
    assert_eq!(run.call("ibv_create_qp"), "");
    let mut run = Run::of("[[failure]]\ncall = 'ibv_reg_*'\nnth = 2\nevery = true\ndo = 'fail'\nerrno = 12");
    let said: Vec<String> = (0..4).map(|_| run.call("ibv_reg_mr")).collect();
    assert_eq!(said, ["", "fail", "fail", "fail"]);
    let mut run = Run::of("[[failure]]\ncall = 'ibv_reg_mr'\nnth = 2\ntimes = 2\ndo = 'delay'\nby = '1s'");
    let said: Vec<String> = (0..7).map(|_| run.call("ibv_reg_mr")).collect();
    assert_eq!(said, ["", "delay", "", "delay", "", "", ""]);
}

#[test]
fn calls_fail_for_a_time_or_from_a_time_on() {
    let mut run = Run::of("[[failure]]\ncall = 'ibv_reg_mr'\nnth = 2\nfor = '1s'\ndo = 'fail'\nerrno = 12");
    assert_eq!([run.call("ibv_reg_mr"), run.call("ibv_reg_mr"), run.call("ibv_reg_mr")], ["", "fail", "fail"]);
    run.until(2 * S);
    assert_eq!([run.call("ibv_reg_mr"), run.call("ibv_reg_mr")], ["", ""]);
    let mut run = Run::of("[[failure]]\nat = '1s'\ncall = 'ibv_reg_mr'\ndo = 'fail'\nerrno = 12");
    assert_eq!(run.call("ibv_reg_mr"), "");
    run.until(2 * S);
    assert_eq!([run.call("ibv_reg_mr"), run.call("ibv_reg_mr")], ["fail", ""]);
}

#[test]
fn a_call_may_trigger_something_else() {
    let mut run = Run::of("[[failure]]\ncall = 'ibv_post_send'\nnth = 2\ndo = 'qp-error'");
    assert_eq!([run.call("ibv_post_send"), run.call("ibv_post_send"), run.call("ibv_post_send")], ["", "qp-error", ""]);
}

#[test]
fn messages_and_bytes_count_for_what_the_script_says() {
    let mut run = Run::of("[[failure]]\nafter = { messages = 3 }\ndo = 'qp-error'");
    assert_eq!([run.message(1, 1), run.message(2, 1), run.message(1, 1), run.message(1, 1)], ["", "", "qp-error", ""]);
    let mut run = Run::of("[[failure]]\nafter = { messages = 2 }\nof = 'queue-pair'\ndo = 'qp-error'");
    assert_eq!([run.message(1, 1), run.message(2, 1), run.message(2, 1), run.message(1, 1)], ["", "", "qp-error", ""]);
    let mut run = Run::of("[[failure]]\nafter = { bytes = '1K' }\ntimes = 'always'\ndo = 'qp-error'");
    assert_eq!([run.message(1, 1000), run.message(1, 24), run.message(1, 1024)], ["", "qp-error", "qp-error"]);
    let mut run = Run::of("[[failure]]\nqueue-pair = { order = 2 }\ndo = 'qp-error'");
    assert_eq!([run.message(1, 1), run.message(2, 1)], ["", "qp-error"]);
}

#[test]
fn a_completion_is_taken_hold_of() {
    let complete = "do = 'complete'\nstatus = 12\nvendor = 129";
    let mut run = Run::of(&format!("[[failure]]\n{complete}"));
    assert!(run.machine.wants().completions && !run.machine.wants().messages);
    assert_eq!([run.completion(1), run.completion(1)], ["complete", ""]);
    let mut run =
        Run::of(&format!("[[failure]]\nafter = {{ messages = 3 }}\nqueue-pair = {{ order = 1 }}\n{complete}"));
    let said = [run.completion(1), run.completion(2), run.completion(1), run.completion(1), run.completion(1)];
    assert_eq!(said, ["", "", "", "complete", ""]);
    let mut run = Run::of("[[failure]]\nat = '1s'\nfor = '1s'\ndo = 'lose-completion'");
    assert_eq!(run.completion(1), "");
    run.until(1500 * S / 1000);
    assert_eq!([run.completion(1), run.completion(2)], ["lose-completion", "lose-completion"]);
    run.until(3 * S);
    assert_eq!(run.completion(1), "");
    let mut run = Run::of("[[failure]]\ncall = 'ibv_dereg_mr'\ndo = 'lose-completion'");
    assert_eq!([run.completion(1), run.call("ibv_dereg_mr"), run.completion(1)], ["", "", "lose-completion"]);
}

#[test]
fn a_status_takes_hold_of_work_that_can_have_it() {
    let after = |status: &str| {
        Run::of(&format!(
            "[[failure]]\nafter = {{ messages = 2 }}\ntimes = 'always'\ndo = 'complete'\nstatus = '{status}'"
        ))
    };
    // Only what could be struck counts.
    let mut run = after("RETRY_EXC_ERR");
    let said = [true, false, true, true, false, true, false].map(|is_receive| run.completion_of(1, is_receive));
    assert_eq!(said, ["", "", "", "", "complete", "", ""]);
    let mut run = after("LOC_ACCESS_ERR");
    let said = [false, true, false, false, true].map(|is_receive| run.completion_of(1, is_receive));
    assert_eq!(said, ["", "", "", "", "complete"]);
    let mut run = after("LOC_PROT_ERR");
    assert_eq!([run.completion_of(1, true), run.completion_of(1, false)], ["", "complete"]);
}

#[test]
fn events_and_messages_of_connections_are_taken_hold_of() {
    let mut run = Run::of("[[failure]]\ndo = 'lose-message'\nmessage = 'RTU'");
    let message = |message| Moment::ConnectionMessage { scene: Scene::default(), message };
    assert_eq!(
        [run.feed(&message(0x10)), run.feed(&message(0x14)), run.feed(&message(0x14))],
        ["", "lose-message", ""]
    );
    let mut run = Run::of("[[failure]]\ndo = 'cm-event'\nevent = 'UNREACHABLE'");
    let event = |event| Moment::ConnectionEvent { scene: Scene::default(), event };
    assert_eq!([run.feed(&event(2)), run.feed(&event(9)), run.feed(&event(9))], ["", "cm-event", ""]);
    // Nothing stands for this one: it comes by itself.
    let mut run = Run::of("[[failure]]\nat = '1s'\ndo = 'cm-event'\nevent = 'ADDR_CHANGE'");
    assert_eq!(run.until(2 * S), "1000ms: cm-event; ");
}

#[test]
fn the_same_seed_strikes_the_same_and_another_one_does_not() {
    let strikes = |seed, process| {
        let who = Who { index: process, ..Who::default() };
        let text = "[[failure]]\nrate = '10%'\ndo = 'lose-completion'\n[[failure]]\nrate = '50%'\ndo = 'qp-error'";
        let mut run = Run::with(text, seed, &who);
        (0..1000).map(|_| usize::from(!run.completion(1).is_empty())).collect::<Vec<_>>()
    };
    assert_eq!(strikes(7, 0), strikes(7, 0));
    assert_ne!(strikes(7, 0), strikes(8, 0));
    assert_ne!(strikes(7, 0), strikes(7, 1));
    let sum: usize = strikes(7, 0).iter().sum();
    assert!((60..140).contains(&sum), "{sum} of 1000 at 10%");
}

#[test]
fn failures_of_other_processes_and_hosts_are_left_out() {
    let who = Who { hosts: ["a", "10.0.0.1"].map(String::from).to_vec(), names: ["rping".into()].to_vec(), index: 1 };
    for (place, is_ours) in [
        ("host = '10.0.0.1'", true),
        ("host = 'b'", false),
        ("process = 'rping'", true),
        ("process = '#1'", true),
        ("process = '#0'", false),
        ("process = 'rping'\nhost = 'b'", false),
    ] {
        let script = Script::parse(format!("[[failure]]\n{place}\ndo = 'stop'")).unwrap();
        assert_eq!(!Machine::new(&script, 1, &who).is_idle(), is_ours, "{place}");
    }
}

#[test]
fn a_place_fits_what_it_names() {
    for (place, fits) in [
        ("device = 'ubi0'", true),
        ("device = '#0'", true),
        ("device = '#1'", false),
        ("port = 2", false),
        ("queue-pair = { number = 17 }", true),
        ("queue-pair = { type = 'UD' }", false),
        ("queue-pair = { peer = '::ffff:10.0.0.2', type = 'RC' }", true),
        ("queue-pair = { peer = '10.0.0.3' }", false),
        ("connection = { order = 1 }", false),
    ] {
        let script = Script::parse(format!("[[failure]]\n{place}\ndo = 'qp-error'")).unwrap();
        assert_eq!(script.failures[0].place.fits(&pair(1)), fits, "{place}");
    }
}

#[test]
fn whatever_happens_a_machine_asks_for_a_later_time() {
    // Every word, fed with moments at times of all sizes.
    for (word, keys) in crate::script::ACTIONS {
        let example = crate::script::tests::example(word, keys);
        println!("{example}");
        let every = if example.contains("call") { "true" } else { "'3ms'" };
        let mut run = Run::of(&example.replace("do =", &format!("every = {every}\ntimes = 'always'\ndo =")));
        for step in 0..200_u64 {
            run.now += step * step * 1_000_003;
            run.message(1, 1);
            run.completion(1);
            run.call("ibv_post_send");
            assert!(run.machine.next_time().is_none_or(|next| next > run.now), "{}", run.now.to_string());
        }
    }
}
