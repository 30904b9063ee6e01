//! Races: small programs of up to three processes, half of which race. Most come from a table: each pair of accesses,
//! with each way to put them in order, or to fail to.

mod stage;

use stage::Stage;
use std::fmt::Write;

/// An access by a peer, as the scripts have it.
const ACCESSES: [&str; 3] = ["write", "read", "faa"];

/// A way to put two accesses in order: statements in between, and after which first accesses it works.
struct Order {
    name: &'static str,
    between: &'static str,
    /// For a WRITE, a READ, an atomic operation.
    orders: [bool; 3],
}

const fn order(name: &'static str, between: &'static str, orders: [bool; 3]) -> Order {
    Order { name, between, orders }
}

const NONE: [bool; 3] = [false; 3];
const ALL: [bool; 3] = [true; 3];
/// What comes behind a READ without a fence may overtake it.
const WRITES_ALONE: [bool; 3] = [true, false, false];

/// After an access by A of B's memory on the queue pair `ab`, until one by C on `cb`.
const UNTIL_C: &[Order] = &[
    order("nothing", "", NONE),
    order("the completion alone", "A poll ab", NONE),
    order("a message that was posted before the completion", "C recv ca; A send ac; A poll ab; C got ca", NONE),
    order("a message on another queue pair, no completion", "C recv ca; A send ac; C got ca", NONE),
    order("a completion of the other queue pair", "A send ac; C recv ca; A poll ac; C got ca", NONE),
    order("a completion and a message", "C recv ca; A poll ab; A send ac; C got ca", ALL),
    order("a completion and a message that C has not polled", "C recv ca; A poll ab; A send ac; C arrives ca", NONE),
    order("a completion and immediate data", "C recv ca; A poll ab; A imm ac 3000+8; C got ca", ALL),
    order(
        "a message behind it, handed on",
        "B recv ba; A send ab; B got ba; C recv cb; B send bc; C got cb",
        WRITES_ALONE,
    ),
    order("a fenced one", "B recv ba; A send ab fence; B got ba; C recv cb; B send bc; C got cb", ALL),
    order(
        "immediate data behind it",
        "B recv ba; A imm ab 3000+8; B got ba; C recv cb; B send bc; C got cb",
        WRITES_ALONE,
    ),
    order(
        "a message behind it that B has not polled",
        "B recv ba; A send ab; B arrives ba; C recv cb; B send bc; C got cb",
        NONE,
    ),
    order(
        "an unsignaled message behind it",
        "B recv ba; A send ab quiet; B got ba; C recv cb; B send bc; C got cb",
        WRITES_ALONE,
    ),
    order(
        "an inline message behind it",
        "B recv ba; A send ab inline; B got ba; C recv cb; B send bc; C got cb",
        WRITES_ALONE,
    ),
    order(
        "a second queue pair to the same peer",
        "B recv ba2; A send ab2; B got ba2; C recv cb; B send bc; C got cb",
        NONE,
    ),
    order("a shared receive queue", "B srecv; A poll ab; A send ab; B got ba; C recv cb; B send bc; C got cb", ALL),
    order("a counter that C has seen", "A faa ab 3000; A poll ab; C cas cb 3000; C poll cb", ALL),
    order("a counter behind it, not waited for", "A faa ab 3000; C cas cb 3000; C poll cb", ALL),
    order("a counter that C has not waited for", "A faa ab 3000; A poll ab; C cas cb 3000", NONE),
    order("a counter elsewhere", "A faa ab 3000; A poll ab; C cas cb 3008; C poll cb", NONE),
    order("a counter by way of another queue pair", "A faa ab2 3000; A poll ab2; C cas cb 3000; C poll cb", NONE),
    order("a flag that is written and read", "A write ab 3000+8; A poll ab; C read cb 3000+8; C poll cb", NONE),
    order("a disconnection after the completion", "A poll ab; A cm; C cm", ALL),
    order("a disconnection alone", "A cm; C cm", NONE),
    order("a new registration", "B rereg", ALL),
    order("the queue pair is destroyed at B", "B stop ba; C recv cb; B send bc; C got cb", ALL),
    order("the queue pair is destroyed at A", "A stop ab; C recv ca; A send ac; C got ca", [false, true, true]),
];

