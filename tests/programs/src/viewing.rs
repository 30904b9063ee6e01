//! Recordings of programs, opened in a browser as people open them: whether what the page draws is what the program did.

use crate::compiled::compile_with;
use crate::stage::{Pair, Scene, Stage, Where};
use crate::{Test, expect};
use browser::Page;
use serde_json::Value;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../../crates/web/tests/suite/browser.rs"]
#[allow(dead_code, reason = "the page's own tests use all of it")]
mod browser;

/// The client's queue pair fails in the middle of the run.
const BROKEN: &str = "[[failure]]
after = { messages = 60 }
device = 'ubi_lo'
do = 'qp-error'
";

pub fn tests() -> Vec<Test> {
    vec![
        Test::new("ubiverbs view: ib_write_bw, drawn in a browser", writes).takes_seconds(5),
        Test::new("ubiverbs view: ib_write_bw with losses, drawn in a browser", losses).takes_seconds(5),
        Test::new("ubiverbs view: ib_write_bw that fails, drawn in a browser", failure).takes_seconds(5),
        Test::new("ubiverbs view: MPI all-reduce of 4 ranks, drawn in a browser", ranks).for_root().takes_seconds(10),
    ]
}

/// A place for a recording, and options that make it.
fn recorded(stage: &Stage, more: &[&str]) -> (PathBuf, Vec<String>) {
    let place = stage.place.join(format!("recording-{}", stage.next_port()));
    let options = ["--record".to_owned(), place.display().to_string()];
    (place, options.into_iter().chain(more.iter().map(|option| (*option).to_owned())).collect())
}

/// Writes the page of a recording, opens it, and asks it questions. What fails is told with the page's file.
fn viewed(stage: &Stage, recording: &Path, questions: impl FnOnce(&mut Page)) -> Result<(), String> {
    let file = recording.with_extension("html");
    let mut command = Command::new(stage.dist.join("bin/ubiverbs"));
    let ended = stage.end(command.arg("view").arg(recording).arg("-o").arg(&file))?;
    if !ended.status.success() {
        return Err(format!("ubiverbs view: {}\n{}", ended.status, ended.text));
    }
    let asked = catch_unwind(AssertUnwindSafe(|| {
        let mut page = browser::open_file(&file, browser::WIDE);
        questions(&mut page);
        let (wanted, wrong) = page.wanted_and_wrong();
        assert!(wanted.iter().all(|address| address.starts_with("file:")), "the page wants {wanted:?}");
        assert!(wrong.is_empty(), "the page complains: {wrong:?}");
    }));
    asked.map_err(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned())).unwrap_or_default();
        let kept = std::env::temp_dir().join("ubiverbs-view-failed.html");
        let kept = fs::copy(&file, &kept).map_or_else(|error| error.to_string(), |_| kept.display().to_string());
        format!("{said}\nthe page: {kept}; ubiverbs view said:\n{}", ended.text)
    })
}

/// Work requests of the send queue with this opcode that succeeded, as the page knows them.
fn succeeded(page: &mut Page, opcode: &str) -> Vec<Value> {
    let all = page.ask("[...Array(ubiverbs.counts().messages).keys()].map((n) => ({ n, ...ubiverbs.message(n) }))");
    let fits = |message: &&Value| {
        let is = |name: &str, word: &str| message[name].as_str().is_some_and(|text| text.contains(word));
        is("title", opcode) && is("status", "SUCCESS")
    };
    all.as_array().unwrap().iter().filter(fits).cloned().collect()
}

/// The steps of a work request that were seen, in their order.
fn steps(message: &Value) -> Vec<f64> {
    let order = ["posted", "sent", "arrived", "placed", "completed", "polled"];
    order.iter().filter_map(|step| message["steps"][step].as_f64()).filter(|time| *time >= 0.0).collect()
}

fn write_pair(stage: &Stage, options: Vec<String>, line: &str) -> Result<String, String> {
    let line = format!("ib_write_bw -d ubi_lo -x 0 -F -u 16 {line}");
    stage.pair(&Pair { at: Where::OneHost, user: None, options, line, server: "", clients: 1 })
}

fn writes(stage: &Stage) -> Result<(), String> {
    let (recording, options) = recorded(stage, &["--link", "udp"]);
    write_pair(stage, options, "-n 100 -s 16384")?;
    viewed(stage, &recording, |page| {
        assert_eq!(page.number("ubiverbs.counts().processes"), 2.0);
        let writes = succeeded(page, "WRITE");
        assert!(writes.len() >= 100, "{} WRITEs succeeded", writes.len());
        for write in &writes {
            let seen = steps(write);
            assert!(seen.len() >= 4 && write["latency"].as_f64() > Some(0.0), "{write}");
            assert!(seen[0] <= seen[1], "it was sent before it was posted: {write}");
        }

        // From a work request to its packets, from a packet to its other end, and back.
        page.ask(&format!("ubiverbs.select({{ message: {} }})", writes[writes.len() / 2]["n"]));
        let packets = page.ask("ubiverbs.message(ubiverbs.selected().message).events.map(ubiverbs.event)");
        let packets = packets.as_array().unwrap();
        let sent = packets.iter().find(|event| event["kind"] == "Packet sent").expect("a packet of a WRITE");
        let other = page.ask(&format!("ubiverbs.event({})", sent["partner"]));
        assert_eq!((other["kind"].as_str(), &other["partner"]), (Some("Packet arrived"), &sent["event"]));
        assert_ne!(other["process"], sent["process"]);
        assert_eq!(other["fields"]["psn"], sent["fields"]["psn"]);
        page.ask(&format!("ubiverbs.select({{ event: {} }})", sent["event"]));
        let shown = page.ask("ubiverbs.visible()");
        let arrow = shown["arrows"].as_array().unwrap().iter().find(|arrow| arrow["event"] == sent["event"]);
        let arrow = arrow.expect("the packet is an arrow");
        assert_eq!(arrow["open"], false, "it ends at the other queue pair: {arrow}");

        // Search finds it by its sequence number.
        let psn = sent["fields"]["psn"].as_str().unwrap().replace('\u{202f}', "");
        assert!(page.number(&format!("ubiverbs.search('psn:{psn}')")) >= 2.0);
        page.ask("(ubiverbs.fit(), ubiverbs.show('latency'))");
        assert!(page.text("document.getElementById('latency-view').innerText").contains("WRITE, 16 KiB"));
    })
}

