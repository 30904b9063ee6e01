//! Processes that are killed in the middle of transfers, a hundred times, on either side of the cable and on the same
//! host. Who survives gets its errors soon, keeps nothing of the dead, and goes on with the next.

use crate::actor::{Actor, Outcome, hear, say};
use crate::network::{Host, Network};
use crate::traffic::{self, End, RIGHTS};
use crate::wait_until;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use ubiverbs::{
    Endpoint, Error, Operation, ProtectionDomain, QueuePair, Received, Reliable, RemoteSlice, State, Status,
};

/// A hundred, unless `UBIVERBS_TEST_KILLS` says otherwise.
fn kills() -> usize {
    std::env::var("UBIVERBS_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(100).max(10)
}

/// The longest that a survivor may be in doubt. It waits 16 ms for an answer and asks eight times; the rest is for a
/// busy machine.
const DEATH_NOTICE_TIMEOUT: Duration = Duration::from_secs(10);

const LENGTH: usize = 200_000;

/// Round after round, meets a partner and moves data to and from it, until that fails. Says how.
pub fn partner(arguments: &[String]) -> Outcome {
    let [source] = arguments else { return Err("an address".into()) };
    let end = End::new(source.parse()?)?;
    say("there", "");
    // Until the test says no more.
    while hear("round").is_ok() {
        let prepared = end.impatient()?;
        let region = end.pd.share(LENGTH, RIGHTS)?;
        say("endpoint", &prepared.endpoint().to_string());
        say("memory", &region.remote_slice().to_string());
        let peer: Endpoint = hear("endpoint")?.parse()?;
        let memory: RemoteSlice = hear("memory")?.parse()?;
        let mut receiving = VecDeque::new();
        for _ in 0..4 {
            receiving.push_back(prepared.recv(end.pd.allocate(64)?)?);
        }
        let qp = prepared.connect(&peer)?;
        let status = match exchange(&end.pd, &qp, memory, &mut receiving) {
            Err(Error::Completion(error)) => error.status,
            other => return Err(format!("no completion with an error but {other:?}").into()),
        };
        if qp.state() != State::Error {
            return Err(format!("the queue pair is in {}", qp.state()).into());
        }
        // What was posted comes back, all of it.
        for waiting in receiving {
            match waiting.wait() {
                Ok(_) => {}
                Err(failed) if flushed(&failed.error) => {}
                Err(failed) => return Err(format!("a receive ended with {failed}").into()),
            }
        }
        say("lost", &status.to_string());
    }
    Ok(())
}

fn flushed(error: &Error) -> bool {
    matches!(error, Error::Completion(error) if error.status == Status::WorkRequestFlushed)
}

/// Moves data every way until something fails.
fn exchange(
    pd: &ProtectionDomain,
    qp: &QueuePair<Reliable>,
    memory: RemoteSlice,
    receiving: &mut VecDeque<Operation<Received>>,
) -> Result<(), Error> {
    let mut buffer = pd.allocate(LENGTH)?;
    for round in 0.. {
        buffer = qp.write(buffer, memory)?.wait()?;
        buffer = qp.read(buffer, memory)?.wait()?;
        qp.fetch_add(memory, 1)?.wait()?;
        let mut sending = qp.send_inline(b"and a message")?;
        // The partner may wait for a receive of ours, as we do for one of its.
        while sending.wait_for(Duration::from_millis(1)).transpose()?.is_none() {
            if let Err(flushed) = renew(qp, receiving) {
                // A receive comes back because something else has failed just now, and that is what counts.
                sending.wait()?;
                return Err(flushed);
            }
        }
        renew(qp, receiving)?;
        if round == 0 {
            say("moving", "");
        }
    }
    Ok(())
}

fn renew(qp: &QueuePair<Reliable>, receiving: &mut VecDeque<Operation<Received>>) -> Result<(), Error> {
    while receiving.front().is_some_and(Operation::is_done)
        && let Some(done) = receiving.pop_front()
    {
        receiving.push_back(qp.recv(done.wait()?.into_buffer())?);
    }
    Ok(())
}

fn start(host: &Host) -> Actor {
    let mut actor = host.start("partner", &[host.v4.to_string()]);
    actor.hear("there");
    actor
}

/// Brings two together, and waits until data moves both ways. They are impatient: on a machine that is very busy one
/// may take the other for dead before it has begun. Then they meet again.
fn meet(one: &mut Actor, other: &mut Actor) {
    for _ in 0..5 {
        one.say("round", "");
        other.say("round", "");
        for word in ["endpoint", "memory"] {
            let (of_one, of_other) = (one.hear(word), other.hear(word));
            other.say(word, &of_one);
            one.say(word, &of_other);
        }
        let moving = [one.hears("moving", "lost"), other.hears("moving", "lost")];
        if moving == [true, true] {
            return;
        }
        for (actor, moving) in [&mut *one, &mut *other].into_iter().zip(moving) {
            if moving {
                actor.hear("lost");
            }
        }
    }
    panic!("five times they lost each other before anything moved");
}

/// How many descriptors a process has.
fn descriptors(actor: &Actor) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", actor.id())).unwrap().count()
}

