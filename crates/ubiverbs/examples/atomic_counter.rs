//! # 3. Atomic operations: a counter and a lock in the peer's memory
//!
//! Two operations change eight bytes of a peer's memory *at once*, so that many clients can do it together: **fetch and
//! add**, and **compare and swap**. Both answer what was there before. They are atomic towards the owner's own threads
//! too: our NIC uses the processor's atomic instructions, and `SharedRegion` offers the same operations locally.
//!
//! Here four clients count in one number, and then take turns with a lock that lives in the server's memory, as a
//! distributed program would. The server's program does nothing all the while.
//!
//! ```text
//! cargo run --example atomic_counter
//! ```

use std::thread;
use ubiverbs::{Access, Context, Error, QueuePair, Reliable, RemoteSlice};

const CLIENTS: u64 = 4;
const ROUNDS: u64 = 250;

/// Where things are in the server's memory. Atomic operations need multiples of eight.
const COUNTER: u64 = 0;
const LOCK: u64 = 8;
const GUARDED: u64 = 16;

/// A client: its own queue pair to the server, in a protection domain of its own.
struct Client {
    number: u64,
    qp: QueuePair<Reliable>,
    /// The server's side of the connection. It only has to exist.
    _server: QueuePair<Reliable>,
    pd: ubiverbs::ProtectionDomain,
    there: RemoteSlice,
}

impl Client {
    fn run(&self) -> Result<(), Error> {
        let counter = self.there.slice(COUNTER..COUNTER + 8)?;
        for _ in 0..ROUNDS {
            self.qp.fetch_add(counter, 1)?.wait()?;
        }
        let lock = self.there.slice(LOCK..LOCK + 8)?;
        let guarded = self.there.slice(GUARDED..GUARDED + 8)?;
        for _ in 0..10 {
            // 0 is free; the client that swaps its own number in has the lock.
            while self.qp.compare_swap(lock, 0, self.number)?.wait()? != 0 {
                thread::yield_now();
            }
            // A number that is read, changed and written in three steps: only a lock keeps that right.
            let mut word = self.qp.read(self.pd.allocate(8)?, guarded)?.wait()?;
            let value = u64::from_ne_bytes(word[..8].try_into().expect("eight bytes"));
            word.copy_from_slice(&(value + 1).to_ne_bytes());
            self.qp.write(word, guarded)?.wait()?;
            let held = self.qp.compare_swap(lock, self.number, 0)?.wait()?;
            assert_eq!(held, self.number, "only the holder opens the lock");
        }
        Ok(())
    }
}

fn connect(
    context: &Context,
    server_pd: &ubiverbs::ProtectionDomain,
    number: u64,
    there: RemoteSlice,
) -> Result<Client, Error> {
    let pd = context.alloc_pd()?;
    let here = pd.queue_pair::<Reliable>(&context.completion_queue(16).create()?).prepare()?;
    // The server's queue pair must be in the protection domain of the memory it gives access to.
    let server = server_pd.queue_pair::<Reliable>(&context.completion_queue(16).create()?).prepare()?;
    let (at_here, at_server) = (here.endpoint(), server.endpoint());
    Ok(Client { number, qp: here.connect(&at_server)?, _server: server.connect(&at_here)?, pd, there })
}

fn main() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let server_pd = context.alloc_pd()?;
    let region = server_pd.share(64, Access::REMOTE_ATOMIC | Access::REMOTE_READ | Access::REMOTE_WRITE)?;

    thread::scope(|scope| {
        let mut clients = Vec::new();
        for number in 1..=CLIENTS {
            let client = connect(&context, &server_pd, number, region.remote_slice())?;
            clients.push(scope.spawn(move || client.run()));
        }
        // The owner joins in, locally, with the same effect.
        for _ in 0..ROUNDS {
            region.fetch_add(COUNTER as usize, 1)?;
        }
        clients.into_iter().try_for_each(|client| client.join().expect("no client panics"))
    })?;

    let counted = region.load(COUNTER as usize)?;
    println!("counted to {counted}: {CLIENTS} clients and the owner, {ROUNDS} each");
    assert_eq!(counted, (CLIENTS + 1) * ROUNDS);
    let guarded = region.load(GUARDED as usize)?;
    println!("under the lock: {guarded}");
    assert_eq!(guarded, CLIENTS * 10);
    Ok(())
}
