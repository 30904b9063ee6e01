//! Programs on the simulated NIC: `ubiverbs::simulation`. What a run may do and how it fails; `simulated_verbs.rs` has
//! the kinds of queue pairs and work.
#![cfg(feature = "simulation")]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use ubiverbs::simulation::{self, Builder, Report, Simulation};
use ubiverbs::{CloseReason, Status, cm};

type Done = Result<(), ubiverbs::Error>;

const MILLISECOND: Duration = Duration::from_millis(1);

async fn server() -> Done {
    serve(cm::Listener::bind("0.0.0.0:7471")?).await
}

async fn serve(listener: cm::Listener) -> Done {
    let connection = listener.accept().await?;
    let message = connection.recv(connection.pd().allocate(64)?)?.await?;
    assert_eq!(message.payload(), b"hello");
    connection.closed().await?;
    Ok(())
}

async fn client() -> Done {
    call(cm::connect("server:7471")).await
}

async fn call(connecting: cm::Pending<cm::Connection>) -> Done {
    let connection = connecting.await?;
    connection.send_inline(b"hello")?.await?;
    connection.disconnect().await?;
    Ok(())
}

fn hello(simulation: &mut Simulation) {
    simulation.party("server", server());
    simulation.party("client", client());
}

fn bad_weather() -> Builder {
    Simulation::builder().loss(0.02).reordering(0.05).duplication(0.05).corruption(0.01).jitter(MILLISECOND / 100)
}

#[test]
fn two_parties_connect_and_send() {
    let report = Simulation::builder().run(hello).unwrap();
    assert!(report.elapsed < MILLISECOND, "{report:?}");
    assert_eq!(report.log, "");
}

#[test]
fn faults_are_survived() {
    bad_weather().seeds(200).check(hello);
}

/// Where REPs, RTUs and RNR NAKs are lost, the server learns from the client's data that the connection stands, and the
/// client does not give up a server that has yet to post its receive.
#[test]
fn lost_words_of_the_connection_manager_end_no_connection() {
    let builder = |loss| Simulation::builder().loss(loss).reordering(0.05);
    builder(0.05).seed(4400).seeds(10).check(hello);
    builder(0.1).seeds(1000).check(hello);
}

/// `serve` and `call` on the NIC of this process.
#[test]
fn the_same_program_runs_outside() {
    let listener = cm::Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr();
    let server = std::thread::spawn(move || ubiverbs::block_on(serve(listener)));
    ubiverbs::block_on(async {
        call(cm::connect(address)).await.unwrap();
        ubiverbs::sleep(MILLISECOND).await;
        assert!(ubiverbs::timeout(MILLISECOND, std::future::pending::<()>()).await.is_err());
    });
    server.join().unwrap().unwrap();
    assert_eq!(simulation::now(), None);
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let run = |seed| -> Report { bad_weather().seed(seed).log().run(hello).unwrap() };
    let all: Vec<String> = (0..20).map(|seed| run(seed).log).collect();
    for (seed, log) in all.iter().enumerate() {
        assert!(log.contains("RcSendOnly") && log.contains("client ends"), "{log}");
        assert_eq!(run(seed as u64).log.as_bytes(), log.as_bytes(), "seed {seed}");
    }
    assert_ne!(all[0], all[1]);
}