#[test]
fn accesses_of_two_peers_race_unless_something_orders_them() {
    let (mut told, mut racy, mut orderly) = (String::new(), 0, 0);
    for Order { name, between, orders } in UNTIL_C {
        for (number, first) in ACCESSES.iter().enumerate() {
            for second in ACCESSES {
                // Bytes that are the same, overlap by one, lie inside, are next to each other.
                for (range, overlaps) in [("0+16", true), ("7+16", true), ("8+8", false), ("0+8", true)] {
                    let is_atomic = *first == "faa" || second == "faa";
                    if is_atomic && range == "7+16" {
                        continue;
                    }
                    let of = |access: &str, range: &str| match access {
                        "faa" => range.split('+').next().unwrap_or(range).to_owned(),
                        _ => range.to_owned(),
                    };
                    let script =
                        format!("A {first} ab {}; {between}; C {second} cb {}", of(first, "0+8"), of(second, range));
                    let compatible = matches!((*first, second), ("read", "read") | ("faa", "faa"));
                    let expected = overlaps && !compatible && !orders[number];
                    *(if expected { &mut racy } else { &mut orderly }) += 1;
                    // What the order itself does on the way may race; it is elsewhere.
                    let found = Stage::play(&script).iter().any(|race| race.start < 2048);
                    if found != expected {
                        let _ = writeln!(told, "{name}: {}: {script}", if expected { "missed" } else { "invented" });
                    }
                }
            }
        }
    }
    println!("{racy} that race, {orderly} that do not");
    assert!(told.is_empty(), "{told}");
    assert!(racy > 150 && orderly > 150, "{racy} {orderly}");
}

/// After an access by A of B's memory, until B uses it by itself.
const UNTIL_B: &[Order] = &[
    order("nothing", "", NONE),
    order("the completion alone", "A poll ab", NONE),
    order("a message behind it", "B recv ba; A send ab; B got ba", WRITES_ALONE),
    order("immediate data", "B recv ba; A imm ab 3000+8; B got ba", WRITES_ALONE),
    order("a fenced message", "B recv ba; A send ab fence; B got ba", ALL),
    order("a message after the completion", "B recv ba; A poll ab; A send ab; B got ba", ALL),
    order("a message on a second queue pair", "B recv ba2; A send ab2; B got ba2", NONE),
    order("the same after the completion", "B recv ba2; A poll ab; A send ab2; B got ba2", ALL),
    order("the end of the queue pair", "B stop ba", ALL),
    order("the region is taken away", "B dereg", ALL),
];

#[test]
fn own_work_races_with_a_peers_unless_something_orders_them() {
    let mut told = String::new();
    for Order { name, between, orders } in UNTIL_B {
        for (number, first) in ACCESSES.iter().enumerate() {
            let range = if *first == "faa" { "0" } else { "0+8" };
            for (second, reads) in
                [("send bc from=4+8", true), ("read bc 100+8 to=4+8", false), ("write bc 100+8 from=8+8", true)]
            {
                let script = format!("A {first} ab {range}; {between}; B {second}");
                let overlaps = second.contains("4+8");
                let conflicts = !(*first == "read" && reads);
                let expected = overlaps && conflicts && !orders[number];
                let found = Stage::play(&script).iter().any(|race| race.start < 2048);
                if found != expected {
                    let _ = writeln!(told, "{name}: {}: {script}", if expected { "missed" } else { "invented" });
                }
            }
        }
    }
    assert!(told.is_empty(), "{told}");
}

