//! What is drawn is what happened: packets, losses, refusals; what is searched is found; what is clicked is explained.

use serde_json::{Value, json};
use web::timeline::{EventId, EventKind, Timeline, Value as Field, flags};

use crate::browser::{Page, WIDE, open};
use crate::{generated, html};

/// The arrows that are drawn, of one style.
fn arrows(page: &mut Page, style: &str) -> Vec<Value> {
    let visible = page.ask("ubiverbs.visible()");
    visible["arrows"].as_array().unwrap().iter().filter(|arrow| arrow["style"] == style).cloned().collect()
}

fn field(run: &Timeline, event: usize, name: &str) -> Option<u64> {
    run.fields(EventId(event as u32)).find(|(field, _)| *field == name).map(|(_, value)| match value {
        Field::Number(number) | Field::Hex(number) => number,
        _ => panic!("{name} is a number"),
    })
}

#[test]
fn a_refused_write_is_a_request_an_nak_and_a_finding() {
    let mut page = open("failing.html", &html(&generated::failing()), WIDE);
    assert_eq!(page.ask("ubiverbs.counts()")["messages"], 9);
    assert_eq!(page.text("document.title"), "rping -c -a 10.0.0.2 · ubiverbs");

    let requests = arrows(&mut page, "request");
    let naks = arrows(&mut page, "nak");
    assert_eq!((requests.len(), naks.len()), (6, 1));
    // Requests go down from the upper queue pair, the refusal comes back up, later.
    let last = requests.iter().max_by(|a, b| a["x0"].as_f64().unwrap().total_cmp(&b["x0"].as_f64().unwrap())).unwrap();
    assert!(last["y1"].as_f64() > last["y0"].as_f64() && last["x1"].as_f64() > last["x0"].as_f64());
    assert!(naks[0]["y1"].as_f64() < naks[0]["y0"].as_f64() && naks[0]["x0"].as_f64() > last["x1"].as_f64());

    // The mouse, as a person would: zoom in at the refusal, click on its arrow.
    page.ask(&format!("ubiverbs.zoom(...((at) => [at - 6000, at + 6000])(ubiverbs.event({}).time))", naks[0]["event"]));
    let nak = arrows(&mut page, "nak").remove(0);
    let (left, top) = corner(&mut page);
    let middle = |a: &str, b: &str| (nak[a].as_f64().unwrap() + nak[b].as_f64().unwrap()) / 2.0;
    page.click(left + middle("x0", "x1"), top + middle("y0", "y1"));
    assert_eq!(page.ask("ubiverbs.selected().event"), nak["event"]);
    let details = page.text("document.getElementById('inspector').innerText");
    for shown in ["NAK remote access error", "syndrome", "0x60", "msn", "Work request 6: RDMA_WRITE 64 B"] {
        assert!(details.contains(shown), "{shown} is not in {details}");
    }

    // To its work request, and from there back to the packet.
    page.click_on("#inspector .link", "Work request 6");
    let request = page.ask("ubiverbs.selected()");
    assert_eq!(request["event"], json!(-1));
    let request = page.ask(&format!("ubiverbs.message({})", request["message"]));
    assert_eq!((request["wrId"].as_str(), request["status"].as_str()), (Some("6"), Some("REM_ACCESS_ERR")));
    page.click_on("#inspector .link", "Packet sent: NAK remote access error");
    assert_eq!(page.ask("ubiverbs.selected().event"), nak["event"]);
    page.click_on("#inspector .link", "Arrived at QP 0x11");
    let arrival = page.ask("ubiverbs.event(ubiverbs.selected().event)");
    assert_eq!((arrival["kind"].as_str(), &arrival["partner"]), (Some("Packet arrived"), &nak["event"]));
}

/// Where the canvas is in the window.
fn corner(page: &mut Page) -> (f64, f64) {
    let x = page.number("document.getElementById('stage').getBoundingClientRect().x");
    (x, page.number("document.getElementById('stage').getBoundingClientRect().y"))
}

