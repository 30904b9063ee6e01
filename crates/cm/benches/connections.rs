//! What a connection costs the two managers, from the request to the agreement that it is over, beside so many others
//! that stand: five messages, each handled once, and the program's part. It should hardly depend on how many others
//! there are.

use divan::Bencher;
use ubiverbs_cm::{Accept, Config, Connect, Event, Listen, Manager, Route, Time};
use wire::cm::{CommId, PortSpace, ServiceId};
use wire::{Gid, Psn, Qpn};

fn main() {
    divan::main();
}

struct Pair {
    managers: [Manager; 2],
    now: Time,
    qpns: u32,
}

impl Pair {
    fn new(others: usize) -> Pair {
        // Ended connections are forgotten at once, or a long benchmark would be one of memory.
        let manager = |seed| Manager::new(Config { seed, timewait: 16, ..Config::default() });
        let mut pair = Pair { managers: [manager(1), manager(2)], now: Time::from_nanos(1), qpns: 0 };
        pair.managers[1].listen(Listen::new(service())).unwrap();
        for _ in 0..others {
            pair.connect();
        }
        pair
    }

    fn qpn(&mut self) -> Qpn {
        self.qpns = (self.qpns + 1) % 0xff_fffe;
        Qpn::new(self.qpns + 1)
    }

    fn connect(&mut self) -> CommId {
        let gid = |last| Gid::from_ipv4([10, 0, 0, last].into());
        let route = Route { source: gid(1), destination: gid(2) };
        let connect = Connect::new(route, service(), self.qpn(), Psn::new(1));
        let id = self.managers[0].connect(self.now, connect).unwrap();
        self.talk();
        id
    }

    fn talk(&mut self) {
        loop {
            let mut quiet = true;
            for index in [0, 1] {
                while let Some(transmit) = self.managers[index].poll_transmit() {
                    quiet = false;
                    self.managers[1 - index].handle(self.now, transmit.route, &transmit.datagram);
                }
                while let Some(event) = self.managers[index].poll_event() {
                    quiet = false;
                    let (now, qpn) = (self.now, self.qpn());
                    let manager = &mut self.managers[index];
                    match event {
                        Event::Request { id, .. } => manager.accept(now, id, Accept::new(qpn, Psn::new(2))).unwrap(),
                        Event::Reply { id, .. } => manager.confirm(now, id, b"").unwrap(),
                        Event::DisconnectRequested { id, .. } => manager.answer_disconnect(now, id, b"").unwrap(),
                        _ => {}
                    }
                }
            }
            if quiet {
                return;
            }
        }
    }
}

fn service() -> ServiceId {
    ServiceId::ip(PortSpace::Tcp, 1)
}

#[divan::bench(args = [0, 100, 10_000])]
fn connect_and_disconnect(bencher: Bencher<'_, '_>, others: usize) {
    let mut pair = Pair::new(others);
    bencher.bench_local(|| {
        let id = pair.connect();
        pair.managers[0].disconnect(pair.now, id, b"").unwrap();
        pair.talk();
    });
    for manager in &pair.managers {
        assert_eq!(manager.live(), others);
    }
}

#[divan::bench(args = [0, 100, 10_000])]
fn a_request_that_nobody_listens_for(bencher: Bencher<'_, '_>, others: usize) {
    let mut pair = Pair::new(others);
    let gid = |last| Gid::from_ipv4([10, 0, 0, last].into());
    let route = Route { source: gid(1), destination: gid(2) };
    let connect = Connect::new(route, ServiceId::new(5), Qpn::new(0xff_ffff), Psn::new(1));
    bencher.bench_local(|| {
        // A millisecond each, so that strangers are always answered.
        pair.now = pair.now + std::time::Duration::from_millis(1);
        pair.managers[0].connect(pair.now, connect).unwrap();
        pair.talk();
    });
    assert_eq!(pair.managers[0].live(), others);
}
