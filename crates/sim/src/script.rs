//! Faults on purpose: a closure sees every packet before the link does and says what becomes of it, so that a test can
//! lose exactly the third packet, once. Faults by chance are the link's business.

use crate::host::HostId;
use transport::Time;
use wire::Headers;

/// A packet (or, on a link that carries trains whole, a train) about to enter its link.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// When.
    pub at: Time,
    /// Who sends it.
    pub from: HostId,
    /// Who is to get it.
    pub to: HostId,
    /// How many were sent before it in this run, by anybody.
    pub nth: u64,
    /// Its headers; of a train, those that stand for all of it.
    pub headers: &'a Headers,
    /// Its payload.
    pub payload: &'a [u8],
    /// How many packets it is: 1 on a datagram link.
    pub count: u32,
    /// The work request it serves, if it is a request.
    pub wr_id: Option<u64>,
    /// Whether all of it was sent before.
    pub retransmission: bool,
}

/// What becomes of a packet. Everything but `Drop` goes on to the link, which may still lose it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// Nothing special.
    #[default]
    Pass,
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives this many nanoseconds later, and others may overtake it.
    Delay(u64),
    /// A bit flips.
    Corrupt,
    /// It is marked "congestion experienced".
    Mark,
}

/// Decides the fate of packets.
pub type Script = Box<dyn FnMut(&Sighting<'_>) -> Fate>;

/// Gives `fate` to the first packet that `matches`, and to no other.
pub fn once(matches: impl FnMut(&Sighting<'_>) -> bool + 'static, fate: Fate) -> Script {
    times(1, matches, fate)
}

/// Gives `fate` to the first `count` packets that match.
pub fn times(count: u32, matches: impl FnMut(&Sighting<'_>) -> bool + 'static, fate: Fate) -> Script {
    let mut left = count;
    let mut matches = matches;
    Box::new(move |sighting| {
        if left > 0 && matches(sighting) {
            left -= 1;
            return fate;
        }
        Fate::Pass
    })
}

/// Gives `fate` to the match number `index`, counted from 0, and to no other.
pub fn nth(index: u64, matches: impl FnMut(&Sighting<'_>) -> bool + 'static, fate: Fate) -> Script {
    let mut seen = 0;
    let mut matches = matches;
    Box::new(move |sighting| {
        if !matches(sighting) {
            return Fate::Pass;
        }
        seen += 1;
        if seen - 1 == index { fate } else { Fate::Pass }
    })
}

/// Gives `fate` to every packet that matches.
pub fn always(matches: impl FnMut(&Sighting<'_>) -> bool + 'static, fate: Fate) -> Script {
    let mut matches = matches;
    Box::new(move |sighting| if matches(sighting) { fate } else { Fate::Pass })
}
