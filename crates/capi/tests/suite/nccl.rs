//! NCCL's profiler plugin, and the function that it shares with other tools: what a program tells them is in its
//! recording.

use crate::library::{compile, on_library, succeed};
use recording::reader::{Entry, Reader};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A span of a recording.
struct Told {
    begin: u64,
    end: u64,
    thread: u32,
    tool: String,
    name: String,
    fields: HashMap<String, String>,
}

impl Told {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// Runs the program with a recording; returns what it printed, and the spans.
fn recorded(how: &str) -> (String, Vec<Told>) {
    let place: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-{how}"));
    let _ = fs::remove_dir_all(&place);
    let program = compile("cc", "nccl_profiler.c");
    let said = succeed(on_library(program).arg(how).env("UBIVERBS_RECORD", &place));
    let files: Vec<PathBuf> = fs::read_dir(&place).expect("recordings").map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let mut reader = Reader::new(File::open(file).unwrap()).unwrap();
    let mut spans = Vec::new();
    while let Some(entry) = reader.next_entry().unwrap() {
        if let Entry::Span { at, duration, thread, tool, name, fields, .. } = entry {
            let fields = fields.into_iter().collect();
            spans.push(Told { begin: at, end: at + duration, thread, tool, name, fields });
        }
    }
    assert_eq!((reader.skipped_records(), reader.damaged_blocks()), (0, 0));
    (said, spans)
}

fn only<'a>(spans: &'a [Told], name: &str) -> &'a Told {
    let mut found = spans.iter().filter(|span| span.name == name && span.field("communicator") != "7");
    let span = found.next().unwrap_or_else(|| panic!("no {name}: {:?}", names(spans)));
    assert!(found.next().is_none(), "several {name}: {:?}", names(spans));
    span
}

fn names(spans: &[Told]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

fn holds(outer: &Told, inner: &Told) {
    assert_eq!(inner.field("parent"), outer.field("event"), "{} in {}", inner.name, outer.name);
    assert!(outer.begin <= inner.begin && inner.end <= outer.end, "{} in {}", inner.name, outer.name);
}

#[test]
fn what_nccl_tells_its_profiler_is_in_the_recording() {
    for how in ["finalizes", "exits"] {
        let (said, spans) = recorded(how);
        let invalid = rustix::io::Errno::INVAL.raw_os_error();
        assert_eq!(said, format!("mask 159\nspan 0\nwrong {invalid} {invalid} {invalid} {invalid}\n"));
        let epoch = only(&spans, "epoch");
        assert_eq!((&*epoch.tool, epoch.field("number"), epoch.end - epoch.begin), ("trainer", "12", 1000));
        let collective = only(&spans, "AllReduce");
        holds(spans.iter().find(|span| span.field("event") == collective.field("parent")).unwrap(), collective);
        let said = ["sequence", "count", "algorithm", "communicator", "rank"].map(|name| collective.field(name));
        assert_eq!((said, &*collective.tool), (["17", "1024", "RING", "training", "5"], "NCCL"));
        let operation = only(&spans, "channel 3: send to rank 1");
        holds(collective, operation);
        let requests: Vec<&Told> = spans.iter().filter(|span| span.field("qpn") == "4711").collect();
        assert_eq!(requests.iter().map(|it| it.field("wr_id")).collect::<Vec<_>>(), ["770", "771"]);
        for (number, request) in requests.into_iter().enumerate() {
            let step = only(&spans, &format!("step {}", 100 + number));
            holds(operation, step);
            holds(step, request);
            assert_eq!((step.field("bytes"), request.field("bytes")), ("4096", "4096"));
            assert!(!step.field("waits_for_send_ns").is_empty() && request.end - request.begin >= 2_000_000);
            assert_eq!((step.thread, request.thread), (operation.thread, operation.thread));
        }
        assert_ne!(operation.thread, collective.thread);
        assert_eq!(only(&spans, "channel 9: receive from rank 0").field("parent"), "");
        assert_eq!(only(&spans, "Send").field("peer"), "2");
    }
}

#[test]
fn without_a_recording_nccl_is_told_that_no_event_is_wanted() {
    let said = succeed(&mut on_library(compile("cc", "nccl_profiler.c")));
    assert_eq!(said, format!("mask 0\nspan {}\n", rustix::io::Errno::NODATA.raw_os_error()));
}