/// Single programs: the rule that is told, or 0.
const PROGRAMS: &[(u16, &str, &str)] = &[
    // One queue pair.
    (0, "WRITEs of one queue pair", "A write ab 0+8; A write ab 0+8; A write ab 4+8"),
    (0, "a READ behind a WRITE", "A write ab 0+8; A read ab 0+8"),
    (1002, "a WRITE behind a READ", "A read ab 0+8; A write ab 0+8"),
    (0, "the same with a fence", "A read ab 0+8; A write ab 0+8 fence"),
    (0, "the same after the completion", "A read ab 0+8; A poll ab; A write ab 0+8"),
    (0, "a fence further on", "A read ab 0+8; A write ab 100+8 fence; A write ab 0+8"),
    (1002, "a fence in front", "A write ab 100+8 fence; A read ab 0+8; A write ab 0+8"),
    (1003, "a WRITE behind an atomic operation", "A faa ab 0; A write ab 0+8"),
    (0, "an atomic operation behind a WRITE", "A write ab 0+8; A faa ab 0"),
    (0, "atomic operations", "A faa ab 0; A cas ab 0; C faa cb 0"),
    (
        0,
        "an unsignaled READ, and one that is waited for",
        "A read ab 0+8 quiet; A read ab 100+8; A poll ab; A write ab 0+8",
    ),
    (
        1002,
        "an unsignaled READ behind what is waited for",
        "A write ab 100+8; A read ab 0+8 quiet; A poll ab; A write ab 0+8",
    ),
    (0, "UC: WRITEs of one queue pair", "A write ub 0+8; A write ub 0+8"),
    // One process, two queue pairs.
    (1001, "two WRITEs on two queue pairs", "A write ab 0+8; A write ab2 0+8"),
    (0, "the second after the first has completed", "A write ab 0+8; A poll ab; A write ab2 0+8"),
    (1002, "a READ on the other queue pair", "A write ab 0+8; A read ab2 0+8"),
    (0, "READs on two queue pairs", "A read ab 0+8; A read ab2 0+8"),
    (1001, "two threads with a queue pair each", "A.1 write ab 0+8; A.2 write ab2 0+8"),
    (0, "two threads that each wait", "A.1 write ab 0+8; A.1 poll ab; A.2 write ab2 0+8; A.2 poll ab2"),
    (1001, "an unsignaled WRITE counts as under way", "A write ab 0+8 quiet; A write ab2 0+8"),
    (0, "until something behind it completes", "A write ab 0+8 quiet; A write ab 50+8; A poll ab; A write ab2 0+8"),
    (1001, "a completion of unreliable work says nothing", "A write ub 0+8; A poll ub; A write ab 0+8"),
    (
        0,
        "a message behind it does",
        "A write ub 0+8; B recv bu; A send ub; B got bu; B send ba; A recv ab; A got ab; A write ab 0+8",
    ),
    // Local memory.
    (1005, "a READ into memory that is sent elsewhere", "A read ab 0+8 to=100+8; A send ac from=100+8"),
    (0, "after its completion", "A read ab 0+8 to=100+8; A poll ab; A send ac from=100+8"),
    (1005, "the same queue pair, no fence", "A read ab 0+8 to=100+8; A send ab from=100+8"),
    (0, "with a fence", "A read ab 0+8 to=100+8; A send ab from=100+8 fence"),
    (0, "sent, then read into", "A send ab from=100+8; A read ab 0+8 to=100+8"),
    (1005, "sent elsewhere, then read into", "A send ac from=100+8; A read ab 0+8 to=100+8"),
    (0, "READs of one queue pair into the same memory", "A read ab 0+8 to=100+8; A read ab 50+8 to=100+8"),
    (1005, "READs of two queue pairs into the same memory", "A read ab 0+8 to=100+8; A read ac 50+8 to=100+8"),
    (0, "inline data is copied", "A write ab 0+8 inline from=100+8; A read ac 0+8 to=100+8"),
    (1005, "what is not inline is not", "A write ab 0+8 from=100+8; A read ac 0+8 to=100+8"),
    (0, "both send the same memory", "A send ab from=100+8; A write ac 0+8 from=100+8"),
    (1005, "the second piece of a list", "A send ab from=100+8,200+8; A read ac 0+8 to=204+8"),
    (0, "between the pieces of a list", "A send ab from=100+8,200+8; A read ac 0+8 to=150+8"),
    (1005, "the result of an atomic operation", "A faa ab 0 to=100+8; A send ac from=104+8"),
    // Receives.
    (1004, "a WRITE into memory that is sent", "B send bc from=0+8; A write ab 0+8"),
    (
        0,
        "a WRITE into memory that was sent",
        "C recv cb; B send bc from=0+8; C got cb; A recv ac; C send ca; A got ac; A write ab 0+8",
    ),
    (0, "a READ of memory that is sent", "B send bc from=0+8; A read ab 0+8"),
    (1001, "a WRITE into a receive that is filled", "B recv bc into=0+8; C send cb; B arrives bc; A write ab 4+4"),
    (0, "a WRITE of the same queue pair behind it", "B recv ba into=0+8; A send ab; B arrives ba; A write ab 0+8"),
    (0, "a WRITE next to a receive", "B recv bc into=0+8; C send cb; B arrives bc; A write ab 8+8"),
    (0, "a receive that no message has met", "B recv bc into=0+8; A write ab 0+8"),
    (
        0,
        "a message that does not fill its receive",
        "B recv bc into=0+64; C send cb len=8; B arrives bc; A write ab 8+8",
    ),
    (
        1001,
        "two receives with one buffer, two queue pairs",
        "B recv bc into=0+8; B recv ba into=0+8; C send cb; A send ab; B arrives bc; B arrives ba",
    ),
    (
        0,
        "two receives with one buffer, one queue pair",
        "B recv ba into=0+8; B recv ba into=0+8; A send ab; A send ab; B arrives ba; B arrives ba",
    ),
    (
        1001,
        "a shared receive queue, one buffer",
        "B srecv into=0+8; B srecv into=0+8; A send ab; C send cb; B arrives ba; B arrives bc",
    ),
    (
        0,
        "a shared receive queue, two buffers",
        "B srecv into=0+8; B srecv into=8+8; A send ab; C send cb; B arrives ba; B arrives bc",
    ),
    (
        0,
        "a buffer that is posted again when it was polled",
        "B srecv into=0+8; A send ab; B got ba; B srecv into=0+8; C send cb; B got bc",
    ),
    (
        0,
        "ping-pong in one buffer",
        "A recv ab into=0+8; B recv ba into=0+8; A send ab from=0+8; B got ba; B send ba from=0+8; A got ab; A send ab from=0+8",
    ),
    (
        1004,
        "an answer before the question was taken",
        "A recv ab into=0+8; A send ac from=0+8; B send ba; A arrives ab",
    ),
    // Datagrams.
    (
        0,
        "datagrams to two buffers",
        "B recv bd into=0+48; B recv bd into=48+48; A dgram ad; C dgram cd; B arrives bd; B arrives bd",
    ),
    (
        0,
        "datagrams to one buffer of one queue pair, polled in between",
        "B recv bd into=0+48; A dgram ad; B got bd; B recv bd into=0+48; C dgram cd; B got bd",
    ),
    (
        1001,
        "a datagram into memory that a peer writes",
        "B recv bd into=0+48; A dgram ad; B arrives bd; C write cb 40+8",
    ),
    (
        0,
        "a datagram tells of what was polled",
        "A write ab 0+8; A poll ab; C recv cd; A dgram ad at=C; C got cd; C write cb 0+8",
    ),
    (
        1001,
        "a datagram behind a WRITE tells of nothing",
        "A write ab 0+8; C recv cd; A dgram ad at=C; C got cd; C write cb 0+8",
    ),
    // Failures.
    (0, "work that failed has written nothing", "A write ab 0+8; A fail ab; C write cb 0+8"),
    (0, "the second has failed", "A write ab 0+8; C write cb 0+8; C fail cb"),
    (1001, "another one has failed", "A write ab 0+8; C write cb 0+8; C write cb 100+8; C poll cb; C fail cb"),
    (0, "work that was refused", "A write ab 0+8; C refused cb 0+8"),
    // Windows.
    (1001, "two WRITEs through a window", "B bind 0+64; A write ab 0+8 window; C write cb 0+8 window"),
    (0, "a window that is bound again", "B bind 0+64; A write ab 0+8 window; B bind 0+64; C write cb 0+8 window"),
    (1001, "a window and its region", "B bind 0+64; A write ab 0+8 window; C write cb 0+8"),
    // Barriers.
    (
        0,
        "a barrier of three",
        "A write ab 0+8; A poll ab; B recv ba; C recv cb; A send ab; B got ba; B send bc; C got cb; C write cb 0+8",
    ),
    (
        1001,
        "a barrier that one leaves early",
        "A write ab 0+8; A poll ab; B recv ba; C recv cb; A send ab; B send bc; B got ba; C got cb; C write cb 0+8",
    ),
    (
        0,
        "a token that goes round",
        "A write ab 0+8; A poll ab; C recv ca; A send ac; C got ca; C write cb 0+8; C poll cb; A recv ac; C send ca; A got ac; A write ab 0+8",
    ),
    (
        1001,
        "a token that goes round once",
        "A write ab 0+8; A poll ab; C recv ca; A send ac; C got ca; C write cb 0+8; A write ab 0+8",
    ),
    (0, "each its own part", "A write ab 0+1024; C write cb 1024+1024; A write ab 0+1024; C write cb 1024+1024"),
    (1001, "parts that overlap by one byte", "A write ab 0+1025; C write cb 1024+1024"),
    // Senders that nobody has seen.
    (0, "a stranger may have told", "A write ab 0+8; A poll ab; C stranger cx; C write cb 0+8"),
    // The same place again.
    (1001, "the same race again and again", "A write ab 0+8; C write cb 0+8; A write ab 0+8; C write cb 0+8"),
];

