//! Member 0's part of a meeting.

use super::talk::{ADDRESSES_PER_MESSAGE, Prepared, Receiving, Talk, Word};
use super::{CHALLENGE_MARK, connect, welcome};
use crate::builder::{Builder, MeetingPlace};
use crate::call::MESSAGE_VERSION;
use crate::error::Error;
use crate::net::{Introduction, Net, Parts, Purpose};
use crate::secret::{Secret, TAG_BYTES};
use crate::verdict;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;
use ubiverbs::cm::{Connection, Listener, Pending, Request};
use ubiverbs::{ProtectionDomain, Reliable};

/// Requests that member 0 has not looked at.
const REQUEST_BACKLOG: u32 = 1024;

/// A process that came.
struct Guest {
    rank: Option<u32>,
    /// The proof that it showed.
    shown: [u8; TAG_BYTES],
    /// Where it listens.
    address: SocketAddr,
    state: Arriving,
}

enum Arriving {
    Comes(Pending<Connection>, Option<Receiving>),
    Connected(Talk),
}

pub(super) async fn meet(builder: Builder, secret: Secret, place: &MeetingPlace) -> Result<Net, Error> {
    let door = Door { secret, challenge: challenge() };
    let listener = Listener::<Reliable>::bind_with(place.meeting_point(), REQUEST_BACKLOG, &[])?;
    let pd = listener.context()?.alloc_pd()?;
    let mut guests = Vec::new();
    let came = ubiverbs::timeout(builder.limit, gather(&builder, &door, &listener, &pd, &mut guests)).await.ok();
    let came = came.unwrap_or_else(|| {
        let claimed: Vec<u32> = arrived(&guests).filter_map(|guest| guest.rank).collect();
        let unnamed = arrived(&guests).filter(|guest| guest.rank.is_none()).count();
        // Members that take any rank will take the first that are free.
        let ranks = (1..builder.size).filter(|rank| !claimed.contains(rank)).skip(unnamed).collect();
        Err(Error::Missing { ranks, limit: builder.limit })
    });
    let outcome = match came {
        Ok(()) => introduce(builder, secret, listener, pd, &mut guests).await,
        Err(error) => {
            let _ = ubiverbs::timeout(LINGER_TIME, turn_away(&builder, &door, &listener, &mut guests, &error)).await;
            Err(error)
        }
    };
    let word = outcome.as_ref().map_or_else(|error| Word::Failure(error.clone()), |_| Word::Go);
    for guest in &mut guests {
        if let Arriving::Connected(talk) = &mut guest.state {
            // A member that has gone does not hear it; the others shall.
            let _ = ubiverbs::timeout(crate::net::TICK_INTERVAL * 20, talk.say(&word, 0)).await;
        }
    }
    outcome
}

fn arrived(guests: &[Guest]) -> impl Iterator<Item = &Guest> {
    guests.iter().filter(|guest| matches!(guest.state, Arriving::Connected(_)))
}

/// How long member 0 tells those who come that it is over.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// The meeting is over: lets in those whom it had begun to let in, to tell them, and tells members that still come.
/// Done when all have come.
async fn turn_away(
    builder: &Builder,
    door: &Door,
    listener: &Listener<Reliable>,
    guests: &mut Vec<Guest>,
    error: &Error,
) {
    let verdict = verdict::encode(error, 0);
    // The one who came last was told already, if it was its fault.
    let mut turned = usize::from(!matches!(error, Error::Missing { .. }));
    let mut next = listener.next();
    poll_fn(|context| {
        loop {
            poll_guests(guests, context);
            if arrived(guests).count() + turned >= builder.size as usize - 1 && arrived(guests).count() == guests.len()
            {
                return Poll::Ready(());
            }
            let Poll::Ready(request) = Pin::new(&mut next).poll(context) else { return Poll::Pending };
            next = listener.next();
            let Ok(request) = request else { return Poll::Ready(()) };
            if let Some((_, request)) = door.prove(request) {
                turned += 1;
                let _ = request.reject(&verdict);
            }
        }
    })
    .await;
}

