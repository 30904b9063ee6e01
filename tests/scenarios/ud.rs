//! Unreliable datagrams: any peer, one packet per message, a key that must match, and forty bytes that say where it came from.
#![allow(missing_docs)]

use scenery::{ALL_ACCESS, Log, Setting};
use sim::script::once;
use sim::{ConnectOptions, Family, Fate, HostConfig, HostId, QpId, QpSpec, Region, Rng, Sim, Work};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use trace::DropReason;
use transport::{
    Access, AddressVector, AttributeMask, Completion, CompletionKind, DatagramTarget, Kind, Modify, ModifyError,
    PostError, ProtectionDomain, Queue, Sge, State, Status,
};
use wire::{Gid, Key, Mtu, Opcode, Placement, Psn, Qkey, Qpn};

/// The header that precedes a datagram in its buffer.
const GRH: usize = 40;

/// Two hosts with a datagram queue pair each.
struct Mail {
    sim: Sim,
    alice: HostId,
    bob: HostId,
    a: QpId,
    b: QpId,
    near: Region,
    far: Region,
    options: ConnectOptions,
    log: Log,
}

impl Mail {
    fn new(setting: &Setting) -> Mail {
        Mail::with(setting, QpSpec::ud(), QpSpec::ud())
    }

    fn with(setting: &Setting, spec_a: QpSpec, spec_b: QpSpec) -> Mail {
        let mut sim = Sim::new(setting.seed);
        sim.set_default_link(setting.link);
        let log = Log::of(&mut sim);
        let alice = sim.add_host(HostConfig::named("alice"));
        let bob = sim.add_host(HostConfig::named("bob"));
        let a = sim.create_qp(alice, spec_a);
        let b = sim.create_qp(bob, spec_b);
        sim.activate(a, &setting.options);
        sim.activate(b, &setting.options);
        let mut bytes = vec![0; 20_000];
        Rng::new(4).fill(&mut bytes);
        let near = sim.register_bytes(alice, QpSpec::PD, bytes, ALL_ACCESS);
        let far = sim.register(bob, QpSpec::PD, 20_000, ALL_ACCESS);
        log.clear();
        Mail { sim, alice, bob, a, b, near, far, options: setting.options, log }
    }

    /// The way to Bob.
    fn target(&self) -> DatagramTarget {
        self.sim.datagram_target(self.b, &self.options)
    }

    /// A datagram of `length` bytes to Bob.
    fn send(&self, length: u32) -> Work {
        Work::send().sge(self.near.sge(0, length)).to(self.target())
    }

    #[track_caller]
    fn finish(&mut self, work: &Work) -> Completion {
        self.sim.post(self.a, work).expect("the work is taken");
        self.sim.run_until_idle();
        self.one(self.a)
    }

    #[track_caller]
    fn succeed(&mut self, work: &Work) {
        let completion = self.finish(work);
        assert_eq!((completion.status, completion.kind), (Status::Success, CompletionKind::Send), "{completion:?}");
    }

    #[track_caller]
    fn one(&mut self, qp: QpId) -> Completion {
        let completions = self.sim.completions(qp);
        let [completion] = completions.as_slice() else { panic!("one completion expected: {completions:?}") };
        *completion
    }

    fn receive(&mut self, wr_id: u64) {
        self.sim.receive(self.b, wr_id, &[self.far.sge(0, 10_000)]).unwrap();
    }

    #[track_caller]
    fn still_works(&mut self) {
        self.sim.completions(self.b);
        self.receive(900);
        self.succeed(&self.send(100));
        let got = self.one(self.b);
        assert_eq!((got.wr_id, got.status, got.bytes), (900, Status::Success, 140), "{got:?}");
        assert_eq!(self.sim.bytes(&self.far)[GRH..140], self.sim.bytes(&self.near)[..100]);
    }
}

