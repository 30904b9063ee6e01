//! Scripts of networks: what they mean, and what is said of those that mean nothing.

use fabric::{Congestion, FailureKind, Red, Scenario, Script, ScriptError, Shape, TraceMessage, Workload};
use wire::Mtu;

fn parse(text: &str) -> Result<Scenario, ScriptError> {
    Script::parse(text, |name| match name {
        "good" => Ok("# two\n1us 0 1 4K\n\n2us 1 0 8K # and back\n".into()),
        "bad" => Ok("1us 0 1 4K\n1us 0 1\n".into()),
        "far" => Ok("1us 0 99 4K\n".into()),
        _ => Err(format!("cannot read {name}: no such file")),
    })
}

fn refused(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn a_script_says_everything_a_scenario_has() {
    let text = "\
# a comment
seed 9
hosts 54           # as many as radix 6 has
topology fat-tree-3 radix 6
host-rate 25G
switch-rate 100G
delay 1.5us
mtu 1024
buffer 12M
pfc off
alpha 0.5
ecn 10K 400K 5%
congestion both
window 1M
timeout 10
retries 3
reroute 50us
until 10ms
workload all-reduce-tree bytes 2M chunk 128K
fail link host3 switch1 at 1ms for 2ms
flap host 4 period 100us
lossy links 3 loss 0.1% at 5us
slow hosts 2 rate 1G within 3ms
capture 3
capture 3
capture 4
";
    let scenario = parse(text).unwrap();
    assert_eq!((scenario.seed, scenario.hosts, scenario.shape), (9, 54, Shape::FatTree3 { radix: 6 }));
    assert_eq!((scenario.cables.host_rate, scenario.cables.switch_rate), (25_000_000_000, 100_000_000_000));
    assert_eq!((scenario.cables.delay, scenario.mtu, scenario.switch.buffer), (1_500, Mtu::B1024, 12 << 20));
    assert_eq!((scenario.switch.pfc, scenario.switch.alpha), (false, 0.5));
    assert_eq!(scenario.switch.ecn, Some(Red { from: 10 << 10, all: 400 << 10, most: 0.05 }));
    assert_eq!((scenario.congestion, scenario.window), (Congestion::Both, 1 << 20));
    assert_eq!((scenario.timeout, scenario.retries, scenario.reroute), (10, 3, 50_000));
    assert_eq!(scenario.until, Some(10_000_000));
    assert_eq!(scenario.workload, Workload::AllReduceTree { bytes: 2 << 20, chunk: 128 << 10 });
    assert_eq!(scenario.capture, [3, 4]);
    let kinds: Vec<_> = scenario.failures.iter().map(|failure| failure.kind).collect();
    assert_eq!(
        kinds,
        [
            FailureKind::LinkDown,
            FailureKind::Flapping { period: 100_000 },
            FailureKind::Lossy { probability: 0.001 },
            FailureKind::SlowHost { rate: 1_000_000_000 },
        ]
    );
    assert_eq!((scenario.failures[0].at, scenario.failures[0].lasts), (1_000_000, Some(2_000_000)));
    assert_eq!(scenario.failures[3].within, 3_000_000);
}

#[test]
fn a_trace_comes_from_a_file_or_from_statements() {
    let messages = |text| match parse(text).unwrap().workload {
        Workload::Trace { messages } => messages,
        other => panic!("{other:?}"),
    };
    assert_eq!(messages("workload trace good").len(), 2);
    assert_eq!(messages("workload trace\nmessage 5us 3 4 10K").len(), 1);
    let all = messages("workload trace good\nmessage 5us 3 4 10K");
    assert_eq!(all[2], TraceMessage { at: 5_000, from: 3, to: 4, bytes: 10 << 10 });
}

#[test]
fn what_is_wrong_is_told_with_its_line_and_what_was_expected() {
    for (text, told) in [
        ("hosts 4\nrat 1G", "line 2: \"rat\" is no statement; expected one of seed, hosts, topology"),
        ("hosts 1", "line 1: \"1\" is no number for this; expected one of 2 to 100000"),
        ("hosts", "line 1: the line ends; expected how many hosts"),
        ("hosts 4 5", "line 1: \"5\" is too much; expected the end of the line"),
        ("hosts -4", "line 1: \"-4\" is no number for this"),
        ("topology torus", "line 1: \"torus\" is no topology; expected one of star, ring"),
        ("topology star radix 4", "line 1: \"radix\" is too much"),
        ("topology fat-tree-3 leaves 4", "line 1: \"leaves\" is no option; expected one of radix"),
        ("\nrate 0", "line 2: \"0\" is no rate; expected one of 1K to 10T"),
        ("rate 100X", "line 1: \"100X\" is no rate"),
        ("delay 5", "line 1: \"5\" is no time; expected one of 0ns to 100.000ms"),
        ("mtu 1500", "line 1: \"1500\" is no MTU; expected one of 256, 512, 1024, 2048, 4096"),
        ("buffer 1", "line 1: \"1\" is no number of bytes for this"),
        ("pfc maybe", "line 1: \"maybe\" is no switch; expected one of on, off"),
        ("ecn 5K 2K 1%", "line 1: marks from 5120 to 2048 bytes; expected the second to be more"),
        ("ecn 5K 20K 2", "line 1: \"2\" is no probability"),
        ("congestion tcp", "line 1: \"tcp\" is no congestion control; expected one of dcqcn, window"),
        ("alpha NaN", "line 1: \"NaN\" is no threshold"),
        ("workload storm", "line 1: \"storm\" is no workload; expected one of incast"),
        ("workload incast bytes", "line 1: the line ends; expected bytes"),
        ("workload incast bytes 0", "line 1: \"0\" is no number of bytes"),
        ("workload incast bytes 3G", "line 1: \"3G\" is no number of bytes"),
        ("workload trace nowhere", "line 1: cannot read nowhere"),
        ("workload trace bad", "line 1: bad, line 2: the line ends; expected how many bytes"),
        ("workload trace far", "far, line 1: from host 0 to host 99; expected two different hosts of 0 to 15"),
        ("message 1us 0 1 4K", "line 1: a message is part of a trace"),
        ("hosts 4\nworkload incast senders 4", "line 2: 4 hosts have no 4 senders"),
        ("topology fat-tree-3 radix 4\nhosts 17", "line 1: a fat tree"),
        ("fail cable 3", "line 1: \"cable\" is no place; expected one of link, host"),
        ("seed 1\nfail link host1 host2", "line 2: there is no cable between host1 and host2"),
        ("seed 1\nfail host 16", "line 2: there is no host 16 among 16"),
        ("slow link host1 switch0", "line 1: only hosts are slow"),
        ("flap host 1 period 5ns", "line 1: a period of 5ns; expected 1us"),
        ("fail links 99", "line 1: 99 cables are to fail where there are 16"),
        ("capture 16", "line 1: there is no host 16 to capture"),
        ("topology dragonfly per-router 1\nhosts 7", "line 1: a dragonfly"),
        ("hosts 9\ntopology rails rails 4", "line 2: 9 hosts are not whole servers"),
    ] {
        let found = refused(text);
        assert!(found.starts_with(told), "{text:?}: {found}");
    }
}

#[test]
fn marks_follow_the_rate_unless_they_are_set() {
    assert_eq!(parse("rate 40G").unwrap().switch.ecn, Some(Red { from: 5_000, all: 200_000, most: 0.01 }));
    assert_eq!(parse("rate 40G\necn off").unwrap().switch.ecn, None);
}
