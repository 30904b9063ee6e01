//! Whose memory it is: whatever becomes of handles, the NIC keeps a buffer until it has done with it, and no longer.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};
use ubiverbs::{
    Access, CompletionQueue, Context, Error, ProtectionDomain, QueuePair, Reliable, SharedRegion, block_on,
    connected_pair,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

#[test]
fn handles_can_go_anywhere() {
    fn anywhere<T: Clone + Send + Sync + 'static>() {}
    fn moved<T: Send + Sync + 'static>() {}
    anywhere::<ubiverbs::Device>();
    anywhere::<Context>();
    anywhere::<ProtectionDomain>();
    anywhere::<CompletionQueue>();
    anywhere::<ubiverbs::CompletionChannel>();
    anywhere::<ubiverbs::SharedReceiveQueue>();
    anywhere::<QueuePair<Reliable>>();
    anywhere::<QueuePair<ubiverbs::Datagram>>();
    anywhere::<ubiverbs::AddressHandle>();
    anywhere::<ubiverbs::Registered>();
    anywhere::<SharedRegion>();
    anywhere::<ubiverbs::RemoteSlice>();
    moved::<ubiverbs::RegisteredMut>();
    moved::<ubiverbs::PreparedQueuePair<Reliable>>();
    moved::<ubiverbs::Operation<ubiverbs::RegisteredMut>>();
    moved::<ubiverbs::Received>();
    moved::<ubiverbs::Completion>();
    moved::<Error>();
}

#[test]
fn dropping_an_operation_drops_only_the_observer() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(100_000, Access::REMOTE_WRITE)?;
    drop(b.recv(pd.allocate(20)?)?);
    drop(a.write(pd.register(vec![9; 100_000])?, region.remote_slice())?);
    drop(a.send_inline(b"nobody waits")?);
    until("the work goes on", || region.load(99_992).is_ok_and(|word| word == u64::from_ne_bytes([9; 8])));
    // What nobody waits for does not pile up in the completion queue, and a message is for the next who does.
    let after = b.recv(pd.allocate(10)?)?;
    assert_eq!(after.wait()?.payload(), b"nobody waits");
    a.send_inline(b"after")?.wait()?;
    assert_eq!(b.resume_recv().expect("the buffer is in the queue").wait()?.payload(), b"after");
    assert_eq!(cq.poll()?.count(), 0);
    until("everything has come back", || (a.outstanding(), b.outstanding()) == ((0, 0), (0, 0)));
    Ok(())
}

#[test]
fn forgetting_an_operation_costs_a_slot_and_nothing_else() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    for _ in 0..60 {
        std::mem::forget(b.recv(pd.allocate(4096)?)?);
        std::mem::forget(a.send(pd.allocate(4096)?)?);
    }
    let last = b.recv(pd.allocate(10)?)?;
    a.send_inline(b"last")?.wait()?;
    assert_eq!(last.wait()?.payload(), b"last");
    Ok(())
}

#[test]
fn a_cancelled_future_loses_no_message() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    // Polled once and dropped, as `select!` does with the branch that loses.
    let mut receiving = Box::pin(b.recv(pd.allocate(10)?)?);
    let mut context = TaskContext::from_waker(Waker::noop());
    assert!(receiving.as_mut().poll(&mut context).is_pending());
    drop(receiving);
    let second = b.recv(pd.allocate(10)?)?;
    a.send_inline(b"one")?.wait()?;
    a.send_inline(b"two")?.wait()?;
    // The first message went into the buffer of the dropped future, as it was posted; who waits next gets it.
    assert_eq!(second.wait()?.payload(), b"one");
    assert_eq!(b.recv(pd.allocate(10)?)?.wait()?.payload(), b"two");
    Ok(())
}