/// What the forty bytes must be, written down from RFC 791 and RFC 8200. `udp` is the length of the UDP datagram.
fn grh(source: IpAddr, destination: IpAddr, udp: u16, class: u8, label: u32, hops: u8) -> Vec<u8> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [high, low] = (20 + udp).to_be_bytes();
            // Version and length, class, total length, identification 0, don't fragment, hops, UDP, checksum, addresses.
            let mut ip = vec![0x45, class, high, low, 0, 0, 0x40, 0, hops, 17, 0, 0];
            ip.extend(source.octets());
            ip.extend(destination.octets());
            let mut sum: u32 = ip.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
            sum = (sum & 0xffff) + (sum >> 16);
            sum = (sum & 0xffff) + (sum >> 16);
            ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
            [vec![0; 20], ip].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let mut ip = (6 << 28 | u32::from(class) << 20 | label).to_be_bytes().to_vec();
            ip.extend(udp.to_be_bytes());
            ip.extend([17, hops]);
            ip.extend(source.octets());
            ip.extend(destination.octets());
            ip
        }
        _ => panic!("one family"),
    }
}

#[test]
fn a_datagram_arrives_behind_forty_bytes_that_say_where_it_came_from() {
    for mut setting in Setting::each_link() {
        setting.options.traffic_class = 0x68;
        setting.options.flow_label = 0x5_4321;
        let mut mail = Mail::new(&setting);
        let index = setting.options.family.index();
        let (here, there) = (mail.sim.gid(mail.alice, index).to_ip(), mail.sim.gid(mail.bob, index).to_ip());
        for length in [0, 1, 2, 3, 4, 255, 1024, 1025, 4095, 4096] {
            for immediate in [None, Some(0xdead_beef)] {
                mail.sim.bytes_mut(&mail.far).fill(0xee);
                mail.receive(7);
                let work = mail.send(length).id(3).solicited();
                let work = if let Some(value) = immediate { work.immediate(value) } else { work };
                mail.succeed(&work);
                let got = mail.one(mail.b);
                assert_eq!((got.wr_id, got.status, got.kind), (7, Status::Success, CompletionKind::Receive));
                assert_eq!((got.bytes, got.immediate, got.queue), (length + 40, immediate, Queue::Receive));
                assert_eq!((got.src_qpn, got.grh, got.solicited), (Some(mail.a.qpn), true, true));
                assert_eq!(got.qpn, mail.b.qpn);
                // UDP, BTH and DETH, the immediate, the padded data, the ICRC.
                let udp = 8 + 12 + 8 + if immediate.is_some() { 4 } else { 0 } + length.next_multiple_of(4) as u16 + 4;
                let bytes = mail.sim.bytes(&mail.far);
                assert_eq!(bytes[..GRH], grh(here, there, udp, 0x6a, 0x5_4321, 64), "{length} bytes, {setting:?}");
                let end = GRH + length as usize;
                assert_eq!(bytes[GRH..end], mail.sim.bytes(&mail.near)[..length as usize]);
                assert!(bytes[end..].iter().all(|byte| *byte == 0xee));
            }
        }
        assert_eq!(mail.log.drops(mail.bob), []);
    }
}

#[test]
fn a_datagram_is_one_packet_that_carries_the_key_and_the_senders_number() {
    for mut setting in Setting::each_link() {
        setting.options.psn = Some((Psn::new(0xff_ffff), Psn::new(1)));
        let mut mail = Mail::new(&setting);
        mail.receive(1);
        mail.receive(2);
        mail.succeed(&mail.send(4096));
        mail.succeed(&mail.send(0).immediate(9));
        let packets = mail.log.packets();
        let lines: Vec<_> = packets.iter().map(|seen| (seen.opcode(), seen.psn(), seen.bytes, seen.count)).collect();
        let expected =
            [(Opcode::UdSendOnly, Psn::new(0xff_ffff), 4096, 1), (Opcode::UdSendOnlyImmediate, Psn::new(0), 0, 1)];
        assert_eq!(lines, expected);
        for seen in packets {
            let deth = seen.headers.deth.unwrap();
            assert_eq!((deth.qkey, deth.src_qpn), (Qkey::new(0x1111_1111), mail.a.qpn));
            assert_eq!((seen.headers.bth.dest_qpn, seen.headers.bth.ack_req), (mail.b.qpn, false));
            assert_eq!(seen.from, mail.alice, "nothing comes back");
        }
        assert_eq!(mail.sim.attributes(mail.a).sq_psn, Psn::new(1));
    }
}

