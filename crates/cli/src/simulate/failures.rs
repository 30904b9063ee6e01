//! Failure scripts in the simulator: those of their words that say something of hosts and cables become statements of the
//! scenario; of the others it is said that they do not.

use fabric::Scenario;
use failures::script::{Since, Start, When};
use failures::{Action, Direction, Failure, Nanos, Place, Script};

/// A failure that strikes so often strikes more often than a simulation lasts.
const MAX_STRIKES: u64 = 1000;

/// The words that the simulator knows, for those who use another.
const KNOWN: &str = "port-down, flap, loss, slow, rate-limit and black-hole";

/// The statements of a script for this scenario, each with its line; or a line, and why it cannot be simulated.
pub(super) fn statements(script: &Script, scenario: &Scenario) -> Result<Vec<(usize, String)>, (usize, String)> {
    let mut statements = Vec::new();
    for failure in &script.failures {
        let wrong = |why| (failure.line, why);
        let (what, rest) = words(failure, scenario).map_err(wrong)?;
        let place = place(&failure.place, failure.action, scenario).map_err(wrong)?;
        let end = script.end.filter(|_| !script.leaves_broken);
        for at in times(&failure.when, script.end).map_err(wrong)? {
            let until = failure.when.lasts.map(|lasts| at.saturating_add(lasts)).into_iter().chain(end).min();
            let lasts = until.map(|until| format!(" for {}ns", until.saturating_sub(at))).unwrap_or_default();
            statements.push((failure.line, format!("{what} {place}{rest} at {at}ns{lasts}")));
        }
    }
    Ok(statements)
}

/// The statement's name, and what comes after its place.
fn words(failure: &Failure, scenario: &Scenario) -> Result<(&'static str, String), String> {
    Ok(match failure.action {
        Action::PortDown | Action::BlackHole { direction: Direction::Both } => ("fail", String::new()),
        Action::Flap { period } => ("flap", format!(" period {period}ns")),
        Action::Loss { chance } => ("lossy", format!(" loss {:.9}", chance.0)),
        Action::RateLimit { speed } => ("slow", format!(" rate {speed}")),
        Action::Slow { share } => {
            let rate = (scenario.cables.host_rate as f64 * share.0) as u64;
            ("slow", format!(" rate {}", rate.max(1_000)))
        }
        Action::BlackHole { direction } => {
            let way = direction.name();
            return Err(format!(
                "direction = \"{way}\": a simulated cable fails both ways; expected direction = \"both\""
            ));
        }
        action => {
            let name = action.name();
            return Err(format!("{name} means nothing to simulated hosts and cables; expected one of {KNOWN}"));
        }
    })
}

/// Where, in the words of a scenario: hosts are `host3` or `3`, cables have two ends.
fn place(place: &Place, action: Action, scenario: &Scenario) -> Result<String, String> {
    let meaningless = [
        (place.process.is_some(), "process"),
        (place.device.is_some(), "device"),
        (place.port.is_some(), "port"),
        (place.pair.is_some(), "queue-pair"),
        (place.queue.is_some(), "completion-queue"),
        (place.connection.is_some(), "connection"),
    ];
    if let Some((_, key)) = meaningless.into_iter().find(|(is_said, _)| *is_said) {
        return Err(format!(
            "{key} means nothing to the simulator; expected host = \"host3\", and to = \"switch0\" for a cable"
        ));
    }
    let is_slow = matches!(action, Action::Slow { .. } | Action::RateLimit { .. });
    match (&place.host, &place.to) {
        (Some(_), Some(_)) if is_slow => {
            Err(format!("{} is of hosts, not of cables; expected no key `to`", action.name()))
        }
        (Some(host), Some(to)) => Ok(format!("link {} {}", node(host), node(to))),
        (Some(host), None) => {
            let number = host.strip_prefix("host").unwrap_or(host).parse::<u32>();
            let number =
                number.map_err(|_| format!("{host:?} is no host; expected host0 to host{}", scenario.hosts - 1))?;
            Ok(format!("host {number}"))
        }
        (None, Some(_)) => Err("to = … is the other end of a cable; expected host = …, too".into()),
        // All there are.
        (None, None) => Ok(format!("hosts {}", scenario.hosts)),
    }
}

/// The end of a cable.
fn node(name: &str) -> String {
    if name.parse::<u32>().is_ok() { format!("host{name}") } else { name.to_owned() }
}

/// When it strikes.
fn times(when: &When, end: Option<Nanos>) -> Result<Vec<Nanos>, String> {
    let Start::Time { at, since } = when.start else {
        return Err("the simulator strikes at times, not after messages or calls; expected at = \"10us\"".into());
    };
    if when.call.is_some() || when.rate.is_some() {
        return Err("the simulator strikes at times, not at calls or by chance; expected at = \"10us\"".into());
    }
    // In a simulation the first message is posted at the start, unless a trace says otherwise.
    let (Since::Start | Since::FirstMessage) = since;
    let Some(every) = when.every else { return Ok(vec![at]) };
    let by_end = end.map(|end| end.saturating_sub(at) / every + 1);
    let count = when.times.into_iter().chain(by_end).min();
    match count {
        Some(count) if count <= MAX_STRIKES => {
            Ok((0..count).map(|nth| at.saturating_add(every.saturating_mul(nth))).collect())
        }
        _ => {
            Err(format!("it strikes without end; expected times = … of {MAX_STRIKES} or less, or an end of the script"))
        }
    }
}
