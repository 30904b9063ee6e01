//! Victims that only connect: listeners, of which some are never looked after, and a program that connects again and
//! again.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::thread;
use std::time::{Duration, Instant};

use ubiverbs::Reliable;
use ubiverbs::cm::{self, Connection, Listener};

use crate::actor::{Outcome, lines, say};

/// Connections that a listener keeps.
const SERVER_CONNECTIONS: usize = 8;

/// Accepts whatever comes, and keeps a few connections; or, if told so, listens and accepts nothing.
pub fn listener(arguments: &[String]) -> Outcome {
    let address: Ipv4Addr = arguments.first().ok_or("an address")?.parse()?;
    let idle = arguments.get(1).is_some_and(|word| word == "idle");
    let listener = Listener::bind((address, 0))?;
    say("listening", listener.local_addr().port());
    if idle {
        lines().for_each(drop);
        return Ok(());
    }
    thread::spawn(move || {
        let (mut begun, mut kept) = (Vec::new(), VecDeque::new());
        while let Ok(request) = listener.next().wait() {
            // A peer that does not go on with it keeps no other waiting.
            begun.push(request.accept().start());
            begun.retain_mut(|accepting: &mut cm::Pending<Connection<Reliable>>| {
                let Some(done) = accepting.wait_for(Duration::ZERO) else { return true };
                kept.extend(done);
                false
            });
            while kept.len() > SERVER_CONNECTIONS {
                kept.pop_front();
            }
        }
    });
    lines().for_each(drop);
    Ok(())
}

/// Connects as often as it is told to, one after the other, and says how many of them failed.
pub fn connector(_: &[String]) -> Outcome {
    say("ready", "");
    for line in lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, to, port, count] = words[..] else { return Err("connect ADDRESS PORT COUNT".into()) };
        let to: (IpAddr, u16) = (to.parse()?, port.parse()?);
        let (mut failed, mut done, mut why, begin) = (0, 0, String::new(), Instant::now());
        for _ in 0..count.parse::<u32>()? {
            done += 1;
            match cm::connect(to).wait_for(Duration::from_secs(10)) {
                Some(Ok(connection)) => drop(connection.disconnect()),
                Some(Err(error)) => (failed, why) = (failed + 1, error.to_string()),
                None => (failed, why) = (failed + 1, "no answer within 10 s".into()),
            }
            // Enough is known.
            if failed >= 2 {
                break;
            }
        }
        say("done", format_args!("{done} {failed} {} {why}", begin.elapsed().as_millis()));
    }
    Ok(())
}
