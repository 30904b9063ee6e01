//! What a round is: drawn from the seed and its number, so that it can be played again.

use std::fmt;

/// SplitMix64, so that the same seed draws the same rounds on every machine.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, number: u64) -> Dice {
        let mut dice = Dice(seed);
        let start = dice.roll();
        Dice(start ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit.max(1)
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    C,
    Rust,
}

/// Where the two sides are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SidesPlacement {
    /// Both on this host.
    Loopback,
    /// In two network namespaces with a cable between them, which carries packets of so many bytes.
    Namespaces { cable: u32 },
    /// Both on this host, the client as another user.
    Users,
}

/// What is done to the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    None,
    /// Each is stopped now and then, and continued.
    Stops,
    /// One is killed: the server, or the client.
    Kill {
        server: bool,
    },
    /// Others beside them are started, stopped and killed.
    Bystanders,
}

/// One round.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Round {
    pub number: u64,
    /// Of the programs.
    pub seed: u64,
    pub seconds: u64,
    pub program: Program,
    pub place: SidesPlacement,
    /// Over UDP although there is shared memory.
    pub udp: bool,
    pub v6: bool,
    pub mtu: u32,
    pub threads: u64,
    pub qps: u64,
    pub cm: bool,
    /// At the server and at the client.
    pub faults: [String; 2],
    pub harm: Harm,
    pub one_core: bool,
}

impl Round {
    pub fn draw(seed: u64, number: u64) -> Round {
        let mut dice = Dice::new(seed, number);
        // Alternately, so that a few rounds have both.
        let program = if (seed ^ number) & 1 == 0 { Program::Rust } else { Program::C };
        let place = match dice.below(8) {
            0 | 1 => SidesPlacement::Namespaces { cable: dice.pick(&[1500, 4300, 9000]) },
            2 => SidesPlacement::Users,
            _ => SidesPlacement::Loopback,
        };
        let harm = match dice.below(8) {
            0 | 1 => Harm::Stops,
            2 | 3 => Harm::Kill { server: dice.below(2) == 0 },
            4 => Harm::Bystanders,
            _ => Harm::None,
        };
        let v6 = dice.below(3) == 0;
        let faulty = dice.below(3) == 0;
        let sides = dice.below(3);
        let mut faults = || if faulty { plan(&mut dice, v6) } else { String::new() };
        let mut faults = [faults(), faults()];
        match sides {
            0 => faults[0].clear(),
            1 => faults[1].clear(),
            _ => {}
        }
        Round {
            number,
            seed: dice.roll() >> 16,
            seconds: 5 + dice.below(6),
            program,
            place,
            udp: dice.below(3) == 0,
            v6,
            mtu: dice.pick(&[256, 512, 1024, 2048, 4096]),
            threads: dice.pick(&[1, 1, 2, 3, 4]),
            qps: dice.pick(&[1, 2, 4, 6, 8, 16]),
            cm: dice.below(5) < 2,
            faults,
            harm,
            one_core: dice.below(5) == 0,
        }
    }

    pub fn needs_root(&self) -> bool {
        self.place != SidesPlacement::Loopback
    }

    /// Whether all packets go over UDP.
    pub fn is_udp(&self) -> bool {
        self.udp || self.place != SidesPlacement::Loopback
    }

    fn has_faults(&self) -> bool {
        self.faults.iter().any(|plan| !plan.is_empty())
    }

    /// Whether nothing can get lost. Faults lose packets of every link; a socket may be full; and a datagram waits two
    /// seconds for a process that is stopped, no longer.
    pub fn is_lossless(&self) -> bool {
        !self.is_udp() && !self.has_faults() && self.harm != Harm::Stops
    }

    /// What the table at the end has a line for.
    pub fn group(&self) -> String {
        let program = if self.program == Program::C { "C" } else { "Rust" };
        let link = if self.is_udp() { "UDP" } else { "shared memory" };
        let place = match self.place {
            SidesPlacement::Loopback => "one host",
            SidesPlacement::Namespaces { .. } => "two hosts",
            SidesPlacement::Users => "two users",
        };
        let faults = if self.has_faults() { ", faults" } else { "" };
        let harm = match self.harm {
            Harm::None => "",
            Harm::Stops => ", stops",
            Harm::Kill { .. } => ", a kill",
            Harm::Bystanders => ", bystanders",
        };
        format!("{program}, {link}, {place}{faults}{harm}")
    }
}

