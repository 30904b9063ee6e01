//! A network that runs: takes one event after the other off the calendar until the work is done. The parts are in
//! modules: what happens to packets between hosts (`switching`), in NICs (`nic`), and what goes wrong (`failing`).

mod ahead;
mod capture;
mod failing;
mod figures;
mod nic;
mod switching;

use crate::Error;
use crate::calendar::Calendar;
use crate::endpoint::{self, Endpoint, Live, Settings, qpn_of};
use crate::graph::PATH_END;
use crate::messages::{Message, Messages, Post};
use crate::packets::{NO_PACKET, Packet};
use crate::port::{Buffer, Cable, Ingress, PICOS_PER_NANO, Port};
use crate::recorder::{EventSink, Recorder};
use crate::regions::Regions;
use crate::scenario::{Congestion, Failure, Scenario};
use crate::statistics::{Counts, Course, QueueDepths, Sample};
use crate::topology::Topology;
use crate::workload::Program;
use crate::world::{UNLIMITED_WINDOW, World};
use capture::Captures;
use failing::Trouble;
use sim::Rng;
use std::collections::{HashMap, VecDeque};
use transport::Time;
use transport::congestion::{Window, WindowConfig};
use wire::{Psn, source_port};

/// What is planned: a kind in the upper half, a number in the lower.
mod plan {
    /// A packet reaches the end of the cable it is on. The calendar knows that this is 0.
    pub const ARRIVE: u64 = 0;
    /// A port is free.
    pub const FREE: u64 = 1 << 32;
    /// A queue pair wants to be woken.
    pub const TIMER: u64 = 2 << 32;
    /// A port is to pause, or to go on.
    pub const PAUSE: u64 = 3 << 32;
    pub const RESUME: u64 = 4 << 32;
    /// A message of a trace is posted.
    pub const POST: u64 = 5 << 32;
    /// Something goes wrong, or is over.
    pub const TROUBLE: u64 = 6 << 32;
    /// Flows look for other ways.
    pub const REROUTE: u64 = 7 << 32;
    /// A sample is taken.
    pub const SAMPLE: u64 = 8 << 32;
    pub const KIND: u64 = !(u32::MAX as u64);
}

/// So many queue pairs of the transport are kept although they are idle.
const MAX_IDLE_QUEUE_PAIRS: usize = 32_768;

/// How often a flow that meets a dead link is hashed again.
const HASHED_AGAIN: u64 = 64;

/// A network that runs a scenario.
pub struct Network {
    scenario: Scenario,
    topology: Topology,
    settings: Settings,
    regions: Regions,
    calendar: Calendar,
    ports: Vec<Port>,
    cables: Vec<Cable>,
    ingress: Vec<Ingress>,
    /// Something has gone wrong with a cable; with a host.
    has_faults: bool,
    has_slow_hosts: bool,
    reroute_is_planned: bool,
    buffers: Vec<Buffer>,
    /// Packets that wait at each port, and those that nothing delays.
    queues: Vec<VecDeque<Packet>>,
    urgent: Vec<VecDeque<Packet>>,
    under_way: usize,
    most_under_way: usize,
    /// Ports of all ways, each with an end.
    paths: Vec<u32>,
    /// Queue pairs that have something to send, of each port of a host.
    nics: Vec<VecDeque<u32>>,
    endpoints: Vec<Endpoint>,
    by_pair: HashMap<(u32, u32), u32>,
    /// Endpoints whose last message is over, to be put to rest when there are many.
    idle: VecDeque<u32>,
    live: usize,
    most_live: usize,
    world: World,
    program: Program,
    messages: Messages,
    timed: Vec<(u64, Post)>,
    timed_left: usize,
    posts: Vec<Post>,
    troubles: Vec<Trouble>,
    rng: Rng,
    captures: Option<Captures>,
    counts: Counts,
    /// What queue pairs counted that are at rest again: retries and timeouts.
    retired: (u64, u64),
    depths: QueueDepths,
    course: Course,
    queued: u64,
    longest_since: u64,
    paused: u64,
    delivered: u64,
    /// Completion times of messages, in nanoseconds.
    times: Vec<u64>,
    /// When the last message arrived.
    last: u64,
    started: bool,
    /// The last turn of a region that was seen, and the window in which idle queue pairs were last put to rest.
    turns: u64,
    tidied: u64,
}

