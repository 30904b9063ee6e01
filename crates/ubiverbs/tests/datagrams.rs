//! Datagrams between processes of a host, more of them than their link holds: who sends waits for a peer that runs, and not for one that does not.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ubiverbs::{AddressHandle, CompletionQueue, Datagram, Endpoint, GRH_LENGTH, ProtectionDomain, QueuePair};

const OCCUPATION: &str = "UBIVERBS_TEST_DATAGRAMS";
/// Eight times what a link holds.
const DATAGRAMS: u32 = 2000;
const LENGTH: usize = 2048;
/// The length of one that comes after all others.
const LAST: usize = 7;

struct Here {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair<Datagram>,
}

impl Here {
    fn new() -> Here {
        let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.completion_queue(4 * DATAGRAMS).create().unwrap();
        let builder = pd.queue_pair::<Datagram>(&cq).max_sends(DATAGRAMS).max_receives(2 * DATAGRAMS);
        let qp = builder.prepare().unwrap().activate().unwrap();
        Here { pd, cq, qp }
    }

    /// Posts them all.
    fn post(&self, to: &AddressHandle) {
        let datagram = self.pd.allocate(LENGTH).unwrap().freeze();
        for _ in 0..DATAGRAMS {
            self.qp.send_to(datagram.clone(), to).unwrap().polled(1);
        }
    }

    /// Waits until so many sends have completed, all of them well.
    fn complete(&self, mut count: u32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while count > 0 {
            for completion in self.cq.poll().unwrap() {
                assert!(completion.is_ok(), "{completion:?}");
                count -= 1;
            }
            assert!(Instant::now() < deadline, "{count} sends have not completed");
        }
    }
}

/// A process that posts receives for all, and counts when it is told to. Until then its program does nothing.
#[test]
fn the_receiver() {
    if std::env::var_os(OCCUPATION).is_none() {
        return;
    }
    let here = Here::new();
    for receive in here.pd.allocate(2 * DATAGRAMS as usize * (GRH_LENGTH + LENGTH)).unwrap().chunks(GRH_LENGTH + LENGTH)
    {
        here.qp.recv(receive).unwrap().polled(1);
    }
    println!("at {}", here.qp.endpoint());
    let mut lines = std::io::stdin().lock().lines();
    lines.next();
    let (mut count, mut last) = (0u32, false);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !last && Instant::now() < deadline {
        for completion in here.cq.poll().unwrap() {
            let length = completion.into_received().unwrap().payload().len();
            last |= length == LAST;
            count += u32::from(length == LENGTH);
        }
    }
    println!("counted {count} {last}");
    lines.next();
}

struct Receiver {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    to: AddressHandle,
}

impl Receiver {
    /// Starts one, and sees to it that the link to it is up: until then datagrams take another way.
    fn start(here: &Here) -> Receiver {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["the_receiver", "--exact", "--nocapture"])
            .env(OCCUPATION, "receive")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, mut stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let endpoint: Endpoint = hear(&mut stdout, "at ").parse().unwrap();
        let to = here.pd.address(&endpoint).unwrap();
        here.qp.send_inline_to(b"first", &to).unwrap().wait().unwrap();
        let maps = format!("/proc/{}/maps", child.id());
        let deadline = Instant::now() + Duration::from_secs(10);
        while !std::fs::read_to_string(&maps).unwrap().contains("memfd:ubiverbs") {
            assert!(Instant::now() < deadline, "no link through shared memory");
            std::thread::yield_now();
        }
        // It has taken the ring and says so now; nothing here tells when that was heard.
        std::thread::sleep(Duration::from_millis(100));
        Receiver { child, stdin, stdout, to }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops it, all of its threads: each does so in its own time.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let deadline = Instant::now() + Duration::from_secs(10);
        let runs = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            !stat.contains(") T ")
        };
        while std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().any(runs) {
            assert!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
    }

    /// Sends the last one, until it comes, and answers how many came before it.
    fn count(mut self, here: &Here) -> u32 {
        writeln!(self.stdin).unwrap();
        let heard = AtomicBool::new(false);
        let counted = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !heard.load(Ordering::Relaxed) {
                    here.qp.send_inline_to(&[0; LAST], &self.to).unwrap().wait().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let counted = hear(&mut self.stdout, "counted ");
            heard.store(true, Ordering::Relaxed);
            counted
        });
        let (count, last) = counted.split_once(' ').unwrap();
        assert_eq!(last, "true", "the last one did not come, after {count}");
        count.parse().unwrap()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hear(stdout: &mut BufReader<ChildStdout>, word: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended without saying {word:?}");
        // The test harness prints on the same lines.
        if let Some(at) = line.find(word) {
            return line[at + word.len()..].trim().to_owned();
        }
    }
}

#[test]
fn a_full_link_holds_datagrams_back_and_loses_none() {
    let here = Here::new();
    let receiver = Receiver::start(&here);
    here.post(&receiver.to);
    here.complete(DATAGRAMS);
    assert_eq!(receiver.count(&here), DATAGRAMS);
}

#[test]
fn held_datagrams_go_on_while_their_program_sleeps() {
    let here = Here::new();
    let receiver = Receiver::start(&here);
    here.post(&receiver.to);
    // Waiting sleeps, as polling does not.
    here.qp.send_inline_to(b"behind", &receiver.to).unwrap().wait().unwrap();
    assert_eq!(receiver.count(&here), DATAGRAMS);
}

#[test]
fn a_stopped_receiver_is_waited_for_only_so_long() {
    let here = Here::new();
    let receiver = Receiver::start(&here);
    receiver.stop();
    here.post(&receiver.to);
    here.complete(DATAGRAMS);
    // It is not waited for a second time. The quickest of some, since this process may have to wait for a processor.
    let again = || {
        let start = Instant::now();
        here.post(&receiver.to);
        here.complete(DATAGRAMS);
        start.elapsed()
    };
    let quickest = (0..5).map(|_| again()).min().unwrap();
    assert!(quickest < Duration::from_millis(200), "{quickest:?}");
    receiver.signal(Signal::CONT);
    let count = receiver.count(&here);
    assert!((1..DATAGRAMS).contains(&count), "{count}");
}

#[test]
fn a_receiver_that_is_killed_is_not_waited_for() {
    let here = Here::new();
    let mut receiver = Receiver::start(&here);
    receiver.stop();
    here.post(&receiver.to);
    receiver.child.kill().unwrap();
    receiver.child.wait().unwrap();
    here.complete(DATAGRAMS);
}
