//! The smallest executor: one future, one thread, which drives the NIC while it waits.

use crate::backend;
use seam::environment;
use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Runs a future to its end in this thread, which drives the NIC meanwhile: it looks a little, then sleeps until
/// something happens.
///
/// In a party of a simulation it panics, as every call that waits: see `ubiverbs::simulation`, with the feature of that
/// name.
///
/// Any executor will do for the futures of this crate; this one adds the least delay where there is only one thing to
/// wait for.
///
/// ```
/// # let context = ubiverbs::device("ubi_lo")?.open()?;
/// # let pd = context.alloc_pd()?;
/// # let cq = context.completion_queue(16).create()?;
/// # let [a, b] = ubiverbs::connected_pair::<ubiverbs::Reliable>(&pd, &cq)?;
/// ubiverbs::block_on(async {
///     let receiving = b.recv(pd.allocate(64)?)?;
///     a.send_inline(b"hello")?.await?;
///     assert_eq!(receiving.await?.payload(), b"hello");
///     Ok::<(), ubiverbs::Error>(())
/// })?;
/// # Ok::<(), ubiverbs::Error>(())
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Some(output) = run(future.as_mut(), None) {
            return output;
        }
    }
}

/// Runs a future until it ends or `limit` has passed. It is not dropped then: it can be run on.
pub(crate) fn block_on_for<F: Future>(future: Pin<&mut F>, limit: Duration) -> Option<F::Output> {
    run(future, Instant::now().checked_add(limit))
}

fn run<F: Future>(mut future: Pin<&mut F>, deadline: Option<Instant>) -> Option<F::Output> {
    assert!(
        environment::current().is_none(),
        "a party of a simulation must not block: the clock stands still until all parties wait for something, so a call \
         that blocks would never end. Await the operation instead of `wait`, `wait_for` or `block_on`; for a limit, \
         `ubiverbs::timeout`"
    );
    let parker = PARKER.take().unwrap_or_else(Parker::new);
    let waker = Waker::from(Arc::clone(&parker));
    let mut context = Context::from_waker(&waker);
    let output = loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break Some(output);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            break None;
        }
        parker.park(left);
    };
    PARKER.set(Some(parker));
    output
}

thread_local! {
    /// The parker of this thread while nobody uses it; a future that calls `block_on` itself gets another.
    static PARKER: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
}

/// How long a thread sleeps where nothing can wake it, because there is no NIC or no descriptor left.
const BLIND_SLEEP: Duration = Duration::from_millis(1);

/// What a thread sleeps on.
struct Parker {
    /// The NIC's way of waiting.
    nic: Option<Arc<dyn seam::Parker>>,
}

impl Parker {
    fn new() -> Arc<Parker> {
        Arc::new(Parker { nic: backend::current().and_then(|nic| nic.create_parker()).ok() })
    }

    /// Returns when it has been woken, when `limit` has passed, or by mistake.
    fn park(&self, limit: Option<Duration>) {
        match &self.nic {
            Some(nic) => nic.park(limit),
            None => std::thread::sleep(BLIND_SLEEP),
        }
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Parker>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Parker>) {
        if let Some(nic) = &self.nic {
            nic.unpark();
        }
    }
}
