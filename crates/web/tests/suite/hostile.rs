//! Runs and files made to do harm: their texts are shown as texts, their numbers end at the edges of the picture, and a
//! damaged file is a sentence.

use serde_json::json;

use crate::browser::{WIDE, open};
use crate::{generated, html};

#[test]
fn texts_of_a_run_are_shown_and_never_run() {
    let mut page = open("hostile.html", &html(&generated::hostile()), WIDE);
    assert_eq!(page.ask("window.hacked === undefined"), json!(true));
    assert_eq!(page.text("document.getElementById('title').textContent"), "</title><script>window.hacked=3</script>");
    let scripts = page.number("document.querySelectorAll('script, img, iframe, object, link').length");
    assert_eq!(scripts, 1.0, "the page's own script only");

    // Through all that shows texts.
    for event in [0, 1, 7, 20] {
        page.ask(&format!("ubiverbs.select({{ event: {event} }})"));
    }
    page.ask("ubiverbs.select({ lane: 0 })");
    page.ask("ubiverbs.select({ region: 1 })");
    page.ask("ubiverbs.select({ message: 0 })");
    page.ask("ubiverbs.search('<script>')");
    page.ask("ubiverbs.fit()");
    for key in ["f", "t", "l", "g", "e", "."] {
        page.press(key);
    }
    page.press("Escape");
    let notes = page.text("document.getElementById('notes').textContent");
    assert!(notes.contains("<b onclick=window.hacked=5>"), "{notes}");
    assert!(notes.chars().all(|character| !character.is_control() && character != '\u{202e}'), "{notes:?}");
    assert_eq!(
        page.ask("window.hacked === undefined && document.querySelector('b[onclick], svg[onload]') === null"),
        json!(true)
    );
    let (wanted, wrong) = page.wanted_and_wrong();
    assert!(wanted.iter().all(|address| address.starts_with("file:")), "{wanted:?}");
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn the_policy_refuses_every_other_script_and_address() {
    let mut page = open("policy.html", &html(&generated::failing()), WIDE);
    page.ask(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.hacked = 1';
           document.body.append(script); document.body.insertAdjacentHTML('beforeend', '<i onclick=\"window.hacked=2\">x</i>');
           document.body.lastElementChild.click(); })()",
    );
    assert_eq!(page.ask("window.hacked === undefined"), json!(true));
    let refused = page.ask("fetch('http://127.0.0.1:9/').then(() => 'fetched', () => 'refused')");
    assert_eq!(refused, json!("refused"));
    let (_, wrong) = page.wanted_and_wrong();
    assert!(wrong.iter().filter(|line| line.contains("Content Security Policy")).count() >= 3, "{wrong:?}");
}

#[test]
fn a_damaged_file_says_what_is_wrong() {
    let whole = String::from_utf8(html(&generated::failing())).unwrap();
    let (before, rest) = whole.split_once("id=\"run\">").unwrap();
    let (run, after) = rest.split_once('<').unwrap();
    for (name, run) in
        [("cut off", &run[..run.len() / 8 * 4]), ("empty", ""), ("no base64", "~~~~"), ("no deflate", "AAAAAAAAAAAA")]
    {
        let mut page = open("damaged.html", format!("{before}id=\"run\">{run}<{after}").as_bytes(), WIDE);
        let text = page.text("document.body.innerText");
        assert!(text.starts_with("This run cannot be shown: "), "{name}: {text}");
        assert!(page.ask("ubiverbs.problem").is_string());
    }
}

#[test]
fn a_run_without_events_says_so() {
    let mut page = open("empty.html", &html(&web::timeline::Timeline::new("true", 0)), WIDE);
    assert!(page.text("document.getElementById('inspector').innerText").contains("Nothing was recorded"));
    for key in ["l", "t", "g", "e", "n", "+", "ArrowDown", "Enter"] {
        page.press(key);
    }
    page.ask("ubiverbs.visible()");
    let (footer, window) = (
        page.number("document.querySelector('footer').getBoundingClientRect().bottom"),
        page.number("window.innerHeight"),
    );
    assert_eq!(footer, window, "the page fills the window");
    let (_, wrong) = page.wanted_and_wrong();
    assert_eq!(wrong, Vec::<String>::new());
}
