//! The queue inside the process under a model checker: every interleaving of a few threads, with the checker's locks
//! and atomics in place of the real ones. The source is the crate's own.

#[path = "../../src/local.rs"]
#[allow(dead_code)]
mod local;

use local::Queue;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use wire::{Headers, Opcode, Psn, Qpn};

fn push(queue: &Queue<u32>, address: u32) {
    let headers = Headers::new(Opcode::RcSendOnly, Qpn::new(1), Psn::new(address));
    let fill = |out: &mut [u8]| {
        out.fill(1);
        Ok::<(), ()>(())
    };
    queue.push(address, headers, 1, 1, fill).unwrap();
}

/// Two threads push and drain; whichever drains, when both have returned nothing is left.
#[test]
fn nothing_stays_behind() {
    loom::model(|| {
        let (queue, delivered) = (Arc::new(Queue::default()), Arc::new(AtomicUsize::new(0)));
        let work = |queue: &Queue<u32>, delivered: &AtomicUsize, address| {
            push(queue, address);
            queue.drain(|_, _, _, _| {
                delivered.fetch_add(1, Ordering::Relaxed);
            });
        };
        let other = {
            let (queue, delivered) = (Arc::clone(&queue), Arc::clone(&delivered));
            loom::thread::spawn(move || work(&queue, &delivered, 1))
        };
        work(&queue, &delivered, 2);
        other.join().unwrap();
        assert!(queue.is_empty());
        assert_eq!(delivered.load(Ordering::Relaxed), 2);
    });
}

/// Two threads push and drain, and delivering pushes an answer.
#[test]
fn answers_do_not_stay_behind_either() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (queue, delivered) = (Arc::new(Queue::default()), Arc::new(AtomicUsize::new(0)));
        let work = |queue: &Queue<u32>, delivered: &AtomicUsize, address| {
            push(queue, address);
            queue.drain(|address, _, _, _| {
                delivered.fetch_add(1, Ordering::Relaxed);
                if address < 10 {
                    push(queue, address + 10);
                }
            });
        };
        let other = {
            let (queue, delivered) = (Arc::clone(&queue), Arc::clone(&delivered));
            loom::thread::spawn(move || work(&queue, &delivered, 1))
        };
        work(&queue, &delivered, 2);
        other.join().unwrap();
        assert!(queue.is_empty());
        assert_eq!(delivered.load(Ordering::Relaxed), 4);
    });
}