#[test]
fn the_forty_bytes_and_the_data_fill_the_pieces_one_after_the_other() {
    for setting in Setting::each_link() {
        for sizes in [vec![40, 100], vec![7, 33, 50, 50], vec![1, 0, 138, 1], vec![39, 101]] {
            let mut mail = Mail::new(&setting);
            let pieces: Vec<Sge> =
                sizes.iter().enumerate().map(|(nth, size)| mail.far.sge(nth as u64 * 1000, *size)).collect();
            mail.sim.receive(mail.b, 1, &pieces).unwrap();
            mail.receive(2);
            mail.succeed(&mail.send(100));
            mail.succeed(&mail.send(100));
            assert_eq!(mail.sim.completions(mail.b).len(), 2);
            // The second copy lies in one piece, over the beginning of the first.
            let whole = mail.sim.bytes(&mail.far)[..140].to_vec();
            let mut at = sizes[0] as usize;
            for (nth, size) in sizes.iter().enumerate().skip(1) {
                let piece = &mail.sim.bytes(&mail.far)[nth * 1000..][..*size as usize];
                assert_eq!(*piece, whole[at..at + *size as usize], "{sizes:?}, piece {nth}");
                at += *size as usize;
            }
        }
    }
}

#[test]
fn a_datagram_with_the_wrong_key_is_not_received() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        mail.receive(1);
        let wrong = DatagramTarget { qkey: Qkey::new(0x1111_1110), ..mail.target() };
        mail.succeed(&Work::send().sge(mail.near.sge(0, 8)).to(wrong));
        assert_eq!(mail.log.drops(mail.bob), [DropReason::QkeyMismatch]);
        assert_eq!(mail.sim.completions(mail.b), []);
        assert_eq!((mail.sim.state(mail.a), mail.sim.state(mail.b)), (State::ReadyToSend, State::ReadyToSend));
        // The receive is still the next one.
        mail.succeed(&mail.send(8));
        assert_eq!(mail.one(mail.b).wr_id, 1);
        mail.still_works();
    }
}

#[test]
fn a_key_with_its_top_bit_set_stands_for_the_senders_own() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        mail.receive(1);
        for (shown, carried) in [(0x8000_0000, 0x1111_1111), (0xffff_ffff, 0x1111_1111), (0x7fff_ffff, 0x7fff_ffff)] {
            let target = DatagramTarget { qkey: Qkey::new(shown), ..mail.target() };
            mail.succeed(&Work::send().sge(mail.near.sge(0, 8)).to(target));
            let packets = mail.log.packets();
            assert_eq!(packets[0].headers.deth.unwrap().qkey, Qkey::new(carried), "{shown:#x}");
        }
        assert_eq!(mail.log.drops(mail.bob), [DropReason::NoReceive, DropReason::QkeyMismatch]);
        assert_eq!(mail.one(mail.b).wr_id, 1);
    }
}

#[test]
fn a_new_key_counts_from_the_moment_it_is_set() {
    let mut mail = Mail::new(&Setting::default());
    for wr_id in 1..4 {
        mail.receive(wr_id);
    }
    let new = Qkey::new(0x0222_2222);
    mail.sim.modify(mail.b, &Modify { qkey: Some(new), ..Modify::default() }).unwrap();
    assert_eq!(mail.sim.attributes(mail.b).qkey, new);
    mail.succeed(&mail.send(8));
    assert_eq!(mail.log.drops(mail.bob), [DropReason::QkeyMismatch]);
    let target = DatagramTarget { qkey: new, ..mail.target() };
    mail.succeed(&Work::send().to(target));
    assert_eq!(mail.one(mail.b).wr_id, 1);
    // A sender that uses its own key takes the new one too.
    mail.sim.modify(mail.a, &Modify { qkey: Some(new), ..Modify::default() }).unwrap();
    let own = DatagramTarget { qkey: Qkey::new(0x8000_0000), ..mail.target() };
    mail.succeed(&Work::send().to(own));
    assert_eq!(mail.one(mail.b).wr_id, 2);
}

