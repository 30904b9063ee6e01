//! Every word is read, and what is wrong is said with its line.

use alloc::format;
use alloc::string::{String, ToString};

use super::*;

/// A value of each key, for its example.
const VALUES: &[(&str, &str)] = &[
    ("period", "'2s'"),
    ("speed", "'25G'"),
    ("index", "1"),
    ("gid", "'fe80::1'"),
    ("lid", "7"),
    ("pkey", "0x8001"),
    ("status", "12"),
    ("vendor", "129"),
    ("by", "'10ms'"),
    ("errno", "'ENOMEM'"),
    ("event", "'UNREACHABLE'"),
    ("reason", "'STALE_CONN'"),
    ("message", "'RTU'"),
    ("chance", "'1%'"),
    ("to", "'10.0.0.2'"),
    ("jitter", "'1ms'"),
    ("direction", "'in'"),
    ("signal", "'TERM'"),
    ("share", "'10%'"),
];

/// A failure that does this, with all keys that it can have.
pub(crate) fn example(word: &str, keys: &[&str]) -> String {
    let mut text = format!("[[failure]]\ndo = '{word}'\n");
    if matches!(word, "fail" | "delay") {
        text += "call = 'ibv_post_send'\n";
    }
    for key in keys {
        let value = match (word, *key) {
            ("cm-event", "status") => "-110",
            _ => VALUES.iter().find(|(known, _)| known == key).unwrap().1,
        };
        text += &format!("{key} = {value}\n");
    }
    text
}

fn error(text: &str) -> String {
    Script::parse(text).unwrap_err().to_string()
}

#[test]
fn every_word_is_read_and_shown_by_its_name() {
    for (word, keys) in ACTIONS {
        let script = Script::parse(example(word, keys)).unwrap();
        let action = script.failures[0].action;
        assert_eq!(action.name(), *word);
        assert!(action.to_string().starts_with(word) && !action.to_string().contains('?'), "{action}");
        // A key of another failure is refused.
        let error = error(&format!("{}\nbanana = 1\n", example(word, keys)));
        assert!(error.contains("\"banana\" is no key of this failure"), "{error}");
    }
    let shown = |text: &str| Script::parse(text).unwrap().failures[0].action.to_string();
    assert_eq!(
        shown("[[failure]]\ndo = 'complete'\nstatus = 'RETRY_EXC_ERR'"),
        "complete (status 12 RETRY_EXC_ERR, vendor error 129)"
    );
    assert_eq!(shown("[[failure]]\ndo = 'latency'\nby = '1500us'"), "latency (by 1500 us, jitter 0 s)");
    assert_eq!(shown("[[failure]]\ndo = 'black-hole'"), "black-hole (both)");
}

#[test]
fn a_whole_script_is_read() {
    let script = Script::parse(
        r##"
about = "A port and a queue pair"
seed = 7
restore = false
end = "1min"

[[failure]]                    # line 7
at = "2s"
since = "message"
every = "10s"
for = "2s"
host = "10.0.0.1"
device = "#1"
port = 1
do = "port-down"               # line 15

[[failure]]
after = { bytes = "1M" }
of = "queue-pair"
rate = "1%"
process = "rping"
queue-pair = { number = 17, type = "RC", peer = "10.0.0.2", order = 1 }
do = "qp-error"
"##,
    )
    .unwrap();
    assert_eq!(script.about.as_deref(), Some("A port and a queue pair"));
    assert_eq!((script.seed(None), script.seed(Some(9))), (7, 9));
    assert_eq!((script.end, script.leaves_broken), (Some(60_000_000_000), true));
    let [one, other] = &script.failures[..] else { panic!("two failures") };
    assert_eq!((one.line, other.line), (15, 23));
    assert_eq!(one.when.start, Start::Time { at: 2_000_000_000, since: Since::FirstMessage });
    assert_eq!((one.when.times, one.when.every), (None, Some(10_000_000_000)));
    assert_eq!((one.place.device.clone(), one.place.port), (Some(Named::Index(1)), Some(1)));
    assert_eq!(other.when.start, Start::Bytes(1 << 20, Of::QueuePair));
    assert_eq!((other.when.times, other.when.rate), (None, Some(Chance(0.01))));
    assert_eq!(other.place.pair.as_ref().unwrap().kind, Some("RC"));
}

