//! Two NICs of one host, of which one is broken, over each link: inside a process, through shared memory, over UDP.

use super::*;
use crate::ground::nic_links::BlackHole;
use crate::interfaces::Nics;
use crate::objects::context::Context;
use crate::objects::device::LinkRate;
use crate::{CompletionQueue, Error, Joins, Options, Qp};
use link::faults::{Chance, Rule};
use std::time::{Duration, Instant};
use trace::DropReason;
use transport::{
    AddressVector, Capabilities, Completion, Data, Kind, Limits, Modify, Operation, QueuePairConfig, Remote, SendFlags,
    SendRequest, Sge, State, Status,
};
use wire::access::Access;
use wire::{Gid, Key, Mtu, Pkey, Psn, Qpn};

struct End {
    nic: Arc<Nic>,
    device: Arc<Device>,
    context: Arc<Context>,
    qp: Arc<Qp>,
    cq: Arc<CompletionQueue>,
    memory: Vec<u8>,
    key: Key,
}

fn open(only_udp: bool) -> Arc<Nic> {
    open_with_ports(only_udp, 1)
}

fn open_with_ports(only_udp: bool, ports: u8) -> Arc<Nic> {
    let nics = Some(Nics { count: 2, ports, own_switches: false });
    Nic::open_with(Options { only_udp, nics, ..Options::default() }).unwrap()
}

fn config(pd: transport::ProtectionDomain) -> QueuePairConfig {
    let capabilities =
        Capabilities { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    QueuePairConfig {
        qpn: Qpn::new(0),
        kind: Kind::ReliableConnected,
        pd,
        capabilities,
        srq: None,
        signal_all: true,
        limits: Limits::default(),
        pkey: Pkey::DEFAULT,
        port_mtu: Mtu::B4096,
    }
}

impl End {
    fn new(nic: &Arc<Nic>, position: usize) -> End {
        End::on_port(nic, position, 1)
    }

    fn on_port(nic: &Arc<Nic>, position: usize, port: u8) -> End {
        let context = nic.open_device(&nic.devices()[position]).unwrap();
        let device = Arc::clone(context.device().at_port(port).unwrap());
        let domain = context.new_domain();
        let cq = nic.create_cq(16, None).unwrap();
        let (send_cq, receive_cq) = (Some(Arc::clone(&cq)), Some(Arc::clone(&cq)));
        let joins = Joins { context: Arc::clone(&context), send_cq, receive_cq, xrc_domain: None };
        let qp = nic.create_qp(config(domain), joins).unwrap();
        let mut memory = vec![position as u8; 8192];
        let translation = memory::Translation { address: memory.as_mut_ptr(), length: memory.len(), iova: None };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let spec = memory::RegionSpec { translation, domain, access };
        // SAFETY: the memory goes after the queue pair.
        let key = unsafe { nic.memory().register(&spec) }.unwrap();
        End { nic: Arc::clone(nic), device, context, qp, cq, memory, key }
    }

    fn connect(&self, peer: &End, timeout: u8, retry_cnt: u8) {
        let (init, receive, send) = self.steps(peer, timeout, retry_cnt);
        [init, receive, send].iter().for_each(|step| self.qp.modify(&self.nic, step).unwrap());
    }

    /// To INIT, RTR and RTS.
    fn steps(&self, peer: &End, timeout: u8, retry_cnt: u8) -> (Modify, Modify, Modify) {
        let port = self.device.port_number();
        let av = AddressVector { dgid: peer.device.port().gid(0).unwrap(), port, ..AddressVector::default() };
        let modify = |state| Modify { state: Some(state), ..Modify::default() };
        let access = Some(Access::REMOTE_WRITE);
        (
            Modify { pkey_index: Some(0), port: Some(port), access, ..modify(State::Init) },
            Modify {
                av: Some(av),
                path_mtu: Some(Mtu::B1024),
                dest_qpn: Some(peer.qp.qpn()),
                rq_psn: Some(Psn::new(7)),
                max_dest_rd_atomic: Some(1),
                min_rnr_timer: Some(1),
                ..modify(State::ReadyToReceive)
            },
            Modify {
                sq_psn: Some(Psn::new(7)),
                timeout: Some(timeout),
                retry_cnt: Some(retry_cnt),
                rnr_retry: Some(7),
                max_rd_atomic: Some(1),
                ..modify(State::ReadyToSend)
            },
        )
    }

    fn write(&self, to: &End) {
        let remote = Remote { address: to.memory.as_ptr() as u64, key: to.key };
        let sge = Sge { address: self.memory.as_ptr() as u64, length: 5000, key: self.key };
        let (flags, data) = (SendFlags::SIGNALED, Data::Gather(&[sge]));
        let operation = Operation::Write { remote, immediate: None };
        let request = SendRequest { wr_id: 1, operation, flags, data, target: None, xrc_srq: None };
        self.qp.post_send(&self.nic, &[request]).unwrap();
    }

    fn poll(&self) -> Option<Completion> {
        let mut found = None;
        self.nic.poll(&self.cq, 1, |completion, _| found = Some(*completion));
        found
    }

    fn status(&self) -> Status {
        wait_for("a completion", || self.poll()).status
    }

    /// The events of its device that were told since the last call.
    fn events(&self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.context.events().try_take()).filter(|event| !is_of_queue_pair(event)).collect()
    }
}