#[test]
fn a_datagram_as_long_as_the_port_allows_passes_and_one_byte_more_stops_sending() {
    for setting in Setting::each_link() {
        for port_mtu in Mtu::ALL {
            let spec = QpSpec { port_mtu, ..QpSpec::ud() };
            let mut mail = Mail::with(&setting, spec, spec);
            let most = port_mtu.bytes();
            for wr_id in 1..4 {
                mail.receive(wr_id);
            }
            mail.succeed(&mail.send(most));
            assert_eq!(mail.one(mail.b).bytes, most + 40);
            assert_eq!(mail.sim.bytes(&mail.far)[GRH..][..most as usize], mail.sim.bytes(&mail.near)[..most as usize]);

            let before = mail.sim.counters().sent;
            mail.sim.post(mail.a, &mail.send(most + 1).id(5)).unwrap();
            mail.sim.post(mail.a, &mail.send(8).id(6)).unwrap();
            mail.sim.run_until_idle();
            let ends: Vec<_> = mail.sim.completions(mail.a).iter().map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(ends, [(5, Status::LocalLength), (6, Status::WorkRequestFlushed)]);
            assert_eq!(mail.sim.state(mail.a), State::SendQueueError);
            assert_eq!(mail.sim.counters().sent, before, "nothing left");
            assert_eq!(mail.sim.async_events(mail.a), []);

            // Receiving goes on meanwhile, and sending when the program says so.
            let into = mail.near;
            mail.sim.receive(mail.a, 20, &[into.sge(10_000, 200)]).unwrap();
            let back = mail.sim.datagram_target(mail.a, &mail.options);
            mail.sim.post(mail.b, &Work::send().inline(b"are you there?").to(back)).unwrap();
            mail.sim.run_until_idle();
            let got = mail.one(mail.a);
            assert_eq!((got.wr_id, got.bytes, got.src_qpn), (20, 54, Some(mail.b.qpn)));
            mail.sim.completions(mail.b);
            mail.sim.modify(mail.a, &Modify { state: Some(State::ReadyToSend), ..Modify::default() }).unwrap();
            mail.succeed(&mail.send(8));
            assert_eq!(mail.one(mail.b).wr_id, 2);
        }
    }
}

#[test]
fn other_local_faults_stop_sending_too() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        let foreign = mail.sim.register(mail.alice, ProtectionDomain(77), 8, ALL_ACCESS);
        for sge in
            [foreign.whole(), mail.near.sge(19_993, 8), Sge { key: Key::new(0xdead_0000), ..mail.near.sge(0, 1) }]
        {
            let end = mail.finish(&Work::send().sge(sge).to(mail.target()));
            assert_eq!((end.status, mail.sim.state(mail.a)), (Status::LocalProtection, State::SendQueueError));
            mail.sim.modify(mail.a, &Modify { state: Some(State::ReadyToSend), ..Modify::default() }).unwrap();
        }
        mail.still_works();
    }
}

#[test]
fn the_buffer_must_hold_the_forty_bytes_too() {
    for setting in Setting::each_link() {
        // An empty datagram needs forty bytes, not one less.
        for (length, space, fits) in
            [(100, 140, true), (100, 139, false), (100, 40, false), (100, 0, false), (0, 40, true), (0, 39, false)]
        {
            let mut mail = Mail::new(&setting);
            mail.sim.receive(mail.b, 1, &[mail.far.sge(0, space)]).unwrap();
            mail.succeed(&mail.send(length));
            let ends: Vec<_> = mail.sim.completions(mail.b).iter().map(|c| (c.wr_id, c.status)).collect();
            assert_eq!(ends, if fits { vec![(1, Status::Success)] } else { vec![] }, "{length} in {space}");
            assert_eq!(mail.sim.state(mail.b), State::ReadyToSend);
            assert!(mail.sim.bytes(&mail.far)[space as usize..].iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_datagram_longer_than_its_receive_is_dropped_and_the_receive_waits_for_the_next() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        mail.sim.receive(mail.b, 1, &[mail.far.sge(0, 140)]).unwrap();
        for _ in 0..3 {
            mail.succeed(&mail.send(101));
        }
        assert_eq!(mail.log.drops(mail.bob), [DropReason::TooLong; 3]);
        assert_eq!((mail.sim.completions(mail.b), mail.sim.async_events(mail.b)), (vec![], vec![]));
        assert_eq!(mail.sim.state(mail.b), State::ReadyToSend);
        assert!(mail.sim.bytes(&mail.far).iter().all(|byte| *byte == 0), "nothing of it was written");
        mail.succeed(&mail.send(100));
        let got = mail.one(mail.b);
        assert_eq!((got.wr_id, got.status, got.bytes), (1, Status::Success, 140));
        mail.still_works();
    }
}

#[test]
fn a_receive_over_forbidden_memory_breaks_the_receiver_alone() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        let read_only = mail.sim.register(mail.bob, QpSpec::PD, 200, Access::REMOTE_READ);
        mail.sim.receive(mail.b, 1, &[read_only.whole()]).unwrap();
        mail.succeed(&mail.send(100));
        assert_eq!(mail.one(mail.b).status, Status::LocalProtection);
        assert_eq!((mail.sim.state(mail.a), mail.sim.state(mail.b)), (State::ReadyToSend, State::Error));
        // In error nothing is received any more.
        mail.succeed(&mail.send(100));
        assert_eq!(mail.log.drops(mail.bob), [DropReason::WrongState]);
    }
}

