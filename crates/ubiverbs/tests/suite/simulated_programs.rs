//! Three programs on simulated NICs, with loss, reordering and a party that is killed: a key-value store with one-sided
//! reads, a file transfer, and an all-reduce in a ring. In each run no byte is wrong and nobody hangs; when nobody is
//! killed, everybody succeeds. A thousand seeds of each:
//!
//! ```text
//! UBIVERBS_SEEDS=1000 cargo test -p ubiverbs --features simulation --release --test suite simulated_programs
//! ```
#![cfg(feature = "simulation")]

mod file_transfer;
mod key_value;
mod ring;

use std::cell::Cell;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use ubiverbs::simulation::Simulation;
use ubiverbs::{Reliable, cm};

/// How a party ends.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a party waits for another before it gives up. Errors of the transport and the connection manager come
/// sooner; only who never came is found out by this.
const RUN_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects, for as long as it may take the peer to listen.
async fn connect(to: &str, receives: &[usize]) -> Outcome<(cm::Connection, Vec<Receiving>)> {
    for _ in 0..100 {
        let route = cm::resolve(to).await?;
        let (prepared, receiving) = prepare(&route.context()?, receives)?;
        match route.connect().queue_pair(prepared).start().await {
            Ok(connection) => return Ok((connection, receiving)),
            Err(ubiverbs::Error::Connect(cm::ConnectError::NobodyListens { .. })) => {
                ubiverbs::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(format!("nobody listens at {to}").into())
}

/// Accepts the next connection. Its receives are posted before the peer can send.
async fn accept(listener: &cm::Listener, receives: &[usize]) -> Outcome<(cm::Connection, Vec<Receiving>)> {
    let request = ubiverbs::timeout(RUN_TIMEOUT, listener.next()).await??;
    let (prepared, receiving) = prepare(&request.context()?, receives)?;
    Ok((request.accept().queue_pair(prepared).start().await?, receiving))
}

type Receiving = ubiverbs::Operation<ubiverbs::Received>;

fn prepare(
    context: &ubiverbs::Context,
    receives: &[usize],
) -> Outcome<(ubiverbs::PreparedQueuePair<Reliable>, Vec<Receiving>)> {
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let receiving = receives.iter().map(|length| Ok(prepared.recv(pd.allocate(*length)?)?)).collect::<Outcome<_>>()?;
    Ok((prepared, receiving))
}

/// Whether a run has a victim, and which: a third of all runs has none.
fn victim<'a>(simulation: &mut Simulation, parties: &[&'a str], within: Duration) -> Option<&'a str> {
    if simulation.below(3) == 0 {
        return None;
    }
    let victim = parties[simulation.below(parties.len() as u64) as usize];
    simulation.kill_within(victim, Duration::ZERO..within);
    Some(victim)
}

/// Whether everything a party does succeeds must follow from whether there is a victim.
async fn judge(killing: bool, done: Rc<Cell<usize>>, work: impl Future<Output = Outcome>) -> Outcome {
    match work.await {
        Ok(()) => {
            done.set(done.get() + 1);
            Ok(())
        }
        // A party that lost another one may fail, but not hang.
        Err(_) if killing => Ok(()),
        Err(error) => Err(error),
    }
}

/// All futures at once.
async fn together<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in &mut futures {
            if output.is_none()
                && let Poll::Ready(found) = Pin::new(future).poll(context)
            {
                *output = Some(found);
            }
        }
        if futures.iter().any(|(_, output)| output.is_none()) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}
