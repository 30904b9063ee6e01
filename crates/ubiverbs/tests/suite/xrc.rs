//! Extended reliable connections: many receive queues behind one connection.

use crate::peers::on_both_links;
use std::time::Duration;
use ubiverbs::{
    Access, Class, CompletionQueue, Context, Endpoint, Error, ProtectionDomain, Reliable, RemoteSlice, Srqn, XrcDomain,
    XrcSender, XrcTarget,
};

fn open() -> (Context, ProtectionDomain, CompletionQueue) {
    let context = ubiverbs::device("ubi_lo").unwrap().open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    (context, pd, cq)
}

fn connected(domain: &XrcDomain, pd: &ProtectionDomain, cq: &CompletionQueue) -> (XrcSender, XrcTarget) {
    let (sender, target) = (pd.xrc_sender(cq).unwrap(), domain.target().unwrap());
    let (at_sender, at_target) = (sender.endpoint(), target.endpoint());
    (sender.connect(&at_target).unwrap(), target.connect(&at_sender).unwrap())
}

#[test]
fn each_message_goes_to_the_queue_it_names() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let domain = context.xrc_domain()?;
    let other_cq = context.completion_queue(1).create()?;
    let queues = [domain.receive_queue(&pd, &cq, 8)?, domain.receive_queue(&pd, &other_cq, 8)?];
    let [(first, at_first), (second, at_second)] = [(); 2].map(|()| connected(&domain, &pd, &cq));
    for round in 0..10u8 {
        let receiving = [0, 1].map(|queue| [(); 2].map(|()| queues[queue].recv(pd.allocate(8).unwrap()).unwrap()));
        for (sender, name) in [(&first, 1), (&second, 2)] {
            for queue in &queues {
                sender.to(queue.number()).send_inline(&[name, round])?.wait()?;
            }
        }
        for receives in receiving {
            for (receive, from) in receives.into_iter().zip([&at_first, &at_second]) {
                let message = receive.wait()?;
                let name = if from.qpn() == at_first.qpn() { 1 } else { 2 };
                assert_eq!((message.payload(), message.qpn()), (&[name, round][..], from.qpn()));
            }
        }
    }
    assert_eq!((queues[0].outstanding(), at_first.stats().traffic.receives), (0, 20));
    // In polling style, and in pieces.
    queues[1].recv_into(vec![pd.allocate(2)?, pd.allocate(8)?])?.polled(5);
    first.to(queues[1].number()).send_imm(pd.register(b"polled".to_vec())?, 6)?.wait()?;
    let told = other_cq.wait_for(Duration::from_secs(60))?.expect("a completion");
    assert_eq!((told.wr_id(), told.immediate(), told.bytes()), (5, Some(6), 6));
    Ok(())
}

#[test]
fn memory_is_reached_in_the_domain_of_the_queue() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let domain = context.xrc_domain()?;
    let elsewhere = context.alloc_pd()?;
    let (queue, other) = (domain.receive_queue(&pd, &cq, 4)?, domain.receive_queue(&elsewhere, &cq, 4)?);
    let region = pd.share(64, Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)?;
    let there = region.remote_slice();
    let (sender, _target) = connected(&domain, &pd, &cq);
    let to = sender.to(queue.number());
    to.write(pd.register(8u64.to_ne_bytes().to_vec())?, there)?.wait()?;
    to.write_inline(&[0; 8], there.slice(8..16)?)?.wait()?;
    assert_eq!(to.fetch_add(there, 2)?.wait()?, 8);
    assert_eq!(to.compare_swap(there, 10, 11)?.wait()?, 10);
    assert_eq!(*to.read(pd.allocate(8)?, there.slice(0..8)?)?.wait()?, 11u64.to_ne_bytes());
    let error = sender.to(other.number()).read(pd.allocate(8)?, there.slice(0..8)?)?.wait().unwrap_err().error;
    assert!(matches!(&error, Error::Completion(error) if error.class() == Class::Remote), "{error}");
    Ok(())
}