#[test]
fn without_a_receive_a_datagram_vanishes() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        for _ in 0..3 {
            mail.succeed(&mail.send(100));
        }
        assert_eq!(mail.log.drops(mail.bob), [DropReason::NoReceive; 3]);
        assert_eq!(mail.sim.completions(mail.b), []);
        assert_eq!(mail.sim.async_events(mail.b), []);
        assert!(mail.log.opcodes(mail.bob).is_empty());
        mail.still_works();
    }
}

#[test]
fn what_finds_nobody_is_still_sent() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        let no_such_qp = DatagramTarget { qpn: Qpn::new(0xabcde), ..mail.target() };
        mail.succeed(&Work::send().to(no_such_qp));
        assert_eq!(mail.log.drops(mail.bob), [DropReason::UnknownQp]);
        let nowhere = match setting.options.family {
            Family::V4 => Gid::from_ipv4(Ipv4Addr::new(10, 9, 9, 9)),
            Family::V6 => Gid::from_ipv6(Ipv6Addr::new(0xfd00, 9, 9, 0, 0, 0, 0, 9)),
        };
        let av = AddressVector { dgid: nowhere, ..mail.target().av };
        mail.succeed(&Work::send().to(DatagramTarget { av, ..mail.target() }));
        assert_eq!(mail.log.drops(mail.alice), [DropReason::NoRoute]);
        mail.still_works();
    }
}

#[test]
fn datagrams_may_be_lost_doubled_and_overtaken_but_never_mixed_up() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        for wr_id in 0..4 {
            mail.sim.receive(mail.b, wr_id, &[mail.far.sge(wr_id * 100, 100)]).unwrap();
        }
        let fates = [Fate::Drop, Fate::Duplicate, Fate::Delay(50_000), Fate::Pass];
        mail.sim.intercept(move |sighting| fates[sighting.wr_id.unwrap() as usize]);
        for id in 0..4u64 {
            mail.sim.post(mail.a, &Work::send().inline(&[id as u8; 9]).to(mail.target()).id(id)).unwrap();
        }
        mail.sim.run_until_idle();
        assert_eq!(mail.sim.completions(mail.a).len(), 4);
        let got = mail.sim.completions(mail.b);
        assert!(got.iter().all(|completion| completion.bytes == 49));
        let order: Vec<_> = got.iter().map(|c| mail.sim.bytes(&mail.far)[c.wr_id as usize * 100 + GRH]).collect();
        assert_eq!(order, [1, 1, 3, 2]);
        assert!(got.is_sorted_by_key(|completion| completion.wr_id));
    }
}

#[test]
fn a_damaged_datagram_is_dropped_before_anybody_sees_it() {
    let mut mail = Mail::new(&Setting::default());
    mail.receive(1);
    mail.sim.script(once(|_| true, Fate::Corrupt));
    mail.succeed(&mail.send(100));
    assert_eq!(mail.log.drops(mail.bob), [DropReason::BadIcrc]);
    mail.succeed(&mail.send(100));
    assert_eq!(mail.one(mail.b).wr_id, 1);
}

