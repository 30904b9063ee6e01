//! An all-reduce in a ring: each rank has a connection to the next and one from the one before. In as many steps as
//! there are ranks but one, sums of parts go round; in as many again, the whole parts.

use super::{Outcome, accept, connect, judge, together, victim};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use ubiverbs::cm;
use ubiverbs::simulation::Simulation;

const NAMES: [&str; 4] = ["rank 0", "rank 1", "rank 2", "rank 3"];
const RANKS: usize = NAMES.len();
const PART: usize = 500;

fn to_bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The sums over all ranks of what each gives.
async fn all_reduce(rank: usize, mut numbers: Vec<u64>) -> Outcome<Vec<u64>> {
    let listener = cm::Listener::bind("0.0.0.0:7100")?;
    let next = format!("{}:7100", NAMES[(rank + 1) % RANKS]);
    let both = async { (connect(&next, &[]).await, ()) };
    // Both at once: each waits for its neighbour.
    let accepting = accept(&listener, &[PART * 8; 2 * (RANKS - 1)]);
    let mut accepting = std::pin::pin!(accepting);
    let mut connecting = std::pin::pin!(both);
    let (mut from, mut to) = (None, None);
    std::future::poll_fn(|context| {
        use std::task::Poll;
        if from.is_none()
            && let Poll::Ready(found) = accepting.as_mut().poll(context)
        {
            from = Some(found);
        }
        if to.is_none()
            && let Poll::Ready((found, ())) = connecting.as_mut().poll(context)
        {
            to = Some(found);
        }
        if from.is_some() && to.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let ((from, receiving), (to, _)) = (from.ok_or("accepted")??, to.ok_or("connected")??);
    let part = |index: usize| (index % RANKS) * PART..(index % RANKS + 1) * PART;
    for (step, receiving) in receiving.into_iter().enumerate() {
        // What was summed up in the first half goes round in the second.
        let give = rank + 2 * RANKS - step;
        let buffer = to.pd().register(to_bytes(&numbers[part(give)]))?;
        let sent = to.send(buffer)?;
        let message = receiving.await?;
        sent.await?;
        let (place, summing) = (part(give + RANKS - 1), step < RANKS - 1);
        for (number, bytes) in numbers[place].iter_mut().zip(message.payload().chunks_exact(8)) {
            let other = u64::from_le_bytes(bytes.try_into()?);
            *number = if summing { number.wrapping_add(other) } else { other };
        }
    }
    to.disconnect().await?;
    from.closed().await?;
    Ok(numbers)
}

#[ubiverbs::simulated_test(loss = 0.01, reordering = 0.02, seeds = 100, time_limit = Duration::from_secs(120))]
fn an_all_reduce_in_a_ring_is_right_or_fails_everywhere_soon(simulation: &mut Simulation) {
    let victim = victim(simulation, &NAMES, Duration::from_millis(1));
    let done = Rc::new(Cell::new(0));
    let given: Vec<Vec<u64>> = (0..RANKS)
        .map(|rank| {
            let mut rng = sim::Rng::new(simulation.seed() * 7 + rank as u64);
            (0..RANKS * PART).map(|_| rng.next_u64()).collect()
        })
        .collect();
    let sums: Vec<u64> =
        (0..RANKS * PART).map(|at| given.iter().fold(0, |sum: u64, numbers| sum.wrapping_add(numbers[at]))).collect();
    let sums = Rc::new(sums);
    for (rank, numbers) in given.into_iter().enumerate() {
        let sums = Rc::clone(&sums);
        let work = async move {
            assert_eq!(all_reduce(rank, numbers).await?, *sums);
            Ok(())
        };
        simulation.party(NAMES[rank], judge(victim.is_some(), Rc::clone(&done), work));
    }
}

/// `together` in a place where it is easy to see.
#[ubiverbs::simulated_test(seeds = 3)]
fn tasks_of_one_party_run_together(simulation: &mut Simulation) {
    simulation.party("one", async {
        let sleeps = (1..4).map(|time| ubiverbs::sleep(Duration::from_millis(time))).collect();
        together(sleeps).await;
        assert_eq!(ubiverbs::simulation::now(), Some(Duration::from_millis(3)));
        Ok::<(), ubiverbs::Error>(())
    });
}