/// What a network takes of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footprint {
    /// Queue pairs, used and unused.
    pub queue_pairs: usize,
    /// The most that were in use at once.
    pub most_in_use: usize,
    /// Bytes of one at rest: its words, its way, and its entry in the table.
    pub idle_bytes: usize,
    /// Bytes of one in use, without what its queues allocate.
    pub used_bytes: usize,
    /// The most packets that were under way at once.
    pub packets: usize,
}

impl Network {
    /// Lays it out and connects nothing yet.
    pub fn new(scenario: &Scenario) -> Result<Network, Error> {
        let topology = Topology::new(scenario.shape, scenario.hosts, scenario.cables).map_err(Error::Topology)?;
        let mut rng = Rng::new(scenario.seed);
        let program = Program::new(scenario, &mut rng.fork())?;
        if program.queue_pairs(scenario.hosts) > endpoint::MAX_QUEUE_PAIRS as u64 {
            return Err(Error::QueuePairs(program.queue_pairs(scenario.hosts)));
        }
        let graph = &topology.graph;
        if let Some(host) = scenario.capture.iter().find(|host| **host >= graph.hosts) {
            return Err(Error::Workload(format!("there is no host {host} to capture among {}", graph.hosts)));
        }
        let mut nics = Vec::new();
        let ports: Vec<Port> = (graph.edges.iter())
            .map(|edge| {
                let nic = if graph.is_host(edge.from) { nics.len() as u32 } else { NO_PACKET };
                if nic != NO_PACKET {
                    nics.push(VecDeque::new());
                }
                Port::new(edge, nic)
            })
            .collect();
        let mut buffers = vec![Buffer { used: 0, headroom: 0, service: NO_PACKET }; graph.nodes() as usize];
        for edge in &graph.edges {
            // What is under way when a pause is asked for: both directions of the cable, and a packet at each end.
            let bytes = (u128::from(2 * edge.delay) * u128::from(edge.rate) / 8_000_000_000) as u64 + 3 * 4300;
            buffers[edge.to as usize].headroom += bytes;
        }
        let troubles = failing::plan(&scenario.failures, graph, &mut rng.fork()).map_err(Error::Failure)?;
        let settings = Settings {
            mtu: scenario.mtu,
            timeout: scenario.timeout,
            retries: scenario.retries,
            line_rate: scenario.cables.host_rate,
            obeys_congestion: matches!(scenario.congestion, Congestion::Dcqcn | Congestion::Both),
        };
        let regions = Regions::new(graph);
        Ok(Network {
            settings,
            calendar: Calendar::new(regions.count, regions.delay),
            ports,
            cables: graph.edges.iter().map(Cable::new).collect(),
            ingress: vec![Ingress::default(); graph.edges.len()],
            has_faults: false,
            has_slow_hosts: false,
            reroute_is_planned: false,
            buffers,
            queues: vec![VecDeque::new(); graph.edges.len()],
            urgent: vec![VecDeque::new(); graph.edges.len()],
            under_way: 0,
            most_under_way: 0,
            regions,
            paths: Vec::new(),
            nics,
            endpoints: Vec::new(),
            by_pair: HashMap::new(),
            idle: VecDeque::new(),
            live: 0,
            most_live: 0,
            world: World::new(),
            program,
            messages: Messages::default(),
            timed: Vec::new(),
            timed_left: 0,
            posts: Vec::new(),
            troubles,
            rng,
            captures: (!scenario.capture.is_empty()).then(|| Captures::new(&scenario.capture)),
            counts: Counts::default(),
            retired: (0, 0),
            depths: QueueDepths::new(),
            course: Course::new(),
            queued: 0,
            longest_since: 0,
            paused: 0,
            delivered: 0,
            times: Vec::new(),
            last: 0,
            started: false,
            turns: 0,
            tidied: 0,
            scenario: scenario.clone(),
            topology,
        })
    }

    /// Whether there is such a network, without running it.
    pub fn check(scenario: &Scenario) -> Result<(), Error> {
        Network::new(scenario).map(drop)
    }

    /// Whether this can go wrong there.
    pub fn check_failure(scenario: &Scenario, failure: &Failure) -> Result<(), Error> {
        let Ok(topology) = Topology::new(scenario.shape, scenario.hosts, scenario.cables) else { return Ok(()) };
        let planned = failing::plan(std::slice::from_ref(failure), &topology.graph, &mut Rng::new(0));
        planned.map(drop).map_err(Error::Failure)
    }

