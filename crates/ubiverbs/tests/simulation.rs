//! Programs on the simulated NIC: `ubiverbs::simulation`.
#![cfg(feature = "simulation")]

use std::time::Duration;
use ubiverbs::cm;
use ubiverbs::simulation::Simulation;

type Done = Result<(), ubiverbs::Error>;

async fn server() -> Done {
    let listener = cm::Listener::bind("0.0.0.0:7471")?;
    let connection = listener.accept().await?;
    let message = connection.recv(connection.pd().allocate(64)?)?.await?;
    assert_eq!(message.payload(), b"hello");
    connection.closed().await?;
    Ok(())
}

async fn client() -> Done {
    let connection = cm::connect("server:7471").await?;
    connection.send_inline(b"hello")?.await?;
    connection.disconnect().await?;
    Ok(())
}

#[test]
fn two_parties_connect_and_send() {
    let report = Simulation::builder()
        .run(|simulation| {
            simulation.party("server", server());
            simulation.party("client", client());
        })
        .unwrap();
    assert!(report.elapsed < Duration::from_secs(10), "{report:?}");
}

#[test]
fn faults_are_survived() {
    let weather = Simulation::builder().loss(0.05).reordering(0.05).duplication(0.05).corruption(0.02);
    weather.seeds(200).check(|simulation| {
        simulation.party("server", server());
        simulation.party("client", client());
    });
}
