//! What the kernel, the environment and other programs write as text or as small blocks of bytes: tables of `/proc`,
//! plans of faults, probes, endpoints. What reads back must be written the same.

use checks::{Absent, Checker, Settings};
use host::steering::probe::{Probe, ProbeAnswer};
use link::faults::{Chance, Plan};
use recording::block::BLOCK_BYTES;
use recording::{BlockStart, BlockWriter, Entry, FileHeader, Reader};
use std::ffi::OsStr;
use std::io::Cursor;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use trace::{JsonLines, JsonReader, Logged, PeerReason, Sink};
use ubiverbs::Endpoint;

/// Takes bytes for the encoding and for the text of an endpoint.
///
/// # Panics
/// If one is read that is not written the same.
pub fn endpoint(bytes: &[u8]) {
    if let Ok(endpoint) = Endpoint::from_bytes(bytes) {
        assert_eq!(endpoint.to_bytes(), bytes, "every bit counts");
        assert_eq!(endpoint.to_string().parse::<Endpoint>().ok(), Some(endpoint));
    }
    if let Some(endpoint) = std::str::from_utf8(bytes).ok().and_then(|text| text.parse::<Endpoint>().ok()) {
        assert_eq!(endpoint.to_string().parse::<Endpoint>().ok(), Some(endpoint));
        let encoded = endpoint.to_bytes();
        let again = Endpoint::from_bytes(&encoded).expect("what was encoded reads");
        assert_eq!(again.to_bytes(), encoded);
    }
}

/// Takes bytes for a probe, and for an answer to one.
///
/// # Panics
/// If one is read that is not written the same.
pub fn probes(bytes: &[u8]) {
    if let Some(probe) = Probe::parse(bytes) {
        assert!(wire::Packet::parse(bytes).is_err(), "a probe is no packet");
        assert_eq!(Probe::parse(&probe.bytes()), Some(probe));
    }
    if let Some(answer) = ProbeAnswer::parse(bytes) {
        let written = answer.bytes();
        assert!(written.len() <= ProbeAnswer::LONGEST);
        assert_eq!(ProbeAnswer::parse(&written), Some(answer));
    }
}

/// Takes bytes for a log of events, which a checker explains, and for what another process says about its refusal.
///
/// # Panics
/// If an event or a reason is read that is not written the same.
pub fn logs(bytes: &[u8]) {
    if let Some(reason) = PeerReason::from_bytes(bytes) {
        assert_eq!(PeerReason::from_bytes(&reason.to_bytes()), Some(reason));
    }
    let mut log = JsonReader::new(bytes);
    let mut checker = Checker::new(Settings::why());
    let mut told = 0;
    let mut last = 0;
    while let Ok(Some(Logged { event, .. })) = log.next_event() {
        let mut lines = JsonLines::new(Vec::new());
        lines.record(&event);
        let line = lines.finish().expect("a vector takes everything");
        let again = JsonReader::new(&line[..]).next_event().ok().flatten().map(|logged| logged.event);
        assert_eq!(again, Some(event));
        checker.tick(event.at, &mut Absent, &mut |finding| told += finding.to_string().len());
        checker.observe(&event, &mut Absent, &mut |finding| told += finding.json(None).len());
        last = event.at;
    }
    checker.finish(last, &mut Absent, &mut |finding| told += finding.to_string().len());
}

/// Takes bytes for a recording, or for the records of its only block. What is read is written again and read the same.
///
/// # Panics
/// If an event is another one after it was written and read.
pub fn recordings(bytes: &[u8]) {
    let is_file = bytes.starts_with(&recording::header::FILE_MAGIC);
    let mut file = if is_file { bytes.to_vec() } else { recording_of(|_, _| {}) };
    if !is_file {
        let head = BLOCK_BYTES + recording::block::BLOCK_HEAD_BYTES;
        file.truncate(head);
        file.extend_from_slice(&bytes[..bytes.len().min(BLOCK_BYTES - recording::block::BLOCK_HEAD_BYTES)]);
        let length = (file.len() - head) as u32;
        file[BLOCK_BYTES + 4..BLOCK_BYTES + 8].copy_from_slice(&length.to_le_bytes());
    }
    let Ok(mut reader) = Reader::new(Cursor::new(&file)) else { return };
    let mut events = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        if let Entry::Event(event) = entry {
            events.push(event);
        }
    }
    for event in events {
        let file = recording_of(|writer, block| assert!(writer.event(block, &event), "a block has room for an event"));
        let mut reader = Reader::new(Cursor::new(&file)).expect("a recording");
        assert_eq!(reader.next_entry().expect("memory can be read"), Some(Entry::Event(event)));
    }
}

