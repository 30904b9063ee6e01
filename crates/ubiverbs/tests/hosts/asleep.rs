//! One-sided work on a host whose program sleeps.

use crate::actor::{self, Outcome, hear, say};
use crate::network::Network;
use crate::traffic::{End, RIGHTS};
use std::time::{Duration, Instant};
use ubiverbs::{Endpoint, RemoteSlice};

/// Long enough for a busy machine. One that waits for the target to wake up waits for ever: it is told to only
/// afterwards.
const WAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Shares its memory, and makes no call of ours until it is told to look at it.
pub fn sleeper(arguments: &[String]) -> Outcome {
    let [source] = arguments else { return Err("an address".into()) };
    let end = End::new(source.parse()?)?;
    let prepared = end.patient()?;
    let region = end.pd.share(1 << 20, RIGHTS)?;
    say("endpoint", &prepared.endpoint().to_string());
    say("memory", &region.remote_slice().to_string());
    let _qp = prepared.connect(&hear("endpoint")?.parse()?)?;
    say("asleep", "");
    hear("wake up")?;
    let mut last = [0; 8];
    region.read_at((1 << 20) - 8, &mut last)?;
    say("saw", &format!("{} {}", region.load(0)?, last[7]));
    actor::wait_for_end();
    Ok(())
}

/// Works on the memory of one that sleeps.
pub fn waker(arguments: &[String]) -> Outcome {
    let [source] = arguments else { return Err("an address".into()) };
    let end = End::new(source.parse()?)?;
    let prepared = end.patient()?;
    say("endpoint", &prepared.endpoint().to_string());
    let peer: Endpoint = hear("endpoint")?.parse()?;
    let memory: RemoteSlice = hear("memory")?.parse()?;
    let qp = prepared.connect(&peer)?;
    let start = Instant::now();
    let length = memory.len() as usize;
    let source = qp.write(end.pd.register(vec![7; length])?, memory)?.wait()?;
    let back = qp.read(end.pd.allocate(length)?, memory)?.wait()?;
    let before = qp.fetch_add(memory, 1)?.wait()?;
    if *back != *source || before != u64::from_ne_bytes([7; 8]) {
        return Err("what was read is not what was written".into());
    }
    qp.compare_swap(memory, before + 1, 42)?.wait()?;
    say("done", &start.elapsed().as_micros().to_string());
    Ok(())
}

pub fn one_sided_work_completes_while_the_target_sleeps() {
    let Network { left, right } = &Network::new(1500);
    for (from, to) in [(left.v4, right.v4), (left.v6, right.v6)] {
        let mut sleeper = right.start("sleeper", &[to.to_string()]);
        let mut waker = left.start("waker", &[from.to_string()]);
        sleeper.say("endpoint", &waker.hear("endpoint"));
        for word in ["endpoint", "memory"] {
            waker.say(word, &sleeper.hear(word));
        }
        sleeper.hear("asleep");
        let took = Duration::from_micros(waker.hear("done").parse().unwrap());
        println!("  WRITE and READ of 1 MiB and two atomic operations on a sleeper's memory in {took:?}");
        assert!(took < WAKE_TIMEOUT);
        sleeper.say("wake up", "");
        assert_eq!(sleeper.hear("saw"), "42 7");
        waker.end();
        sleeper.end();
    }
}