fn poll_guests(guests: &mut Vec<Guest>, context: &mut Context<'_>) {
    let mut gone = Vec::new();
    for (place, guest) in guests.iter_mut().enumerate() {
        let Arriving::Comes(attempt, receiving) = &mut guest.state else { continue };
        match Pin::new(attempt).poll(context) {
            Poll::Ready(Ok(connection)) => {
                let Some(receiving) = receiving.take() else { continue };
                guest.state = Arriving::Connected(Talk::new(connection, receiving));
            }
            // It may come again.
            Poll::Ready(Err(_)) => gone.push(place),
            Poll::Pending => {}
        }
    }
    gone.into_iter().rev().for_each(|place| drop(guests.swap_remove(place)));
}

/// Waits until all have come.
async fn gather(
    builder: &Builder,
    door: &Door,
    listener: &Listener<Reliable>,
    pd: &ProtectionDomain,
    guests: &mut Vec<Guest>,
) -> Result<(), Error> {
    let others = builder.size as usize - 1;
    let mut next = listener.next();
    poll_fn(|context| {
        loop {
            poll_guests(guests, context);
            if arrived(guests).count() == others {
                return Poll::Ready(Ok(()));
            }
            let Poll::Ready(request) = Pin::new(&mut next).poll(context) else { return Poll::Pending };
            next = listener.next();
            if let Some((asked, request)) = door.prove(request?) {
                admit(builder, pd, guests, &asked, request)?;
            }
        }
    })
    .await
}

/// What every request passes first. It keeps nothing of those who ask.
struct Door {
    secret: Secret,
    challenge: u64,
}

impl Door {
    /// One who proves the secret for this meeting. The others are refused here: those who do not know the meeting's
    /// number are told it, those who are none of ours are told so, and strangers get no word.
    fn prove(&self, request: Request<Reliable>) -> Option<(Introduction, Request<Reliable>)> {
        let turn_down = |request: Request<Reliable>, rank: u32, what: String| {
            let _ = request.reject(&verdict::encode(&Error::Disagrees { rank, what }, 0));
            None
        };
        let Some(asked) = Introduction::decode(request.private_data()) else {
            let theirs = Introduction::version(request.private_data())?;
            return turn_down(request, 0, format!("it speaks version {theirs}, and rank 0 version {MESSAGE_VERSION}"));
        };
        if asked.purpose != Purpose::Meet {
            return None;
        }
        if asked.challenge != self.challenge {
            let _ = request.reject(&[CHALLENGE_MARK, &self.challenge.to_le_bytes()].concat());
            return None;
        }
        if !asked.is_of(&self.secret) {
            let rank = asked.from.unwrap_or(asked.size.saturating_sub(1));
            let from = SocketAddr::new(request.peer_addr().ip(), asked.port);
            return turn_down(request, rank, format!("it has another secret of the group ({from})"));
        }
        Some((asked, request))
    }
}

/// Looks at one who has proved the secret. An error ends the meeting.
fn admit(
    builder: &Builder,
    pd: &ProtectionDomain,
    guests: &mut Vec<Guest>,
    asked: &Introduction,
    request: Request<Reliable>,
) -> Result<(), Error> {
    let size = builder.size;
    let from = SocketAddr::new(request.peer_addr().ip(), asked.port);
    let named = asked.from.filter(|rank| *rank < size);
    let refuse = |request: Request<Reliable>, error: Error| {
        let _ = request.reject(&verdict::encode(&error, 0));
        Err(error)
    };
    // Of a rank that does not exist, the last that both have is named: some rank must be.
    let nearest = named.unwrap_or(size.min(asked.size).saturating_sub(1));
    if asked.size != size {
        let what = format!("it has a group of {}, and rank 0 one of {size} ({from})", asked.size);
        return refuse(request, Error::Disagrees { rank: nearest, what });
    }
    if asked.digest != builder.digest() {
        let what = format!("it has another topology, other settings or another list of addresses ({from})");
        return refuse(request, Error::Disagrees { rank: nearest, what });
    }
    if asked.from.is_some() && named.is_none_or(|rank| rank == 0) || asked.port == 0 {
        let what = format!("it says that it is rank {} ({from})", asked.from.unwrap_or(0));
        return refuse(request, Error::Disagrees { rank: nearest, what });
    }
    if let Some(first) = guests.iter().find(|guest| named.is_some() && guest.rank == named) {
        let error = Error::RankTwice { rank: nearest, first: first.address, second: from };
        return refuse(request, error);
    }
    if guests.len() + 1 >= size as usize {
        let what = format!("all {size} ranks are taken, and one more came from {from}");
        return refuse(request, Error::Disagrees { rank: nearest, what });
    }
    let (queue_pair, receiving) = Prepared::new(pd)?.split();
    let attempt = request.accept().queue_pair(queue_pair).start();
    let shown = asked.tag;
    guests.push(Guest { rank: named, shown, address: from, state: Arriving::Comes(attempt, Some(receiving)) });
    Ok(())
}

