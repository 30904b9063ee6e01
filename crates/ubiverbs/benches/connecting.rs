//! Connections that are made and ended on loopback, beside those of TCP: one after the other, and a hundred at a time.
//! A queue pair, a completion queue and a protection domain for each side are part of ours. The machine is shared, so
//! the ratios are what to read.

use divan::Bencher;
use divan::counter::ItemsCount;
use std::net::{TcpListener, TcpStream};
use ubiverbs::cm::{self, Listener};

const AT_A_TIME: usize = 100;

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 20, sample_size = 20)]
fn ours(bencher: Bencher<'_, '_>) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        let client = cm::connect(listener.local_addr());
        let server = listener.accept().wait().unwrap();
        (client.wait().unwrap(), server)
    });
}

#[divan::bench(sample_count = 20, sample_size = 20)]
fn tcp(bencher: Bencher<'_, '_>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        let client = TcpStream::connect(address).unwrap();
        (client, listener.accept().unwrap())
    });
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn ours_many(bencher: Bencher<'_, '_>) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    bencher.counter(ItemsCount::new(AT_A_TIME)).bench_local(|| {
        let clients: Vec<_> = (0..AT_A_TIME).map(|_| cm::connect(listener.local_addr())).collect();
        let servers: Vec<_> = (0..AT_A_TIME).map(|_| listener.accept().wait().unwrap()).collect();
        let clients: Vec<_> = clients.into_iter().map(|client| client.wait().unwrap()).collect();
        (clients, servers)
    });
}

#[divan::bench(sample_count = 10, sample_size = 1)]
fn tcp_many(bencher: Bencher<'_, '_>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    bencher.counter(ItemsCount::new(AT_A_TIME)).bench_local(|| {
        let clients: Vec<_> = (0..AT_A_TIME).map(|_| TcpStream::connect(address).unwrap()).collect();
        let servers: Vec<_> = (0..AT_A_TIME).map(|_| listener.accept().unwrap()).collect();
        (clients, servers)
    });
}
