//! # 5. Sleeping: a completion channel in an epoll loop
//!
//! Polling a completion queue is the fastest way to learn of a completion, and keeps a processor busy. A program that
//! has other things to wait for sleeps instead: a **completion channel** is a file descriptor that becomes readable
//! when a completion queue has something. It goes into `poll` or `epoll` along with sockets and timers.
//!
//! Three rules:
//! - a queue tells the channel only if it was **armed**, and then once;
//! - what was in the queue before it was armed raises no event, so: **arm, then poll, then sleep**;
//! - an event says *which* queue, not how much: poll until it is empty.
//!
//! Here the loop waits for a pipe (its "stop" button) and for completions of three clients.
//!
//! ```text
//! cargo run --example completion_channel_epoll
//! ```

use rustix::event::epoll;
use std::error::Error as StdError;
use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;
use ubiverbs::{Endpoint, Error, Reliable};

const CLIENTS: u64 = 3;
const MESSAGES: u64 = 5;
const STOP: u64 = 0;
const COMPLETIONS: u64 = 1;

/// A client in a thread of its own: sends now and then.
fn client(number: u64, server: Endpoint, tell: impl FnOnce(Endpoint)) -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
    tell(prepared.endpoint());
    let qp = prepared.connect(&server)?;
    for message in 0..MESSAGES {
        qp.send_inline(format!("message {message} of client {number}").as_bytes())?.wait()?;
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn StdError>> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let channel = context.completion_channel()?;
    let cq = context.completion_queue(64).channel(&channel).create()?;

    // A queue pair for each client, and receives on it. In polling style: the completion queue will hand the buffers
    // back.
    let mut queue_pairs = Vec::new();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let prepared = pd.queue_pair::<Reliable>(&cq).prepare()?;
        for buffer in pd.allocate(4 * 64)?.chunks(64) {
            prepared.recv(buffer)?.polled(number);
        }
        let endpoint = prepared.endpoint();
        let (tell, told) = std::sync::mpsc::channel();
        clients
            .push(thread::spawn(move || client(number, endpoint, |mine| tell.send(mine).expect("the server listens"))));
        queue_pairs.push(prepared.connect(&told.recv()?)?);
    }

    let (mut stop, mut button) = io::pipe()?;
    let stopper = thread::spawn(move || {
        let results: Vec<_> = clients.into_iter().map(|client| client.join().expect("no client panics")).collect();
        button.write_all(b"x").map(|()| results)
    });

    let loop_fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&loop_fd, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
    epoll::add(&loop_fd, &channel, epoll::EventData::new_u64(COMPLETIONS), epoll::EventFlags::IN)?;

    let mut received = 0;
    let (mut wakeups, mut stopping) = (0, false);
    while !(stopping && received == CLIENTS * MESSAGES) {
        // Arm, then poll: whatever comes after this poll raises an event.
        cq.arm();
        loop {
            let mut any = false;
            for completion in cq.poll()? {
                any = true;
                let number = completion.wr_id();
                let message = completion.into_received()?;
                println!("{}", String::from_utf8_lossy(message.payload()));
                received += 1;
                // The buffer is free again: post it for the next message of the same client.
                queue_pairs[number as usize].recv(message.into_buffer())?.polled(number);
            }
            if !any {
                break;
            }
        }
        if stopping && received == CLIENTS * MESSAGES {
            break;
        }
        let mut events = Vec::with_capacity(4);
        epoll::wait(&loop_fd, rustix::buffer::spare_capacity(&mut events), None)?;
        wakeups += 1;
        for event in &events {
            match event.data.u64() {
                STOP => {
                    stop.read_exact(&mut [0])?;
                    stopping = true;
                }
                // Take the event off the channel; the poll above does the rest.
                _ => while channel.try_next().is_some() {},
            }
        }
    }
    for result in stopper.join().expect("the stopper does not panic")? {
        result?;
    }
    println!("{received} messages in {wakeups} wake-ups");
    Ok(())
}
