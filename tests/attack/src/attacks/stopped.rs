//! Processes that are stopped, or never read: what is meant for others must not be lost with them.

use rustix::process::Signal;

use super::{Attack, Verdict};
use crate::actor::{Actor, Outcome};
use crate::network::{Host, Network, User};
use crate::random::Random;

/// How many connects must all succeed.
const CONNECTS: u32 = 200;

/// Connects for which the same bystanders are stopped.
const BATCH: u32 = 20;

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "stopped-bystanders-network",
        what: "1 to 8 listeners of the host are stopped at random while 200 connects come from another host",
        run: |network, random| bystanders(network, random, &network.away, User::Victim),
    },
    Attack {
        name: "stopped-bystanders-host",
        what: "the same, and the connects come from another user of the host",
        run: |network, random| bystanders(network, random, &network.home, User::Neighbour),
    },
    Attack {
        name: "stopped-holder-host",
        what: "another user's process that holds port 4791 is stopped; 200 connects from the host",
        run: |network, _| stopped_holder(network, &network.home, CONNECTS),
    },
    Attack {
        name: "stopped-holder-network",
        what: "the same, and a connect comes from another host",
        run: |network, _| {
            Ok(match stopped_holder(network, &network.away, 1)? {
                Verdict::Broken(what) => Verdict::Undefended(what),
                other => other,
            })
        },
    },
];

fn listener(host: &Host, user: User, kind: &str) -> Outcome<(Actor, u16)> {
    let mut actor = host.start(user, "listener", &[host.address.to_string(), kind.into()])?;
    let port = actor.hear("listening")?.parse()?;
    Ok((actor, port))
}

/// Connects `count` times: what failed, if anything did.
fn connects(connector: &mut Actor, host: &Host, port: u16, count: u32) -> Outcome<Option<String>> {
    let answer = connector.ask("connect", format_args!("{} {port} {count}", host.address), "done")?;
    let mut words = answer.splitn(4, ' ');
    let mut number = || words.next().and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
    let (done, failed, _took) = (number(), number(), number());
    let why = words.next().unwrap_or_default();
    Ok((failed > 0).then(|| format!("{failed} of {done} connects failed: {why}")))
}

fn bystanders(network: &Network, random: &mut Random, from: &Host, user: User) -> Outcome<Verdict> {
    let home = &network.home;
    let others: Vec<Actor> =
        (0..8).map(|_| Ok(listener(home, User::Victim, "idle")?.0)).collect::<Outcome<Vec<Actor>>>()?;
    let (_listener, port) = listener(home, User::Victim, "accepting")?;
    let mut connector = from.start(user, "connector", &[])?;
    connector.hear("ready")?;
    if let Some(failed) = connects(&mut connector, home, port, 1)? {
        return Err(format!("without an attack {failed}").into());
    }
    let mut done = 0;
    while done < CONNECTS {
        let count = 1 + random.below(8) as usize;
        let first = random.below(8) as usize;
        let stopped: Vec<&Actor> = (0..count).map(|step| &others[(first + step) % 8]).collect();
        stopped.iter().for_each(|other| other.signal(Signal::STOP));
        let failed = connects(&mut connector, home, port, BATCH)?;
        stopped.iter().for_each(|other| other.signal(Signal::CONT));
        if let Some(failed) = failed {
            return Ok(Verdict::Broken(format!("{failed} ({count} of 8 stopped, after {done} that did not)")));
        }
        done += BATCH;
    }
    Ok(Verdict::Held(format!("0 of {done} connects failed")))
}

fn stopped_holder(network: &Network, from: &Host, count: u32) -> Outcome<Verdict> {
    let home = &network.home;
    // The first process of the host has the port.
    let (holder, _) = listener(home, User::Attacker, "idle")?;
    let (_listener, port) = listener(home, User::Victim, "accepting")?;
    let mut connector = from.start(User::Victim, "connector", &[])?;
    connector.hear("ready")?;
    if let Some(failed) = connects(&mut connector, home, port, 1)? {
        return Err(format!("before the holder is stopped {failed}").into());
    }
    holder.signal(Signal::STOP);
    let failed = connects(&mut connector, home, port, count)?;
    holder.signal(Signal::CONT);
    Ok(super::judge(failed, format!("0 of {count} connects failed")))
}