/// All are here: tells everybody of everybody, connects, and waits until all have.
async fn introduce(
    builder: Builder,
    secret: Secret,
    listener: Listener<Reliable>,
    pd: ProtectionDomain,
    guests: &mut [Guest],
) -> Result<Net, Error> {
    let Builder { size, topology, settings, limit, .. } = builder;
    let mut taken: Vec<bool> = vec![false; size as usize];
    taken[0] = true;
    guests.iter().filter_map(|guest| guest.rank).for_each(|rank| taken[rank as usize] = true);
    let mut addresses = vec![listener.local_addr(); size as usize];
    for guest in guests.iter_mut() {
        let free = || (0..size).find(|rank| !taken[*rank as usize]).unwrap_or(0);
        let rank = guest.rank.unwrap_or_else(free);
        taken[rank as usize] = true;
        guest.rank = Some(rank);
        addresses[rank as usize] = guest.address;
    }
    let session = Secret::number();
    let mut roster = Vec::new();
    for (from, addresses) in (0..).step_by(ADDRESSES_PER_MESSAGE).zip(addresses.chunks(ADDRESSES_PER_MESSAGE)) {
        let word = Word::Roster { from, addresses: addresses.to_vec() };
        roster.push(pd.register(word.encode(0))?.freeze());
    }
    for guest in guests.iter_mut() {
        let (Arriving::Connected(talk), Some(rank)) = (&mut guest.state, guest.rank) else { continue };
        let died = |error: Error| Error::Died { rank, why: error.to_string() };
        let proof = welcome(&secret, &guest.shown, rank, &session);
        talk.say(&Word::Welcome { rank, session, proof }, 0).await.map_err(died)?;
        for part in &roster {
            talk.repeat(part).await.map_err(died)?;
        }
    }
    let session = secret.derive(&session);
    let parts = Parts { rank: 0, size, topology, settings, session, addresses, pd, listener };
    let mut connecting = pin!(connect(parts, limit));
    let mut net = None;
    let mut is_ready = vec![false; guests.len()];
    let all = poll_fn(|context| {
        if net.is_none()
            && let Poll::Ready(connected) = connecting.as_mut().poll(context)
        {
            net = Some(connected?);
        }
        for (guest, is_ready) in guests.iter_mut().zip(&mut is_ready).filter(|(_, is_ready)| !**is_ready) {
            *is_ready = poll_ready(guest, size, context)?;
        }
        match net.take_if(|_| is_ready.iter().all(|is_ready| *is_ready)) {
            Some(net) => Poll::Ready(Ok(net)),
            None => Poll::Pending,
        }
    });
    match ubiverbs::timeout(limit.saturating_add(limit), all).await {
        Ok(outcome) => outcome,
        Err(_) => {
            let late = guests.iter().zip(&is_ready).filter(|(_, is_ready)| !**is_ready);
            Err(Error::Missing { ranks: late.filter_map(|(guest, _)| guest.rank).collect(), limit })
        }
    }
}

/// Whether a member has said that it is connected. It may also say why it is not, or die: then no other needs to wait.
fn poll_ready(guest: &mut Guest, size: u32, context: &mut Context<'_>) -> Result<bool, Error> {
    let (Arriving::Connected(talk), Some(rank)) = (&mut guest.state, guest.rank) else { return Ok(true) };
    match pin!(talk.hear(rank, size)).poll(context) {
        Poll::Ready(Ok(Word::Ready)) => Ok(true),
        Poll::Ready(Ok(Word::Failure(error)) | Err(error)) => Err(error),
        Poll::Ready(Ok(_)) => Err(Error::nonsense(rank, "a word that is not its turn")),
        Poll::Pending => Ok(false),
    }
}

/// The number of a meeting: never zero, which means that a member has not heard one.
fn challenge() -> u64 {
    let [number @ .., _, _, _, _, _, _, _, _] = Secret::number();
    u64::from_le_bytes(number).max(1)
}