#[test]
fn dropping_the_queue_pair_ends_its_work_and_gives_buffers_back() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let receiving: Vec<_> = (0..10).map(|_| Ok(b.recv(pd.allocate(7)?)?)).collect::<Result<_, Error>>()?;
    b.recv(pd.allocate(7)?)?.polled(5);
    a.send_inline(b"first")?.wait()?;
    let second = b.clone();
    drop(b);
    assert_eq!(second.outstanding().1, 10, "another handle keeps it");
    drop(second);
    let mut results = receiving.into_iter().map(|receiving| receiving.wait());
    assert_eq!(results.next().unwrap()?.payload(), b"first", "what was done is told");
    for result in results {
        let failed = result.unwrap_err();
        assert!(matches!(failed.error, Error::Destroyed), "{failed}");
        assert_eq!(failed.buffer.len(), 7);
    }
    assert_eq!(cq.poll()?.count(), 0, "a queue pair that is gone completes nothing");
    Ok(())
}

#[test]
fn a_task_that_waits_is_woken_when_the_queue_pair_goes() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let receiving = b.recv(pd.allocate(7)?)?;
    let waiting = thread::spawn(move || receiving.wait().map(|_| ()).map_err(|failed| failed.error));
    thread::sleep(Duration::from_millis(5));
    drop(b);
    assert!(matches!(waiting.join().unwrap(), Err(Error::Destroyed)));
    drop(a);
    Ok(())
}

/// A waker that does what a careless executor might: drops the last handle of the queue pair, in whichever thread it is
/// called.
struct DropsQueuePairs(Mutex<Vec<QueuePair<Reliable>>>);

impl Wake for DropsQueuePairs {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().clear();
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics: this message is expected in the test's output");
    }
}

