//! The pieces of work requests: keys, bounds, rights, shape. What is wrong with them is reported when they are posted,
//! which may be long before the NIC needs them.

use alloc::format;

use trace::Piece;
use wire::access::Access;

use super::range;
use crate::examine::Out;
use crate::map::Map;
use crate::mistakes::Mistake;
use crate::model::{Model, Region};
use crate::posted_work::{Owner, Posting};
use crate::rule::catalogue::memory::*;

/// So many lists with pieces that follow each other are not told.
const ADJACENT_MIN: u32 = 8;

/// What is counted of each queue.
#[derive(Default, Debug)]
pub(super) struct Pieces {
    adjacent: Map<Owner, u32>,
}

impl Pieces {
    /// Work is posted. Answers whether the NIC can use its memory.
    pub fn posted(&mut self, posting: &Posting<'_>, model: &Model, out: &mut Out<'_>) -> bool {
        let work = &posting.work;
        atomic(posting, out);
        if work.inline {
            return true;
        }
        let mut usable = true;
        for (index, piece) in work.pieces.kept().iter().enumerate().filter(|(_, piece)| piece.length > 0) {
            usable &= named(posting, index, piece, model, out);
        }
        let pieces = work.pieces.kept();
        if pieces.len() > 1 {
            self.list(posting, pieces, model, out);
        }
        usable
    }

    fn list(&mut self, posting: &Posting<'_>, pieces: &[Piece], model: &Model, out: &mut Out<'_>) {
        let count = posting.work.pieces.count;
        if let Some(index) = pieces.iter().position(|piece| piece.length == 0)
            && posting.work.pieces.bytes > 0
        {
            let what = format!("piece {index} of the {count} pieces of {} has length 0", posting.name());
            let advice = "leave empty pieces out of sg_list, and count them not in num_sge";
            out.tell(
                posting.finding(PIECE_EMPTY, what, advice).because(
                    "some NICs read a length of 0 in a list as 2 GiB; drivers differ in what they do about it",
                ),
            );
        }
        let follows = |pair: &[Piece]| {
            let [one, next] = pair else { return false };
            one.length > 0 && one.key == next.key && one.address.checked_add(one.length.into()) == Some(next.address)
        };
        if pieces.windows(2).any(follows) {
            let seen = self.adjacent.entry(posting.owner).or_default();
            *seen += 1;
            if *seen >= ADJACENT_MIN {
                let what = format!(
                    "{} has {count} pieces of which one begins where the one before ends: list {seen} of this kind",
                    posting.name()
                );
                let advice = "name memory that is in one piece by one ibv_sge with the whole length";
                out.tell(
                    posting
                        .finding(PIECES_ADJACENT, what, advice)
                        .because("the NIC fetches and checks each piece for itself"),
                );
            }
        }
        if posting.work.fills_memory() {
            let is_kept = |piece: &Piece| model.local_region(piece.key).is_some_and(|region| !region.is_null());
            let overlap = pieces.iter().enumerate().filter(|(_, one)| is_kept(one)).find_map(|(index, one)| {
                let shares = |other: &&Piece| other.key == one.key && overlaps(one, other);
                pieces[index + 1..].iter().find(shares).map(|other| (one, other))
            });
            if let Some((one, other)) = overlap {
                let what = format!(
                    "{} has pieces that overlap: {} and {}",
                    posting.name(),
                    range(one.address, one.length.into()),
                    range(other.address, other.length.into())
                );
                out.tell(
                    posting
                        .finding(PIECES_OVERLAP, what, "give each piece of the list memory of its own")
                        .because("the NIC writes both pieces, so the bytes of one are lost"),
                );
            }
        }
    }
}

fn overlaps(one: &Piece, other: &Piece) -> bool {
    let end = |piece: &Piece| piece.address.saturating_add(piece.length.into());
    one.length > 0 && other.length > 0 && one.address < end(other) && other.address < end(one)
}

