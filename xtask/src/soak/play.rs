//! One round: both sides are started, harmed as drawn, and judged.

use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::draw::{Dice, Harm, Program, Round, SidesPlacement};
use super::network::Network;
use super::side::{Report, Side};

/// So long after its time may a round end; the programs themselves give up after a minute in which nothing moves.
const LATE: Duration = Duration::from_secs(75);

/// So long after its time it is written down where everybody is.
const SUSPICIOUS: Duration = Duration::from_secs(30);

/// The other user.
const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// What rounds are played with.
pub struct Programs {
    pub rust: PathBuf,
    pub c: Option<PathBuf>,
    /// Where our C libraries are.
    pub lib: PathBuf,
    pub logs: PathBuf,
    /// A processor that we may use.
    pub core: String,
}

/// Something that is done to a process at a time.
enum Deed {
    Stop,
    GoOn,
    Kill,
}

struct Stage<'a> {
    programs: &'a Programs,
    round: &'a Round,
    network: Option<Network>,
    port: u16,
}

impl Programs {
    /// Plays a round. Answers what its sides did together, or what is wrong.
    pub fn play(&self, round: &Round) -> Result<Report, String> {
        let network = match round.place {
            SidesPlacement::Namespaces { cable } => Some(Network::new(cable)?),
            _ => None,
        };
        let stage = Stage { programs: self, round, network, port: free_port()? };
        stage.play()
    }

    /// Starts the server and the client of a round on this host.
    pub fn start(&self, round: &Round) -> Result<[Side; 2], String> {
        let stage = Stage { programs: self, round, network: None, port: free_port()? };
        Ok([stage.start(true)?, stage.start(false)?])
    }
}

/// Ports below those that systems choose, so that neither a client nor another round has it when the server listens.
const PORTS: Range<u32> = 10_000..30_000;

/// A port that no other round has.
fn free_port() -> Result<u16, String> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    // Another run on this host begins elsewhere.
    let begin = std::process::id().wrapping_mul(997);
    for _ in PORTS {
        let offset = begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS.len() as u32;
        if let Ok(port) = u16::try_from(PORTS.start + offset)
            && TcpListener::bind(("0.0.0.0", port)).is_ok()
        {
            return Ok(port);
        }
    }
    Err("no port is free".into())
}

impl Stage<'_> {
    fn addresses(&self) -> [String; 2] {
        match &self.network {
            Some(network) => [&network.hosts[0], &network.hosts[1]].map(|host| host.address(self.round.v6)),
            None => [(); 2].map(|()| if self.round.v6 { "::1" } else { "127.0.0.1" }.to_owned()),
        }
    }

    /// What stands before the program of a side.
    fn prefix(&self, server: bool) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(network) = &self.network {
            words.extend(network.hosts[usize::from(!server)].prefix());
        }
        if self.round.one_core {
            words.extend(["taskset", "-c", &self.programs.core].map(String::from));
        }
        if self.round.place == SidesPlacement::Users && !server {
            words.extend(NOBODY.map(String::from));
        }
        // It does not outlive us.
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(String::from));
        words
    }

    fn variables(&self, server: bool) -> Vec<(&'static str, String)> {
        let mut variables = Vec::new();
        if self.round.udp {
            variables.push(("UBIVERBS_LINK", "udp".to_owned()));
        }
        let faults = &self.round.faults[usize::from(!server)];
        if !faults.is_empty() {
            variables.push(("UBIVERBS_FAULTS", faults.clone()));
        }
        if self.round.program == Program::C {
            variables.push(("LD_LIBRARY_PATH", self.programs.lib.display().to_string()));
        }
        variables
    }

    fn start(&self, server: bool) -> Result<Side, String> {
        let round = self.round;
        let role = if server { "server" } else { "client" };
        let program = match round.program {
            Program::Rust => &self.programs.rust,
            Program::C => self.programs.c.as_ref().ok_or("there is no program in C")?,
        };
        let [at, from] = self.addresses();
        let mut words = self.prefix(server);
        words.push(program.display().to_string());
        let connect = if round.cm { "cm" } else { "manual" };
        let arguments = format!(
            "--seed {} --seconds {} --role {role} --address {at} --port {} --own-address {} --threads {} --qps {} --mtu {} --connect {connect}",
            round.seed,
            round.seconds,
            self.port,
            if server { &at } else { &from },
            round.threads,
            round.qps,
            round.mtu,
        );
        words.extend(arguments.split(' ').map(String::from));
        if round.is_lossless() {
            words.push("--lossless".into());
        }
        match round.harm {
            Harm::Stops => words.push("--peer-may-stop".into()),
            Harm::Kill { server: victim } if victim != server => words.push("--peer-may-die".into()),
            _ => {}
        }
        let log = self.programs.logs.join(format!("round-{}-{role}.log", round.number));
        Side::start(role, &words, &self.variables(server), &log)
    }

    fn play(&self) -> Result<Report, String> {
        let round = self.round;
        let begin = Instant::now();
        let mut sides = [self.start(true)?, self.start(false)?];
        let mut deeds = self.deeds().into_iter().peekable();
        let mut bystanders = Bystanders { stage: self, dice: Dice::new(round.seed, 2), pair: None, count: 0 };
        let time = Duration::from_secs(round.seconds);
        let mut suspicious = false;
        let over = loop {
            let now = begin.elapsed();
            while let Some((_, side, deed)) = deeds.next_if(|(at, ..)| *at <= now) {
                match deed {
                    Deed::Stop => sides[side].stop(),
                    Deed::GoOn => sides[side].go_on(),
                    Deed::Kill => sides[side].kill(),
                }
            }
            if round.harm == Harm::Bystanders {
                bystanders.tend(now, now < time)?;
            }
            if sides.iter_mut().all(Side::has_ended) {
                break true;
            }
            if now > time + LATE {
                break false;
            }
            if now > time + SUSPICIOUS && !suspicious {
                suspicious = true;
                sides.iter_mut().for_each(Side::diagnose);
            }
            thread::sleep(Duration::from_millis(2));
        };
        bystanders.end()?;
        let verdicts: Vec<Result<Report, String>> = sides.iter_mut().map(Side::verdict).collect();
        let wrong: Vec<String> = verdicts.iter().filter_map(|verdict| verdict.clone().err()).collect();
        if !wrong.is_empty() || !over {
            return Err(if over { wrong.join("\n") } else { format!("not over in time\n{}", wrong.join("\n")) });
        }
        let mut all = Report::default();
        for report in verdicts.into_iter().flatten() {
            all.operations += report.operations;
            all.bytes += report.bytes;
            all.rounds = all.rounds.max(report.rounds);
            // What the survivor says counts.
            if report.verdict == "peer died" {
                all.verdict = report.verdict;
            }
        }
        Ok(all)
    }

    /// What is done to the server (0) and the client (1), and when.
    fn deeds(&self) -> Vec<(Duration, usize, Deed)> {
        let mut dice = Dice::new(self.round.seed, 1);
        let mut deeds = Vec::new();
        let time = self.round.seconds * 1000;
        match self.round.harm {
            Harm::Kill { server } => {
                // They have found each other by then.
                let at = 1500 + dice.below(time.saturating_sub(2000));
                deeds.push((Duration::from_millis(at), usize::from(!server), Deed::Kill));
            }
            Harm::Stops => {
                for side in 0..2 {
                    let mut at = 500 + dice.below(1000);
                    while at < time {
                        let long = if dice.below(4) == 0 { 10 + dice.below(1990) } else { 10 + dice.below(190) };
                        deeds.push((Duration::from_millis(at), side, Deed::Stop));
                        deeds.push((Duration::from_millis(at + long), side, Deed::GoOn));
                        at += long + 50 + dice.below(1500);
                    }
                }
            }
            Harm::None | Harm::Bystanders => {}
        }
        deeds.sort_by_key(|(at, ..)| *at);
        deeds
    }
}