/// A recording of one block.
fn recording_of(fill: impl FnOnce(&mut BlockWriter, &mut [u8])) -> Vec<u8> {
    let mut file = FileHeader::default().to_bytes();
    file.resize(2 * BLOCK_BYTES, 0);
    let mut writer = BlockWriter::default();
    writer.begin(&mut file[BLOCK_BYTES..], &BlockStart::default());
    fill(&mut writer, &mut file[BLOCK_BYTES..]);
    file
}

/// Takes bytes for what a program's user sets: a plan of faults, what is logged, which rules are on, the name of a
/// socket.
///
/// # Panics
/// If something is read that makes no sense.
pub fn settings(bytes: &[u8]) {
    let _ = hca::environment::Log::of(OsStr::from_bytes(bytes));
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match text.parse::<Plan>() {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(plan) => {
            assert!(!plan.rules.is_empty());
            for rule in &plan.rules {
                let hour = Duration::from_secs(3600);
                assert!(rule.delay.0 <= rule.delay.1 && rule.delay.1 <= hour && rule.hold <= hour);
                for Chance { probability, numbers } in [&rule.drop, &rule.dup, &rule.reorder, &rule.corrupt] {
                    assert!((0.0..=1.0).contains(probability));
                    assert!(numbers.iter().all(|range| *range.start() >= 1 && range.start() <= range.end()));
                }
            }
            act(plan);
        }
    }
    rules(text);
    if let Ok(name) = text.parse::<host::names::Name>() {
        assert_eq!(name.to_string(), text);
    }
}

/// Takes a text for words and for a file about rules. What is wrong is said; what is obeyed names rules that exist.
fn rules(text: &str) {
    let mut settings = checks::Settings::all();
    for obeyed in [settings.obey_file(text), settings.obey_all(text)] {
        assert!(obeyed.err().is_none_or(|error| !error.is_empty()));
    }
    let named = settings.off.iter().chain(&settings.on).chain(settings.severities.keys());
    named.for_each(|number| assert!(checks::Rule::of(*number).is_some(), "{number}"));
    assert!(settings.off.is_disjoint(&settings.on));
}

/// Lets packets meet the plan: each is lost, or passes once or twice, and not before its time.
fn act(plan: Plan) {
    let now = std::time::Instant::now();
    let mut faults = link::faults::Faults::<u8>::new(plan);
    let address = |last| IpAddr::from([10, 0, 0, last]);
    for last in 0..4 {
        let fate = faults.decide(now, address(1), address(last), 100);
        assert!(fate.first.is_none() == fate.lost.is_some(), "{fate:?}");
        assert!(fate.first.is_none_or(|when| when >= now) && fate.again.is_none_or(|when| when >= now));
    }
    assert_eq!(faults.injected().packets, 4);
}

/// Takes bytes for tables of the kernel's.
///
/// # Panics
/// If more is found than there can be.
pub fn tables(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().count();
    let names = host::names::listening(&text);
    assert!(names.len() <= lines);
    for name in names {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    let all = host::holders::users(&text, None, 4791);
    let some = host::holders::users(&text, Some([0, 0, 0, 0].into()), 4791);
    assert!(all.len() <= lines && some.len() <= all.len());
    let blocks = host::ports::blocks_within(&text);
    assert!(!blocks.is_empty() && blocks.end() < &1024, "{blocks:?}");
    let figures = hca::KernelDrops::of(1, &text, &text);
    assert_eq!(figures.sockets, 1);
    for (start, span) in [(0x1000, 0x1000), (0x3000, 0x9000), (0, u64::MAX), (u64::MAX - 1, 1)] {
        // What may be written may also be read.
        if memory::judge(&text, start, span, true).is_ok() {
            assert_eq!(memory::judge(&text, start, span, false), Ok(()));
        }
    }
}