#[test]
fn a_deadlock_names_who_waits_and_for_what() {
    let failure = Simulation::builder()
        .seed(7)
        .run(|simulation| {
            simulation.party("server", server());
            simulation.party("client", async {
                let connection = cm::connect("server:7471").await?;
                // Both wait for a message.
                connection.recv(connection.pd().allocate(64)?)?.await?;
                Ok::<(), ubiverbs::Error>(())
            });
        })
        .unwrap_err();
    assert!(failure.is_deadlock() && failure.parties() == ["server", "client"], "{failure}");
    let text = failure.to_string();
    for part in
        ["nothing is left to happen", "server (started at", "waits for a message of queue pair", "UBIVERBS_SEED=7"]
    {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn errors_panics_and_hanging_end_a_run() {
    let error = Simulation::builder().run(|simulation| simulation.party("client", client())).unwrap_err().to_string();
    assert!(error.contains("no party of this simulation is called server; there are client"), "{error}");
    let panic = Simulation::builder().run(|simulation| {
        simulation.party("one", async {
            assert_eq!(1, 2, "numbers");
            Ok::<(), ubiverbs::Error>(())
        });
    });
    assert!(panic.unwrap_err().to_string().contains("one panicked: assertion"), "the message");
    let late = Simulation::builder().time_limit(Duration::from_secs(5)).run(|simulation| {
        simulation.party("one", async {
            ubiverbs::sleep(Duration::from_secs(60)).await;
            Ok::<(), ubiverbs::Error>(())
        });
    });
    let late = late.unwrap_err();
    assert!(late.is_time_limit() && late.to_string().contains("waits for 60s on the clock"), "{late}");
}

/// What a party does that it must not, and what it hears.
#[track_caller]
fn refused(work: impl Future<Output = Done> + 'static, words: &str) {
    let failure = Simulation::builder().run(|simulation| simulation.party("one", work)).unwrap_err().to_string();
    assert!(failure.contains(words), "{failure}");
}

#[test]
fn calls_that_wait_say_that_they_must_not() {
    refused(
        async {
            cm::Listener::bind("0.0.0.0:1")?.accept().wait()?;
            Ok(())
        },
        "must not block",
    );
    refused(
        async {
            let context = ubiverbs::devices()?[0].open()?;
            context.completion_channel()?.wait()?;
            Ok(())
        },
        "awaits; a call that waits would stop the clock",
    );
    refused(
        async {
            let cq = ubiverbs::devices()?[0].open()?.completion_queue(4).create()?;
            while cq.poll()?.count() == 0 {}
            Ok(())
        },
        "polled empty completion queues",
    );
    refused(
        async {
            let stream = ubiverbs::stream::RdmaStream::connect("one:1").await;
            Err(ubiverbs::Error::System { what: "stream", source: stream.unwrap_err() })
        },
        "cannot use streams",
    );
}

#[test]
fn a_party_has_one_device_with_the_addresses_of_its_host() {
    hello_from(async {
        let devices = ubiverbs::devices()?;
        assert_eq!((devices.len(), devices[0].name()), (1, "ubi_sim0"));
        assert!(ubiverbs::device("ubi_lo").is_err());
        let context = devices[0].open()?;
        assert_eq!(context.port().gids.len(), 2);
        let other = "10.0.0.1".parse().unwrap();
        assert_eq!(ubiverbs::device_for(other)?.name(), "ubi_sim0");
        assert!(ubiverbs::device_for("192.0.2.1".parse().unwrap()).is_err(), "nobody's");
        let unreachable = cm::connect("192.0.2.1:1").await.unwrap_err();
        assert!(unreachable.to_string().contains("no route"), "{unreachable}");
        let nobody = cm::connect("server:99").await.unwrap_err();
        assert!(nobody.to_string().contains("nobody listens"), "{nobody}");
        client().await
    });
}

/// A client of the usual server.
fn hello_from(work: impl Future<Output = Done> + 'static) {
    Simulation::builder()
        .run(|simulation| {
            simulation.party("server", server());
            simulation.party("client", work);
        })
        .unwrap();
}

/// Connects, says hello, and tells how it ended.
async fn watch(ended: Rc<RefCell<Option<CloseReason>>>) -> Done {
    let connection = cm::connect("server:7471").await?;
    connection.send_inline(b"hello")?.await?;
    let reason = connection.closed().await?;
    *ended.borrow_mut() = Some(reason);
    Ok(())
}

#[test]
fn peers_of_a_killed_party_hear_that_it_died() {
    for seed in 0..50 {
        let ended = Rc::default();
        let seen = Rc::clone(&ended);
        let report = bad_weather().seed(seed).run(|simulation| {
            simulation.service("server", server);
            simulation.party("client", watch(seen));
            simulation.kill_at("server", Duration::from_secs(20));
        });
        let report = report.unwrap();
        assert_eq!(*ended.borrow(), Some(CloseReason::PeerDied));
        let soon = Duration::from_secs(20)..Duration::from_secs(30);
        assert!(soon.contains(&report.elapsed), "seed {seed}: {:?}", report.elapsed);
    }
}

#[test]
fn work_for_a_host_without_power_fails_after_its_retries() {
    let report = Simulation::builder().run(|simulation| {
        simulation.service("server", server);
        simulation.party("client", async {
            let connection = cm::connect("server:7471").await?;
            connection.send_inline(b"hello")?.await?;
            ubiverbs::sleep(MILLISECOND * 20).await;
            let failed = connection.send_inline(b"again")?.await.unwrap_err();
            let ubiverbs::Error::Completion(error) = failed.error else { panic!("{}", failed.error) };
            assert_eq!(error.status, Status::RetryExceeded);
            Ok::<(), ubiverbs::Error>(())
        });
        simulation.script(|faults| async move {
            ubiverbs::sleep(MILLISECOND * 10).await;
            faults.power_off("server");
        });
    });
    let elapsed = report.unwrap().elapsed;
    assert!((MILLISECOND * 100..Duration::from_secs(2)).contains(&elapsed), "{elapsed:?}");
}

#[test]
fn a_service_starts_again_and_serves_again() {
    let starts = Rc::new(Cell::new(0));
    let counted = Rc::clone(&starts);
    let run = Simulation::builder().run(|simulation| {
        simulation.service("server", move || {
            counted.set(counted.get() + 1);
            server()
        });
        simulation.party("client", async {
            let connection = cm::connect("server:7471").await?;
            connection.send_inline(b"hello")?.await?;
            assert_eq!(connection.closed().await?, CloseReason::PeerDied);
            ubiverbs::sleep(MILLISECOND * 10).await;
            client().await
        });
        simulation.script(|faults| async move {
            ubiverbs::sleep(MILLISECOND * 10).await;
            faults.restart("server");
        });
    });
    run.unwrap();
    assert_eq!(starts.get(), 2);
}

#[test]
fn a_partition_that_heals_is_only_a_delay() {
    let report = Simulation::builder().run(|simulation| {
        hello(simulation);
        let faults = simulation.faults();
        faults.partition("server", "client");
        simulation.script(|faults| async move {
            ubiverbs::sleep(Duration::from_secs(1)).await;
            faults.heal("server", "client");
        });
    });
    let elapsed = report.unwrap().elapsed;
    assert!((Duration::from_secs(1)..Duration::from_secs(5)).contains(&elapsed), "{elapsed:?}");
}

#[test]
fn tasks_and_chance_belong_to_their_party() {
    let numbers: Rc<RefCell<Vec<u64>>> = Rc::default();
    for _ in 0..2 {
        let numbers = Rc::clone(&numbers);
        let run = Simulation::builder().seed(3).run(|simulation| {
            simulation.party("one", async move {
                let told = Rc::clone(&numbers);
                simulation::spawn(async move {
                    ubiverbs::sleep(MILLISECOND).await;
                    told.borrow_mut().push(simulation::random().unwrap());
                });
                ubiverbs::sleep(MILLISECOND * 2).await;
                Ok::<(), ubiverbs::Error>(())
            });
        });
        run.unwrap();
    }
    let numbers = numbers.borrow();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{numbers:?}");
}
