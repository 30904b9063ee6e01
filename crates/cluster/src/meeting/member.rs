//! Another member's part of a meeting.

use super::talk::{Prepared, Talk, Word};
use super::{CHALLENGE_MARK, connect, welcome};
use crate::builder::{Builder, MeetingPlace};
use crate::error::Error;
use crate::net::{Introduction, Net, Parts, Purpose, TICK_INTERVAL};
use crate::secret::{Secret, TAG_BYTES};
use crate::verdict;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use ubiverbs::cm::{self, ConnectError, Listener};
use ubiverbs::{ProtectionDomain, Reliable};

/// How much longer than member 0 the others wait for its word.
const EXTRA_WAIT: Duration = Duration::from_secs(2);

pub(super) async fn meet(builder: Builder, secret: Secret, place: &MeetingPlace) -> Result<Net, Error> {
    let (limit, size) = (builder.limit, builder.size);
    let late = || Error::Missing { ranks: vec![0], limit };
    let arriving = ubiverbs::timeout(limit.saturating_add(EXTRA_WAIT), arrive(&builder, secret, place)).await.ok();
    let (mut talk, shown, listener, pd) = arriving.ok_or_else(late)??;
    let told = ubiverbs::timeout(
        limit.saturating_add(EXTRA_WAIT),
        told(&mut talk, size, |rank, session| welcome(&secret, &shown, rank, session)),
    )
    .await
    .ok();
    let told = told.ok_or_else(late).flatten().and_then(|told| match place.rank() {
        Some(wanted) if wanted != told.0 => Err(Error::nonsense(0, format!("rank {wanted} is to be rank {}", told.0))),
        _ => Ok(told),
    });
    let (rank, session, addresses) = match told {
        Ok(told) => told,
        Err(error) => {
            // The others shall know why it goes, if member 0 does not know that itself.
            if let Error::Nonsense { .. } = error {
                let rank = place.rank().unwrap_or(size - 1);
                let _ = ubiverbs::timeout(EXTRA_WAIT, talk.say(&Word::Failure(error.clone()), rank)).await;
            }
            return Err(error);
        }
    };
    let Builder { topology, settings, .. } = builder;
    let session = secret.derive(&session);
    let parts = Parts { rank, size, topology, settings, session, addresses, pd, listener };
    let connected = {
        let mut connecting = pin!(connect(parts, limit));
        poll_fn(|context| {
            if let Poll::Ready(connected) = connecting.as_mut().poll(context) {
                return Poll::Ready(connected);
            }
            // Member 0 hears of it if a member fails, and says so; or it is gone itself.
            match pin!(talk.hear(0, size)).poll(context) {
                Poll::Ready(Ok(Word::Failure(error)) | Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(_)) => Poll::Ready(Err(Error::nonsense(0, "a word that is not its turn"))),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    };
    let word = connected.as_ref().map_or_else(|error| Word::Failure(error.clone()), |_| Word::Ready);
    // If member 0 has gone, what follows says so.
    let _ = ubiverbs::timeout(EXTRA_WAIT, talk.say(&word, rank)).await;
    let error = match ubiverbs::timeout(limit.saturating_add(EXTRA_WAIT), talk.hear(0, size)).await.ok() {
        Some(Ok(Word::Go)) => return connected,
        Some(Ok(Word::Failure(error))) => error,
        Some(Ok(_)) => Error::nonsense(0, "a word that is not its turn"),
        Some(Err(error)) => connected.as_ref().err().cloned().unwrap_or(error),
        None => late(),
    };
    let Ok(mut net) = connected else { return Err(error) };
    // Others may have heard "go", and would find that this member has left.
    let error = net.fail(error);
    net.last_words().await;
    Err(error)
}

/// A conversation with member 0, the proof that was shown for it, and where this member listens.
type Arrived = (Talk, [u8; TAG_BYTES], Listener<Reliable>, ProtectionDomain);

/// Comes to member 0, as soon as that is there.
async fn arrive(builder: &Builder, secret: Secret, place: &MeetingPlace) -> Result<Arrived, Error> {
    let at = place.meeting_point();
    let mut listening = None;
    let mut challenge = 0;
    loop {
        let route = cm::resolve(at).await?;
        if listening.is_none() {
            let own = match place {
                MeetingPlace::List { addresses, rank } => addresses[*rank as usize],
                MeetingPlace::Rendezvous { .. } => SocketAddr::new(route.local_addr().ip(), 0),
            };
            let listener = Listener::<Reliable>::bind_with(own, 1024, &[])?;
            let pd = route.context()?.alloc_pd()?;
            listening = Some((listener, pd));
        }
        let Some((listener, pd)) = &listening else { continue };
        let introduction = Introduction {
            purpose: Purpose::Meet,
            tag: [0; TAG_BYTES],
            from: place.rank(),
            to: 0,
            size: builder.size,
            digest: builder.digest(),
            port: listener.local_addr().port(),
            challenge,
        }
        .sign(&secret);
        let (queue_pair, receiving) = Prepared::new(pd)?.split();
        let attempt = route.connect().queue_pair(queue_pair).private_data(&introduction.encode());
        match attempt.await {
            Ok(connection) => {
                let Some((listener, pd)) = listening else { continue };
                return Ok((Talk::new(connection, receiving), introduction.tag, listener, pd));
            }
            // Member 0 has said why, or is another one than we look for.
            Err(ubiverbs::Error::Connect(ConnectError::Rejected { private_data, .. })) => {
                if let Some(error) = verdict::decode(&private_data, builder.size) {
                    return Err(error);
                }
                let number = private_data.strip_prefix(CHALLENGE_MARK).and_then(|rest| rest.first_chunk());
                let new = number.map(|number| u64::from_le_bytes(*number)).filter(|new| *new != challenge);
                if let Some(new) = new {
                    challenge = new;
                    continue;
                }
            }
            Err(ubiverbs::Error::Connect(
                ConnectError::NobodyListens { .. } | ConnectError::TimedOut { .. } | ConnectError::Gone { .. },
            )) => {}
            Err(error) => return Err(error.into()),
        }
        ubiverbs::sleep(TICK_INTERVAL).await;
    }
}

/// Hears its rank and where the others are. `expected` says which proof member 0 must have.
async fn told(
    talk: &mut Talk,
    size: u32,
    expected: impl Fn(u32, &[u8; TAG_BYTES]) -> [u8; TAG_BYTES],
) -> Result<(u32, [u8; TAG_BYTES], Vec<SocketAddr>), Error> {
    let mut welcome = None;
    let mut addresses = Vec::new();
    loop {
        match talk.hear(0, size).await? {
            Word::Welcome { rank, session, proof } if welcome.is_none() => {
                if proof != expected(rank, &session) {
                    return Err(Error::nonsense(0, "a welcome without a proof of the secret"));
                }
                welcome = Some((rank, session));
            }
            Word::Roster { from, addresses: more } if from as usize == addresses.len() => addresses.extend(more),
            Word::Failure(error) => return Err(error),
            _ => return Err(Error::nonsense(0, "a word that is not its turn")),
        }
        if let Some((rank, session)) = welcome
            && addresses.len() == size as usize
        {
            return Ok((rank, session, addresses));
        }
    }
}