#[test]
fn losses_and_what_is_sent_again_are_marked_from_afar_and_from_near() {
    let run = generated::writes("lossy", 400, 12);
    let lost: Vec<usize> =
        (0..run.events().len()).filter(|&event| run.events()[event].flags & flags::LOST != 0).collect();
    assert!(lost.len() > 10, "the model lost only {}", lost.len());
    let mut page = open("lossy.html", &html(&run), WIDE);

    // The whole run is more packets than pixels: sums, with what went wrong singly.
    let afar = page.ask("ubiverbs.visible()");
    assert!(afar["sums"].as_u64() > Some(0) && arrows(&mut page, "request").is_empty());
    let marked = arrows(&mut page, "lost").len();
    assert!(marked > 3 && marked <= lost.len(), "{marked} of {} losses are marked", lost.len());

    // From near each packet is an arrow. The lost one ends on its way; then it is sent again, and arrives.
    for &event in lost.iter().take(5) {
        let psn = field(&run, event, "psn").unwrap();
        let found = page.number(&format!("ubiverbs.search('psn:{psn} kind:lost')"));
        assert!(found >= 1.0, "PSN {psn}");
        let selected = page.number("ubiverbs.next()") as u64;
        let shown = arrows(&mut page, "lost");
        let arrow =
            shown.iter().find(|arrow| arrow["event"] == selected).unwrap_or_else(|| panic!("{psn} is not drawn"));
        assert_eq!(arrow["open"], true);
        assert!(page.text("document.getElementById('inspector').innerText").contains("It never arrived."));
        let message = page.number("ubiverbs.selected().message");
        let events = page.ask(&format!("ubiverbs.message({message}).events.map(ubiverbs.event)"));
        let again = events.as_array().unwrap().iter().find(|event| {
            event["kind"] == "Packet sent again"
                && event["fields"]["psn"].as_str().unwrap().replace('\u{202f}', "") == psn.to_string()
        });
        assert!(again.is_some_and(|again| again["time"].as_f64() > Some(0.0)), "PSN {psn} is sent again");
    }
}

#[test]
fn searches_find_what_the_run_has_and_nothing_else() {
    let run = generated::writes("search", 200, 10);
    let mut page = open("search.html", &html(&run), WIDE);
    let count = |fits: &dyn Fn(usize) -> bool| (0..run.events().len()).filter(|&event| fits(event)).count() as f64;
    let wr_id = |event: usize| run.events()[event].message.map(|message| run.messages()[message.0 as usize].wr_id);
    let qpn = |event: usize| run.events()[event].lane.map(|lane| run.lanes()[lane.0 as usize].qpn);
    let psn = field(&run, (0..).find(|&event| field(&run, event, "psn").is_some()).unwrap(), "psn").unwrap() + 30;
    let rkey = run.regions()[1].rkey;
    let expected: [(String, f64); 6] = [
        ("wr_id:7".into(), count(&|event| wr_id(event) == Some(7))),
        (format!("psn:{psn}"), count(&|event| field(&run, event, "psn") == Some(psn))),
        ("qp:0x11".into(), count(&|event| qpn(event) == Some(0x11) || field(&run, event, "dest_qp") == Some(0x11))),
        (format!("key:{rkey:#x}"), count(&|event| field(&run, event, "rkey") == Some(u64::from(rkey)))),
        ("kind:dropped".into(), count(&|event| run.events()[event].kind == EventKind::PacketDropped)),
        ("wr_id:7 poll".into(), 1.0),
    ];
    for (query, expected) in expected {
        assert!(expected > 0.0, "{query}");
        assert_eq!(page.number(&format!("ubiverbs.search({query:?})")), expected, "{query}");
    }
    assert_eq!(page.number("ubiverbs.search('wr_id:77777')"), 0.0);
    assert_eq!(page.number("ubiverbs.search('status:retry_exc')"), 0.0);

    // Typed, with Enter to the first and the second.
    page.press("/");
    for key in "wr_id:9".chars() {
        page.press(&key.to_string());
    }
    page.press("Enter");
    let first = page.number("ubiverbs.selected().event");
    page.press("Enter");
    let second = page.number("ubiverbs.selected().event");
    assert!(first >= 0.0 && second > first, "{first}, then {second}");
    assert_eq!(page.text("ubiverbs.message(ubiverbs.selected().message).wrId"), "9");
    let found = page.text("document.getElementById('found').textContent");
    assert!(found.starts_with("2 of "), "{found}");
}