fn is_of_queue_pair(event: &AsyncEvent) -> bool {
    matches!(event, AsyncEvent::Qp(..))
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match look() {
            Some(found) => return found,
            None => assert!(Instant::now() < deadline, "{what} did not come in a minute"),
        }
    }
}

/// Timeouts and retries of a queue pair that waits for nine seconds, and of one that soon gives up.
const PATIENT: (u8, u8) = (18, 7);
const IMPATIENT: (u8, u8) = (10, 1);

/// The port of an end's device is down, or up.
fn set_port_down(end: &End, down: bool) {
    end.nic.impose(&end.device, Imposed { down, ..Imposed::default() });
}

/// Does something with two ends, over each link.
fn over_each_link((timeout, retry_cnt): (u8, u8), test: impl Fn(&End, &End)) {
    for link in ["inside the process", "shared memory", "UDP"] {
        let here = open(link == "UDP");
        let there = if link == "inside the process" { Arc::clone(&here) } else { open(link == "UDP") };
        let (a, b) = (End::new(&here, 0), End::new(&there, 1));
        b.connect(&a, timeout, retry_cnt);
        a.connect(&b, timeout, retry_cnt);
        assert_eq!(a.qp.link(), link);
        a.write(&b);
        assert_eq!(a.status(), Status::Success, "{link}");
        test(&a, &b);
        here.destroy_qp(&a.qp);
        there.destroy_qp(&b.qp);
    }
}

#[test]
fn a_queue_pair_goes_on_where_it_was_when_its_port_is_up_again() {
    over_each_link(PATIENT, |a, b| {
        let link = a.qp.link();
        set_port_down(a, true);
        assert_eq!((a.events(), b.events()), (vec![AsyncEvent::PortError(1)], vec![]));
        assert!(!a.device.port().active && b.device.port().active);
        a.write(b);
        wait_for("a lost packet", || (a.nic.drops(DropReason::PortDown) > 0).then_some(()));
        assert_eq!(a.poll(), None);
        set_port_down(a, false);
        assert_eq!((a.events(), b.events()), (vec![AsyncEvent::PortActive(1)], vec![]));
        assert_eq!(a.status(), Status::Success);
        assert_eq!((a.qp.link(), a.memory[..5000] == b.memory[..5000]), (link, true));
    });
}

#[test]
fn retries_run_out_while_a_port_is_down_at_either_end() {
    for far in [false, true] {
        over_each_link(IMPATIENT, |a, b| {
            let broken = if far { b } else { a };
            set_port_down(broken, true);
            a.write(b);
            assert_eq!(a.status(), Status::RetryExceeded);
            assert_eq!(a.qp.state(), State::Error);
            assert!(broken.nic.drops(DropReason::PortDown) > 0);
            set_port_down(broken, false);
            assert!(broken.device.port().active);
        });
    }
}

