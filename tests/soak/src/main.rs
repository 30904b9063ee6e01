//! Random work of two processes against each other, every byte looked at, for as long as one likes. Both ends draw the
//! same plan from a seed, so each knows what the other must have sent: order, length, bytes, numbers beside, and how
//! often.
#![forbid(unsafe_code)]

mod bytes;
mod changing;
mod connect;
mod control;
mod ending;
mod harvest;
mod memory;
mod options;
mod pair;
mod plan;
mod post;
mod watch;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::Parser;
use ubiverbs::{Context, Mtu};

use control::Control;
use options::{Options, Role};
use plan::RoundPlan;
use watch::{Result, Trouble, Watch, fail};
use worker::Worker;

/// How long the end of the control channel may be behind an error of a queue pair whose peer has died.
const DEATH: Duration = Duration::from_secs(15);

fn main() -> ExitCode {
    let mut options = Options::parse();
    let watch = Watch::start(&options);
    let mut rounds = 0;
    let verdict = match run(&mut options, &watch, &mut rounds) {
        Ok(()) => "ok",
        Err(Trouble::PeerGone(how)) if options.peer_may_die => {
            println!("soak-rust: the peer died: {how}");
            "peer died"
        }
        Err(Trouble::Setup(what)) => {
            println!("soak-rust: cannot set up: {what}");
            return ExitCode::from(2);
        }
        Err(Trouble::Wrong(what) | Trouble::Broken(what)) => fail(&options, &format!("round {rounds}: {what}")),
        Err(Trouble::PeerGone(how)) => fail(&options, &format!("round {rounds}: the peer is gone: {how}")),
    };
    println!(
        "{{\"program\":\"soak-rust\",\"role\":\"{}\",\"seed\":{},\"rounds\":{rounds},\"operations\":{},\"bytes\":{},\"verdict\":\"{verdict}\"}}",
        options.role.name(),
        options.seed,
        watch.operations.load(Ordering::Relaxed),
        watch.bytes.load(Ordering::Relaxed),
    );
    ExitCode::SUCCESS
}

fn run(options: &mut Options, watch: &Arc<Watch>, rounds: &mut u64) -> Result<()> {
    let context = connect::device(options)?;
    let mut controls = control::meet(options, watch)?;
    let (main, workers) = controls.split_first_mut().ok_or_else(|| Trouble::Setup("no control channel".into()))?;
    agree(options, &context, main)?;
    let end = Instant::now() + Duration::from_secs(options.seconds);
    for number in 0.. {
        *rounds = number;
        let word = match options.role {
            Role::Client => {
                let word = if Instant::now() < end { "round" } else { "end" };
                main.say(word, &number.to_string())?;
                main.hear(word)?;
                word
            }
            Role::Server => {
                let word = main.hear_any()?;
                main.say(&word, &number.to_string())?;
                if word == "end" { "end" } else { "round" }
            }
        };
        if word == "end" {
            break;
        }
        round(options, number, &context, workers, watch, end)?;
    }
    Ok(())
}

/// The two compare what they were told, and settle on an MTU that both can do.
fn agree(options: &mut Options, context: &Context, main: &mut Control) -> Result<()> {
    let theirs = main.exchange("options", &options.in_common())?;
    if theirs != options.in_common() {
        return Err(Trouble::Setup(format!("the peer was told {theirs}, this side {}", options.in_common())));
    }
    let mtu = Mtu::from_bytes(options.mtu).ok_or_else(|| Trouble::Setup(format!("{} is no MTU", options.mtu)))?;
    let mtu = mtu.min(context.port().mtu).bytes();
    let theirs: u32 = main.exchange("mtu", &mtu.to_string())?.parse().map_err(|e| Trouble::setup("no MTU", e))?;
    options.mtu = mtu.min(theirs);
    Ok(())
}

/// One round: all threads at once, over memory and queue pairs of its own.
fn round(
    options: &Options,
    number: u64,
    context: &Context,
    controls: &mut [Control],
    watch: &Arc<Watch>,
    end: Instant,
) -> Result<()> {
    let plan = RoundPlan::new(options, number);
    let pd = context.alloc_pd().map_err(|e| Trouble::setup("a protection domain", e))?;
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let (plan, pd) = (&plan, &pd);
        let threads = controls.iter_mut().enumerate().map(|(index, control)| {
            scope.spawn(move || {
                let result = thread(options, plan, index, (context, pd), control, watch, end);
                watch.doing(index, format!("thread {index} is done with round {number}"));
                if let Err(Trouble::Wrong(what)) = &result {
                    fail(options, &format!("round {number} thread {index}: {what}"));
                }
                result
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(Trouble::wrong("a panic")))).collect()
    });
    results.into_iter().collect()
}

#[allow(clippy::too_many_arguments)] // its surroundings
fn thread(
    options: &Options,
    plan: &RoundPlan,
    index: usize,
    surroundings: (&Context, &ubiverbs::ProtectionDomain),
    control: &mut Control,
    watch: &Arc<Watch>,
    end: Instant,
) -> Result<()> {
    let mut worker = match Worker::new(options, plan, index, surroundings, &mut *control, watch, end) {
        Ok(worker) => worker,
        Err(trouble) => return Err(blame(options, control, trouble)),
    };
    let Err(trouble) = worker.play().and_then(|()| worker.finish()) else { return Ok(()) };
    match blame(options, worker.control, trouble) {
        Trouble::PeerGone(how) if options.peer_may_die => {
            worker.mourn()?;
            Err(Trouble::PeerGone(how))
        }
        other => Err(other),
    }
}

/// Whether the death of the peer is behind what failed.
fn blame(options: &Options, control: &mut Control, trouble: Trouble) -> Trouble {
    let Trouble::Broken(what) = trouble else { return trouble };
    if !options.peer_may_die {
        return Trouble::Wrong(what);
    }
    match control.ends_within(DEATH) {
        Some(how) => Trouble::PeerGone(format!("{how}; before that: {what}")),
        None => Trouble::Wrong(format!("{what}; and the peer lives")),
    }
}