#[test]
fn many_peers_write_to_one_and_it_can_answer_each() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        let index = setting.options.family.index();
        // Three queue pairs on each host, so that the address alone does not tell them apart.
        let hosts = [(); 4].map(|()| mail.sim.add_host(HostConfig::default()));
        let peers: Vec<(HostId, QpId, Region)> = (0..12)
            .map(|nth| {
                let host = hosts[nth as usize / 3];
                let qp = mail.sim.create_qp(host, QpSpec::ud());
                mail.sim.activate(qp, &mail.options);
                let memory = mail.sim.register(host, QpSpec::PD, 100, ALL_ACCESS);
                mail.sim.receive(qp, nth, &[memory.whole()]).unwrap();
                (host, qp, memory)
            })
            .collect();
        for nth in 0..12 {
            mail.sim.receive(mail.b, nth, &[mail.far.sge(nth * 100, 100)]).unwrap();
        }
        let to_bob = mail.target();
        for (nth, (_, qp, _)) in peers.iter().enumerate() {
            mail.sim.post(*qp, &Work::send().inline(&[nth as u8; 5]).to(to_bob)).unwrap();
        }
        mail.sim.run_until_idle();
        let got = mail.sim.completions(mail.b);
        assert_eq!(got.len(), 12);
        for completion in got {
            // An address handle from what was received: the source address out of the GRH, the number out of the completion.
            let at = completion.wr_id as usize * 100;
            let bytes = mail.sim.bytes(&mail.far)[at..at + 45].to_vec();
            let nth = usize::from(bytes[GRH]);
            let source = match setting.options.family {
                Family::V4 => Gid::from_ipv4(<[u8; 4]>::try_from(&bytes[32..36]).unwrap().into()),
                Family::V6 => Gid::from_ipv6(<[u8; 16]>::try_from(&bytes[8..24]).unwrap().into()),
            };
            let (host, qp, _) = peers[nth];
            assert_eq!((source, completion.src_qpn), (mail.sim.gid(host, index), Some(qp.qpn)));
            let av = AddressVector { dgid: source, ..to_bob.av };
            let back = DatagramTarget { av, qpn: completion.src_qpn.unwrap(), qkey: to_bob.qkey };
            mail.sim.post(mail.b, &Work::send().inline(&[100 + nth as u8]).to(back)).unwrap();
        }
        mail.sim.run_until_idle();
        for (nth, (_, qp, memory)) in peers.iter().enumerate() {
            let got: Vec<_> =
                mail.sim.completions(*qp).into_iter().filter(|c| c.kind == CompletionKind::Receive).collect();
            assert_eq!(got.len(), 1);
            assert_eq!((got[0].src_qpn, got[0].wr_id), (Some(mail.b.qpn), nth as u64));
            assert_eq!(mail.sim.bytes(memory)[GRH], 100 + nth as u8);
        }
    }
}

#[test]
fn a_datagram_queue_pair_may_write_to_itself_and_its_neighbour() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        let neighbour = mail.sim.create_qp(mail.alice, QpSpec::ud());
        mail.sim.activate(neighbour, &mail.options);
        for qp in [mail.a, neighbour] {
            mail.sim.receive(qp, 8, &[mail.near.sge(1000, 200)]).unwrap();
            let target = mail.sim.datagram_target(qp, &mail.options);
            mail.sim.post(mail.a, &Work::send().inline(b"me").to(target)).unwrap();
            mail.sim.run_until_idle();
            let got = mail.sim.completions(qp);
            let got = got.iter().find(|completion| completion.kind == CompletionKind::Receive).unwrap();
            assert_eq!((got.src_qpn, got.bytes), (Some(mail.a.qpn), 42));
        }
    }
}

