//! What simulating costs: a packet with 10 to 10,000 queue pairs, where the items are packets and flat is right; and a
//! WRITE of 1 MiB from posting to completion, with every packet encoded, checked and acknowledged.

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use sim::{ConnectOptions, HostConfig, LinkConfig, LinkKind, QpId, QpSpec, Region, Sim, Work};
use transport::{Access, Capabilities};
use wire::Mtu;

fn main() {
    divan::main();
}

const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Two hosts with `count` queue pairs each, and `length` bytes of memory.
fn hosts(count: usize, length: usize, link: LinkConfig) -> (Sim, Vec<QpId>, Region, Region) {
    let mut sim = Sim::with_seed(1);
    sim.set_default_link(link);
    let alice = sim.add_host(HostConfig::named("alice"));
    let bob = sim.add_host(HostConfig::named("bob"));
    let near = sim.register(alice, QpSpec::PD, length, ACCESS);
    let far = sim.register(bob, QpSpec::PD, length, ACCESS);
    let capabilities = Capabilities { max_send_wr: 16, max_recv_wr: 1, ..QpSpec::rc().capabilities };
    let spec = QpSpec { capabilities, ..QpSpec::rc() };
    let options = ConnectOptions { mtu: Mtu::B4096, ..ConnectOptions::default() };
    let connect = |_| {
        let (a, b) = (sim.create_qp(alice, spec), sim.create_qp(bob, spec));
        sim.connect(a, b, &options);
        a
    };
    let qps = (0..count).map(connect).collect();
    (sim, qps, near, far)
}

/// 10,000 WRITEs of 64 bytes and their acknowledgements, spread over so many queue pairs.
#[divan::bench(args = [10, 100, 1_000, 10_000], sample_count = 20)]
fn packet(bencher: Bencher<'_, '_>, count: usize) {
    flat(bencher, count, LinkConfig::PERFECT);
}

/// 10,000 WRITEs of 64 bytes over a ring that carries trains whole.
#[divan::bench(args = [10, 100, 1_000, 10_000], sample_count = 20)]
fn packet_whole(bencher: Bencher<'_, '_>, count: usize) {
    flat(bencher, count, LinkConfig::WHOLE);
}

fn flat(bencher: Bencher<'_, '_>, count: usize, link: LinkConfig) {
    let (mut sim, qps, near, far) = hosts(count, 4096, link);
    let work = Work::write(far.remote(0)).sge(near.sge(0, 64));
    bencher.counter(ItemsCount::new(20_000u32)).bench_local(|| {
        // Up to ten on each queue pair at once.
        let burst = (10 * count).min(10_000);
        for _ in 0..10_000 / burst {
            for n in 0..burst {
                sim.post(qps[n % count], &work).unwrap();
            }
            sim.run_until_idle();
        }
        for qp in &qps {
            while sim.next_completion(*qp).is_some() {}
        }
    });
}

/// A WRITE of 1 MiB.
#[divan::bench(args = [LinkKind::Datagram, LinkKind::Whole])]
fn write_1_mib(bencher: Bencher<'_, '_>, kind: LinkKind) {
    one_mib(bencher, kind, |near, far| Work::write(far.remote(0)).sge(near.whole()));
}

/// A READ of 1 MiB.
#[divan::bench(args = [LinkKind::Datagram, LinkKind::Whole])]
fn read_1_mib(bencher: Bencher<'_, '_>, kind: LinkKind) {
    one_mib(bencher, kind, |near, far| Work::read(far.remote(0)).sge(near.whole()));
}

fn one_mib(bencher: Bencher<'_, '_>, kind: LinkKind, work: fn(&Region, &Region) -> Work) {
    let (mut sim, qps, near, far) = hosts(1, 1 << 20, LinkConfig::of(kind));
    let work = work(&near, &far);
    bencher.counter(BytesCount::new(1u32 << 20)).bench_local(|| {
        sim.post(qps[0], &work).unwrap();
        sim.run_until_idle();
        assert!(sim.next_completion(qps[0]).is_some());
    });
}