/// In words that `--only` can choose by.
impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = if self.program == Program::C { "c-program" } else { "rust-program" };
        let link = if self.is_udp() { "udp" } else { "shared" };
        let family = if self.v6 { "v6" } else { "v4" };
        let connect = if self.cm { "cm" } else { "manual" };
        write!(f, "{program} {link} {family} mtu={} threads={} qps={} {connect}", self.mtu, self.threads, self.qps)?;
        match self.place {
            SidesPlacement::Loopback => f.write_str(" loopback")?,
            SidesPlacement::Namespaces { cable } => write!(f, " namespaces cable={cable}")?,
            SidesPlacement::Users => f.write_str(" users")?,
        }
        for (side, faults) in ["server", "client"].into_iter().zip(&self.faults) {
            if !faults.is_empty() {
                write!(f, " faults-at-{side}={faults}")?;
            }
        }
        match self.harm {
            Harm::None => {}
            Harm::Stops => f.write_str(" stops")?,
            Harm::Kill { server } => write!(f, " kill={}", if server { "server" } else { "client" })?,
            Harm::Bystanders => f.write_str(" bystanders")?,
        }
        write!(f, " {} {} s", if self.one_core { "one-core" } else { "all-cores" }, self.seconds)
    }
}

/// A plan of faults in the grammar of `crates/link/src/faults.rs`; of every kind that it has.
fn plan(dice: &mut Dice, v6: bool) -> String {
    let mut items = Vec::new();
    for _ in 0..1 + dice.below(3) {
        let chance = dice.pick(&["0.05%", "0.3%", "1%", "0.02", "3%"]);
        let from = 20 + dice.below(400);
        let few = from + dice.below(5);
        items.push(match dice.below(9) {
            0 => format!("drop={chance}"),
            1 => format!("dup={chance}"),
            2 => format!("reorder={chance}"),
            3 => format!("corrupt={chance}"),
            4 => format!("delay={}us", dice.pick(&[50, 200, 1000])),
            5 => "delay=100us..2ms".to_owned(),
            6 => format!("reorder={chance},hold={}ms", dice.pick(&[1, 3, 20])),
            7 => format!("{}@{from}..{few}", dice.pick(&["drop", "dup", "reorder", "corrupt"])),
            _ => format!("drop@{from}"),
        });
    }
    let mut plan = format!("{},seed={}", items.join(","), dice.below(1000));
    if dice.below(4) == 0 {
        // Another side is cut off; the rule behind it is for the rest.
        let stranger = if v6 { "2001:db8::9" } else { "203.0.113.9" };
        let side = dice.pick(&["from", "to"]);
        plan = format!("partition,{side}={stranger};{plan}");
    }
    plan
}

#[cfg(test)]
mod rounds {
    use super::{Harm, Program, Round, SidesPlacement};

    #[test]
    fn are_the_same_for_the_same_seed() {
        for number in 0..100 {
            assert_eq!(Round::draw(7, number), Round::draw(7, number));
        }
        assert_ne!(Round::draw(7, 1).seed, Round::draw(8, 1).seed);
    }

    #[test]
    fn come_in_all_kinds() {
        let rounds: Vec<Round> = (0..400).map(|number| Round::draw(1, number)).collect();
        let some = |what: fn(&Round) -> bool| assert!(rounds.iter().filter(|round| what(round)).count() > 10);
        some(|round| round.program == Program::C);
        some(|round| round.program == Program::Rust);
        some(|round| round.is_lossless());
        some(|round| round.place == SidesPlacement::Users);
        some(|round| matches!(round.place, SidesPlacement::Namespaces { .. }));
        some(|round| round.harm == Harm::Kill { server: true });
        some(|round| round.harm == Harm::Kill { server: false });
        some(|round| round.harm == Harm::Stops);
        some(|round| round.harm == Harm::Bystanders);
        some(|round| round.one_core);
        some(|round| round.cm && round.v6);
        for word in ["drop=", "dup=", "reorder=", "corrupt=", "delay=", "hold=", "drop@", "partition,", "seed="] {
            assert!(rounds.iter().any(|round| round.faults.concat().contains(word)), "{word}");
        }
    }
}
