//! The hostile second user: attacks on verified traffic, one by one and mixed. Attackers are told the numbers that they
//! would have to guess, so that what holds does not hold by luck. Needs root, to make hosts and to become other users;
//! the attackers themselves have no rights on the victims' host.
#![forbid(unsafe_code)]

mod actor;
mod attacks;
mod connecting;
mod craft;
mod hand;
mod message;
mod mixture;
mod network;
mod random;
mod sockets;
mod stage;
mod victim;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use actor::Outcome;
use attacks::{Attack, Verdict};
use network::Network;
use random::Random;

/// Attacks the NIC, and says what held.
#[derive(Parser)]
struct Options {
    /// How long attacks are mixed at random, after each was tried alone.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Where chance begins.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Try only attacks whose names contain one of these words; `mixture` is one.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Say what there is, and do nothing.
    #[arg(long)]
    list: bool,
}

/// A role: what the process does that was started for it.
type Role = fn(&[String]) -> Outcome;

const ROLES: &[(&str, Role)] = &[
    ("hold", |_| {
        actor::say("held", "");
        actor::lines().for_each(drop);
        Ok(())
    }),
    ("hand", hand::role),
    ("server", victim::server),
    ("client", victim::client),
    ("listener", connecting::listener),
    ("connector", connecting::connector),
    ("caller", attacks::tools::caller),
    ("member", attacks::tools::member),
    ("intruder", attacks::tools::intruder),
    ("tool", attacks::inquiries::role),
    ("socket-listener", sockets::listener),
    ("socket-connector", sockets::connector),
    ("datagram-receiver", sockets::receiver),
];

/// How many attacks ended how.
#[derive(Default)]
struct Counts {
    held: u32,
    broken: u32,
    undefended: u32,
    failed: u32,
}

impl Counts {
    fn tell(&mut self, name: &str, verdict: &Outcome<Verdict>, took: Duration) {
        let (word, what) = match verdict {
            Ok(Verdict::Held(what)) => ("held", what.clone()),
            Ok(Verdict::Broken(what)) => ("BROKEN", what.clone()),
            Ok(Verdict::Undefended(what)) => ("undefended", what.clone()),
            Err(error) => ("NOT TRIED", error.to_string()),
        };
        *match verdict {
            Ok(Verdict::Held(_)) => &mut self.held,
            Ok(Verdict::Broken(_)) => &mut self.broken,
            Ok(Verdict::Undefended(_)) => &mut self.undefended,
            Err(_) => &mut self.failed,
        } += 1;
        println!("{word:<10} {name}: {what} ({:.1} s)", took.as_secs_f64());
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("role") {
        let name = words.next().unwrap_or_default();
        let arguments: Vec<String> = words.collect();
        let Some((_, role)) = ROLES.iter().find(|(known, _)| *known == name) else { return ExitCode::FAILURE };
        return match role(&arguments) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                actor::say("hurt", error);
                ExitCode::FAILURE
            }
        };
    }
    let options = Options::parse();
    if options.list {
        attacks::all().for_each(|Attack { name, what, .. }| println!("{name:<40} {what}"));
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(Counts { broken: 0, failed: 0, .. }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Outcome<Counts> {
    let seed = options.seed;
    let chosen = |name: &str| options.only.is_empty() || options.only.iter().any(|word| name.contains(word.as_str()));
    println!("seed {seed}");
    let network = Network::new()?;
    let mut counts = Counts::default();
    let mut tried = 0;
    for Attack { name, run, .. } in attacks::all().filter(|attack| chosen(attack.name)) {
        let begin = Instant::now();
        let verdict = run(&network, &mut Random::new(seed));
        counts.tell(name, &verdict, begin.elapsed());
        tried += 1;
    }
    if chosen("mixture") && options.minutes > 0.0 {
        let end = Instant::now() + Duration::from_secs_f64(options.minutes.min(1e6) * 60.0);
        let mut round = seed;
        while Instant::now() < end {
            let begin = Instant::now();
            let verdict = mixture::play(&network, &mut Random::new(round), end);
            counts.tell(&format!("mixture --seed {round}"), &verdict, begin.elapsed());
            tried += 1;
            round = round.wrapping_add(1);
        }
    }
    if tried == 0 {
        return Err("no attack is called that; --list names them".into());
    }
    let Counts { held, broken, undefended, failed } = counts;
    println!("{held} held, {broken} broken, {undefended} undefended, {failed} not tried");
    Ok(counts)
}