#[test]
fn latencies_are_those_of_the_run() {
    let run = generated::writes("latency", 300, 0);
    let mut page = open("latency.html", &html(&run), WIDE);
    page.press("l");
    let shown = page.text("document.getElementById('latency-view').innerText");
    let mut small: Vec<i64> = run
        .messages()
        .iter()
        .filter(|message| message.bytes == 64)
        .map(|message| message.polled.unwrap() - message.posted.unwrap())
        .collect();
    small.sort_unstable();
    assert!(shown.contains(&format!("{} requests", small.len())), "{shown}");
    let microseconds =
        |time: i64| format!("{:.2}", time as f64 / 1e3).trim_end_matches('0').trim_end_matches('.').to_owned();
    for time in [small[0], small[small.len() / 2], small[small.len() - 1]] {
        assert!(shown.contains(&format!("{} µs", microseconds(time))), "{time} ns is not in {shown}");
    }
    // The slowest of all leads into the timeline.
    let slowest =
        run.messages().iter().max_by_key(|message| message.polled.unwrap() - message.posted.unwrap()).unwrap();
    page.click_on("#latency-view .link", &format!("wr_id {},", slowest.wr_id));
    assert_eq!(page.text("ubiverbs.message(ubiverbs.selected().message).wrId"), slowest.wr_id.to_string());
    assert_eq!(page.text("ubiverbs.view().name"), "timeline");
    let view = page.ask("ubiverbs.view()");
    assert!(view["to"].as_f64().unwrap() - view["from"].as_f64().unwrap() < 100_000.0);
}

#[test]
fn four_ranks_have_each_connection_beside_itself() {
    let run = generated::ranks(12);
    let mut page = open("ranks.html", &html(&run), WIDE);
    let rows = page.ask("ubiverbs.rows()");
    let kinds: Vec<&str> = rows.as_array().unwrap().iter().map(|row| row["type"].as_str().unwrap()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "lane").count(), 12);
    assert_eq!(kinds.iter().filter(|kind| **kind == "gap").count(), 6);
    assert_eq!(kinds.iter().filter(|kind| **kind == "program").count(), 4);
    assert_eq!(kinds.iter().filter(|kind| **kind == "region").count(), 12);

    // What is drawn of the last connection is drawn when its row is scrolled to, and not before.
    let lane = run.lanes().len() - 2;
    let of_last = run.messages().iter().rfind(|message| message.lane.0 as usize == lane).unwrap();
    let posted = of_last.posted.unwrap() - run.events().iter().map(|event| event.time).min().unwrap().min(0);
    page.ask(&format!("ubiverbs.zoom({posted} - 1000, {posted} + 9000)"));
    let of_lane =
        format!("ubiverbs.visible().arrows.filter((arrow) => ubiverbs.event(arrow.event).lane === {lane}).length");
    assert_eq!(page.number(&of_lane), 0.0);
    page.ask(&format!("ubiverbs.select({{ lane: {lane} }})"));
    page.wait(&format!("{of_lane} > 0"));

    // One process less, and its connections are those with the others only; a kind less, and it is not drawn.
    page.press("f");
    page.click_on("#filters label", "packets sent");
    assert_eq!(page.number("ubiverbs.visible().arrows.length"), 0.0);
    assert!(page.text("document.getElementById('filter-button').textContent").contains("1 hidden"));
}
