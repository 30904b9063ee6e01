//! Five kinds of program, each in a process of its own, answer messages that come at irregular times: one polls without
//! pause, one spins on memory and calls nothing, one arms its queue and sleeps in `epoll`, one blocks in the call that waits
//! for a completion event, one has two threads with a queue each. None may be kept waiting: a wake-up that is lost would
//! show as a round trip that never ends, a rule that is wrong as one of a millisecond and more.

use stage::progress::{END, End, bytes_of};
use stage::{Other, turn};
use std::cell::RefCell;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ubiverbs::{Context, Error};

/// The program that is the other process.
const PEER: &str = env!("CARGO_BIN_EXE_peer");

const MESSAGES: u64 = 300;

fn meet(program: &mut Other, context: &Context) -> Result<End, Error> {
    let program = RefCell::new(program);
    let mut say = |line: String| writeln!(program.borrow_mut().stdin, "{line}").unwrap();
    let mut hear = || bytes_of(&program.borrow_mut().hear_text("here "));
    End::meet(context, None, &mut say, &mut hear)
}

/// Pauses from none to three milliseconds, so that the program is met in every mood: awake, about to sleep, asleep,
/// looked after by a tick.
fn pause(number: u64) -> Duration {
    Duration::from_micros(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & 0xfff).min(Duration::from_millis(3))
}

/// How long round trips take with a program of some kind: usually, and at worst.
#[derive(Clone, Copy, Debug)]
struct Times {
    median: Duration,
    worst: Duration,
}

impl Times {
    fn of(what: &str, mut times: Vec<Duration>) -> Times {
        times.sort();
        let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
        println!("{what}: median {median:?}, 99 in 100 within {:?}, worst {worst:?}", times[times.len() * 99 / 100]);
        Times { median, worst }
    }
}

/// Messages to a program of some kind, and back.
fn trips(context: &Context, kind: &str) -> Result<Times, Error> {
    let mut program = Other::start(Command::new(PEER).args(["progress", kind]));
    let mut ends = vec![meet(&mut program, context)?];
    if kind == "two threads" {
        ends.push(meet(&mut program, context)?);
    }
    let mut times = Vec::new();
    for number in 1..=MESSAGES {
        std::thread::sleep(pause(number));
        let end = &ends[number as usize % ends.len()];
        let began = Instant::now();
        let mut came = false;
        if kind == "memory" {
            end.qp.write_inline(&number.to_le_bytes(), end.theirs.slice(0..8)?)?.polled(0);
        } else {
            end.send(number)?;
        }
        while !came {
            came |= end.take()?.contains(&number) || kind == "memory" && end.memory.load(0)? == number;
            assert!(began.elapsed() < Duration::from_secs(60), "{kind}: message {number} was never answered");
        }
        times.push(began.elapsed());
    }
    for end in &ends {
        match kind {
            "memory" => end.qp.write_inline(&END.to_le_bytes(), end.theirs.slice(0..8)?)?.wait()?,
            _ => end.qp.send_inline(&END.to_le_bytes())?.wait()?,
        }
    }
    let began = Instant::now();
    while program.child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60), "{kind}: the program does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(program.child.wait().unwrap().success(), "{kind}");
    Ok(Times::of(kind, times))
}

/// Round trips between two threads that spin on a word, with nothing of ours in between: what this machine can do now.
fn bare_trips() -> Times {
    let word = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=MESSAGES {
                while word.load(Ordering::Acquire) != 2 * number {
                    std::hint::spin_loop();
                }
                word.store(2 * number + 1, Ordering::Release);
            }
        });
        let trip = |number| {
            std::thread::sleep(pause(number));
            let began = Instant::now();
            word.store(2 * number, Ordering::Release);
            while word.load(Ordering::Acquire) != 2 * number + 1 {
                std::hint::spin_loop();
            }
            began.elapsed()
        };
        Times::of("bare", (1..=MESSAGES).map(trip).collect())
    })
}

#[test]
fn no_kind_of_program_is_kept_waiting() -> Result<(), Error> {
    let _turn = turn();
    let context = ubiverbs::device("ubi_lo")?.open()?;
    for kind in ["poll", "memory", "epoll", "block", "two threads"] {
        // Two processes with two threads each on two processors, which other tests use too: far above what is usual, far below what a lost
        // wake-up or a retransmission timer would cost every time. Where the machine does no better by itself, it is the machine that is
        // slow; and it may be slow for a while only.
        let mut tries = 0;
        loop {
            let times = trips(&context, kind)?;
            if times.median < Duration::from_millis(5) && times.worst < Duration::from_millis(1500) {
                break;
            }
            let bare = bare_trips();
            if times.median < 8 * bare.median && times.worst < Duration::from_millis(1500) + 8 * bare.worst {
                break;
            }
            tries += 1;
            assert!(tries < 4, "{kind}: {times:?}; threads that spin on a word take {bare:?}");
        }
    }
    Ok(())
}