#[test]
fn one_failure_is_read_without_a_table_around_it() {
    let script = Script::parse_failure("do = \"port-down\", for = \"2s\"").unwrap();
    assert_eq!((script.failures[0].action, script.failures[0].line), (Action::PortDown, 1));
    assert!(Script::parse_failure("do = \"port-down\" }, { do = \"stop\"").unwrap().failures.len() == 2);
    assert!(Script::parse_failure("port-down").unwrap_err().to_string().starts_with("line 1: "));
}

#[test]
fn mistakes_are_said_with_the_line_and_what_was_expected() {
    for (text, said) in [
        ("", "the script has no failure; expected [[failure]]"),
        ("failure = 1", "line 1: failure = 1; expected a table for each failure"),
        ("failure = []", "line 1: failure is of the type array; expected a failure at least"),
        (
            "\n[[failur]]\ndo = 'stop'",
            "line 2: \"failur\" is no key of a script; expected about, seed, end, restore, failure; did you mean failure?",
        ),
        ("[[failure]]\nat = '2s'\n", "line 1: do is missing; expected what happens"),
        ("[[failure]]\n\ndo = 'port-dwon'", "line 3: \"port-dwon\" is no failure; expected port-down, port-up"),
        ("[[failure]]\ndo = 'stop'\nhots = 'a'", "line 3: \"hots\" is no key of this failure; expected at, since"),
        ("[[failure]]\nat = 2\ndo = 'stop'", "line 2: at = 2; expected a time from 0s to a day, such as \"2s\""),
        ("[[failure]]\nat = '2s'\nafter = { messages = 1 }\ndo = 'stop'", "line 4: at and after are two triggers"),
        (
            "[[failure]]\nafter = { messages = 1, bytes = 2 }\ndo = 'stop'",
            "line 2: after is of the type table; expected one of",
        ),
        (
            "[[failure]]\nafter = { message = 1 }\ndo = 'stop'",
            "line 2: \"message\" is no key of after; expected messages, bytes; did you mean messages?",
        ),
        ("[[failure]]\nof = 'device'\ndo = 'stop'", "line 2: of = \"device\"; expected no of without after"),
        ("[[failure]]\nnth = 2\ndo = 'stop'", "line 2: nth = 2; expected no nth without a call"),
        ("[[failure]]\nsince = 'start'\ndo = 'stop'", "line 2: since = \"start\"; expected at"),
        (
            "[[failure]]\ncall = 'ibv_reg_mrs'\ndo = 'stop'",
            "line 2: call = \"ibv_reg_mrs\"; expected a call of verbs.h",
        ),
        ("[[failure]]\ndo = 'fail'\nerrno = 'ENOMEM'", "line 2: call is missing"),
        ("[[failure]]\ncall = 'ibv_reg_mr'\ndo = 'fail'", "line 3: errno is missing; expected errno = \"ENOMEM\""),
        ("[[failure]]\ncall = 'ibv_reg_mr'\ndo = 'fail'\nerrno = 'ENOMEN'", "line 4: \"ENOMEN\" is no errno"),
        (
            "[[failure]]\ncall = 'ibv_reg_mr'\ndo = 'fail'\nerrno = 3",
            "line 4: errno = 3; expected the name of an errno",
        ),
        ("[[failure]]\ndo = 'complete'\nstatus = 0", "line 3: status = 0; expected the number of an error"),
        ("[[failure]]\ndo = 'complete'\nstatus = -1", "line 3: status = -1; expected a number from 0 to 23"),
        (
            "[[failure]]\nqueue-pair = { type = 'UD' }\ndo = 'complete'\nstatus = 12",
            "line 2: type = \"UD\"; expected RC, XRC_SEND: only sends of these complete with RETRY_EXC_ERR",
        ),
        (
            "[[failure]]\nqueue-pair = { type = 'XRC_SEND' }\ndo = 'complete'\nstatus = 'LOC_ACCESS_ERR'",
            "line 2: type = \"XRC_SEND\"; expected RC, UC, XRC_RECV: only receives of these complete with LOC_ACCESS_ERR",
        ),
        ("[[failure]]\nevery = '1us'\ndo = 'stop'", "line 2: every = \"1us\"; expected a time from 1ms to a day"),
        ("[[failure]]\nevery = true\ndo = 'stop'", "line 2: every = true; expected a time"),
        ("[[failure]]\nevery = '1s'\nfor = '1s'\ndo = 'stop'", "line 4: for is as long as every"),
        (
            "[[failure]]\ncall = 'ibv_reg_mr'\ndevice = 'ubi_0'\ndo = 'fail'\nerrno = 'ENOMEM'",
            "line 3: device = \"ubi_0\"; expected no device: of a call only the host and the process are known",
        ),
        ("[[failure]]\nfor = '1s'\ndo = 'kill'", "line 2: for = \"1s\"; expected no for: kill has no end"),
        ("[[failure]]\nrate = '200%'\ndo = 'stop'", "line 2: rate = \"200%\"; expected a chance such as \"1%\""),
        ("[[failure]]\ntimes = 0\ndo = 'stop'", "line 2: times = 0; expected a number from 1"),
        ("[[failure]]\ntimes = 'ever'\ndo = 'stop'", "line 2: times = \"ever\"; expected a number, or \"always\""),
        ("[[failure]]\ndevice = '#x'\ndo = 'stop'", "line 2: device = \"#x\"; expected a name, or \"#0\""),
        (
            "[[failure]]\nqueue-pair = { type = 'RX' }\ndo = 'stop'",
            "line 2: \"RX\" is no type of queue pair; expected RC",
        ),
        ("[[failure]]\nqueue-pair = 3\ndo = 'stop'", "line 2: queue-pair = 3; expected a table such as"),
        ("[[failure]]\nto = 'b'\ndo = 'stop'", "line 2: \"to\" is no key of this failure"),
        ("[[failure]]\nspeed = 'fast'\ndo = 'link-speed'", "line 2: speed = \"fast\"; expected bits per second"),
        ("[[failure]]\nshare = '0%'\ndo = 'slow'", "line 2: share = \"0%\"; expected a share between"),
        ("[[failure]]\ndo = 'gid-change'\ngid = 'x'", "line 3: gid = \"x\"; expected a GID"),
        ("seed = -1\n[[failure]]\ndo = 'stop'", "line 1: seed = -1; expected a number from 0"),
        ("[[failure]\ndo = 'stop'", "line 1: "),
        ("[[failure]]\ndo = stop", "line 2: "),
    ] {
        let error = error(text);
        assert!(error.starts_with(said), "{text}\n{error}\nexpected {said}");
    }
    let error = Script::parse(b"[[failure]]\ndo = '\xff'").unwrap_err().to_string();
    assert_eq!(error, "line 2: the text is not UTF-8");
}

#[test]
fn a_script_has_a_greatest_size_count_and_depth() {
    let one = "[[failure]]\ndo = 'stop'\n";
    assert_eq!(Script::parse(one.repeat(MAX_FAILURES)).unwrap().failures.len(), MAX_FAILURES);
    let many = error(&one.repeat(MAX_FAILURES + 1));
    assert!(many.ends_with("expected at most 1024 failures, and there are 1025"), "{many}");
    let long = format!("{one}#{}", "x".repeat(MAX_SCRIPT_BYTES - one.len() - 1));
    Script::parse(&long).unwrap();
    assert!(error(&format!("{long}x")).starts_with("the script has 262145 bytes"));
    assert!(error(&format!("about = {}", "[".repeat(MAX_SCRIPT_BYTES - 8))).starts_with("line 1: "));
}
