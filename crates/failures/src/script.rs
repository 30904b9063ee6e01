//! What a script says: failures, when they strike, and where. `docs/failures.md` has the language.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::action::Action;
#[cfg(feature = "parse")]
use crate::error::ScriptError;
use crate::moment::{ConnectionView, DeviceView, PairView, QueueView, Scene, Who};

#[cfg(feature = "parse")]
mod failure;
#[cfg(feature = "parse")]
mod reader;
#[cfg(all(test, feature = "parse"))]
pub(crate) mod tests;
#[cfg(feature = "parse")]
pub(crate) mod values;

#[cfg(all(test, feature = "parse"))]
pub(crate) use failure::ACTIONS;

/// A time or a span of time, in nanoseconds.
pub type Nanos = u64;

/// No script is longer.
pub const MAX_SCRIPT_BYTES: usize = 256 << 10;

/// No script has more failures.
pub const MAX_FAILURES: usize = 1024;

/// Where chance begins, unless the script or an option says otherwise.
pub const DEFAULT_SEED: u64 = 1;

/// A probability, or a share of something: from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chance(pub f64);

/// A script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// What it shows, in one sentence.
    pub about: Option<String>,
    /// Where chance begins.
    pub seed: Option<u64>,
    /// When it ends; with the process if it does not say.
    pub end: Option<Nanos>,
    /// Whether what it broke stays broken at its end.
    pub leaves_broken: bool,
    /// What breaks, in order of line.
    pub failures: Vec<Arc<Failure>>,
}

/// One thing that breaks.
#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    /// The line that says what it does, from 1.
    pub line: usize,
    /// When.
    pub when: When,
    /// Where.
    pub place: Place,
    /// What.
    pub action: Action,
}

/// When a failure strikes.
#[derive(Clone, PartialEq, Debug)]
pub struct When {
    /// What it waits for first.
    pub start: Start,
    /// Which calls strike it, from then on.
    pub call: Option<CallTrigger>,
    /// Each time it could strike, it does so with this probability.
    pub rate: Option<Chance>,
    /// How often it strikes; any number of times if there is none.
    pub times: Option<u64>,
    /// It strikes again after so long.
    pub every: Option<Nanos>,
    /// How long it lasts; for what takes hold of calls, completions, events and messages: of all that come meanwhile.
    pub lasts: Option<Nanos>,
}

/// What a failure waits for first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// A time.
    Time {
        /// So long.
        at: Nanos,
        /// After this.
        since: Since,
    },
    /// So many messages of each of these; completions, for what strikes completions.
    Messages(u64, Of),
    /// So many bytes of each of these.
    Bytes(u64, Of),
    /// Nothing: only calls count.
    Call,
}

/// From when on a time counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// The first device was opened.
    Start,
    /// The process sent or received its first message.
    FirstMessage,
}

/// What has a count of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// Each device.
    Device,
    /// Each queue pair.
    QueuePair,
    /// The process.
    Process,
}

/// Which calls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallTrigger {
    /// The name, or how names begin and a `*`.
    pub name: String,
    /// The how manieth of these, from 1.
    pub nth: u64,
    /// And each later one.
    pub and_later: bool,
}

/// Where a failure strikes. What is not said fits everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// A host, by name or address.
    pub host: Option<String>,
    /// A process.
    pub process: Option<Named>,
    /// A device.
    pub device: Option<Named>,
    /// A port of the device.
    pub port: Option<u8>,
    /// A queue pair.
    pub pair: Option<PairPlace>,
    /// A completion queue, by its order of creation.
    pub queue: Option<u32>,
    /// A connection.
    pub connection: Option<ConnectionPlace>,
    /// The other end of a network, by name or address.
    pub to: Option<String>,
}

/// One of several things.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Named {
    /// By its name.
    Name(String),
    /// By its place among them, from 0: `"#0"`.
    Index(u32),
}

/// A queue pair.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PairPlace {
    /// Its number.
    pub number: Option<u32>,
    /// Its type.
    pub kind: Option<&'static str>,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// Its order of creation, from 1.
    pub order: Option<u32>,
}

