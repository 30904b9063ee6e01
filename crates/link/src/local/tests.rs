use crate::local::Queue;
use std::sync::{Arc, Mutex};
use wire::{Headers, Opcode, Psn, Qpn};

fn filled(byte: u8) -> impl FnOnce(&mut [u8]) -> Result<(), ()> {
    move |out| {
        out.fill(byte);
        Ok(())
    }
}

fn headers(psn: u32) -> Headers {
    Headers::new(Opcode::RcSendOnly, Qpn::new(1), Psn::new(psn))
}

#[test]
fn answers_to_answers_are_delivered_without_recursion() {
    let queue = Queue::default();
    queue.push(0u32, headers(0), 1, 4, filled(7)).unwrap();
    let mut delivered = Vec::new();
    queue.drain(|address, headers, count, payload| {
        assert_eq!((count, payload), (1, &[7, 7, 7, 7][..]));
        delivered.push((address, headers.bth.psn.value()));
        if address < 1000 {
            let next = address + 1;
            queue.push(next, self::headers(next), 1, 4, filled(7)).unwrap();
            // This thread delivers already.
            assert!(!queue.drain(|_, _, _, _| unreachable!()));
        }
    });
    assert_eq!(delivered, (0..=1000).map(|n| (n, n)).collect::<Vec<_>>());
}

#[test]
fn a_train_whose_payload_cannot_be_had_is_not_sent() {
    let queue = Queue::default();
    assert_eq!(queue.push(1u32, headers(0), 1, 4, |_| Err("gone")), Err("gone"));
    assert!(!queue.drain(|_, _, _, _| unreachable!()));
}

#[test]
fn no_train_is_left_lying_and_each_sender_keeps_its_order() {
    const THREADS: u32 = 4;
    const TRAINS: u32 = 20_000;
    let queue = Arc::new(Queue::default());
    let seen: Arc<Mutex<Vec<Vec<u32>>>> = Arc::new(Mutex::new(vec![Vec::new(); THREADS as usize]));
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (queue, seen) = (Arc::clone(&queue), Arc::clone(&seen));
            std::thread::spawn(move || {
                for n in 0..TRAINS {
                    queue.push(thread, headers(n), 1, 8, filled(0)).unwrap();
                    queue.drain(|from, headers, _, _| {
                        seen.lock().unwrap()[from as usize].push(headers.bth.psn.value());
                    });
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(queue.is_empty(), "the last to push delivered, or left it to one who looked again");
    for numbers in seen.lock().unwrap().iter() {
        assert_eq!(*numbers, (0..TRAINS).collect::<Vec<_>>());
    }
}
