//! What a program can ask: limits and addresses of devices, counters, round trips, and when work completed.

use crate::peers::on_both_links;
use std::net::IpAddr;
use ubiverbs::{Access, Datagram, Error, Reliable, cm, connected_pair};

#[test]
fn limits_are_what_the_device_keeps_to() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let (limits, pd) = (context.limits(), context.alloc_pd()?);
    let cq = context.completion_queue(16).create()?;
    assert_eq!(limits.device_memory, context.device_memory_size());
    let queue_pair = || pd.queue_pair::<Reliable>(&cq);
    for (fits, does_not) in [
        (queue_pair().max_sends(limits.max_work_requests), queue_pair().max_sends(limits.max_work_requests + 1)),
        (queue_pair().max_pieces(limits.max_pieces), queue_pair().max_pieces(limits.max_pieces + 1)),
        (queue_pair().max_inline(limits.max_inline), queue_pair().max_inline(limits.max_inline + 1)),
    ] {
        drop(fits.prepare()?);
        assert!(matches!(does_not.prepare(), Err(Error::Create { .. })));
    }
    assert!(context.completion_queue(limits.max_completions + 1).create().is_err());
    Ok(())
}

#[test]
fn addresses_lead_to_their_devices() -> Result<(), Error> {
    let loopback: IpAddr = [127, 0, 0, 1].into();
    assert_eq!(ubiverbs::device_for(loopback)?.name(), "ubi_lo");
    // Every address of every device is found; the first device that has it, if several have.
    for device in ubiverbs::devices()? {
        for gid in device.open()?.port().gids.into_iter().flatten() {
            let found = ubiverbs::device_for(gid.to_ip())?.open()?.port();
            assert!(found.gids.contains(&Some(gid)), "{gid}");
        }
    }
    // Another of the loopback's is reached from there.
    assert_eq!(ubiverbs::device_for([127, 9, 9, 9].into())?.name(), "ubi_lo");
    assert_eq!(cm::Listener::bind("127.0.0.1:0")?.context()?.name(), "ubi_lo");
    let everywhere = cm::Listener::bind("0.0.0.0:0")?;
    let error = everywhere.context().unwrap_err();
    assert!(matches!(&error, Error::NoDevice { name, .. } if name.contains("0.0.0.0")), "{error}");
    Ok(())
}

#[test]
fn completions_are_stamped_where_that_was_asked_for() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let (stamped, plain) =
        (context.completion_queue(16).timestamps().create()?, context.completion_queue(16).create()?);
    let region = pd.share(8, Access::REMOTE_ATOMIC)?;
    let prepare = |cq| pd.queue_pair::<Reliable>(cq).prepare();
    let (a, b) = (prepare(&stamped)?, prepare(&plain)?);
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let (a, b) = (a.connect(&at_b)?, b.connect(&at_a)?);
    let mut last = context.clock();
    for round in 0..3 {
        let receiving = b.recv(pd.allocate(8)?)?;
        a.send_inline(b"one")?.polled(round);
        a.fetch_add(region.remote_slice(), 1)?.polled(round);
        for _ in 0..2 {
            let told = stamped.wait()?;
            let at = told.timestamp().expect("it was asked for");
            assert!(last <= at && at <= context.clock(), "{last:?} {at:?}");
            last = at;
        }
        assert_eq!(receiving.wait()?.timestamp(), None);
    }
    // Both ways of waiting, and buffers of any type.
    let (first, second) = (a.recv(pd.allocate(8)?)?, a.recv_into(vec![pd.allocate(8)?])?);
    b.send_inline(b"one")?.wait()?;
    b.send_inline(b"two")?.wait()?;
    let (first, second) = (first.wait()?.timestamp().unwrap(), second.wait()?.timestamp().unwrap());
    assert!(last <= first && first <= second);
    Ok(())
}

#[test]
fn counters_of_a_device_are_those_of_its_queue_pairs_gone_ones_too() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let before = context.counters().traffic;
    {
        let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
        for _ in 0..10 {
            let receiving = b.recv(pd.allocate(8)?)?;
            a.send_inline(b"counted")?.wait()?;
            receiving.wait()?;
        }
        let (sent, received) = (a.stats(), b.stats());
        assert_eq!((sent.traffic.sends, sent.traffic.receives), (10, 0));
        assert_eq!((received.traffic.sends, received.traffic.receives), (0, 10));
        assert_eq!(sent.traffic.sent_packets, received.traffic.received_packets);
        assert_eq!(sent.incidents.retries, 0);
    }
    // Other tests of this process count on the same device.
    let after = context.counters().traffic;
    assert!(after.sends >= before.sends + 10 && after.sent_octets > before.sent_octets);
    let datagrams = pd.queue_pair::<Datagram>(&cq).prepare()?.activate()?;
    assert_eq!((datagrams.stats().traffic.sends, datagrams.stats().congestion), (0, None));
    Ok(())
}

#[test]
fn stats_between_processes() {
    on_both_links(
        "facts::stats_between_processes",
        |server| {
            let pd = server.pd();
            // The first message finds no receive: the client hears that the receiver is not ready.
            while server.stats().incidents.rnr_naks_sent == 0 {
                std::thread::yield_now();
            }
            for _ in 0..20 {
                server.recv(pd.allocate(8192)?)?.wait()?;
            }
            let stats = server.stats();
            assert_eq!(stats.traffic.receives, 20);
            assert!(stats.incidents.no_receives >= 1 && stats.traffic.received_octets > 20 * 8192);
            server.send_inline(b"done")?.wait()?;
            server.closed().wait()?;
            Ok(())
        },
        |client| {
            let pd = client.pd();
            let done = client.recv(pd.allocate(4)?)?;
            for _ in 0..20 {
                client.send(pd.allocate(8192)?)?.wait()?;
            }
            done.wait()?;
            let stats = client.stats();
            assert_eq!((stats.traffic.sends, stats.traffic.receives), (20, 1));
            assert!(stats.incidents.rnr_naks_received >= 1 && stats.traffic.sent_octets > 20 * 8192);
            assert_eq!(stats.congestion.is_some(), client.link() == "UDP");
            if let Some(congestion) = stats.congestion {
                assert!(congestion.window > 8192 && congestion.round_trip.is_some(), "{congestion:?}");
            }
            Ok(())
        },
    );
}