#[test]
fn multicast_reaches_every_member_with_a_receive_and_the_right_key_but_not_its_sender() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        let group = match setting.options.family {
            Family::V4 => Gid::from_ipv4(Ipv4Addr::new(239, 1, 2, 3)),
            Family::V6 => Gid::from_ipv6(Ipv6Addr::new(0xff12, 0, 0, 0, 0, 0, 0, 9)),
        };
        let carol = mail.sim.add_host(HostConfig::named("carol"));
        let mut member = |host, options: &ConnectOptions| {
            let qp = mail.sim.create_qp(host, QpSpec::ud());
            mail.sim.activate(qp, options);
            qp
        };
        let other_key = ConnectOptions { qkey: Qkey::new(5), ..setting.options };
        let near_neighbour = member(mail.alice, &setting.options);
        let bobs_second = member(mail.bob, &setting.options);
        let c = member(carol, &setting.options);
        let stranger = member(carol, &setting.options);
        let wrong_key = member(carol, &other_key);
        let unready = member(carol, &setting.options);
        for qp in [mail.a, mail.b, near_neighbour, bobs_second, c, wrong_key, unready] {
            mail.sim.join_group(qp, group);
        }
        for qp in [mail.a, mail.b, near_neighbour, bobs_second, c, stranger, wrong_key] {
            let memory = mail.sim.register(qp.host, QpSpec::PD, 100, ALL_ACCESS);
            mail.sim.receive(qp, 1, &[memory.whole()]).unwrap();
        }
        mail.log.clear();
        let av = AddressVector { dgid: group, ..mail.target().av };
        let to_all = DatagramTarget { av, qpn: Qpn::MULTICAST, qkey: setting.options.qkey };
        mail.succeed(&Work::send().inline(b"to all").to(to_all).immediate(3));
        for qp in [mail.b, near_neighbour, bobs_second, c] {
            let got = mail.one(qp);
            assert_eq!((got.bytes, got.src_qpn, got.immediate, got.grh), (46, Some(mail.a.qpn), Some(3), true));
        }
        for qp in [mail.a, stranger, wrong_key, unready] {
            assert_eq!(mail.sim.completions(qp), [], "QP {}", qp.qpn);
        }
        assert_eq!(mail.log.drops(carol), [DropReason::QkeyMismatch, DropReason::NoReceive]);
        // A host outside the group may write to it as well.
        mail.sim.receive(mail.b, 2, &[mail.far.sge(0, 100)]).unwrap();
        mail.sim.post(stranger, &Work::send().inline(b"!").to(to_all)).unwrap();
        mail.sim.run_until_idle();
        assert_eq!(mail.one(mail.b).src_qpn, Some(stranger.qpn));
        // The group's address is what the receiver sees as destination.
        let expected = group.octets();
        let seen = &mail.sim.bytes(&mail.far)[..GRH];
        match setting.options.family {
            Family::V4 => assert_eq!(seen[36..40], expected[12..16]),
            Family::V6 => assert_eq!(seen[24..40], expected),
        }
    }
}

#[test]
fn a_datagram_queue_pair_needs_a_key_and_no_peer() {
    let mut sim = Sim::new(1);
    let host = sim.add_host(HostConfig::default());
    let qp = sim.create_qp(host, QpSpec::ud());
    let (kind, from, to) = (Kind::UnreliableDatagram, State::Reset, State::Init);
    let init = Modify { state: Some(to), pkey_index: Some(0), port: Some(1), ..Modify::default() };
    let missing = AttributeMask::QKEY;
    assert_eq!(sim.modify(qp, &init), Err(ModifyError::Missing { kind, from, to, missing }));
    assert_eq!(sim.state(qp), State::Reset);
    let keyed = Modify { qkey: Some(Qkey::new(1)), ..init };
    let excess = AttributeMask::ACCESS_FLAGS;
    let open = Modify { access: Some(Access::REMOTE_WRITE), ..keyed };
    assert_eq!(sim.modify(qp, &open), Err(ModifyError::NotAllowed { kind, from, to, excess }));
    sim.modify(qp, &keyed).unwrap();
    let (from, to) = (State::Init, State::ReadyToReceive);
    let connected = Modify { state: Some(to), dest_qpn: Some(Qpn::new(5)), ..Modify::default() };
    let excess = AttributeMask::DEST_QPN;
    assert_eq!(sim.modify(qp, &connected), Err(ModifyError::NotAllowed { kind, from, to, excess }));
    sim.modify(qp, &Modify { state: Some(to), ..Modify::default() }).unwrap();
    sim.modify(qp, &Modify { state: Some(State::ReadyToSend), sq_psn: Some(Psn::new(0)), ..Modify::default() })
        .unwrap();
    assert_eq!((sim.state(qp), sim.attributes(qp).qkey), (State::ReadyToSend, Qkey::new(1)));
}