#[test]
fn programs_of_a_few_lines() {
    let mut told = String::new();
    for (rule, name, script) in PROGRAMS {
        let found: Vec<u16> = Stage::play(script).iter().map(|race| race.rule).collect();
        let expected: &[u16] = if *rule == 0 { &[] } else { std::slice::from_ref(rule) };
        if found != expected {
            let _ = writeln!(told, "{name}: {found:?} in place of {expected:?}: {script}");
        }
    }
    assert!(told.is_empty(), "{told}");
}

#[test]
fn a_finding_names_both_ends_and_what_is_missing() {
    let mut stage = Stage::new();
    stage.run("A write ab 0+8; A poll ab; C read cb 4+8");
    let findings = stage.findings();
    let [(2, 1, finding)] = &findings[..] else { panic!("{findings:?}") };
    let text = finding.to_string();
    for part in [
        "error: an RDMA_WRITE (work request 1 of QP 0x10) of process 100 (alpha) and an RDMA_READ (work request 2 of QP 0x37) of process 102 (gamma)",
        "both use 4 bytes at 0x200004 of process 101 (beta) [UV-1002]",
        "cause: nothing orders this RDMA_WRITE before that RDMA_READ: its completion was polled, but no message told",
        "seen: the first writes [0x200000, +8) with key 0x00000200; thread 1 posted it after 0.",
        ", from alpha: RDMA_WRITE ab ab 0+8",
        "do: a SEND after the completion of the RDMA_WRITE, received before the RDMA_READ is posted, would",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn a_message_that_comes_before_its_post_waits() {
    let mut stage = Stage::new();
    stage.run("B recv ba");
    assert!(!stage.try_arrive("B", "ba"), "nothing was posted");
    stage.run("A write ab 0+8; A send ab");
    assert!(stage.try_arrive("B", "ba"));
    stage.run("B send bc from=0+8");
    assert_eq!(stage.findings().len(), 1, "it was not polled");
}

#[test]
fn memory_for_the_past_is_bounded() {
    let mut stage = Stage::new();
    for round in 0..20_000_u64 {
        let at = round.wrapping_mul(0x9e37_79b9) % 4000;
        stage.run(&format!("A write ab {at}+{}; A poll ab", 1 + round % 90));
        if round % 1000 == 0 {
            let (segments, components) = stage.remembered();
            assert!(segments <= 1 << 15 && components <= 1 << 21, "{segments} {components}");
        }
    }
    // Many regions of many queue pairs, scattered.
    let mut other = Stage::new();
    for round in 0..40_000_u64 {
        other.scattered_write(round * 64);
    }
    let (segments, _) = other.remembered();
    assert!(segments <= 1 << 15, "{segments}");
    assert!(other.forgotten() > 0, "more was written than is remembered");
    other.run("A write ab 0+8; C write cb 0+8");
    assert_eq!(other.findings().len(), 1, "what comes later is found");
}

#[test]
fn events_of_liars_do_no_harm() {
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut next = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let words = [
        "A write ab 0+8",
        "B stop ba",
        "A poll ab",
        "C write cb 0+8",
        "A cm",
        "B rereg",
        "B recv ba into=0+8",
        "A send ab",
        "B got ba",
        "C fail cb",
        "B dereg",
        "B bind 0+64",
        "A read ab2 0+8",
        "C faa cb 0",
        "A stop ab",
        "C stranger cx",
        "A dgram ad",
        "B arrives bd",
        "A write ab 4000+96",
        "B srecv into=0+8",
        "A write ab 18446744073709551615+8",
    ];
    for _ in 0..200 {
        let mut stage = Stage::new();
        for _ in 0..60 {
            stage.run(words[(next() % words.len() as u64) as usize]);
        }
        stage.findings();
    }
}
