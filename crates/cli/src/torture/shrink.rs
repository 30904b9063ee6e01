//! Makes a script smaller that makes a command fail: which of its failures, and which of their lines, are needed. Only
//! what makes a script strike less, earlier or shorter is tried, as a script that breaks more proves nothing.

/// Keys without which a failure is simpler and no broader: it comes at once instead of later, once instead of often.
const NEEDLESS_KEYS: [&str; 9] = ["at", "since", "after", "of", "nth", "times", "every", "jitter", "about"];

/// Keys that mean nothing without another one, which stands second.
const COMPANIONS: [(&str, &str); 2] = [("since", "at"), ("of", "after")];

/// Keys whose time may be shorter.
const SHORTENED_KEYS: [&str; 2] = ["for", "by"];

/// No time is made shorter than this.
const SHORTEST_MILLIS: u64 = 50;

/// What begins a failure.
const HEADING: &str = "[[failure]]";

/// A script as lines that count: what stands in front, and the failures.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Parts {
    head: Vec<String>,
    failures: Vec<Vec<String>>,
}

impl Parts {
    fn of(text: &str) -> Parts {
        let mut parts = Parts { head: Vec::new(), failures: Vec::new() };
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.trim().starts_with('#'));
        for line in lines {
            match line.trim() == HEADING {
                true => parts.failures.push(Vec::new()),
                false => parts.failures.last_mut().unwrap_or(&mut parts.head).push(line.to_owned()),
            }
        }
        parts
    }

    fn text(&self) -> String {
        let mut lines = self.head.clone();
        for failure in &self.failures {
            lines.extend((!lines.is_empty()).then(String::new));
            lines.push(HEADING.to_owned());
            lines.extend(failure.iter().cloned());
        }
        lines.join("\n") + "\n"
    }

    /// Scripts that are a step smaller, the largest steps first.
    fn smaller(&self) -> Vec<Parts> {
        let mut found = Vec::new();
        let count = self.failures.len();
        let mut size = count / 2;
        while size > 0 {
            for begin in (0..count).step_by(size) {
                let mut parts = self.clone();
                parts.failures.drain(begin..(begin + size).min(count));
                found.push(parts);
            }
            size /= 2;
        }
        for (index, failure) in self.failures.iter().enumerate() {
            for (at, line) in failure.iter().enumerate() {
                let key = self::key(line);
                if NEEDLESS_KEYS.contains(&key) {
                    let mut parts = self.clone();
                    let goes = |other: &str| other == key || COMPANIONS.contains(&(other, key));
                    parts.failures[index].retain(|line| !goes(self::key(line)));
                    found.push(parts);
                }
                if SHORTENED_KEYS.contains(&key)
                    && let Some(shorter) = shorter(line)
                {
                    let mut parts = self.clone();
                    parts.failures[index][at] = shorter;
                    found.push(parts);
                }
            }
        }
        for at in (0..self.head.len()).filter(|at| NEEDLESS_KEYS.contains(&key(&self.head[*at]))) {
            let mut parts = self.clone();
            parts.head.remove(at);
            found.push(parts);
        }
        found
    }
}

fn key(line: &str) -> &str {
    line.split('=').next().unwrap_or_default().trim()
}

/// A line with half the time in it.
fn shorter(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let value = value.split('#').next()?.trim().trim_matches('"');
    let digits = value.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &value[digits.len()..] {
        "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        _ => return None,
    };
    let millis = digits.trim().parse::<u64>().ok()?.checked_mul(unit)? / 2;
    (millis >= SHORTEST_MILLIS).then(|| format!("{} = \"{millis}ms\"", key.trim_end()))
}

/// Whether two scripts say the same, but for comments and empty lines.
pub fn is_same(one: &str, other: &str) -> bool {
    Parts::of(one) == Parts::of(other)
}

/// The smallest script found that still does it, after so many tries at most.
pub fn shrink(
    text: &str,
    tries: u32,
    is_sound: impl Fn(&str) -> bool,
    mut still_fails: impl FnMut(&str) -> bool,
) -> String {
    let mut best = Parts::of(text);
    let mut known = vec![best.clone()];
    let mut left = tries;
    'again: loop {
        for smaller in best.smaller() {
            if known.contains(&smaller) {
                continue;
            }
            known.push(smaller.clone());
            let text = smaller.text();
            if !is_sound(&text) {
                continue;
            }
            if left == 0 {
                break 'again;
            }
            left -= 1;
            if still_fails(&text) {
                best = smaller;
                continue 'again;
            }
        }
        break;
    }
    best.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = r#"
about = "Everything at once"
seed = 7

# The first.
[[failure]]
at = "2s"
do = "flap"

[[failure]]
after = { messages = 10 }
of = "device"
times = 3
for = "10s"
do = "port-down"

[[failure]]
do = "damage"
chance = "1%"

[[failure]]
do = "loss"
chance = "2%"
"#;

    #[test]
    fn only_what_is_needed_is_left() {
        let mut tries = 0;
        let small = shrink(
            SCRIPT,
            100,
            |_| true,
            |text| {
                tries += 1;
                text.contains("port-down") && text.contains("loss")
            },
        );
        assert_eq!(
            small,
            "seed = 7\n\n[[failure]]\nfor = \"78ms\"\ndo = \"port-down\"\n\n[[failure]]\ndo = \"loss\"\nchance = \"2%\"\n"
        );
        assert!(tries < 30, "{tries}");
    }

    #[test]
    fn tries_are_bounded_and_a_script_that_cannot_be_smaller_stays() {
        let mut tries = 0;
        let same = shrink(
            SCRIPT,
            3,
            |_| true,
            |_| {
                tries += 1;
                false
            },
        );
        assert_eq!((tries, same), (3, Parts::of(SCRIPT).text()));
        let unsound = shrink(SCRIPT, 3, |_| false, |_| unreachable!("it is not sound"));
        assert_eq!(unsound, Parts::of(SCRIPT).text());
        assert_eq!(shrink("", 3, |_| true, |_| true), "\n");
    }

    #[test]
    fn times_get_shorter_to_a_bound() {
        assert_eq!(shorter("for = \"2s\" # long").as_deref(), Some("for = \"1000ms\""));
        assert_eq!(shorter("by=\"100ms\"").as_deref(), Some("by = \"50ms\""));
        assert_eq!(shorter("for = \"99ms\""), None);
        assert_eq!(shorter("for = \"9999999999999999999min\""), None);
        assert_eq!(shorter("for"), None);
    }
}