#[test]
fn what_does_not_belong_together_is_refused() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let domain = context.xrc_domain()?;
    // A queue of another domain, and one that there is not.
    let stranger = context.xrc_domain()?.receive_queue(&pd, &cq, 4)?;
    for number in [stranger.number(), Srqn::new(0xff_fff0)] {
        let (sender, _target) = connected(&domain, &pd, &cq);
        assert!(sender.to(number).send_inline(b"lost")?.wait().is_err());
    }
    // Ends that are none of the other.
    let reliable = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let refused = domain.target()?.connect(&reliable.endpoint()).unwrap_err();
    assert!(matches!(refused, Error::OtherTransport { .. }));
    let at_sender = pd.xrc_sender(&cq)?.endpoint();
    assert!(matches!(reliable.connect(&at_sender), Err(Error::OtherTransport { .. })));
    assert!(pd.xrc_sender(&cq)?.connect(&at_sender).is_err());
    // Endpoints survive as bytes and text.
    assert_eq!(Endpoint::from_bytes(&at_sender.to_bytes())?, at_sender);
    assert_eq!(at_sender.to_string().parse::<Endpoint>()?, at_sender);
    // Another opening of the same device is another device.
    let again = ubiverbs::device("ubi_lo")?.open()?;
    assert!(matches!(domain.receive_queue(&again.alloc_pd()?, &cq, 4), Err(Error::OtherDevice { .. })));
    let other_cq = again.completion_queue(4).create()?;
    assert!(matches!(domain.receive_queue(&pd, &other_cq, 4), Err(Error::OtherDevice { .. })));
    Ok(())
}

#[test]
fn receives_last_as_long_as_a_target_may_fill_them() -> Result<(), Error> {
    let (context, pd, cq) = open();
    let domain = context.xrc_domain()?;
    let queue = domain.receive_queue(&pd, &cq, 4)?;
    let (sender, target) = connected(&domain, &pd, &cq);
    let number = queue.number();
    let mut receiving = queue.recv(pd.allocate(8)?)?;
    let left = queue.recv(pd.allocate(8)?)?;
    drop((queue, domain));
    sender.to(number).send_inline(b"still")?.wait()?;
    assert_eq!(receiving.wait_for(Duration::from_secs(60)).expect("a message")?.payload(), b"still");
    drop(target);
    let error = left.wait().unwrap_err();
    assert!(matches!(error.error, Error::Destroyed) && error.buffer.len() == 8);
    Ok(())
}

#[test]
fn xrc_between_processes() {
    on_both_links(
        "xrc::xrc_between_processes",
        |server| {
            let (pd, cq) = (server.pd(), server.completion_queue());
            let domain = pd.context().xrc_domain()?;
            let queues = [domain.receive_queue(&pd, cq, 8)?, domain.receive_queue(&pd, cq, 8)?];
            let target = domain.target()?;
            let told = server.recv(pd.allocate(Endpoint::ENCODED)?)?;
            let region = pd.share(64, Access::REMOTE_ATOMIC)?;
            let receiving = queues.each_ref().map(|queue| queue.recv(pd.allocate(10_000).unwrap()).unwrap());
            let mut facts = target.endpoint().to_bytes().to_vec();
            facts.extend(region.remote_slice().to_bytes());
            queues.iter().for_each(|queue| facts.extend(queue.number().value().to_be_bytes()));
            server.send(pd.register(facts)?)?.wait()?;
            let target = target.connect(&Endpoint::from_bytes(told.wait()?.payload())?)?;
            server.send_inline(b"go")?.wait()?;
            for (receive, name) in receiving.into_iter().zip([1, 2]) {
                let message = receive.wait()?;
                assert_eq!((message.payload(), message.qpn()), (&[name; 10_000][..], target.qpn()));
            }
            server.closed().wait()?;
            assert_eq!((region.load(0)?, target.link()), (7, server.link()));
            Ok(())
        },
        |client| {
            let (pd, cq) = (client.pd(), client.completion_queue());
            let sender = pd.xrc_sender(cq)?;
            let (told, go) = (client.recv(pd.allocate(256)?)?, client.recv(pd.allocate(2)?)?);
            client.send_inline(&sender.endpoint().to_bytes())?.wait()?;
            let told = told.wait()?;
            let (target, rest) = told.payload().split_at(Endpoint::ENCODED);
            let (region, numbers) = rest.split_at(RemoteSlice::ENCODED);
            let there = RemoteSlice::from_bytes(region)?;
            let numbers: Vec<Srqn> = numbers
                .chunks_exact(4)
                .map(|number| Srqn::new(u32::from_be_bytes(number.try_into().unwrap())))
                .collect();
            let sender = sender.connect(&Endpoint::from_bytes(target)?)?;
            go.wait()?;
            for (number, name) in numbers.iter().zip([1, 2]) {
                sender.to(*number).send(pd.register(vec![name; 10_000])?)?.wait()?;
            }
            assert_eq!(sender.to(numbers[0]).fetch_add(there, 7)?.wait()?, 0);
            Ok(())
        },
    );
}
