//! Readers are different: keys instead of a mouse, a screen reader instead of a canvas, a dark room, a narrow window, paper.

use serde_json::json;

use crate::browser::{Screen, WIDE, open};
use crate::{generated, html};

#[test]
fn keys_do_what_the_mouse_does() {
    let mut page = open("keys.html", &html(&generated::writes("keys", 60, 30)), WIDE);
    let span = "ubiverbs.view().to - ubiverbs.view().from";
    let whole = page.number(span);
    page.press("+");
    page.press("+");
    assert!(page.number(span) < whole / 2.0);
    let before = page.number("ubiverbs.view().from");
    page.ask("document.getElementById('stage').focus()");
    page.press("ArrowRight");
    assert!(page.number("ubiverbs.view().from") > before);
    page.press("Home");
    assert_eq!(page.number(span), whole);

    page.press("e");
    let trouble = page.ask("ubiverbs.event(ubiverbs.selected().event)");
    assert_eq!(trouble["kind"], "Packet lost");
    page.press("m");
    assert_eq!(page.ask("ubiverbs.selected()")["message"], trouble["message"]);
    page.press("z");
    let view = page.ask("ubiverbs.view()");
    let steps = page.ask("ubiverbs.message(ubiverbs.selected().message).steps");
    assert!(view["from"].as_f64() < steps["posted"].as_f64() && view["to"].as_f64() > steps["polled"].as_f64());
    page.press("Escape");
    assert_eq!(page.ask("ubiverbs.selected().message"), json!(-1));

    page.press("?");
    assert_eq!(page.ask("document.getElementById('help').open"), json!(true));
    page.press("Escape");
    assert_eq!(page.ask("document.getElementById('help').open"), json!(false));

    // The wheel with Ctrl zooms where the pointer is; a drag moves.
    page.press("Home");
    page.wheel(700.0, 400.0, -300.0, true);
    page.wait(&format!("{span} < {}", whole * 0.9));
    let before = page.number("ubiverbs.view().from");
    page.drag((700.0, 380.0), (500.0, 380.0));
    assert!(page.number("ubiverbs.view().from") > before);
}

#[test]
fn a_screen_reader_has_a_table_of_what_is_drawn() {
    let mut page = open("reader.html", &html(&generated::failing()), WIDE);
    page.press("t");
    let rows = page.number("document.querySelectorAll('#events-view tbody tr').length");
    assert_eq!(rows, page.number("ubiverbs.counts().events"));
    page.press("ArrowDown");
    page.press("ArrowDown");
    assert_eq!(page.number("[...document.querySelectorAll('tbody tr')].indexOf(document.activeElement)"), 2.0);
    page.press("Enter");
    assert!(page.number("ubiverbs.selected().event") >= 0.0);
    let said = page.text("document.getElementById('live').textContent");
    assert!(said.contains(&page.text("ubiverbs.event(ubiverbs.selected().event).kind")), "{said}");

    let tree = page.accessible();
    let has = |role: &str, name: &str| tree.iter().any(|(has, words)| has == role && words.contains(name));
    for (role, name) in [
        ("application", "Timeline"),
        ("searchbox", "Search events"),
        ("tab", "Latency"),
        ("table", "Events 1 to"),
        ("columnheader", "PSN"),
        ("complementary", "Details"),
        ("cell", "IBV_EVENT_QP_FATAL"),
        ("button", "Zoom in"),
        ("list", "Legend"),
    ] {
        // What is hidden is not read; the timeline is, when it is shown.
        if role == "application" || name == "Zoom in" {
            assert!(!has(role, name), "{role} {name} is hidden");
        } else {
            assert!(has(role, name), "no {role} {name}");
        }
    }
    page.press("g");
    let tree = page.accessible();
    assert!(tree.iter().any(|(role, name)| role == "application" && name.contains("Timeline")));

    // Each button has a name, and Tab reaches the canvas, then the details.
    assert!(tree.iter().filter(|(role, _)| role == "button").all(|(_, name)| !name.is_empty()));
    page.ask("document.getElementById('stage').focus()");
    page.press("Tab");
    assert_eq!(page.text("document.activeElement.tagName"), "BUTTON");
}

#[test]
fn dark_rooms_narrow_windows_and_paper() {
    let mut page = open("looks.html", &html(&generated::writes("ib_write_bw -a 10.0.0.2", 60, 20)), WIDE);
    // The listener is called with the browser's next frame.
    let brightness =
        "(ubiverbs.draw(), [...document.getElementById('canvas').getContext('2d').getImageData(600, 300, 1, 1).data]
        .slice(0, 3).reduce((sum, part) => sum + part))";
    page.ask("ubiverbs.zoom(0, 400)");
    page.wait(&format!("{brightness} > 600"));
    page.look(Screen { dark: true, ..WIDE });
    page.wait(&format!("{brightness} < 160"));

    for (width, height) in [(1920, 1200), (1000, 700), (390, 844)] {
        page.look(Screen { width, height, dark: false });
        page.ask("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
        page.ask("ubiverbs.fit()");
        let wide = page.number("document.documentElement.scrollWidth");
        assert!(wide <= f64::from(width), "{width}: the page is {wide} wide");
        let (canvas, stage) = (
            page.number("document.getElementById('canvas').clientHeight"),
            page.number("document.getElementById('stage').clientHeight"),
        );
        assert!(canvas == stage && stage > 160.0, "{width}: the canvas is {canvas} high in {stage}");
        let below = page.number("document.querySelector('footer').getBoundingClientRect().bottom");
        assert!(below <= f64::from(height) + 0.5, "{height}: the page ends at {below}");
        assert!(page.number("ubiverbs.visible().sums + ubiverbs.visible().arrows.length") > 0.0);
    }
    let printed = page.print();
    // A PDF, with a picture in it: an empty page takes a few kilobytes.
    assert!(printed.starts_with("JVBERi0") && printed.len() > 30_000, "{}", printed.len());
    assert_eq!(page.ask("ubiverbs.view().name"), json!("timeline"));
}
