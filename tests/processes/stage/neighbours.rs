//! A process that sends numbered datagrams, one that tells which came, and neighbours that open the NIC and nothing else.

use hca::Nic;
use std::io::BufRead;
use std::time::{Duration, Instant};
use ubiverbs::{Context, Datagram, Endpoint, GRH_LENGTH};

/// Most numbered datagrams that are sent.
pub const NUMBERED: u32 = 10_000;
/// The number of one that comes after all others.
const LAST: u32 = u32::MAX;
/// Between datagrams: the receiver keeps up.
const INTERVAL: Duration = Duration::from_micros(50);
/// Between those that come after all others.
const LAST_INTERVAL: Duration = Duration::from_millis(100);

fn context() -> Context {
    ubiverbs::device("ubi_lo").unwrap().open().unwrap()
}

/// A process that receives numbered datagrams, and says how many of them the kernel dropped at its full socket, and which
/// did not come.
pub fn receiver(_: &str) {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(2 * NUMBERED).create().unwrap();
    let builder = pd.queue_pair::<Datagram>(&cq).max_sends(1).max_receives(2 * NUMBERED);
    let qp = builder.prepare().unwrap().activate().unwrap();
    let length = GRH_LENGTH + size_of::<u32>();
    for receive in pd.allocate(2 * NUMBERED as usize * length).unwrap().chunks(length) {
        qp.recv(receive).unwrap().polled(1);
    }
    println!("at {}", qp.endpoint());
    let (mut came, mut last) = (vec![false; NUMBERED as usize], false);
    let deadline = Instant::now() + Duration::from_secs(120);
    while !last && Instant::now() < deadline {
        for completion in cq.poll().unwrap() {
            let received = completion.into_received().unwrap();
            let number = u32::from_ne_bytes(received.payload().try_into().unwrap());
            last |= number == LAST;
            if let Some(came) = came.get_mut(number as usize) {
                *came = true;
            }
        }
    }
    let missing: String =
        (0..).zip(&came).filter(|(_, came)| !**came).map(|(number, _): (u32, _)| format!(" {number}")).collect();
    let full = Nic::of_process().unwrap().kernel_drops().unwrap().sockets;
    println!("missing {full}{missing}");
}

/// A process that is told how many to send to `endpoint`, and then sends the last one again and again.
pub fn sender(endpoint: &str) {
    let context = context();
    let pd = context.alloc_pd().unwrap();
    let cq = context.completion_queue(64).create().unwrap();
    let qp = pd.queue_pair::<Datagram>(&cq).prepare().unwrap().activate().unwrap();
    let to = pd.address(&endpoint.parse::<Endpoint>().unwrap()).unwrap();
    let send = |number: u32| qp.send_inline_to(&number.to_ne_bytes(), &to).unwrap().wait().unwrap();
    println!("open");
    let count = std::io::stdin().lock().lines().next().unwrap().unwrap().parse().unwrap();
    let mut next = Instant::now();
    for number in 0..count {
        next += INTERVAL;
        while Instant::now() < next {
            std::thread::yield_now();
        }
        send(number);
    }
    println!("sent");
    loop {
        send(LAST);
        std::thread::sleep(LAST_INTERVAL);
    }
}

/// A process that opens the NIC, says so, and ends, perhaps not before it is told to.
pub fn neighbour(stays: &str) {
    let _context = context();
    println!("open");
    if stays == "stays" {
        std::io::stdin().lock().lines().next();
    }
}
