//! A model of what two programs may hear of each other. Random programs on both hosts call whatever they like in any weather; the model follows
//! each attempt through its phases and fails on an event that does not fit, on sides that disagree, and on anything that is left behind.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::time::Duration;

use cm::{Accept, CmError, Config, Connect, Event, Listen, Resolve, SidrAnswer, Unanswered};
use proptest::prelude::*;
use scenery::connections::{A, Answer, B, Manners, Weather, World};
use wire::cm::{CommId, Data, RejectReason};
use wire::{Psn, Qkey, Qpn, Timeout};

/// One thing that happens. `which` picks among the connections a host knows.
#[derive(Clone, Debug)]
enum Step {
    Connect { host: usize, patient: bool },
    Accept { host: usize, which: usize },
    Reject { host: usize, which: usize },
    Delay { host: usize, which: usize },
    Confirm { host: usize, which: usize },
    SawData { host: usize, which: usize },
    Disconnect { host: usize, which: usize },
    Agree { host: usize, which: usize },
    Abandon { host: usize, which: usize },
    Resolve { host: usize },
    Wait { millis: u64 },
    Weather { loss: f64, duplicate: f64, jitter: u64 },
}

#[derive(Clone, Debug)]
struct Program {
    seed: u64,
    eager: bool,
    half_open: usize,
    steps: Vec<Step>,
    /// Whether the programs end what they have in good manner, or just go.
    polite: bool,
}

/// Where an attempt stands, as far as its program knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Active: the request is out.
    Asking,
    /// Active: the reply is here.
    Answered,
    /// Passive: a request is here.
    Requested,
    /// Passive: the reply is out.
    Replied,
    /// Connected.
    Up,
    /// The peer wants to disconnect.
    Asked,
    /// Disconnected, in timewait.
    Waiting,
    /// Nothing more will be heard, because it has ended.
    Over,
    /// Nothing more will be heard, because the program said so.
    Forgotten,
}

/// What a program knows of an attempt, and what it did.
#[derive(Clone, Debug)]
struct Attempt {
    active: bool,
    phase: Phase,
    /// The peer's name for it, once it is known.
    peer: Option<CommId>,
    qpn: Qpn,
    psn: Psn,
    data: Vec<u8>,
    confirmed: bool,
    saw_data: bool,
    disconnected: bool,
    was_up: bool,
}

/// The model: what both programs know, and the world they are in.
struct Model {
    world: World,
    attempts: [BTreeMap<CommId, Attempt>; 2],
    /// Requests for datagram services: whether they are answered.
    inquiries: [BTreeMap<CommId, bool>; 2],
    /// How many events of each host were looked at.
    seen: [usize; 2],
    count: u32,
}

impl Model {
    fn new(program: &Program) -> Model {
        let eager = if program.eager { Some(Duration::from_millis(250)) } else { None };
        let mut world =
            World::with(program.seed, Weather::FINE, |config| Config { eager, half_open: program.half_open, ..config });
        for host in [A, B] {
            world.hosts[host].manners = Manners { request: Answer::Nothing, reply: Answer::Nothing, agree: false };
        }
        world.hosts[A].manager.listen(Listen::new(World::service())).unwrap();
        let none = || [BTreeMap::new(), BTreeMap::new()];
        Model { world, attempts: none(), inquiries: [BTreeMap::new(), BTreeMap::new()], seen: [0; 2], count: 0 }
    }

    fn data(&mut self) -> Vec<u8> {
        self.count += 1;
        self.count.to_be_bytes().to_vec()
    }

    fn pick(&self, host: usize, which: usize) -> Option<CommId> {
        let known = &self.attempts[host];
        known.keys().nth(which % known.len().max(1)).copied()
    }