#[test]
fn what_happens_to_a_port_happens_to_no_other_port_of_the_device() {
    for only_udp in [false, true] {
        let nic = open_with_ports(only_udp, 2);
        let [one, two] = [1, 2].map(|port| (End::on_port(&nic, 0, port), End::on_port(&nic, 1, port)));
        for (a, b) in [&one, &two] {
            b.connect(a, IMPATIENT.0, IMPATIENT.1);
            a.connect(b, IMPATIENT.0, IMPATIENT.1);
            a.write(b);
            assert_eq!(a.status(), Status::Success);
        }
        let counted = || {
            let sent = |(device, counters): (Arc<Device>, transport::Counters)| {
                (device.port_name().to_owned(), counters.traffic.sent_packets > 0)
            };
            nic.counters().into_iter().map(sent).collect::<Vec<_>>()
        };
        let all = ["ubi_0", "ubi_0/2", "ubi_1", "ubi_1/2"].map(|name| (name.to_owned(), true));
        assert_eq!(counted(), all);
        let [first, second] = [&one, &two].map(|(end, _)| end.device.port().gid(0));
        assert_ne!(first, second);
        set_port_down(&two.0, true);
        assert_eq!(two.0.events(), [AsyncEvent::PortError(2)]);
        two.0.write(&two.1);
        assert_eq!(two.0.status(), Status::RetryExceeded);
        one.0.write(&one.1);
        assert_eq!(one.0.status(), Status::Success);
        assert!(one.0.device.port().active);
        assert!(!two.0.device.port().active);
        nic.fail_device(one.0.context.device());
        assert!(two.0.device.has_failed() && !two.1.device.has_failed());
    }
}

#[test]
fn a_queue_pair_is_on_one_port_that_its_device_has() {
    let nic = open_with_ports(false, 2);
    let (a, b) = (End::on_port(&nic, 0, 2), End::on_port(&nic, 1, 1));
    let (init, receive, _) = a.steps(&b, 14, 7);
    let refused = |modify: &Modify| match a.qp.modify(&nic, modify) {
        Err(transport::ModifyError::OutOfRange { what, value, min, max }) => Some((what, value, min, max)),
        _ => None,
    };
    assert_eq!(refused(&Modify { port: Some(3), ..init }), Some(("PORT", 3, 1, 2)));
    a.qp.modify(&nic, &init).unwrap();
    assert_eq!(a.qp.port_device().port_name(), "ubi_0/2");
    let av = |port| receive.av.map(|av| AddressVector { port, ..av });
    assert_eq!(refused(&Modify { av: av(1), ..receive }), Some(("AV.port", 1, 2, 2)), "not that of INIT");
    assert_eq!(refused(&Modify { av: av(3), ..receive }), Some(("AV.port", 3, 2, 2)));
    a.qp.modify(&nic, &receive).unwrap();
}

#[test]
fn a_queue_pair_that_is_connected_while_the_port_is_down_works_when_it_is_up() {
    let nic = open(false);
    let (a, b) = (End::new(&nic, 0), End::new(&nic, 1));
    set_port_down(&b, true);
    b.connect(&a, 14, 7);
    a.connect(&b, 14, 7);
    assert_eq!(b.qp.link(), "none: the port is down");
    a.write(&b);
    wait_for("a lost packet", || {
        nic.progress();
        (nic.drops(DropReason::PortDown) > 0).then_some(())
    });
    set_port_down(&b, false);
    assert_eq!(a.status(), Status::Success);
}

#[test]
fn a_port_says_what_is_imposed_on_it_and_tells_of_each_change_once() {
    let nic = open(false);
    let end = End::new(&nic, 1);
    let device = &end.device;
    let own = device.port().gid(0).unwrap();
    let other = Gid::from_ipv4([10, 1, 2, 3].into());
    let gids = || {
        let port = device.port();
        (port.gid(0), port.gid(3))
    };
    let removed = Imposed { removed: vec![own], added: vec![(3, other)], ..Imposed::default() };
    nic.impose(device, removed.clone());
    assert_eq!(gids(), (None, Some(other)));
    nic.follow_interfaces().unwrap();
    assert_eq!(device.port().gid(0), None, "what the kernel tells does not undo it");
    let replaced = Imposed { added: vec![(0, other)], ..removed };
    nic.impose(device, replaced.clone());
    assert_eq!(gids(), (Some(other), None));
    nic.impose(device, Imposed { rate: Some(LinkRate(100)), lid: 7, pkey: Some(0x8001), ..replaced });
    assert_eq!(device.port().rate, LinkRate(100));
    nic.impose(device, Imposed::default());
    assert_eq!(gids(), (Some(own), None));
    assert_eq!(device.port().rate, crate::device::LINE_RATE);
    use AsyncEvent::{GidChange, LidChange, PkeyChange, SpeedChange};
    let of_rates = [SpeedChange(1), LidChange(1), PkeyChange(1)];
    assert_eq!(end.events(), [&[GidChange(1), GidChange(1)][..], &of_rates, &[GidChange(1)], &of_rates].concat());
}