    /// Tells `sink` what happens at hosts: calls, packets as they leave, arrive or get lost, states, completions, on the
    /// network's clock. Called before the network runs; it runs as it would otherwise.
    pub fn tell(&mut self, sink: EventSink) {
        self.world.recorder = Some(Box::new(Recorder::new(sink)));
    }

    /// Runs until all work is done, or nothing more can happen, or the scenario's end.
    pub fn run(&mut self) {
        self.run_until(self.scenario.until.unwrap_or(u64::MAX));
    }

    /// Runs up to a moment, in nanoseconds. Returns whether work is left.
    pub fn run_until(&mut self, until: u64) -> bool {
        if !self.started {
            self.start();
        }
        loop {
            let until = match (self.is_over(), self.calendar.even_at()) {
                (false, _) => until,
                (true, Some(even)) => until.min(even),
                (true, None) => break,
            };
            let Some(what) = self.calendar.next(until) else { break };
            self.counts.events += 1;
            if self.calendar.turns() != self.turns {
                self.turn_begins();
            }
            let number = what as u32;
            match what & plan::KIND {
                plan::ARRIVE => {
                    let packet = *self.calendar.arriving(number);
                    self.arrive(&packet);
                }
                plan::FREE => {
                    self.ports[number as usize].awaited = false;
                    self.pump(number);
                }
                plan::TIMER => self.fire(number),
                plan::PAUSE => self.pause(number, true),
                plan::RESUME => self.pause(number, false),
                plan::POST => {
                    self.timed_left -= 1;
                    let (_, post) = self.timed[number as usize];
                    self.post(post);
                }
                plan::TROUBLE => self.trouble(number),
                plan::REROUTE => self.reroute(),
                _ => self.sample(),
            }
        }
        !self.is_over()
    }

    /// Whether no work is left.
    #[inline]
    fn is_over(&self) -> bool {
        self.messages.open() == 0 && self.timed_left == 0
    }

    /// A region has its turn.
    #[inline(never)]
    fn turn_begins(&mut self) {
        self.turns = self.calendar.turns();
        if self.calendar.windows() != self.tidied {
            self.tidied = self.calendar.windows();
            self.tidy();
        }
        if self.regions.count > 1 {
            self.look_ahead();
        }
    }

    fn start(&mut self) {
        self.started = true;
        for number in 0..self.troubles.len() {
            self.calendar.plan_for_all(self.troubles[number].at, plan::TROUBLE | number as u64);
        }
        self.calendar.plan_for_all(self.course.step, plan::SAMPLE);
        let mut posts = std::mem::take(&mut self.posts);
        self.timed = self.program.begin(&mut posts);
        self.timed_left = self.timed.len();
        for (number, (at, post)) in (0..).zip(&self.timed) {
            self.calendar.plan_in(self.regions.of(post.from), *at, plan::POST | number);
        }
        for post in posts.drain(..) {
            self.calendar.turn_to(self.regions.of(post.from));
            self.post(post);
        }
        self.posts = posts;
    }

