//! The states of a queue pair and the moves between them, as data: which attributes each move needs and which it also
//! takes, for each kind of queue pair (IBA 11.2.5.2). [`check`] judges a request against that table and the device's
//! limits and says in a sentence what is wrong with it. Carrying a move out is the queue pair's business.

mod error;
mod table;
#[cfg(test)]
mod tests;

pub use crate::kind::{Kind, State};
pub use error::ModifyError;
pub use table::{Requirements, requirements};

use crate::attributes::{AddressVector, AttributeMask, Limits, Modify};
use crate::rate::RateLimit;
use wire::{Qpn, refuse_if};

/// May a queue pair of this kind, in state `from`, do what `modify` asks? Answers the state it ends in, which is `from`
/// where no state is asked for. Nothing changes either way.
pub fn check(kind: Kind, from: State, modify: &Modify, limits: &Limits) -> Result<State, ModifyError> {
    let to = modify.state.unwrap_or(from);
    // The belief is tested before the move: a queue pair that fell into SQE or ERR on its own is the reason programs
    // state it.
    if let Some(believed) = modify.current_state
        && believed != from
    {
        return Err(ModifyError::NotInState { believed, actual: from });
    }
    let Some(Requirements { required, optional }) = requirements(kind, from, to) else {
        return Err(ModifyError::NotATransition { kind, from, to });
    };
    let given = modify.mask();
    let missing = required.difference(given);
    refuse_if!(!missing.is_empty(), ModifyError::Missing { kind, from, to, missing });
    let excess = given.difference(required | optional | AttributeMask::STATE);
    refuse_if!(!excess.is_empty(), ModifyError::NotAllowed { kind, from, to, excess });
    check_values(modify, limits)?;
    Ok(to)
}

fn check_values(modify: &Modify, limits: &Limits) -> Result<(), ModifyError> {
    within("PKEY_INDEX", modify.pkey_index, 0, last_of(limits.pkeys))?;
    within("PORT", modify.port, 1, limits.ports)?;
    within("TIMEOUT", modify.timeout, 0, 31u8)?;
    within("RETRY_CNT", modify.retry_cnt, 0, 7u8)?;
    within("RNR_RETRY", modify.rnr_retry, 0, 7u8)?;
    within("MIN_RNR_TIMER", modify.min_rnr_timer, 0, 31u8)?;
    within("MAX_QP_RD_ATOMIC", modify.max_rd_atomic, 0, limits.max_rd_atomic)?;
    within("MAX_DEST_RD_ATOMIC", modify.max_dest_rd_atomic, 0, limits.max_dest_rd_atomic)?;
    if let Some(RateLimit { kbps, max_burst, typical_packet }) = modify.rate_limit {
        // A burst of what is not limited is a contradiction, and so is one that no limit ever holds back.
        let given = u32::from(max_burst > 0 || typical_packet > 0);
        within("RATE_LIMIT", Some(kbps), given * RateLimit::MIN_KBPS, RateLimit::MAX_KBPS)?;
        within("RATE_LIMIT.max_burst_sz", Some(max_burst), 0, RateLimit::MAX_BURST)?;
    }
    if let Some(mtu) = modify.path_mtu
        && mtu > limits.max_mtu
    {
        return Err(ModifyError::MtuTooLarge { mtu, max: limits.max_mtu });
    }
    if let Some(av) = &modify.av {
        check_route(AttributeMask::AV, av)?;
        within("AV.sgid_index", Some(av.sgid_index), 0, last_of(limits.gids))?;
        within("AV.port", Some(av.port), 1, limits.ports)?;
    }
    if let Some(path) = &modify.alternate {
        check_route(AttributeMask::ALT_PATH, &path.av)?;
        within("ALT_PATH.sgid_index", Some(path.av.sgid_index), 0, last_of(limits.gids))?;
        within("ALT_PATH.port", Some(path.port), 1, limits.ports)?;
        within("ALT_PATH.pkey_index", Some(path.pkey_index), 0, last_of(limits.pkeys))?;
        within("ALT_PATH.timeout", Some(path.timeout), 0, 31u8)?;
    }
    // QP 0 and QP 1 are odd peers for a connection but harmless ones: their packets are dropped there. The multicast
    // number is no queue pair.
    refuse_if!(modify.dest_qpn == Some(Qpn::MULTICAST), ModifyError::NoSuchPeer { qpn: Qpn::MULTICAST });
    Ok(())
}

/// RoCE routes by IP address, which only the global part of a vector holds (annex A17).
fn check_route(attribute: AttributeMask, av: &AddressVector) -> Result<(), ModifyError> {
    if av.is_global { Ok(()) } else { Err(ModifyError::NoGlobalRoute { attribute }) }
}

fn within(what: &'static str, value: Option<impl Into<u32>>, min: u32, max: impl Into<u32>) -> Result<(), ModifyError> {
    let max = max.into();
    match value.map(Into::into) {
        Some(value) if value < min || value > max => Err(ModifyError::OutOfRange { what, value, min, max }),
        _ => Ok(()),
    }
}

/// The last index of a table; a table without entries takes index 0, since the field cannot say "none".
fn last_of(entries: u16) -> u16 {
    entries.saturating_sub(1)
}