#[test]
fn what_needs_a_connection_stops_the_send_queue() {
    let mut mail = Mail::new(&Setting::default());
    let (remote, sge) = (mail.far.remote(0), mail.near.sge(0, 8));
    let bind = transport::Bind {
        window: Key::new(1),
        new_key: Key::new(2),
        region: mail.near.key,
        address: mail.near.address,
        length: 8,
        access: Access::REMOTE_READ,
    };
    let cases = [
        Work::write(remote).sge(sge),
        Work::write(remote).sge(sge).immediate(1),
        Work::read(remote).sge(sge),
        Work::compare_swap(remote, 0, 1).sge(sge),
        Work::fetch_add(remote, 1).sge(sge),
        Work::atomic_write(remote).sge(sge),
        Work::flush(remote, 8, Placement::GLOBAL),
        Work::send_invalidate(mail.far.key),
    ];
    let back = Modify { state: Some(State::ReadyToSend), ..Modify::default() };
    for work in cases {
        // In the place of the peer's memory a request of C's has an address handle: there may be a target, or none.
        for work in [work.clone(), work.to(mail.target())] {
            mail.receive(1);
            mail.sim.post(mail.a, &mail.send(8).id(1)).unwrap();
            mail.sim.post(mail.a, &work.id(2)).unwrap();
            mail.sim.post(mail.a, &mail.send(8).id(3)).unwrap();
            assert_eq!(mail.sim.state(mail.a), State::SendQueueError);
            mail.sim.run_until_idle();
            let ends: Vec<_> = mail.sim.completions(mail.a).iter().map(|c| (c.wr_id, c.status)).collect();
            let flushed = Status::WorkRequestFlushed;
            assert_eq!(ends, [(1, Status::Success), (2, Status::LocalQpOperation), (3, flushed)]);
            assert_eq!(mail.one(mail.b).bytes, 48, "only what came before was sent");
            mail.sim.modify(mail.a, &back).unwrap();
        }
    }
    for (work, operation) in [(Work::local_invalidate(mail.near.key), "LOCAL_INV"), (Work::bind(bind), "BIND_MW")] {
        let refused = PostError::NotSupported { transport: "UD", operation };
        assert_eq!(mail.sim.post(mail.a, &work.to(mail.target())), Err(refused));
    }
    assert_eq!(mail.sim.post(mail.a, &Work::send()), Err(PostError::Target), "and a send needs a target");
    let shared = mail.send(8).to_srq(wire::Srqn::new(1));
    assert_eq!(mail.sim.post(mail.a, &shared), Err(PostError::XrcTarget));
    let connected = mail.sim.create_qp(mail.alice, QpSpec::rc());
    let peer = mail.sim.create_qp(mail.bob, QpSpec::rc());
    mail.sim.connect(connected, peer, &mail.options);
    assert_eq!(mail.sim.post(connected, &mail.send(8)), Err(PostError::Target), "which a connection has not");
    mail.still_works();
}

#[test]
fn pieces_and_inline_data_are_gathered() {
    for setting in Setting::each_link() {
        let mut mail = Mail::new(&setting);
        mail.receive(1);
        mail.receive(2);
        let pieces = [mail.near.sge(100, 3), mail.near.sge(0, 0), mail.near.sge(5000, 1000), mail.near.sge(7, 1)];
        mail.succeed(&Work::send().sges(&pieces).to(mail.target()));
        assert_eq!(mail.one(mail.b).bytes, 1044);
        let near = mail.sim.bytes(&mail.near);
        let expected = [&near[100..103], &near[5000..6000], &near[7..8]].concat();
        assert_eq!(mail.sim.bytes(&mail.far)[GRH..1044], expected);
        mail.succeed(&Work::send().inline(&[9; 512]).to(mail.target()));
        assert_eq!(mail.one(mail.b).bytes, 552);
        assert_eq!(mail.sim.bytes(&mail.far)[GRH..552], [9; 512]);
    }
}
