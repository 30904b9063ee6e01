//! Debian's Chromium without a window, spoken to by the DevTools protocol: JSON messages that end with a zero byte, on
//! two pipes. When this process ends the pipes close, and the browser ends with them. The tests of other people's
//! programs use it, too.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// No page takes this long, on the slowest machine.
const PAGE_TIMEOUT: Duration = Duration::from_secs(180);

/// The browser of this process.
pub struct Browser {
    _child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    next_id: u64,
    session: Option<String>,
    /// What the browser said without being asked.
    events: Vec<Value>,
}

/// An open page; the browser is this test's until the page is dropped.
pub struct Page {
    browser: MutexGuard<'static, Browser>,
    target: String,
}

/// How a page is looked at.
#[derive(Clone, Copy)]
pub struct Screen {
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

pub const WIDE: Screen = Screen { width: 1440, height: 900, dark: false };

impl Browser {
    fn start() -> Self {
        let profile = place().join(format!("chromium-{}", std::process::id()));
        // The shell makes the pipes the descriptors 3 and 4, which Chromium reads and writes.
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(
                "chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-extensions \
                 --no-first-run --hide-scrollbars --user-data-dir=\"$0\" --remote-debugging-pipe about:blank \
                 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null; rm -rf \"$0\"",
            )
            .arg(profile)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { _child: child, input, output, next_id: 0, session: None, events: Vec::new() }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next_id += 1;
        let mut message = json!({ "id": self.next_id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.write_all(&bytes).expect("Chromium reads what it is told: apt-get install chromium");
        loop {
            let mut answer = Vec::new();
            self.output.read_until(0, &mut answer).unwrap();
            answer.pop().expect("Chromium answers: apt-get install chromium");
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            if answer["id"] == json!(self.next_id) {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }
}

/// Writes a page's file and opens it.
pub fn open(name: &str, html: &[u8], screen: Screen) -> Page {
    open_file(&file(name, html), screen)
}

/// Opens a page; returns when the run is drawn, or the page has said why it cannot be.
pub fn open_file(path: &Path, screen: Screen) -> Page {
    static BROWSER: OnceLock<Mutex<Browser>> = OnceLock::new();
    let browser = BROWSER.get_or_init(|| Mutex::new(Browser::start()));
    let mut browser = browser.lock().unwrap_or_else(PoisonError::into_inner);
    browser.session = None;
    browser.events.clear();
    let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))["targetId"].clone();
    let target = target.as_str().unwrap().to_owned();
    let session = browser.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }));
    browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
    for domain in ["Page", "Runtime", "Log", "Network"] {
        browser.call(&format!("{domain}.enable"), json!({}));
    }
    let mut page = Page { browser, target };
    page.look(screen);
    page.browser.call("Page.navigate", json!({ "url": format!("file://{}", path.display()) }));
    page.wait("window.ubiverbs !== undefined");
    page
}

/// Where the pages are that tests have opened.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = place().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A place for files of tests.
fn place() -> PathBuf {
    option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from)
}

impl Page {
    /// The size of the window, and whether the reader prefers dark colours.
    pub fn look(&mut self, Screen { width, height, dark }: Screen) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.browser.call("Emulation.setDeviceMetricsOverride", metrics);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.browser.call("Emulation.setEmulatedMedia", features);
    }

    /// What an expression of JavaScript is, as JSON; promises are waited for.
    pub fn ask(&mut self, expression: &str) -> Value {
        let question = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.browser.call("Runtime.evaluate", question);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    pub fn number(&mut self, expression: &str) -> f64 {
        let value = self.ask(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression} is {value}, no number"))
    }

    pub fn text(&mut self, expression: &str) -> String {
        let value = self.ask(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is {value}, no text")).to_owned()
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, expression: &str) {
        let deadline = Instant::now() + PAGE_TIMEOUT;
        let tick = "new Promise((done) => setTimeout(done, 15))";
        while self.ask(&format!("!!({expression})")) != json!(true) {
            assert!(Instant::now() < deadline, "never true: {expression}");
            self.ask(tick);
        }
    }

    /// Moves the mouse to a point of the page and clicks.
    pub fn click(&mut self, x: f64, y: f64) {
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.browser.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Clicks in the middle of the element that has this text.
    pub fn click_on(&mut self, selector: &str, text: &str) {
        let place = self.ask(&format!(
            "(() => {{ const all = [...document.querySelectorAll('{selector}')];
               const found = all.find((one) => one.textContent.includes({text:?}));
               if (!found) return null;
               found.scrollIntoView({{ block: 'center' }});
               const box = found.getBoundingClientRect();
               return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        let point = place.as_array().unwrap_or_else(|| panic!("no {selector} says {text}"));
        self.click(point[0].as_f64().unwrap(), point[1].as_f64().unwrap());
    }

    /// Presses keys by their names, as `KeyboardEvent.key` has them; text is typed.
    pub fn press(&mut self, key: &str) {
        let text = if key.chars().count() == 1 { key } else { "" };
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Home" => 36,
            "Tab" => 9,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "windowsVirtualKeyCode": code });
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.browser.call("Input.dispatchKeyEvent", event);
        }
    }

    pub fn wheel(&mut self, x: f64, y: f64, delta: f64, control: bool) {
        let modifiers = if control { 2 } else { 0 };
        let event =
            json!({ "type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta, "modifiers": modifiers });
        self.browser.call("Input.dispatchMouseEvent", event);
    }

    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        let steps = [("mouseMoved", from), ("mousePressed", from), ("mouseMoved", to), ("mouseReleased", to)];
        for (kind, (x, y)) in steps {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "buttons": 1, "clickCount": 1 });
            self.browser.call("Input.dispatchMouseEvent", event);
        }
    }

    /// What a screen reader is told: role and name of each node that it reads.
    pub fn accessible(&mut self) -> Vec<(String, String)> {
        let tree = self.browser.call("Accessibility.getFullAXTree", json!({}));
        let word = |node: &Value, key: &str| node[key]["value"].as_str().unwrap_or_default().to_owned();
        let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] != json!(true));
        nodes.map(|node| (word(node, "role"), word(node, "name"))).collect()
    }

    /// The page as it is printed, as a PDF in base64.
    pub fn print(&mut self) -> String {
        let printed = self.browser.call("Page.printToPDF", json!({ "printBackground": true }));
        printed["data"].as_str().unwrap().to_owned()
    }

    /// Addresses that the page wanted, and what it complained about: exceptions, refusals of its policy.
    pub fn wanted_and_wrong(&mut self) -> (Vec<String>, Vec<String>) {
        self.ask("0");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (mut wanted, mut wrong) = (Vec::new(), Vec::new());
        for event in &self.browser.events {
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => wanted.push(text(&event["params"]["request"]["url"])),
                "Runtime.exceptionThrown" => wrong.push(event["params"]["exceptionDetails"].to_string()),
                "Log.entryAdded" => wrong.push(text(&event["params"]["entry"]["text"])),
                "Page.javascriptDialogOpening" => wrong.push(text(&event["params"]["message"])),
                _ => {}
            }
        }
        (wanted, wrong)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let target = self.target.clone();
            self.browser.session = None;
            self.browser.call("Target.closeTarget", json!({ "targetId": target }));
        }
    }
}