/// Two processes beside those of the round, of which one is killed after a moment; then two others.
struct Bystanders<'a> {
    stage: &'a Stage<'a>,
    dice: Dice,
    /// Both, which of them is to be stopped and killed, and when.
    pair: Option<([Side; 2], usize, [Duration; 3])>,
    count: u64,
}

impl Bystanders<'_> {
    /// Does to them what is due.
    fn tend(&mut self, now: Duration, more: bool) -> Result<(), String> {
        let Some((sides, victim, [stop, go_on, kill])) = &mut self.pair else {
            return if more { self.begin(now) } else { Ok(()) };
        };
        let due = |at: &mut Duration| now >= *at && std::mem::replace(at, Duration::MAX) != Duration::MAX;
        if due(stop) {
            sides[*victim].stop();
        }
        if due(go_on) {
            sides[*victim].go_on();
        }
        if due(kill) {
            sides[*victim].kill();
        }
        if sides.iter_mut().all(Side::has_ended) {
            let verdicts = sides.iter_mut().map(Side::verdict);
            verdicts.collect::<Result<Vec<_>, _>>()?;
            self.pair = None;
        }
        Ok(())
    }

    fn begin(&mut self, now: Duration) -> Result<(), String> {
        let (stage, round) = (self.stage, self.stage.round);
        let port = free_port()?;
        self.count += 1;
        let [at, _] = stage.addresses();
        let sides = [true, false].map(|server| {
            let role = if server { "server" } else { "client" };
            let mut words = stage.prefix(true);
            words.push(stage.programs.rust.display().to_string());
            let arguments = format!(
                "--seed {} --seconds 60 --role {role} --address {at} --port {port} --threads 1 --qps 2 --peer-may-die --peer-may-stop",
                round.seed + self.count
            );
            words.extend(arguments.split(' ').map(String::from));
            let log = format!("round-{}-bystander-{}-{role}.log", round.number, self.count);
            Side::start(&format!("bystander {role}"), &words, &stage.variables(true), &stage.programs.logs.join(log))
        });
        let [server, client] = sides;
        let moment = |milliseconds: u64| now + Duration::from_millis(milliseconds);
        let stop = 700 + self.dice.below(700);
        let go_on = stop + 10 + self.dice.below(400);
        let kill = stop + self.dice.below(1000);
        let times = [moment(stop), moment(go_on), moment(kill)];
        self.pair = Some(([server?, client?], self.dice.below(2) as usize, times));
        Ok(())
    }

    /// They go with the round; what they had found wrong by then counts.
    fn end(&mut self) -> Result<(), String> {
        let Some((sides, ..)) = &mut self.pair else { return Ok(()) };
        sides.iter_mut().for_each(Side::go_on);
        // Together: who is killed first would be missed by the other.
        sides.iter_mut().for_each(Side::kill);
        sides.iter_mut().map(Side::verdict).collect::<Result<Vec<_>, _>>().map(drop)
    }
}
