//! How many simulated runs a second: two parties that connect, send, receive and disconnect, on a network that loses a
//! packet in a hundred; and the same with a longer life.
//!
//! ```text
//! cargo bench -p ubiverbs --features simulation --bench simulation
//! ```

use divan::Bencher;
use std::cell::Cell;
use ubiverbs::cm;
use ubiverbs::simulation::Simulation;

fn main() {
    divan::main();
}

type Done = Result<(), ubiverbs::Error>;

async fn server(messages: usize) -> Done {
    let connection = cm::Listener::bind("0.0.0.0:7471")?.accept().await?;
    let mut buffer = connection.pd().allocate(64)?;
    for _ in 0..messages {
        buffer = connection.recv(buffer)?.await?.into_buffer();
    }
    connection.closed().await?;
    Ok(())
}

async fn client(messages: usize) -> Done {
    let connection = cm::connect("server:7471").await?;
    for _ in 0..messages {
        connection.send_inline(b"hello")?.await?;
    }
    connection.disconnect().await?;
    Ok(())
}

#[divan::bench(args = [1, 100])]
fn connect_send_receive(bencher: Bencher<'_, '_>, messages: usize) {
    let seed = Cell::new(0);
    bencher.bench_local(|| {
        seed.set(seed.get() + 1);
        let weather = Simulation::builder().loss(0.01).seed(seed.get());
        let run = weather.run(|simulation| {
            simulation.party("server", server(messages));
            simulation.party("client", client(messages));
        });
        run.expect("the run goes well")
    });
}