/// Connections to neighbours are kept, a few of them; not one for each of the dead.
const MAX_KEPT_CONNECTIONS: usize = 3;

pub fn a_survivor_of_a_hundred_kills_hears_of_each_and_keeps_nothing() {
    let Network { left, right } = &Network::new(9000);
    let hosts = [left, right];
    let mut survivors = hosts.map(start);
    let names = hosts.map(Host::names);
    assert!(names.iter().all(|names| !names.is_empty()), "{names:?}");
    let mut before = [0, 0];
    let mut times = Vec::new();
    let kills = kills();
    for round in 0..kills {
        // On the other side of the cable, from either; and every third time next door.
        let side = round % 2;
        let survivor = &mut survivors[side];
        let mut victim = start(hosts[if round % 3 == 0 { side } else { 1 - side }]);
        meet(survivor, &mut victim);
        std::thread::sleep(Duration::from_micros(997 * (round as u64 % 7)));
        let killed = Instant::now();
        victim.kill();
        let status = survivor.hear("lost");
        times.push(killed.elapsed());
        assert!(killed.elapsed() < DEATH_NOTICE_TIMEOUT, "round {round}: {:?} until {status}", killed.elapsed());
        assert_eq!(status, Status::RetryExceeded.to_string(), "round {round}");
        if round == 5 {
            before = [descriptors(&survivors[0]), descriptors(&survivors[1])];
        }
    }
    times.sort();
    println!(
        "  {kills} kills: the survivor knew after {:?} (median), {:?} (longest)",
        times[kills / 2],
        times[kills - 1]
    );
    for (side, survivor) in survivors.iter().enumerate() {
        // It may hear of a death before it has closed what led there.
        let then = before[side];
        wait_until("the dead have left no descriptor", || descriptors(survivor) <= then + MAX_KEPT_CONNECTIONS);
        wait_until("the dead have left no name", || hosts[side].names() == names[side]);
    }
    survivors.into_iter().for_each(Actor::end);
    wait_until("all names are free", || hosts.iter().all(|host| host.names().is_empty()));
    // And the next run starts clean.
    assert_eq!(traffic::everything([(left, left.v4), (right, right.v4)], 2, "").again, 0);
}

/// Lets something happen to two processes while data moves between them, for at least so long. Nobody knows when they
/// get to move it: if they were done too soon they do it again.
fn meanwhile(network: &Network, at_least: Duration, happens: impl Fn(&Actor, &Actor)) {
    let Network { left, right } = network;
    for _ in 0..10 {
        // They wait for half a second before they ask again, and ask seven times: the kernel may take a second to see
        // that a cable is back.
        let [mut mover, mut target] = [("mover", left), ("target", right)]
            .map(|(role, host)| host.start(role, &[host.v4.to_string(), "4".into(), "500".into()]));
        traffic::introduce(&mut mover, &mut target);
        std::thread::sleep(Duration::from_millis(10));
        happens(&mover, &target);
        let took = traffic::finish(mover).took;
        target.end();
        if took > at_least {
            return;
        }
    }
    panic!("ten times they were done before anything happened to them");
}

/// Work under way on both sides of a cable, and a survivor that is told nothing.
pub fn a_process_that_stops_for_a_moment_loses_nothing() {
    // Longer than the other waits before it asks again.
    const CABLE_PAUSE: Duration = Duration::from_millis(700);
    meanwhile(&Network::new(1500), CABLE_PAUSE, |mover, target| {
        for actor in [target, mover] {
            actor.signal(rustix::process::Signal::STOP);
            std::thread::sleep(CABLE_PAUSE);
            actor.signal(rustix::process::Signal::CONT);
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

pub fn a_process_that_stops_for_long_is_given_up_and_finds_out_when_it_goes_on() {
    let Network { left, right } = &Network::new(1500);
    let (mut one, mut other) = (start(left), start(right));
    meet(&mut one, &mut other);
    other.signal(rustix::process::Signal::STOP);
    let stopped = Instant::now();
    assert_eq!(one.hear("lost"), Status::RetryExceeded.to_string());
    assert!(stopped.elapsed() < DEATH_NOTICE_TIMEOUT);
    other.signal(rustix::process::Signal::CONT);
    let gone_on = Instant::now();
    assert_eq!(other.hear("lost"), Status::RetryExceeded.to_string());
    assert!(gone_on.elapsed() < DEATH_NOTICE_TIMEOUT);
    // Both are in good health.
    meet(&mut one, &mut other);
}

pub fn a_cable_that_is_pulled_and_put_back_loses_nothing() {
    const CABLE_PAUSE: Duration = Duration::from_millis(200);
    let network = Network::new(1500);
    meanwhile(&network, CABLE_PAUSE, |_, _| {
        network.right.run("ip link set veth0 down");
        std::thread::sleep(CABLE_PAUSE);
        network.right.run("ip link set veth0 up");
    });
}
