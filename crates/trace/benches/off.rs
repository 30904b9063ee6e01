//! What an event site costs: the same piece of data-path work (writing the headers of a packet) without an event site,
//! with one that is off, and with one that is on. The first two must not differ by more than noise; the bare pair shows
//! what is left when there is no work to hide behind.

use divan::{AllocProfiler, Bencher, black_box};
use trace::{Counters, JsonLines, Kind, Ring, Tracer};
use wire::{Headers, Key, Opcode, Psn, Qpn, Reth};

/// Shows that no event site allocates, whatever the sink: the columns of allocations stay away.
#[global_allocator]
static ALLOCATIONS: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

/// Packets per sample: enough that reading the clock does not count.
const PACKETS: u32 = 1000;

fn headers(psn: u32) -> Headers {
    let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(0x11), Psn::new(psn));
    headers.reth = Some(Reth { va: 0x1000, rkey: Key::new(7), len: 64 });
    headers
}

fn send(headers: &Headers, out: &mut [u8]) -> usize {
    headers.encode(black_box(out)).unwrap_or(0)
}

/// Not inlined, so that the compiler cannot see from the caller that nobody listens.
#[inline(never)]
fn send_traced(headers: &Headers, out: &mut [u8], tracer: &mut Tracer<'_>) -> usize {
    let length = send(headers, out);
    tracer.emit(length as u64, Some(headers.bth.dest_qpn), || Kind::PacketSent {
        headers: *headers,
        payload_len: 64,
        packets: 1,
        wr_id: Some(1),
        retransmit: false,
    });
    length
}

#[inline(never)]
fn send_plain(headers: &Headers, out: &mut [u8]) -> usize {
    send(headers, out)
}

fn packets(bencher: Bencher<'_, '_>, mut one: impl FnMut(&Headers, &mut [u8]) -> usize) {
    let mut out = [0; Headers::MAX_LEN];
    bencher.counter(divan::counter::ItemsCount::new(PACKETS)).bench_local(|| {
        for psn in 0..PACKETS {
            black_box(one(black_box(&headers(psn)), &mut out));
        }
    });
}

/// The loop of the next one with nothing in it.
#[divan::bench]
fn bare_loop(bencher: Bencher<'_, '_>) {
    let mut tracer = Tracer::off();
    let headers = headers(1);
    bencher.counter(divan::counter::ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            black_box((&mut tracer, &headers));
        }
    });
}

/// One event site that is off and no work around it: the difference is its whole price.
#[divan::bench]
fn bare_site_off(bencher: Bencher<'_, '_>) {
    let mut tracer = Tracer::off();
    let headers = headers(1);
    bencher.counter(divan::counter::ItemsCount::new(PACKETS)).bench_local(|| {
        for _ in 0..PACKETS {
            let (tracer, headers) = black_box((&mut tracer, &headers));
            tracer.emit(1, None, || Kind::PacketReceived { headers: *headers, payload_len: 64, packets: 1 });
        }
    });
}

#[divan::bench]
fn no_event_site(bencher: Bencher<'_, '_>) {
    packets(bencher, send_plain);
}

#[divan::bench]
fn event_site_off(bencher: Bencher<'_, '_>) {
    let mut tracer = black_box(Tracer::off());
    packets(bencher, |headers, out| send_traced(headers, out, &mut tracer));
}

#[divan::bench]
fn event_site_to_ring(bencher: Bencher<'_, '_>) {
    let mut ring = Ring::new(4096);
    let mut tracer = black_box(Tracer::to(&mut ring));
    packets(bencher, |headers, out| send_traced(headers, out, &mut tracer));
}

#[divan::bench]
fn event_site_to_counters(bencher: Bencher<'_, '_>) {
    let mut counters = Counters::new();
    let mut tracer = black_box(Tracer::to(&mut counters));
    packets(bencher, |headers, out| send_traced(headers, out, &mut tracer));
}

#[divan::bench]
fn event_site_to_json_lines(bencher: Bencher<'_, '_>) {
    let mut lines = JsonLines::new(std::io::sink());
    let mut tracer = black_box(Tracer::to(&mut lines));
    packets(bencher, |headers, out| send_traced(headers, out, &mut tracer));
}
