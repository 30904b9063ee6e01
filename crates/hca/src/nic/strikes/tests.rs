//! Two devices, and failures of several scripts that hold the same things.

use super::*;
use crate::interfaces::Nics;
use crate::scripts::About;
use crate::{Context, Options};
use failures::Strike;
use failures::script::Chance as Share;
use failures::script::{Failure, Named, Since, Start, When};

fn open() -> (Arc<Nic>, Vec<Arc<Context>>) {
    open_with_ports(1)
}

fn open_with_ports(ports: u8) -> (Arc<Nic>, Vec<Arc<Context>>) {
    let nics = Some(Nics { count: 2, ports, own_switches: false });
    let nic = Nic::open_with(Options { nics, ..Options::default() }).unwrap();
    let contexts = nic.devices().iter().map(|device| nic.open_device(device).unwrap()).collect();
    (nic, contexts)
}

/// A strike of a line of a script, on the second device unless all are meant.
fn strike(number: u32, line: usize, action: Action, phase: Phase, everywhere: bool) -> Struck {
    let when = When {
        start: Start::Time { at: 0, since: Since::Start },
        call: None,
        rate: None,
        times: Some(1),
        every: None,
        lasts: None,
    };
    let device = (!everywhere).then(|| Named::Name("ubi_1".into()));
    let place = Place { device, ..Place::default() };
    let failure = Arc::new(Failure { line, when, place, action });
    let strike = Strike { action, phase, failure, count: 1, is_of_moment: false };
    Struck { number, script: "test".into(), strike, about: About::default() }
}

fn carry_out(nic: &Arc<Nic>, struck: &Struck) -> Result<String, String> {
    nic.carry_out(struck).expect("a strike of ports, devices or networks")
}

fn events(context: &Context) -> Vec<AsyncEvent> {
    std::iter::from_fn(|| context.events().try_take()).collect()
}

#[test]
fn a_port_is_up_again_when_the_last_script_lets_it_go() {
    let (nic, contexts) = open();
    let device = &nic.devices()[1];
    let [one, two] = [(0, 7), (1, 7)].map(|(script, line)| {
        [Phase::Begin, Phase::End].map(|phase| strike(script, line, Action::PortDown, phase, false))
    });
    assert_eq!(carry_out(&nic, &one[0]), Ok("port 1 of ubi_1".into()));
    assert_eq!(carry_out(&nic, &two[0]), Ok("port 1 of ubi_1".into()));
    assert_eq!(carry_out(&nic, &one[1]), Ok("port 1 of ubi_1".into()));
    assert!(!device.port().active);
    carry_out(&nic, &two[1]).unwrap();
    assert!(device.port().active);
    assert_eq!(
        events(&contexts[1]),
        [AsyncEvent::PortError(1), AsyncEvent::PortActive(1)],
        "of the first and the last"
    );
    assert_eq!(events(&contexts[0]), []);
    assert_eq!(carry_out(&nic, &two[1]), Err("no device of this process is meant".into()), "it has ended");
    carry_out(&nic, &one[0]).unwrap();
    carry_out(&nic, &strike(2, 1, Action::PortUp, Phase::Begin, true)).unwrap();
    assert!(device.port().active, "whatever took it down");
}

#[test]
fn a_strike_on_a_port_leaves_the_other_ports_of_the_device_alone() {
    let (nic, contexts) = open_with_ports(3);
    let at_port = |mut struck: Struck, port: u8| {
        let place = Place { port: Some(port), ..struck.strike.failure.place.clone() };
        struck.strike.failure = Arc::new(Failure { place, ..(*struck.strike.failure).clone() });
        struck
    };
    let down = |phase, everywhere| strike(0, 7, Action::PortDown, phase, everywhere);
    assert_eq!(carry_out(&nic, &at_port(down(Phase::Begin, false), 2)), Ok("port 2 of ubi_1".into()));
    let active = |position: usize| nic.devices()[position].ports().map(|port| port.port().active).collect::<Vec<_>>();
    assert_eq!((active(0), active(1)), (vec![true; 3], vec![true, false, true]));
    carry_out(&nic, &down(Phase::End, false)).unwrap();
    assert_eq!(active(1), [true; 3]);
    assert_eq!(events(&contexts[1]), [AsyncEvent::PortError(2), AsyncEvent::PortActive(2)]);
    let all = "port 1 of ubi_0, ubi_1, port 2 of ubi_0, ubi_1, port 3 of ubi_0, ubi_1";
    assert_eq!(carry_out(&nic, &down(Phase::Begin, true)), Ok(all.into()), "no port is named");
    let nowhere = carry_out(&nic, &at_port(strike(0, 8, Action::LinkSpeed { speed: 1 }, Phase::Begin, true), 4));
    assert_eq!(nowhere, Err("no device of this process is meant".into()));
    assert_eq!(carry_out(&nic, &strike(1, 1, Action::DeviceFatal, Phase::Begin, false)), Ok("ubi_1".into()));
    assert!(contexts[1].device().ports().all(|port| port.has_failed()));
}

