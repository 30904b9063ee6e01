//! What a program hears of beside completions, on a descriptor it can wait for: each thing that happens to a queue pair
//! or to the queues it shares is told once, and only to the opened device it belongs to.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::time::{Duration, Instant};
use ubiverbs::{Access, AsyncEvent, Context, Error, Modify, Mtu, QueuePairEvent, Reliable, State, connected_pair};

/// Waits on the descriptor, as a program's event loop would, until `wanted` came; answers what came before it.
fn hear(context: &Context, wanted: AsyncEvent) -> Vec<AsyncEvent> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut others = Vec::new();
    while Instant::now() < deadline {
        let event_fd = context.event_fd();
        let mut fds = [PollFd::new(&event_fd, PollFlags::IN)];
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        if poll(&mut fds, Some(&limit)).unwrap_or(0) == 0 {
            continue;
        }
        match context.poll_event() {
            Some(event) if event == wanted => return others,
            Some(event) => others.push(event),
            None => panic!("readable, and nothing there"),
        }
    }
    panic!("{wanted:?} never came, but {others:?}");
}

fn silent(context: &Context) -> bool {
    let event_fd = context.event_fd();
    let mut fds = [PollFd::new(&event_fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(1) == 0 && context.poll_event().is_none()
}

#[test]
fn what_happens_to_a_queue_pair_is_told_on_a_descriptor() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let bystander = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(64).create()?;

    // A packet for a queue pair that is ready to receive and not yet to send.
    let mut here = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let there = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let (at_here, at_there) = (here.endpoint(), there.endpoint());
    let there = there.connect(&at_here)?;
    let receiving = here.recv(pd.allocate(5)?)?;
    here.modify(&Modify {
        state: Some(State::ReadyToReceive),
        av: Some(there.attributes().av),
        path_mtu: Some(Mtu::B1024),
        dest_qpn: Some(at_there.qpn()),
        rq_psn: Some(at_there.psn()),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..Modify::default()
    })?;
    there.send_inline(b"hello")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"hello");
    assert_eq!(hear(&context, AsyncEvent::QueuePair(here.qpn(), QueuePairEvent::CommunicationEstablished)), []);

    // A peer that reaches for memory it may not touch.
    let [a, b] = connected_pair::<Reliable>(&pd, &cq)?;
    let closed = pd.share(8, Access::REMOTE_READ)?;
    assert!(a.write_inline(b"no", closed.remote_slice().slice(0..2)?)?.wait().is_err());
    assert_eq!(hear(&context, AsyncEvent::QueuePair(b.qpn(), QueuePairEvent::QpAccessError)), []);

    // The end of a queue pair whose receives are shared.
    let receives = pd.shared_receive_queue(4)?;
    let sharing = pd.queue_pair::<Reliable>(&cq).shared_receives(&receives).prepare()?;
    let peer = pd.queue_pair::<Reliable>(&cq).prepare()?;
    let (at_sharing, at_peer) = (sharing.endpoint(), peer.endpoint());
    let (sharing, _peer) = (sharing.connect(&at_peer)?, peer.connect(&at_sharing)?);
    sharing.modify(&Modify { state: Some(State::Error), ..Modify::default() })?;
    assert_eq!(hear(&context, AsyncEvent::QueuePair(sharing.qpn(), QueuePairEvent::LastWqeReached)), []);

    // The send queue, drained.
    let [c, _d] = connected_pair::<Reliable>(&pd, &cq)?;
    c.modify(&Modify { state: Some(State::SendQueueDrained), sqd_async_notify: Some(true), ..Modify::default() })?;
    assert_eq!(hear(&context, AsyncEvent::QueuePair(c.qpn(), QueuePairEvent::SendQueueDrained)), []);

    assert!(silent(&context), "each once");
    assert!(silent(&bystander), "nothing of this is another's business");
    Ok(())
}