    /// The present moment, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.calendar.now()
    }

    /// The rate at which a host may send to another at this moment, in bit/s; none if it has no connection in use.
    pub fn rate_of(&mut self, from: u32, to: u32) -> Option<u64> {
        let now = Time::from_nanos(self.now());
        let endpoint = *self.by_pair.get(&(from, to))?;
        let live = self.endpoints[endpoint as usize].live.as_mut()?;
        Some(live.qp.congested_rate(now).unwrap_or(self.settings.line_rate))
    }

    /// What it takes of memory.
    pub fn footprint(&self) -> Footprint {
        let paths = self.paths.len() * size_of::<u32>() / self.endpoints.len().max(1);
        // A table is at least 7/16 full after it has grown.
        let entry = size_of::<((u32, u32), u32)>() * 16 / 7;
        Footprint {
            queue_pairs: self.endpoints.len(),
            most_in_use: self.most_live,
            idle_bytes: size_of::<Endpoint>() + paths + entry,
            used_bytes: size_of::<Live>(),
            packets: self.most_under_way,
        }
    }

    /// The captures of hosts that the scenario asks for: host and pcapng file.
    pub fn take_captures(&mut self) -> Result<Vec<(u32, Vec<u8>)>, trace::Error> {
        self.captures.take().map_or(Ok(Vec::new()), Captures::finish)
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.calendar.now())
    }

    /// Posts a message.
    fn post(&mut self, post: Post) {
        let endpoint = self.endpoint(post.from, post.to);
        let peer = self.endpoints[endpoint as usize].peer;
        let number = self.messages.add(Message { post, at: self.now(), received: false });
        self.endpoints[endpoint as usize].open += 1;
        self.endpoints[peer as usize].open += 1;
        self.counts.messages += 1;
        self.post_send(endpoint, number, post.bytes);
    }

    /// The endpoint that sends from one host to another; both ends are made when they are first asked for.
    fn endpoint(&mut self, from: u32, to: u32) -> u32 {
        if let Some(endpoint) = self.by_pair.get(&(from, to)) {
            return *endpoint;
        }
        let first = self.endpoints.len() as u32;
        let psns = self.rng.next_u64();
        let (one, other) = (Psn::new(psns as u32), Psn::new((psns >> 32) as u32));
        for (host, peer_host, peer, psns) in [(from, to, first + 1, (one, other)), (to, from, first, (other, one))] {
            let number = self.endpoints.len() as u32;
            self.by_pair.insert((host, peer_host), number);
            if let Some(recorder) = &mut self.world.recorder {
                recorder.add_endpoint(host);
            }
            let path = self.find_path(host, peer_host, number, peer);
            let window = match self.scenario.congestion {
                Congestion::Window | Congestion::Both => {
                    let limit = self.scenario.window;
                    let config = WindowConfig { limit, ..WindowConfig::default() };
                    self.world.windows.push(Window::new(config));
                    self.world.windows.len() as u32 - 1
                }
                _ => UNLIMITED_WINDOW,
            };
            self.endpoints.push(Endpoint {
                host,
                peer_host,
                peer,
                path,
                window,
                sq_psn: psns.0,
                rq_psn: psns.1,
                open: 0,
                live: None,
            });
        }
        first
    }

    /// Finds the way of a flow and writes it down. Switches hash what they see: addresses and the source port.
    fn find_path(&mut self, from: u32, to: u32, number: u32, peer: u32) -> u32 {
        let port = u64::from(source_port(qpn_of(number), qpn_of(peer)));
        let start = self.paths.len();
        for salt in 0..HASHED_AGAIN {
            self.paths.truncate(start);
            let mut hash =
                Rng::new(self.scenario.seed ^ salt << 48 ^ u64::from(from) << 40 ^ u64::from(to) << 16 ^ port);
            self.topology.path(from, to, hash.next_u64(), &mut self.paths);
            if self.paths[start..].iter().all(|port| !self.ports[*port as usize].down) {
                break;
            }
        }
        self.paths.push(PATH_END);
        start as u32
    }

    /// Links have gone or come back: flows take the ways they would now.
    fn reroute(&mut self) {
        self.reroute_is_planned = false;
        for number in 0..self.endpoints.len() as u32 {
            let Endpoint { host, peer_host, peer, path, .. } = self.endpoints[number as usize];
            let found = self.find_path(host, peer_host, number, peer);
            let (old, new) = (&self.paths[path as usize..found as usize], &self.paths[found as usize..]);
            if old.starts_with(new) {
                self.paths.truncate(found as usize);
            } else {
                self.endpoints[number as usize].path = found;
            }
        }
    }

    fn sample(&mut self) {
        let counts = &self.counts;
        self.course.add(Sample {
            at: self.calendar.now(),
            delivered: self.delivered,
            queued: self.queued,
            longest_queue: std::mem::take(&mut self.longest_since),
            dropped: counts.dropped_full + counts.dropped_down + counts.dropped_lost,
            marked: counts.marked,
            paused: self.paused,
            messages: counts.messages_received,
        });
        // Where nothing else will happen there is nothing more to see.
        if !self.calendar.is_empty() {
            self.calendar.plan_for_all(self.calendar.now() + self.course.step, plan::SAMPLE);
        }
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Network({}, at {} ns)", self.topology.summary, self.now())
    }
}

/// The moment in picoseconds.
fn picos(nanos: u64) -> u64 {
    nanos * PICOS_PER_NANO
}