    /// The attempt, and the call of the manager; what follows a call that was allowed.
    fn call(
        &mut self,
        host: usize,
        id: CommId,
        call: impl FnOnce(&mut World) -> Result<(), CmError>,
        then: impl FnOnce(&mut Attempt),
    ) {
        let before = self.attempts[host][&id].phase;
        match call(&mut self.world) {
            Ok(()) => then(self.attempts[host].get_mut(&id).expect("it was picked")),
            Err(CmError::UnknownId(_)) => {
                assert!(matches!(before, Phase::Over | Phase::Forgotten), "{before:?}: the manager forgot it");
            }
            Err(CmError::WrongState { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.world.now;
        match *step {
            Step::Connect { host, patient } => {
                let data = self.data();
                let private_data = Data::from_slice(&data).unwrap();
                let request = self.world.request(host);
                let mut connect = Connect { private_data, ..request };
                if !patient {
                    connect.remote_cm_response_timeout = Timeout::new(17);
                    connect.local_cm_response_timeout = Timeout::new(17);
                    connect.max_cm_retries = 3;
                }
                let id = self.world.hosts[host].manager.connect(now, connect).unwrap();
                let attempt = Attempt {
                    active: true,
                    phase: Phase::Asking,
                    peer: None,
                    qpn: connect.qpn,
                    psn: connect.psn,
                    data,
                    confirmed: false,
                    saw_data: false,
                    disconnected: false,
                    was_up: false,
                };
                assert!(self.attempts[host].insert(id, attempt).is_none(), "an id was used again too soon");
            }
            Step::Accept { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                let (data, qpn) = (self.data(), self.world.qpn());
                let psn = Psn::new(qpn.value() * 3);
                let private_data = Data::from_slice(&data).unwrap();
                let accept = Accept { private_data, ..Accept::new(qpn, psn) };
                self.call(
                    host,
                    id,
                    |world| world.hosts[host].manager.accept(now, id, accept),
                    |attempt| {
                        assert_eq!(attempt.phase, Phase::Requested);
                        attempt.phase = Phase::Replied;
                        (attempt.qpn, attempt.psn, attempt.data) = (qpn, psn, data);
                    },
                );
            }
            Step::Reject { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                let reject =
                    |world: &mut World| world.hosts[host].manager.reject(now, id, RejectReason::Consumer, &[], b"no");
                self.call(host, id, reject, |attempt| {
                    assert!(matches!(
                        attempt.phase,
                        Phase::Asking | Phase::Answered | Phase::Requested | Phase::Replied
                    ));
                    attempt.phase = Phase::Forgotten;
                });
            }
            Step::Delay { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                let delay = |world: &mut World| world.hosts[host].manager.delay(now, id, Timeout::new(20), b"");
                self.call(host, id, delay, |attempt| {
                    assert!(matches!(attempt.phase, Phase::Answered | Phase::Requested));
                });
            }
            Step::Confirm { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                self.call(
                    host,
                    id,
                    |world| world.hosts[host].manager.confirm(now, id, b""),
                    |attempt| {
                        assert_eq!(attempt.phase, Phase::Answered);
                        attempt.phase = Phase::Up;
                        attempt.confirmed = true;
                        attempt.was_up = true;
                    },
                );
            }
            Step::SawData { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                // Data comes only from a peer that has confirmed.
                let attempt = &self.attempts[host][&id];
                let peer = attempt.peer.and_then(|peer| self.attempts[1 - host].get(&peer));
                if attempt.phase != Phase::Replied || !peer.is_some_and(|peer| peer.confirmed && peer.peer == Some(id))
                {
                    return;
                }
                let saw = |world: &mut World| world.hosts[host].manager.established(now, id);
                self.call(host, id, saw, |attempt| attempt.saw_data = true);
            }
            Step::Disconnect { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                let data = self.attempts[host][&id].data.clone();
                let disconnect = |world: &mut World| world.hosts[host].manager.disconnect(now, id, &data);
                self.call(host, id, disconnect, |attempt| match attempt.phase {
                    Phase::Up => attempt.disconnected = true,
                    Phase::Asked => attempt.phase = Phase::Waiting,
                    phase => panic!("disconnected in {phase:?}"),
                });
            }
            Step::Agree { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                let agree = |world: &mut World| world.hosts[host].manager.answer_disconnect(now, id, b"");
                self.call(host, id, agree, |attempt| {
                    assert_eq!(attempt.phase, Phase::Asked);
                    attempt.phase = Phase::Waiting;
                });
            }
            Step::Abandon { host, which } => {
                let Some(id) = self.pick(host, which) else { return };
                let abandon = |world: &mut World| world.hosts[host].manager.abandon(now, id);
                self.call(host, id, abandon, |attempt| attempt.phase = Phase::Forgotten);
            }
            Step::Resolve { host } => {
                let resolve = Resolve { retries: 3, ..Resolve::new(self.world.route(host), World::service()) };
                let id = self.world.hosts[host].manager.resolve(now, resolve).unwrap();
                self.inquiries[host].insert(id, false);
            }
            Step::Wait { millis } => self.world.run_for(Duration::from_millis(millis)),
            Step::Weather { loss, duplicate, jitter } => {
                self.world.weather = Weather { loss, duplicate, jitter: Duration::from_millis(jitter) };
            }
        }
        self.world.drain();
        self.listen();
    }

    /// Follows what was heard since the last time.
    fn listen(&mut self) {
        while let Some(host) = self.world.order.get(self.seen[A] + self.seen[B]).copied() {
            let event = self.world.hosts[host].events[self.seen[host]].clone();
            self.seen[host] += 1;
            self.hear(host, &event);
        }
    }

    fn hear(&mut self, host: usize, event: &Event) {
        let id = event.id();
        match event {
            Event::Request { request, route, .. } => {
                assert_eq!(*route, self.world.route(host));
                let peer = &self.attempts[1 - host][&request.local_comm_id];
                assert!(peer.active);
                assert_eq!((peer.qpn, peer.psn), (request.local_qpn, request.starting_psn));
                assert_eq!(request.private_data, Data::from_slice(&peer.data).unwrap());
                let attempt = Attempt {
                    active: false,
                    phase: Phase::Requested,
                    peer: Some(request.local_comm_id),
                    qpn: Qpn::new(0),
                    psn: Psn::new(0),
                    data: Vec::new(),
                    confirmed: false,
                    saw_data: false,
                    disconnected: false,
                    was_up: false,
                };
                assert!(self.attempts[host].insert(id, attempt).is_none(), "an id was used again too soon");
                return;
            }
            Event::ServiceRequest { .. } => {
                let answer = SidrAnswer::valid(Qpn::new(5), Qkey::new(6));
                self.world.hosts[host].manager.answer(self.world.now, id, answer).unwrap();
                return;
            }
            Event::ServiceAnswer { .. } | Event::ServiceTimedOut { .. } => {
                let answered = self.inquiries[host].get_mut(&id).expect("it was asked");
                assert!(!std::mem::replace(answered, true), "a service answers once");
                return;
            }
            _ => {}
        }
        let [first, second] = &mut self.attempts;
        let (ours, theirs) = if host == A { (first, second) } else { (second, first) };
        let attempt = ours.get_mut(&id).unwrap_or_else(|| panic!("{event:?} of nothing"));
        let fits = (attempt.active, attempt.phase);
        attempt.phase = match event {
            Event::Reply { reply, .. } => {
                assert_eq!(fits, (true, Phase::Asking));
                let peer = &theirs[&reply.local_comm_id];
                assert_eq!(peer.peer, Some(id), "the reply is to our request");
                assert_eq!((peer.qpn, peer.psn), (reply.local_qpn, reply.starting_psn));
                assert_eq!(reply.private_data, Data::from_slice(&peer.data).unwrap());
                attempt.peer = Some(reply.local_comm_id);
                Phase::Answered
            }
            Event::Established { .. } => {
                assert_eq!(fits, (false, Phase::Replied));
                let peer = attempt.peer.and_then(|peer| theirs.get(&peer)).expect("a peer asked");
                assert!(peer.confirmed && peer.peer == Some(id), "established, and the peer knows nothing of it");
                attempt.was_up = true;
                Phase::Up
            }
            Event::Rejected { .. } => {
                let phases = [
                    (true, Phase::Asking),
                    (true, Phase::Answered),
                    (false, Phase::Requested),
                    (false, Phase::Replied),
                ];
                assert!(phases.contains(&fits), "rejected in {fits:?}");
                Phase::Over
            }
            Event::TimedOut { what, .. } => match what {
                Unanswered::Req => {
                    assert_eq!(fits, (true, Phase::Asking));
                    Phase::Over
                }
                Unanswered::Rep => {
                    assert_eq!(fits, (false, Phase::Replied));
                    Phase::Over
                }
                Unanswered::Dreq => {
                    assert!(attempt.phase == Phase::Up && attempt.disconnected, "{fits:?}");
                    Phase::Waiting
                }
            },
            Event::DisconnectRequested { private_data, .. } => {
                assert_eq!(attempt.phase, Phase::Up);
                let peer = attempt.peer.and_then(|peer| theirs.get(&peer)).expect("a peer asks");
                assert!(peer.was_up && peer.peer == Some(id));
                assert!(peer.disconnected || peer.phase == Phase::Forgotten, "nobody asked: {peer:?}");
                if peer.disconnected {
                    assert_eq!(*private_data, Data::from_slice(&peer.data).unwrap());
                }
                Phase::Asked
            }
            Event::Disconnected { .. } => {
                assert_eq!(attempt.phase, Phase::Up);
                let peer = attempt.peer.and_then(|peer| theirs.get(&peer)).expect("a peer agreed");
                let ended = matches!(peer.phase, Phase::Waiting | Phase::Over | Phase::Forgotten);
                assert!(ended || peer.disconnected, "the peer knows nothing of it: {peer:?}");
                Phase::Waiting
            }
            Event::TimewaitEnded { .. } => {
                assert_eq!(attempt.phase, Phase::Waiting);
                Phase::Over
            }
            other => panic!("{other:?}"),
        };
    }

    /// Lets the programs come to an end, and looks at what is left.
    fn finish(mut self, polite: bool) -> (usize, usize) {
        self.world.weather = Weather::FINE;
        if polite {
            // Each round the programs do the next thing that brings their attempts to an end.
            for _ in 0..12 {
                for host in [A, B] {
                    for (which, id) in self.attempts[host].keys().copied().enumerate().collect::<Vec<_>>() {
                        match self.attempts[host][&id].phase {
                            Phase::Requested => self.step(&Step::Reject { host, which }),
                            Phase::Answered => self.step(&Step::Confirm { host, which }),
                            Phase::Up => self.step(&Step::Disconnect { host, which }),
                            Phase::Asked => self.step(&Step::Agree { host, which }),
                            _ => {}
                        }
                    }
                }
                self.step(&Step::Wait { millis: 1_000_000 });
            }
        } else {
            // Requests that are under way when the programs go arrive at the programs that come next, which go too.
            for _ in 0..3 {
                for host in [A, B] {
                    self.world.hosts[host].manager.abandon_all(self.world.now);
                    self.attempts[host].values_mut().for_each(|attempt| attempt.phase = Phase::Forgotten);
                    self.inquiries[host].values_mut().for_each(|answered| *answered = true);
                }
                self.world.run_until_quiet();
                self.listen();
            }
        }
        self.world.run_until_quiet();
        self.listen();
        self.world.run_until_quiet();
        self.world.assert_forgotten();
        for host in [A, B] {
            for (id, attempt) in &self.attempts[host] {
                assert!(matches!(attempt.phase, Phase::Over | Phase::Forgotten), "{id} of host {host}: {attempt:?}");
            }
            assert!(self.inquiries[host].values().all(|answered| *answered), "a service never answered");
        }
        // A program that asked is connected at most once, however often the request arrived.
        for host in [A, B] {
            let mut connected = BTreeMap::new();
            for attempt in self.attempts[host].values().filter(|attempt| !attempt.active && attempt.was_up) {
                *connected.entry(attempt.peer).or_insert(0) += 1;
            }
            assert!(connected.values().all(|count| *count == 1), "{connected:?}");
        }
        let all = || self.attempts.iter().flat_map(|attempts| attempts.values());
        (all().filter(|attempt| attempt.active).count(), all().filter(|attempt| attempt.was_up).count())
    }
}

/// Runs a program; returns how many attempts it made and how many sides were connected.
fn run(program: &Program) -> (usize, usize) {
    let mut model = Model::new(program);
    for step in &program.steps {
        model.step(step);
    }
    model.finish(program.polite)
}

fn step() -> impl Strategy<Value = Step> {
    let host = || 0usize..2;
    let which = || 0usize..8;
    let on = move |make: fn(usize, usize) -> Step| (host(), which()).prop_map(move |(host, which)| make(host, which));
    prop_oneof![
        4 => (host(), any::<bool>()).prop_map(|(host, patient)| Step::Connect { host, patient }),
        5 => on(|host, which| Step::Accept { host, which }),
        1 => on(|host, which| Step::Reject { host, which }),
        1 => on(|host, which| Step::Delay { host, which }),
        5 => on(|host, which| Step::Confirm { host, which }),
        2 => on(|host, which| Step::SawData { host, which }),
        3 => on(|host, which| Step::Disconnect { host, which }),
        3 => on(|host, which| Step::Agree { host, which }),
        1 => on(|host, which| Step::Abandon { host, which }),
        1 => host().prop_map(|host| Step::Resolve { host }),
        8 => prop_oneof![0u64..3, 0u64..500, 0u64..10_000, 0u64..200_000].prop_map(|millis| Step::Wait { millis }),
        1 => (0.0..0.4, 0.0..0.4, prop_oneof![0u64..2, 0u64..800])
            .prop_map(|(loss, duplicate, jitter)| Step::Weather { loss, duplicate, jitter }),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let half_open = prop_oneof![3 => Just(8192usize), 1 => 1usize..4];
    (any::<u32>(), any::<bool>(), half_open, prop::collection::vec(step(), 0..80), any::<bool>()).prop_map(
        |(seed, eager, half_open, steps, polite)| Program { seed: seed.into(), eager, half_open, steps, polite },
    )
}

/// How many programs the default run has; the variable asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|value| value.parse().ok()).unwrap_or(600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_two_programs_do_they_agree_and_come_to_an_end(program in program()) {
        run(&program);
    }
}

#[test]
fn the_model_sees_connections_worth_the_name() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut attempts, mut connected) = (0, 0);
    for _ in 0..300 {
        let program = program().new_tree(&mut runner).expect("a program").current();
        let (made, up) = run(&program);
        attempts += made;
        connected += up;
    }
    assert!(attempts > 1000 && connected > 200, "{attempts} attempts, {connected} sides connected");
}
