//! What attacks are played on: pairs of victims at work, the numbers that an attacker would have to guess, and the
//! question whether the victims noticed anything.

use std::time::{Duration, Instant};

use ubiverbs::RemoteSlice;

use crate::actor::{Actor, Outcome};
use crate::network::{Network, User};

/// How long victims may take for a few rounds.
const ROUNDS_TIMEOUT: Duration = Duration::from_secs(90);

/// Where the two victims of a pair are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VictimPlacement {
    /// One user's processes on one host: shared memory.
    Shared,
    /// Two users' processes on one host: UDP inside the host.
    Users,
    /// Two hosts: UDP between them.
    Hosts,
}

/// All of them.
pub const PLACES: [VictimPlacement; 3] = [VictimPlacement::Shared, VictimPlacement::Users, VictimPlacement::Hosts];

/// A server on the victims' host and its client, at work.
pub struct Pair {
    /// The server.
    pub server: Actor,
    /// The client.
    pub client: Actor,
    /// Where they are.
    pub place: VictimPlacement,
    memory: RemoteSlice,
    datagrams: u32,
}

/// A queue pair's numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    /// Its own.
    pub qpn: u32,
    /// The PSN that it expects next.
    pub expected: u32,
    /// The PSN that it sends next.
    pub next: u32,
    /// Its peer's.
    pub peer: u32,
}

/// What attackers have to guess, and are told here: an attack that fails although it knows everything, fails for
/// certain.
#[derive(Clone, Copy, Debug)]
pub struct Secrets {
    /// The server's reliable queue pair, its unreliable one, and that of its connection.
    pub server: [Numbers; 3],
    /// The client's.
    pub client: [Numbers; 3],
    /// The server's memory.
    pub memory: RemoteSlice,
    /// The server's datagram queue pair.
    pub datagrams: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

/// The three groups of four numbers at the front of a line, and the words behind them.
fn parse(line: &str) -> Outcome<([Numbers; 3], Vec<&str>)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut all = [Numbers::default(); 3];
    let (numbers, rest) = words.split_at_checked(12).ok_or("too few numbers")?;
    for (numbers, words) in all.iter_mut().zip(numbers.chunks(4)) {
        *numbers = Numbers {
            qpn: words[0].parse()?,
            expected: words[1].parse()?,
            next: words[2].parse()?,
            peer: words[3].parse()?,
        };
    }
    Ok((all, rest.to_vec()))
}

impl Pair {
    /// Starts a pair and waits until it works.
    pub fn start(network: &Network, place: VictimPlacement) -> Outcome<Pair> {
        Pair::start_with(network, place, &[])
    }

    /// Starts a pair with variables in the client's environment.
    pub fn start_with(network: &Network, place: VictimPlacement, variables: &[(&str, &str)]) -> Outcome<Pair> {
        Pair::start_after(network, place, variables, |_| Ok(()))
    }

    /// Starts a pair; `between` is called with the number of the server's slot before the client comes.
    pub fn start_after(
        network: &Network,
        place: VictimPlacement,
        variables: &[(&str, &str)],
        between: impl FnOnce(u32) -> Outcome,
    ) -> Outcome<Pair> {
        let Network { home, away, .. } = network;
        let (host, user) = match place {
            VictimPlacement::Shared => (home, User::Victim),
            VictimPlacement::Users => (home, User::Neighbour),
            VictimPlacement::Hosts => (away, User::Victim),
        };
        let mut server = home.start(User::Victim, "server", &[home.address.to_string()])?;
        let here = server.hear("here")?;
        let words: Vec<&str> = here.split(' ').collect();
        let [_, _, datagrams, memory, _] = words[..] else { return Err("five words".into()) };
        let (memory, datagrams) = (memory.parse()?, datagrams.parse::<ubiverbs::Endpoint>()?.qpn().value());
        between(datagrams >> 12)?;
        let lossless = if place == VictimPlacement::Shared { "lossless" } else { "lossy" };
        let mut client = host.start_with(user, "client", &[host.address.to_string(), lossless.into()], variables)?;
        let peers = client.hear("here")?;
        server.say("peers", peers);
        server.hear("connected")?;
        client.say("peers", &here);
        client.hear("connected")?;
        server.hear("accepted")?;
        let mut pair = Pair { server, client, place, memory, datagrams };
        match pair.after_rounds(4)? {
            None => Ok(pair),
            Some(hurt) => Err(format!("victims do not work even without an attack: {hurt}").into()),
        }
    }

    /// Lets the victims pause, and tells their numbers, which do not change until [`Pair::unhurt`].
    pub fn secrets(&mut self) -> Outcome<Secrets> {
        let (memory, datagrams) = (self.memory, self.datagrams);
        let paused = self.client.ask("pause", "", "paused")?;
        let (client, _) = parse(&paused)?;
        let line = self.server.ask("numbers", "", "numbers")?;
        let (server, rest) = parse(&line)?;
        let qkey = rest.first().ok_or("no Q_Key")?.parse()?;
        Ok(Secrets { server, client, memory, datagrams, qkey })
    }

    /// Lets the victims go on after a pause.
    pub fn go_on(&mut self) -> Outcome {
        self.client.ask("go", "", "going").map(drop)
    }

    /// Lets the victims go on after a pause: what hurt them, if anything did.
    pub fn unhurt(&mut self) -> Outcome<Option<String>> {
        self.go_on()?;
        self.after_rounds(12)
    }

    /// Waits until the victims have worked for so many rounds: what hurt them, if anything did.
    pub fn after_rounds(&mut self, more: u64) -> Outcome<Option<String>> {
        let begin = Instant::now();
        let mut wanted = None;
        loop {
            self.client.say("rounds", "");
            let rounds: u64 = loop {
                let rounds = self.client.try_hear("rounds", Duration::from_millis(100));
                let _ = self.server.try_hear("nothing", Duration::ZERO);
                if let Some(hurt) = self.server.hurt().or_else(|| self.client.hurt()) {
                    return Ok(Some(format!("{:?}: {hurt}", self.place)));
                }
                if !self.server.is_alive() || !self.client.is_alive() {
                    return Ok(Some(format!("{:?}: a victim's process has ended", self.place)));
                }
                if begin.elapsed() > ROUNDS_TIMEOUT {
                    return Ok(Some(format!("{:?}: victims do not get on, after {ROUNDS_TIMEOUT:?}", self.place)));
                }
                if let Some(rounds) = rounds? {
                    break rounds.parse()?;
                }
            };
            if rounds >= *wanted.get_or_insert(rounds + more) {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
