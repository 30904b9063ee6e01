//! Nanoseconds per message through a requester and a responder, headers and copies included, without encoding or a
//! wire.

#[path = "../tests/direct/mod.rs"]
mod direct;

use direct::{Pair, write};
use divan::Bencher;
use divan::counter::BytesCount;
use ubiverbs_transport::{Operation, Remote, SendFlags};
use wire::{Key, Mtu};

fn main() {
    divan::main();
}

fn stream(bencher: Bencher<'_, '_>, operation: Operation, length: u32, packets: bool) {
    let mut pair = Pair::new(Mtu::B4096, 65536);
    pair.packets = packets;
    bencher.counter(BytesCount::new(length)).bench_local(|| {
        pair.post(1, operation, length, SendFlags::SIGNALED);
        let mut completed = 0;
        pair.run(|_| completed += 1);
        assert_eq!(completed, 1);
    });
}

/// WRITE, acknowledgement and completion, one at a time.
#[divan::bench(args = [8, 64, 1024, 4096, 65536])]
fn write_one(bencher: Bencher<'_, '_>, length: u32) {
    stream(bencher, write(), length, true);
}

/// WRITE, acknowledgement and completion, one at a time, with trains carried whole.
#[divan::bench(args = [4096, 65536])]
fn write_one_whole(bencher: Bencher<'_, '_>, length: u32) {
    stream(bencher, write(), length, false);
}

/// READ, response and completion.
#[divan::bench(args = [8, 4096, 65536])]
fn read_one(bencher: Bencher<'_, '_>, length: u32) {
    stream(bencher, Operation::Read { remote: Remote { address: 0, key: Key::new(1) } }, length, true);
}

/// Fetch and add.
#[divan::bench]
fn fetch_add(bencher: Bencher<'_, '_>) {
    let operation = Operation::FetchAdd { remote: Remote { address: 0, key: Key::new(1) }, add: 1 };
    stream(bencher, operation, 8, true);
}

/// 32 WRITEs posted at once, the last signaled: the cost of each.
#[divan::bench(args = [8, 4096])]
fn write_batch_of_32(bencher: Bencher<'_, '_>, length: u32) {
    let mut pair = Pair::new(Mtu::B4096, 65536);
    pair.packets = true;
    bencher.counter(BytesCount::new(32 * length)).bench_local(|| {
        for n in 0..32 {
            let flags = if n == 31 { SendFlags::SIGNALED } else { SendFlags::empty() };
            pair.post(n, write(), length, flags);
        }
        let mut completed = 0;
        pair.run(|_| completed += 1);
        assert_eq!(completed, 1);
    });
}