#[test]
fn a_device_that_fails_or_is_pulled_out_stops_for_good_and_another_takes_its_place() {
    for unplugged in [false, true] {
        over_each_link(PATIENT, |a, b| {
            let nic = &a.nic;
            a.qp.post_receive(nic, &[transport::ReceiveRequest { wr_id: 7, sges: &[] }]).unwrap();
            match unplugged {
                true => nic.unplug(&a.device),
                false => nic.fail_device(&a.device),
            }
            assert_eq!((a.status(), a.qp.state()), (Status::WorkRequestFlushed, State::Error));
            assert_eq!((a.events(), b.events()), (vec![AsyncEvent::DeviceFatal], vec![]));
            let names = || nic.devices().iter().map(|device| device.name().to_owned()).collect::<Vec<_>>();
            assert_eq!(names().len(), if unplugged { 1 } else { 2 });
            nic.follow_interfaces().unwrap();
            assert_eq!(names().len(), if unplugged { 1 } else { 2 });
            let refused = |answer: Result<(), Error>| match answer {
                Err(Error::System { source, .. }) => source.raw_os_error() == Some(libc::EIO),
                _ => false,
            };
            assert!(refused(nic.open_device(&a.device).map(drop)));
            let joins = Joins {
                context: Arc::clone(&a.context),
                send_cq: Some(Arc::clone(&a.cq)),
                receive_cq: Some(Arc::clone(&a.cq)),
                xrc_domain: None,
            };
            assert!(refused(nic.create_qp(config(a.context.new_domain()), joins).map(drop)));
            set_port_down(a, false);
            assert!(a.device.port().is_cut, "it never works again");
            nic.plug_in(&a.device).unwrap();
            assert_eq!(names(), ["ubi_0", "ubi_1"]);
            let anew = End::new(nic, 0);
            assert!(!Arc::ptr_eq(&anew.device, &a.device) && anew.device.port().active);
        });
    }
}

#[test]
fn what_is_sent_into_a_black_hole_is_lost_and_comes_through_afterwards() {
    over_each_link(PATIENT, |a, b| {
        let [from, to] = [a, b].map(|end| end.device.port().gid(0).map(|gid| gid.to_ip()));
        a.nic.set_black_holes(&[BlackHole { from, to }]);
        assert!(a.qp.link().ends_with("a black hole") && !b.qp.link().ends_with("a black hole"));
        let before = a.nic.drops(DropReason::Partitioned);
        a.write(b);
        wait_for("a lost packet", || (a.nic.drops(DropReason::Partitioned) > before).then_some(()));
        assert_eq!((a.poll(), a.events(), b.events()), (None, vec![], vec![]), "nobody is told");
        a.nic.set_black_holes(&[]);
        assert_eq!(a.status(), Status::Success);
    });
}

#[test]
fn packets_meet_faults_that_come_and_go_while_the_program_runs() {
    over_each_link(PATIENT, |a, b| {
        let to = b.device.port().gid(0).map(|gid| gid.to_ip());
        // Everything that arrives is lost; then late; then nothing is wrong. A packet that the kernel gave to another NIC
        // of this process, which passes it on, meets no fault: so each is tried until one comes straight.
        let all = Rule { to, drop: Chance::of(1.0), ..Rule::default() };
        b.nic.set_network_faults(&[all], 1);
        let before = b.nic.drops(DropReason::RandomLoss);
        a.write(b);
        wait_for("a lost packet", || {
            b.nic.progress();
            if a.poll().is_some() {
                a.write(b);
            }
            (b.nic.drops(DropReason::RandomLoss) > before).then_some(())
        });
        let late = Duration::from_millis(20);
        b.nic.set_network_faults(&[Rule { to, delay: (late, late), ..Rule::default() }], 1);
        assert_eq!(a.status(), Status::Success);
        wait_for("a late packet", || {
            let begun = Instant::now();
            a.write(b);
            assert_eq!(a.status(), Status::Success);
            (begun.elapsed() >= late).then_some(())
        });
        b.nic.set_network_faults(&[], 1);
        assert!(!b.nic.ground.links.registry.rings_meet_faults());
        a.write(b);
        assert_eq!((a.status(), a.memory[..5000] == b.memory[..5000]), (Status::Success, true));
    });
}
