//! A million events: the size of the file, the time to open it, and how long frames take while it is moved and zoomed.

use crate::browser::{WIDE, open};
use crate::{generated, html};

/// A page of a million events is smaller than this.
const MILLION_BYTES_MAX: usize = 10 << 20;

/// However many events there are, a frame draws so many arrows, bars and marks at most: that is what keeps it short.
const DRAWN_MAX: f64 = 20_000.0;

#[test]
fn a_million_events_open_and_move() {
    let run = generated::writes("ib_write_bw -a -n 62000 10.0.0.2", 62_000, 2);
    let html = html(&run);
    assert!(html.len() < MILLION_BYTES_MAX, "{} bytes", html.len());
    let mut page = open("large.html", &html, WIDE);
    assert_eq!(page.number("ubiverbs.counts().events"), run.events().len() as f64);
    let opened = page.ask("ubiverbs.opened()");

    // Frames as a person makes them: each moves or zooms a little, and is drawn when the browser asks for it.
    let frames = page.ask(
        "(async () => {
           const times = []; let most = 0;
           const all = ubiverbs.counts().end;
           for (let frame = 0; frame < 240; frame++) {
             const span = all * Math.pow(0.94, frame);
             const at = all * 0.3 + span * 0.3 * Math.sin(frame / 9);
             await new Promise(requestAnimationFrame);
             ubiverbs.zoom(at, at + span);
             times.push(ubiverbs.draw());
             const seen = ubiverbs.visible();
             most = Math.max(most, seen.arrows.length + seen.bars + seen.marks);
           }
           times.sort((a, b) => a - b);
           return { median: times[120], late: times[228], longest: times[239], most };
         })()",
    );
    let number = |name: &str| frames[name].as_f64().unwrap();
    assert!(number("most") <= DRAWN_MAX, "a frame drew {}", number("most"));
    println!(
        "{} events: {} bytes, unpacked after {:.0} ms, drawn after {:.0} ms; frames of {:.1} ms (median), {:.1} ms (95 %), \
         {:.1} ms (longest), at most {} shapes",
        run.events().len(),
        html.len(),
        opened["unpacked"].as_f64().unwrap(),
        opened["drawn"].as_f64().unwrap(),
        number("median"),
        number("late"),
        number("longest"),
        number("most"),
    );
    let found = page.ask("(() => { const begin = performance.now(); return [ubiverbs.search('wr_id:60001'), performance.now() - begin]; })()");
    assert!(found[0].as_u64() > Some(4), "{found}");
    println!("search: {:.0} ms", found[1].as_f64().unwrap());
}
