//! A key-value store: clients PUT by message and GET by READ, past the server's program. Each entry has a version and a
//! sum, by which a reader knows a torn one.

use super::{Outcome, RUN_TIMEOUT, accept, connect, judge, together, victim};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use ubiverbs::simulation::Simulation;
use ubiverbs::{Access, RemoteSlice, cm};

const ENTRIES: u64 = 64;
/// Version, value, sum.
const ENTRY: u64 = 64;
const VALUE: usize = 48;

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Serves so many clients. One that never comes, or goes, is passed over.
async fn server(clients: usize) -> Outcome {
    let listener = cm::Listener::bind("0.0.0.0:7000")?;
    together((0..clients).map(|_| async { serve(&listener).await }).collect()).await;
    Ok(())
}

async fn serve(listener: &cm::Listener) -> Outcome {
    let (connection, receiving) = accept(listener, &[8 + VALUE]).await?;
    let table = connection.pd().share((ENTRIES * ENTRY) as usize, Access::REMOTE_READ)?;
    connection.send_inline(&table.remote_slice().to_bytes())?.await?;
    let mut receiving = receiving.into_iter().next().ok_or("a receive was posted")?;
    loop {
        let request = receiving.await?;
        let (key, value) = request.payload().split_first_chunk::<8>().ok_or("too short")?;
        let key = u64::from_le_bytes(*key) % ENTRIES;
        let at = (key * ENTRY) as usize;
        let version = table.load(at)? + 1;
        let mut entry = version.to_le_bytes().to_vec();
        entry.extend_from_slice(value);
        entry.extend_from_slice(&sum(&entry).to_le_bytes());
        table.write_at(at, &entry)?;
        receiving = connection.recv(request.into_buffer())?;
        connection.send_inline(&version.to_le_bytes())?.await?;
    }
}

async fn client(seed: u64) -> Outcome {
    let (connection, receiving) = connect("server:7000", &[64]).await?;
    let mut receiving = receiving.into_iter().next().ok_or("a receive was posted")?;
    let first = ubiverbs::timeout(RUN_TIMEOUT, receiving).await??;
    let table = RemoteSlice::from_bytes(first.payload())?;
    receiving = connection.recv(first.into_buffer())?;
    let mut rng = sim::Rng::new(seed);
    let mut known = vec![None; ENTRIES as usize];
    let mut buffer = connection.pd().allocate(ENTRY as usize)?;
    for _ in 0..12 {
        let key = rng.below(ENTRIES);
        if rng.chance(0.5) {
            let mut request = key.to_le_bytes().to_vec();
            request.resize(8 + VALUE, 0);
            rng.fill(&mut request[8..]);
            connection.send_inline(&request)?.await?;
            let answer = receiving.await?;
            known[key as usize] = Some((answer.payload().to_vec(), request[8..].to_vec()));
            receiving = connection.recv(answer.into_buffer())?;
        }
        buffer = connection.read(buffer, table.slice(key * ENTRY..(key + 1) * ENTRY)?)?.await?;
        match &known[key as usize] {
            None => assert!(buffer.iter().all(|byte| *byte == 0), "an entry that nobody wrote"),
            Some((version, value)) => {
                assert_eq!(&buffer[..8], version);
                assert_eq!(&buffer[8..8 + VALUE], value);
                assert_eq!(buffer[8 + VALUE..], sum(&buffer[..8 + VALUE]).to_le_bytes());
            }
        }
    }
    connection.disconnect().await?;
    Ok(())
}

#[ubiverbs::simulated_test(loss = 0.01, reordering = 0.02, seeds = 100, time_limit = Duration::from_secs(120))]
fn a_key_value_store_survives_loss_and_a_killed_party(simulation: &mut Simulation) {
    let names = ["server", "client 0", "client 1", "client 2"];
    let victim = victim(simulation, &names, Duration::from_millis(1));
    let done = Rc::new(Cell::new(0));
    simulation.party("server", judge(victim.is_some(), Rc::clone(&done), server(3)));
    for client_name in &names[1..] {
        let seed = simulation.below(u64::MAX);
        // The others lose nothing by the end of another client.
        let killing = victim == Some("server") || victim == Some(client_name);
        simulation.party(client_name, judge(killing, Rc::clone(&done), client(seed)));
    }
}
