//! A file by WRITE with immediate, as in the example `file_transfer`: the receiver shares a few slots, the sender fills
//! them and says how much, the receiver gives them back.

use super::{Outcome, RUN_TIMEOUT, accept, connect, judge, victim};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use ubiverbs::simulation::Simulation;
use ubiverbs::{Access, RemoteSlice, cm};

const SLOT: usize = 16 * 1024;
const SLOTS: usize = 4;

/// What the receiver has so far.
type Copy = Rc<RefCell<Vec<u8>>>;

async fn receive(copy: Copy) -> Outcome {
    let listener = cm::Listener::bind("0.0.0.0:7471")?;
    let (connection, receives) = accept(&listener, &[1; SLOTS]).await?;
    let slots = connection.pd().share(SLOT * SLOTS, Access::REMOTE_WRITE)?;
    connection.send_inline(&slots.remote_slice().to_bytes())?.await?;
    let mut receives: VecDeque<_> = receives.into();
    let mut piece = vec![0; SLOT];
    for slot in (0..SLOTS).cycle() {
        let arrived = receives.pop_front().ok_or("one for every slot")?.await?;
        let length = arrived.immediate().ok_or("without a length")? as usize;
        if length == 0 {
            break;
        }
        let piece = piece.get_mut(..length).ok_or("longer than a slot")?;
        slots.read_at(slot * SLOT, piece)?;
        copy.borrow_mut().extend_from_slice(piece);
        receives.push_back(connection.recv(arrived.into_buffer())?);
        connection.send_inline(b"")?.await?;
    }
    connection.disconnect().await?;
    Ok(())
}

async fn send(file: Rc<Vec<u8>>) -> Outcome {
    let (connection, receives) = connect("receiver:7471", &[64, 1, 1, 1, 1]).await?;
    let mut receives: VecDeque<_> = receives.into();
    let first = ubiverbs::timeout(RUN_TIMEOUT, receives.pop_front().ok_or("posted")?).await??;
    let slots = RemoteSlice::from_bytes(first.payload())?;
    let mut free = SLOTS;
    // The last WRITE brings its number only, and a byte that nobody looks at: into a free slot, as all others.
    let pieces = file.chunks(SLOT).chain([[].as_slice()]);
    for (piece, slot) in pieces.zip((0..SLOTS as u64).cycle()) {
        if free == 0 {
            let back = receives.pop_front().ok_or("one for every slot")?.await?;
            receives.push_back(connection.recv(back.into_buffer())?);
            free += 1;
        }
        free -= 1;
        let mut bytes = piece.to_vec();
        bytes.resize(piece.len().max(1), 0);
        let at = slots.slice(slot * SLOT as u64..slot * SLOT as u64 + bytes.len() as u64)?;
        let writing = connection.write_imm(connection.pd().register(bytes)?, at, piece.len() as u32)?;
        match piece.is_empty() {
            false => drop(writing.await?),
            // The receiver disconnects when it has that; the word that it has may be lost.
            true => drop(writing),
        }
    }
    // The receiver has the last word: slots that it gives back are still under way.
    connection.closed().await?;
    Ok(())
}

#[ubiverbs::simulated_test(loss = 0.01, reordering = 0.02, seeds = 100, time_limit = Duration::from_secs(120))]
fn a_file_arrives_whole_or_as_a_beginning(simulation: &mut Simulation) {
    let mut file = vec![0; simulation.below(200_000) as usize];
    sim::Rng::new(simulation.seed()).fill(&mut file);
    let (file, copy) = (Rc::new(file), Copy::default());
    let victim = victim(simulation, &["receiver", "sender"], Duration::from_millis(2));
    let done = Rc::new(Cell::new(0));
    let receiver = judge(victim.is_some(), Rc::clone(&done), receive(Rc::clone(&copy)));
    let sender = judge(victim.is_some(), Rc::clone(&done), send(Rc::clone(&file)));
    simulation.party("receiver", async move {
        receiver.await?;
        let (copy, whole) = (copy.borrow(), done.get() == 2 || victim.is_none());
        assert!(file.starts_with(&copy), "the copy has wrong bytes");
        assert!(!whole || copy.len() == file.len(), "{} of {} bytes", copy.len(), file.len());
        Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    });
    simulation.party("sender", sender);
}