/// The key of a piece, and what it opens. Answers whether the NIC can use it.
fn named(posting: &Posting<'_>, index: usize, piece: &Piece, model: &Model, out: &mut Out<'_>) -> bool {
    // Sentences are made only where something is wrong: this runs for every piece.
    let wanted = || range(piece.address, piece.length.into());
    let name = || posting.name();
    if piece.key.value() == 0 {
        let what = format!("piece {index} of {name} ({wanted}) has lkey 0", name = name(), wanted = wanted());
        let advice = "set ibv_sge.lkey to the lkey of the region that holds the buffer (mr->lkey)";
        let finding = posting.finding(KEY_NEVER_SET, what, advice);
        out.tell_mistake(finding.because("no region has key 0: the key was never set"), Mistake::of(posting));
        return false;
    }
    let Some(region) = model.local_region(piece.key) else {
        let gone = model.gone_regions.iter().rev().find(|region| region.key.is_named_by(piece.key));
        if let Some(gone) = gone.filter(|_| model.window(piece.key).is_none()) {
            let what = format!(
                "piece {index} of {name} uses lkey {}, whose memory was deregistered before",
                piece.key,
                name = name()
            );
            let ago = posting.work.at.saturating_sub(gone.gone_at.unwrap_or_default()) / 1_000;
            let advice = "call ibv_dereg_mr only after the last work on the region has completed";
            let finding = posting.finding(KEY_IS_GONE, what, advice).shown_by(format!(
                "key {} was of {}, which was deregistered {ago} us before this work was posted",
                piece.key,
                extent(gone)
            ));
            out.tell_mistake(finding, Mistake::of(posting));
        }
        return false;
    };
    let mut usable = true;
    if let Some(pd) = posting.pd.filter(|pd| *pd != region.pd) {
        usable = false;
        let what =
            format!("piece {index} of {name} uses lkey {} of another protection domain", piece.key, name = name());
        let advice = "register the memory in the protection domain of the queue (ibv_reg_mr(qp->pd, …)), or make the \
                      queue in the domain of the memory";
        out.tell_mistake(
            posting
                .finding(WRONG_DOMAIN, what, advice)
                .shown_by(format!("the memory was registered in PD {}, the queue was made in PD {pd}", region.pd)),
            Mistake::of(posting),
        );
    }
    if !region.holds(piece.address, piece.length.into()) {
        usable = false;
        let what = format!(
            "piece {index} of {name} ({wanted}) reaches outside the region of its lkey {}",
            piece.key,
            name = name(),
            wanted = wanted()
        );
        let (first, last) = (piece.address, piece.address.saturating_add(piece.length.into()));
        let cause = match () {
            () if last <= region.iova || first >= region.end() => {
                "the piece has no byte in common with the region".into()
            }
            () if first < region.iova => format!("it begins {} bytes before the region", region.iova - first),
            () => format!("it ends {} bytes past the region's end", last - region.end()),
        };
        let advice = "name only bytes of the region, or register more memory: addr and length of each ibv_sge have to \
                      lie in [mr->addr, mr->addr + mr->length)";
        let seen = format!("key {} belongs to {}", piece.key, extent(region));
        out.tell_mistake(
            posting.finding(OUTSIDE_REGION, what, advice).because(cause).shown_by(seen),
            Mistake::of(posting),
        );
    }
    if posting.work.fills_memory() && !region.access.contains(Access::LOCAL_WRITE) {
        usable = false;
        let what = format!(
            "{name} is to put data into {wanted}, which is registered without IBV_ACCESS_LOCAL_WRITE",
            name = name(),
            wanted = wanted()
        );
        let advice = "register the memory with IBV_ACCESS_LOCAL_WRITE: receives, READs and atomics write to it";
        let seen = format!("key {} belongs to {} and grants {}", piece.key, extent(region), region.access);
        out.tell_mistake(posting.finding(NOT_WRITABLE, what, advice).shown_by(seen), Mistake::of(posting));
    }
    usable
}

/// A region, for a sentence.
pub(super) fn extent(region: &Region) -> alloc::string::String {
    format!("[{:#x}, +{}) in PD {}", region.iova, region.length, region.pd)
}

/// What atomics need.
fn atomic(posting: &Posting<'_>, out: &mut Out<'_>) {
    let work = &posting.work;
    if !matches!(work.opcode, "ATOMIC_CMP_AND_SWP" | "ATOMIC_FETCH_AND_ADD") {
        return;
    }
    if let Some((address, _)) = work.remote.filter(|(address, _)| address % 8 != 0) {
        let what = format!("{} is for remote address {address:#x}, which is not a multiple of 8", posting.name());
        let advice = "align the 8 bytes that atomics work on to 8 bytes, on the side that owns them";
        let finding = posting.finding(ATOMIC_MISALIGNED, what, advice).because(format!(
            "atomics work on 8 aligned bytes, and this address is {} past such a place: the peer refuses it",
            address % 8
        ));
        out.tell_mistake(finding, Mistake::of(posting));
    }
    if work.pieces.bytes < 8 {
        let what = format!("{} has room for {} bytes, and its result has 8", posting.name(), work.pieces.bytes);
        let advice = "give each atomic a piece of 8 bytes for the value from before, also where nobody reads it";
        out.tell_mistake(posting.finding(ATOMIC_RESULT_SHORT, what, advice), Mistake::of(posting));
    }
}