fn losses(stage: &Stage) -> Result<(), String> {
    let (recording, options) = recorded(stage, &["--link", "udp", "--faults", "drop=4%,seed=5"]);
    write_pair(stage, options, "-n 100 -s 16384")?;
    viewed(stage, &recording, |page| {
        let lost = page.number("ubiverbs.search('kind:lost')") + page.number("ubiverbs.search('kind:dropped')");
        assert!(lost > 0.0, "nothing is lost");
        assert!(page.number("ubiverbs.search('kind:again')") > 0.0, "nothing is sent again");
        let again = page.number("ubiverbs.next()");
        let drawn = page.ask("ubiverbs.visible()");
        let arrow = drawn["arrows"].as_array().unwrap().iter().find(|arrow| arrow["event"].as_f64() == Some(again));
        assert_eq!(arrow.expect("it is drawn")["style"], "again");
        assert!(succeeded(page, "WRITE").len() >= 100);
    })
}

fn failure(stage: &Stage) -> Result<(), String> {
    let script = stage.place.join("view-failure.toml");
    fs::write(&script, BROKEN).map_err(|error| format!("{}: {error}", script.display()))?;
    let (recording, options) = recorded(stage, &["--link", "udp", "--script", &script.display().to_string()]);
    let port = stage.next_port();
    let line = format!("ib_write_bw -d ubi_lo -x 0 -F -n 200 -s 4096 -p {port}");
    let ended = stage.play(&Scene {
        hosts: [&stage.alone; 2],
        user: None,
        options: &options,
        server: line.clone(),
        port,
        clients: vec![format!("{line} {}", stage.alone.address)],
        stays: false,
    });
    expect(&ended.err().ok_or("it did not fail")?, &["Completion with error"])?;
    viewed(stage, &recording, |page| {
        assert!(page.number("ubiverbs.search('kind:injected')") >= 1.0, "the failure is not drawn");
        let errors = page.number("ubiverbs.search('status:flush')");
        assert!(errors >= 1.0, "no work request was flushed");
        page.ask("ubiverbs.next()");
        let status = page.text("ubiverbs.message(ubiverbs.selected().message).status");
        assert!(status.to_lowercase().contains("flush"), "{status}");
        assert!(page.number("ubiverbs.search('kind:state err')") >= 1.0, "no queue pair went into error");
        page.ask("ubiverbs.fit()");
        let summary = page.text("(ubiverbs.select({}), document.getElementById('inspector').innerText)");
        assert!(summary.contains("injected failure"), "{summary}");
    })
}

fn ranks(stage: &Stage) -> Result<(), String> {
    let program = compile_with(stage, "mpicc.mpich", "mpi.c", "mpi-viewed", &["-std=c11"])?;
    let (recording, options) = recorded(stage, &[]);
    let line = format!(
        "env UCX_TLS=rc_verbs,ud_verbs,self UCX_NET_DEVICES=ubi_lo:1 MPIR_CVAR_NOLOCAL=1 mpiexec.mpich -n 4 {} 1",
        program.display()
    );
    stage.run(None, &options, &line)?;
    viewed(stage, &recording, |page| {
        let processes = page.ask("ubiverbs.rows().filter((row) => row.type === 'program').map((row) => row.process)");
        assert!(processes.as_array().unwrap().len() >= 4, "{processes}");
        // Each rank speaks with others: connections whose ends are both drawn, of different processes.
        let joined =
            page.number("ubiverbs.rows().filter((row) => row.type === 'gap' && row.lanes.length === 2).length");
        assert!(joined >= 6.0, "{joined} connections have both ends");
        page.press("b");
        let drawn = page.ask("ubiverbs.visible()");
        let shown = drawn["arrows"].as_array().unwrap().len() as u64 + drawn["sums"].as_u64().unwrap();
        assert!(shown > 0, "nothing is drawn where most packets are: {drawn}");
        let across = "[...Array(ubiverbs.counts().events).keys()].map(ubiverbs.event)
            .filter((event) => event.kind === 'Packet arrived' && event.partner >= 0
                && ubiverbs.event(event.partner).process !== event.process).length";
        assert!(page.number(across) > 50.0);
    })
}
