//! Every kind of queue pair and work on the simulated NIC, between two hosts, without the connection manager: the
//! parties exchange endpoints by themselves.
#![cfg(feature = "simulation")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use ubiverbs::simulation::Simulation;
use ubiverbs::{
    Access, CompletionQueue, Context, Datagram, Endpoint, Error, GRH_LENGTH, ProtectionDomain, QueuePair, Reliable,
    RemoteSlice, Status, Transport, Type1, Type2, Unreliable, cm,
};

type Done = Result<(), Error>;

/// Where parties leave what another is to know: as a colleague would on paper.
#[derive(Clone, Default)]
struct Board(Rc<RefCell<BTreeMap<&'static str, Vec<u8>>>>);

impl Board {
    fn put(&self, name: &'static str, bytes: impl Into<Vec<u8>>) {
        self.0.borrow_mut().insert(name, bytes.into());
    }

    async fn get(&self, name: &'static str) -> Vec<u8> {
        loop {
            if let Some(bytes) = self.0.borrow().get(name).cloned() {
                return bytes;
            }
            ubiverbs::sleep(Duration::from_micros(10)).await;
        }
    }

    async fn endpoint(&self, name: &'static str) -> Endpoint {
        String::from_utf8(self.get(name).await).unwrap().parse().unwrap()
    }
}

struct Host {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

fn host() -> Result<Host, Error> {
    let context = ubiverbs::devices()?[0].open()?;
    let (pd, cq) = (context.alloc_pd()?, context.completion_queue(64).create()?);
    Ok(Host { context, pd, cq })
}

/// Connects a queue pair with the one of the other party.
async fn connected<T: ubiverbs::Connected>(
    host: &Host,
    board: &Board,
    here: &'static str,
    there: &'static str,
) -> Result<QueuePair<T>, Error> {
    let prepared = host.pd.queue_pair::<T>(&host.cq).prepare()?;
    board.put(here, prepared.endpoint().to_string());
    prepared.connect(&board.endpoint(there).await)
}

/// Two parties, with a little loss where it may be.
fn run<A, B>(loss: f64, one: impl Fn(Board) -> A, two: impl Fn(Board) -> B)
where
    A: Future<Output = Done> + 'static,
    B: Future<Output = Done> + 'static,
{
    Simulation::builder().loss(loss).reordering(loss).time_limit(Duration::from_secs(60)).seeds(20).check(
        |simulation| {
            let board = Board::default();
            simulation.party("one", one(board.clone()));
            simulation.party("two", two(board));
        },
    );
}

#[test]
fn reliable_connections_write_read_and_count() {
    run(
        0.01,
        |board| async move {
            let host = host()?;
            let qp = connected::<Reliable>(&host, &board, "one", "two").await?;
            let there = RemoteSlice::from_bytes(&board.get("region").await)?;
            let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
            let written = qp.write(host.pd.register(bytes)?, there.slice(8..100_008)?)?.await?;
            let read = qp.read(host.pd.allocate(100_000)?, there.slice(8..100_008)?)?.await?;
            assert_eq!(*read, *written);
            assert_eq!(qp.fetch_add(there.slice(0..8)?, 5)?.await?, 37);
            assert_eq!(qp.compare_swap(there.slice(0..8)?, 42, 7)?.await?, 42);
            // Beyond the end: refused by the peer's NIC.
            let beyond = RemoteSlice::new(there.address(), there.len() + 8, there.key());
            let beyond = beyond.slice(there.len()..there.len() + 8)?;
            let failed = qp.write_inline(&[1; 8], beyond)?.await.unwrap_err();
            let Error::Completion(error) = failed.error else { panic!("{}", failed.error) };
            // The refusal may be lost, and a queue pair that has refused is silent ever after.
            assert!(matches!(error.status, Status::RemoteAccess | Status::RetryExceeded), "{error}");
            assert!(qp.stats().traffic.sent_packets > 20);
            board.put("done", "");
            Ok(())
        },
        |board| async move {
            let host = host()?;
            let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            let region = host.pd.share(100_008, all)?;
            region.store(0, 37)?;
            let _qp = connected::<Reliable>(&host, &board, "two", "one").await?;
            board.put("region", region.remote_slice().to_bytes());
            board.get("done").await;
            assert_eq!(region.load(0)?, 7);
            assert!(host.context.poll_event().is_some(), "a peer's mistake is told");
            Ok(())
        },
    );
}

#[test]
fn unreliable_connections_lose_messages_and_nothing_else() {
    run(
        0.05,
        |board| async move {
            let host = host()?;
            let qp = connected::<Unreliable>(&host, &board, "one", "two").await?;
            board.get("ready").await;
            for number in 0..50u32 {
                qp.send_inline(&number.to_le_bytes())?.await?;
                ubiverbs::sleep(Duration::from_micros(100)).await;
            }
            board.put("done", "");
            Ok(())
        },
        |board| async move {
            let host = host()?;
            let qp = connected::<Unreliable>(&host, &board, "two", "one").await?;
            let mut receiving = Vec::new();
            for _ in 0..50 {
                receiving.push(qp.recv(host.pd.allocate(4)?)?);
            }
            board.put("ready", "");
            board.get("done").await;
            ubiverbs::sleep(Duration::from_millis(1)).await;
            let mut last = None;
            for receiving in receiving {
                let Ok(message) = ubiverbs::timeout(Duration::ZERO, receiving).await else { break };
                let number = u32::from_le_bytes(message?.payload().try_into().unwrap());
                assert!(last < Some(number), "in order, none twice");
                last = Some(number);
            }
            assert!(last > Some(30));
            Ok(())
        },
    );
}

#[test]
fn datagrams_reach_queue_pairs_services_and_groups() {
    let group: IpAddr = "224.1.2.3".parse().unwrap();
    run(
        0.0,
        move |board| async move {
            let host = host()?;
            let qp = host.pd.queue_pair::<Datagram>(&host.cq).qkey(cm::QKEY).prepare()?.activate()?;
            board.put("one", qp.endpoint().to_string());
            let membership = cm::join(group, &qp).await?;
            assert_eq!(membership.group(), group);
            let receives = [qp.recv(host.pd.allocate(GRH_LENGTH + 64)?)?, qp.recv(host.pd.allocate(GRH_LENGTH + 64)?)?];
            board.put("joined", "");
            let [first, second] = receives;
            let message = first.await?;
            assert_eq!(message.payload(), b"to one");
            let back = message.reply_address(&qp).expect("a datagram has a sender");
            qp.send_inline_to(b"answer", &back)?.await?;
            assert_eq!(second.await?.payload(), b"to all");
            Ok(())
        },
        move |board| async move {
            let host = host()?;
            let qp = host.pd.queue_pair::<Datagram>(&host.cq).qkey(cm::QKEY).prepare()?.activate()?;
            let receiving = qp.recv(host.pd.allocate(GRH_LENGTH + 64)?)?;
            board.get("joined").await;
            let one = host.pd.address(&board.endpoint("one").await)?;
            qp.send_inline_to(b"to one", &one)?.await?;
            assert_eq!(receiving.await?.payload(), b"answer");
            let membership = cm::join(group, &qp).await?;
            qp.send_inline_to(b"to all", membership.address())?.await?;
            Ok(())
        },
    );
}

#[test]
fn shared_receive_queues_and_xrc_name_their_messages() {
    run(
        0.01,
        |board| async move {
            let host = host()?;
            let prepared = host.pd.queue_pair::<Reliable>(&host.cq).prepare()?;
            board.put("one", prepared.endpoint().to_string());
            let qp = prepared.connect(&board.endpoint("two").await)?;
            let sender = host.pd.xrc_sender(&host.cq)?;
            board.put("sender", sender.endpoint().to_string());
            let sender = sender.connect(&board.endpoint("target").await)?;
            let number = board.get("queue").await;
            let queue = ubiverbs::Srqn::new(u32::from_le_bytes(number.try_into().unwrap()));
            qp.send_inline(b"shared")?.await?;
            sender.to(queue).send_inline(b"xrc")?.await?;
            board.get("done").await;
            Ok(())
        },
        |board| async move {
            let host = host()?;
            let shared = host.pd.shared_receive_queue(8)?;
            shared.set_limit(1)?;
            let receiving = shared.recv(host.pd.allocate(64)?)?;
            let prepared = host.pd.queue_pair::<Reliable>(&host.cq).shared_receives(&shared).prepare()?;
            board.put("two", prepared.endpoint().to_string());
            let _qp = prepared.connect(&board.endpoint("one").await)?;
            let domain = host.context.xrc_domain()?;
            let queue = domain.receive_queue(&host.pd, &host.cq, 8)?;
            let target = domain.target()?;
            board.put("target", target.endpoint().to_string());
            let _target = target.connect(&board.endpoint("sender").await)?;
            let second = queue.recv(host.pd.allocate(64)?)?;
            board.put("queue", queue.number().value().to_le_bytes());
            assert_eq!(receiving.await?.payload(), b"shared");
            assert_eq!(second.await?.payload(), b"xrc");
            let limit = std::iter::from_fn(|| host.context.poll_event())
                .any(|event| event == ubiverbs::AsyncEvent::SharedReceiveQueueLimit(shared.number()));
            assert!(limit, "the limit was reached");
            board.put("done", "");
            Ok(())
        },
    );
}

#[test]
fn windows_and_device_memory_are_reached_by_their_keys() {
    run(
        0.01,
        |board| async move {
            let host = host()?;
            let qp = connected::<Reliable>(&host, &board, "one", "two").await?;
            for name in ["type 1", "type 2", "device"] {
                let there = RemoteSlice::from_bytes(&board.get(name).await)?;
                qp.write_inline(name.as_bytes(), there.slice(0..name.len() as u64)?)?.await?;
            }
            board.put("done", "");
            Ok(())
        },
        |board| async move {
            let host = host()?;
            let qp = connected::<Reliable>(&host, &board, "two", "one").await?;
            let region = host.pd.share(4096, Access::REMOTE_WRITE | Access::MW_BIND)?;
            let first = host.pd.window::<Type1>()?;
            let first = qp.bind(first, &region.part(0..64)?, Access::REMOTE_WRITE)?.await?;
            let second = host.pd.window::<Type2>()?;
            let second = qp.bind(second, &region.part(64..128)?, Access::REMOTE_WRITE)?.await?;
            let memory = host.context.device_memory(64).allocate()?;
            let device = host.pd.share_device(&memory, 0..64, Access::REMOTE_WRITE)?;
            board.put("type 1", first.remote_slice().to_bytes());
            board.put("type 2", second.remote_slice().to_bytes());
            board.put("device", device.remote_slice().to_bytes());
            board.get("done").await;
            let mut bytes = [0; 70];
            region.read_at(0, &mut bytes)?;
            assert_eq!((&bytes[..6], &bytes[64..70]), (&b"type 1"[..], &b"type 2"[..]));
            let mut bytes = [0; 8];
            memory.read_at(0, &mut bytes)?;
            assert_eq!(&bytes, b"device\0\0");
            Ok(())
        },
    );
}

#[test]
fn completion_queues_are_polled_awaited_and_told_of_by_channels() {
    run(
        0.0,
        |board| async move {
            let host = host()?;
            let qp = connected::<Reliable>(&host, &board, "one", "two").await?;
            board.get("ready").await;
            for number in 0..3u8 {
                qp.send_inline(&[number])?.await?;
            }
            Ok(())
        },
        |board| async move {
            let context = ubiverbs::devices()?[0].open()?;
            let pd = context.alloc_pd()?;
            let channel = context.completion_channel()?;
            let cq = context.completion_queue(16).channel(&channel).create()?;
            let host = Host { context, pd, cq };
            let qp = connected::<Reliable>(&host, &board, "two", "one").await?;
            for number in 0..3 {
                qp.recv(host.pd.allocate(1)?)?.polled(number);
            }
            host.cq.arm();
            assert!(channel.try_next().is_none());
            board.put("ready", "");
            let first = host.cq.next().await?;
            assert_eq!(first.wr_id(), 0);
            assert!(channel.try_next().is_some(), "it was armed");
            let mut seen = 1;
            while seen < 3 {
                seen += host.cq.poll()?.count();
                ubiverbs::sleep(Duration::from_micros(1)).await;
            }
            Ok(())
        },
    );
}

/// What is made by one party is none of another's, and nothing of a party that ended works.
#[test]
fn objects_belong_to_one_life_of_one_party() {
    let left: Rc<RefCell<Option<(Host, QueuePair<Reliable>)>>> = Rc::default();
    let run = Simulation::builder().run(|simulation| {
        let (leaving, taking) = (Rc::clone(&left), Rc::clone(&left));
        simulation.party("one", async move {
            let host = host()?;
            let [a, _b] = ubiverbs::connected_pair::<Reliable>(&host.pd, &host.cq)?;
            *leaving.borrow_mut() = Some((host, a));
            Ok::<(), Error>(())
        });
        simulation.party("two", async move {
            poll_fn(|context| {
                context.waker().wake_by_ref();
                if taking.borrow().is_some() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let ours = host()?;
            let taken = taking.borrow();
            let (theirs, _) = taken.as_ref().unwrap();
            let mixed = ours.pd.queue_pair::<Reliable>(&theirs.cq).prepare();
            assert!(mixed.is_err(), "a completion queue of another host");
            Ok::<(), Error>(())
        });
    });
    run.unwrap();
    let (host, qp) = left.take().unwrap();
    assert!(host.pd.queue_pair::<Reliable>(&host.cq).prepare().is_err(), "the run is over");
    assert!(qp.send_inline(b"late").is_err());
    drop((qp, host.pd.allocate(16)));
    assert_eq!(<Reliable as Transport>::KIND, ubiverbs::Kind::ReliableConnected);
}