#[test]
fn wakers_may_drop_queue_pairs_and_even_panic() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let mut receiving = Box::pin(b.recv(pd.allocate(10)?)?);
    let drops = Arc::new(DropsQueuePairs(Mutex::new(vec![b])));
    let waker = Waker::from(Arc::clone(&drops));
    assert!(receiving.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    drop(a.send_inline(b"goodbye")?);
    // Here, or in the NIC's own thread.
    until("the task is woken", || drops.0.lock().unwrap().is_empty());
    let Poll::Ready(message) = receiving.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) else {
        panic!("the message was there before the queue pair went")
    };
    assert_eq!(message?.payload(), b"goodbye");

    // Patient: a panic may print where it was, which takes its time, in the thread that would deliver the answer.
    let prepare = || pd.queue_pair::<Reliable>(&cq).timeout(Duration::from_secs(10)).prepare();
    let (a, b) = (prepare()?, prepare()?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let mut receiving = Box::pin(b.recv(pd.allocate(10)?)?);
    let waker = Waker::from(Arc::new(Panics));
    assert!(receiving.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    a.send_inline(b"boo")?.wait()?;
    // Everything still works, the NIC's own thread included.
    assert_eq!(receiving.wait_pinned()?.payload(), b"boo");
    Ok(())
}

/// Waits for a future in a box.
trait WaitPinned: Future {
    fn wait_pinned(self) -> Self::Output
    where
        Self: Sized,
    {
        block_on(self)
    }
}

impl<F: Future> WaitPinned for F {}

#[test]
fn the_engine_wakes_tasks_that_nobody_drives() -> Result<(), Error> {
    let (_context, pd, cq) = open();
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    struct Unpark(thread::Thread, AtomicUsize);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.fetch_add(1, Ordering::SeqCst);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut receiving = Box::pin(b.recv(pd.allocate(10)?)?);
    assert!(receiving.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
    let sender = thread::spawn(move || {
        thread::sleep(Duration::from_millis(3));
        a.send_inline(b"wake").map(drop).map(|()| a)
    });
    until("it is woken", || unpark.1.load(Ordering::SeqCst) > 0);
    let message = loop {
        if let Poll::Ready(message) = receiving.as_mut().poll(&mut TaskContext::from_waker(&waker)) {
            break message?;
        }
        thread::park_timeout(Duration::from_secs(60));
    };
    assert_eq!(message.payload(), b"wake");
    sender.join().unwrap()?;
    Ok(())
}

#[test]
fn a_thousand_queue_pairs_work_and_go() -> Result<(), Error> {
    let (context, pd, _) = open();
    let cq = context.completion_queue(16).create()?;
    let mut pairs = Vec::new();
    for _ in 0..500 {
        pairs.push(connected_pair::<Reliable>(&pd, &cq)?);
    }
    let receiving: Vec<_> = pairs.iter().map(|[_, b]| Ok(b.recv(pd.allocate(8)?)?)).collect::<Result<_, Error>>()?;
    for (number, [a, _]) in pairs.iter().enumerate() {
        drop(a.send_inline(&number.to_ne_bytes())?);
    }
    for (number, receiving) in receiving.into_iter().enumerate() {
        assert_eq!(receiving.wait()?.payload(), number.to_ne_bytes());
    }
    let numbers: std::collections::HashSet<_> = pairs.iter().flatten().map(|qp| qp.qpn()).collect();
    assert_eq!(numbers.len(), 1000);
    Ok(())
}

/// A queue pair dies while a long message fills a receive of the shared queue: the receive ends with it, or is still
/// there for others.
#[test]
fn a_shared_receive_is_never_lost_with_a_queue_pair() -> Result<(), Error> {
    const LENGTH: usize = 1 << 20;
    let (_context, pd, cq) = open();
    let receives = pd.shared_receive_queue(4)?;
    let connect = |retries, patience| {
        let server = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare()?;
        let client = pd.queue_pair::<Reliable>(&cq).retries(retries).timeout(patience).prepare()?;
        let (at_server, at_client) = (server.endpoint(), client.endpoint());
        Ok::<_, Error>((server.connect(&at_client)?, client.connect(&at_server)?))
    };
    let message = pd.register(vec![7; LENGTH])?.freeze();
    let mut ends = [0; 3];
    for round in 0..150 {
        let mut receiving = receives.recv(pd.allocate(LENGTH)?)?;
        let (server, client) = connect(0, Duration::from_millis(2))?;
        let (source, spins) = (message.clone(), round * 200);
        let start = Arc::new(Barrier::new(2));
        let started = Arc::clone(&start);
        let sender = thread::spawn(move || {
            started.wait();
            client.send(source).map(|sending| (sending.wait().is_ok(), client))
        });
        start.wait();
        (0..spins).for_each(|_| std::hint::spin_loop());
        drop(server);
        sender.join().unwrap()?;
        match receiving.wait_for(Duration::ZERO) {
            Some(Ok(message)) => {
                ends[0] += 1;
                assert!(message.payload().iter().all(|byte| *byte == 7));
            }
            Some(Err(failed)) => {
                ends[1] += 1;
                assert!(matches!(failed.error, Error::Destroyed), "{failed}");
            }
            None => {
                ends[2] += 1;
                let (_server, client) = connect(7, Duration::from_millis(500))?;
                client.send_inline(b"for whoever is next")?.wait()?;
                assert_eq!(receiving.wait()?.payload(), b"for whoever is next");
            }
        }
        assert_eq!(receives.outstanding(), 0);
    }
    println!("complete, cut off, untouched: {ends:?}");
    Ok(())
}

#[test]
fn many_threads_share_one_queue_pair() -> Result<(), Error> {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 300;
    let (_context, pd, cq) = open();
    let [a, _b] = connected_pair::<Reliable>(&pd, &cq)?;
    let region = pd.share(8, Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let a = a.clone();
            thread::spawn(move || {
                let mut last = None;
                for _ in 0..ROUNDS {
                    let before = a.fetch_add(there, 1)?.wait()?;
                    assert!(last.is_none_or(|last| before > last), "answers go to the one that asked");
                    last = Some(before);
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap()?;
    }
    assert_eq!(region.load(0)?, THREADS * ROUNDS);
    Ok(())
}