#[test]
fn addresses_speed_lid_and_key_come_back_in_any_order() {
    let (nic, _contexts) = open();
    let device = &nic.devices()[1];
    let before = device.port().clone();
    let other = Gid::from_ipv4([10, 9, 8, 7].into());
    let actions = [
        Action::GidRemove { index: 0 },
        Action::GidChange { index: 0, gid: other.octets() },
        Action::LinkSpeed { speed: 25_000_000_000 },
        Action::LidChange { lid: 9 },
        Action::PkeyChange { index: 0, pkey: 0x8001 },
    ];
    for (line, action) in actions.into_iter().enumerate() {
        carry_out(&nic, &strike(0, line, action, Phase::Begin, false)).unwrap();
    }
    let now = device.port().clone();
    assert_eq!((now.gid(0), now.rate, now.imposed().lid), (Some(other), LinkRate(250), 9));
    assert_eq!(now.imposed().pkey, Some(0x8001));
    for (line, action) in actions.into_iter().enumerate() {
        carry_out(&nic, &strike(0, line, action, Phase::End, false)).unwrap();
    }
    assert_eq!(*device.port(), before);
    let missing = strike(0, 1, Action::GidRemove { index: 40 }, Phase::Begin, false);
    assert_eq!(carry_out(&nic, &missing), Err("no device of this process is meant".into()));
}

#[test]
fn a_device_that_was_pulled_out_is_another_when_it_is_back() {
    let (nic, contexts) = open();
    let (out, back) = (Phase::Begin, Phase::End);
    assert_eq!(carry_out(&nic, &strike(0, 3, Action::DeviceRemove, out, false)), Ok("ubi_1".into()));
    assert_eq!(nic.devices().len(), 1);
    let again = carry_out(&nic, &strike(1, 3, Action::DeviceFatal, out, false));
    assert_eq!(again, Err("no device of this process is meant".into()));
    assert_eq!(events(&contexts[1]), [AsyncEvent::DeviceFatal]);
    carry_out(&nic, &strike(0, 3, Action::DeviceRemove, back, false)).unwrap();
    let device = Arc::clone(&nic.devices()[1]);
    assert!(device.name() == "ubi_1" && !device.has_failed() && contexts[1].device().has_failed());
    carry_out(&nic, &strike(1, 3, Action::DeviceFatal, out, false)).unwrap();
    assert!(device.has_failed() && nic.devices().len() == 2);
    carry_out(&nic, &strike(1, 3, Action::DeviceFatal, back, false)).unwrap();
    assert!(nic.devices().iter().all(|device| !device.has_failed()));
}

#[test]
fn a_network_that_is_whole_again_costs_nothing_more() {
    let (nic, _contexts) = open();
    let actions = [
        Action::Loss { chance: Share(0.5) },
        Action::Latency { by: 1_000, jitter: 1_000 },
        Action::BlackHole { direction: Direction::Both },
        Action::Slow { share: Share(0.5) },
    ];
    for (line, action) in actions.into_iter().enumerate() {
        assert_eq!(carry_out(&nic, &strike(0, line, action, Phase::Begin, true)), Ok("the network".into()));
    }
    let links = &nic.ground.links;
    assert!(links.registry.rings_meet_faults() && links.black_holes.read().len() == 1);
    for (line, action) in actions.into_iter().enumerate() {
        carry_out(&nic, &strike(0, line, action, Phase::End, true)).unwrap();
    }
    assert!(!links.registry.rings_meet_faults() && links.black_holes.read().is_empty());
    let mut unknown = strike(0, 9, Action::Loss { chance: Share(1.0) }, Phase::Begin, true);
    let to = Some("no such host.invalid".into());
    unknown.strike.failure =
        Arc::new(Failure { place: Place { to, ..Place::default() }, ..Failure::clone(&unknown.strike.failure) });
    let refused = carry_out(&nic, &unknown).unwrap_err();
    assert!(refused.starts_with("\"no such host.invalid\" is no device, no address, and no host"), "{refused}");
}