/// A connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ConnectionPlace {
    /// Its order, from 1.
    pub order: Option<u32>,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// The port that is listened on.
    pub port: Option<u16>,
}

#[cfg(feature = "parse")]
impl Script {
    /// Reads a script.
    ///
    /// ```
    /// use failures::Script;
    ///
    /// let error = Script::parse("[[failure]]\nat = '2s'\ndo = 'port-dwn'\n").unwrap_err().to_string();
    /// assert!(error.starts_with("line 3: \"port-dwn\" is no failure"), "{error}");
    /// assert!(error.ends_with("did you mean port-down?"), "{error}");
    /// ```
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Script, ScriptError> {
        reader::parse(text.as_ref())
    }

    /// Reads one failure without a table around it: `do = "port-down", for = "2s"`.
    pub fn parse_failure(text: &str) -> Result<Script, ScriptError> {
        let mut table = String::from("failure = [{ ");
        table += text.trim();
        table += " }]\n";
        Script::parse(table)
    }
}

impl Script {
    /// The seed: the one that was asked for, or the script's own.
    #[must_use]
    pub fn seed(&self, asked: Option<u64>) -> u64 {
        asked.or(self.seed).unwrap_or(DEFAULT_SEED)
    }
}

impl Place {
    /// Whether this process is meant.
    #[must_use]
    pub fn is_process(&self, who: &Who) -> bool {
        let host = self.host.as_ref().is_none_or(|host| who.hosts.contains(host));
        let is_it = |process: &Named| match process {
            Named::Name(name) => who.names.contains(name),
            Named::Index(index) => *index == who.index,
        };
        let process = self.process.as_ref().is_none_or(is_it);
        host && process
    }

    /// Whether what something happened to, or what could be struck, is meant. What the place names must be known of it.
    #[must_use]
    pub fn fits(&self, scene: &Scene<'_>) -> bool {
        self.compare(scene, false)
    }

    /// Whether nothing that is known of it speaks against it: a message may count for a completion queue though only its
    /// device is known.
    #[must_use]
    pub fn may_fit(&self, scene: &Scene<'_>) -> bool {
        self.compare(scene, true)
    }

    fn compare(&self, scene: &Scene<'_>, unknown: bool) -> bool {
        let device = |named: &Named| scene.device.map_or(unknown, |DeviceView { name, index }| named.is(name, index));
        let queue = |order: u32| scene.queue.map_or(unknown, |QueueView { order: its, .. }| its == order);
        let connection = |place: &ConnectionPlace| scene.connection.map_or(unknown, |view| place.is(&view));
        self.device.as_ref().is_none_or(device)
            && self.port.is_none_or(|port| scene.port.map_or(unknown, |its| its == port))
            && self.pair.as_ref().is_none_or(|place| scene.pair.map_or(unknown, |pair| place.is(&pair)))
            && self.queue.is_none_or(queue)
            && self.connection.as_ref().is_none_or(connection)
    }

    /// Whether a device is meant, whatever else is said.
    #[must_use]
    pub fn fits_device(&self, device: DeviceView<'_>) -> bool {
        self.device.as_ref().is_none_or(|named| named.is(device.name, device.index))
    }
}

impl Named {
    fn is(&self, name: &str, index: u32) -> bool {
        match self {
            Named::Name(named) => named == name,
            Named::Index(at) => *at == index,
        }
    }
}

impl PairPlace {
    fn is(&self, pair: &PairView<'_>) -> bool {
        self.number.is_none_or(|number| number == pair.number)
            && self.kind.is_none_or(|kind| kind == pair.kind)
            && self.peer.is_none_or(|peer| pair.peer == Some(peer))
            && self.order.is_none_or(|order| order == pair.order)
    }
}

impl ConnectionPlace {
    fn is(&self, connection: &ConnectionView) -> bool {
        self.order.is_none_or(|order| order == connection.order)
            && self.peer.is_none_or(|peer| connection.peer == Some(peer))
            && self.port.is_none_or(|port| connection.port == Some(port))
    }
}
