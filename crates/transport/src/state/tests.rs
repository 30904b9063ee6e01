//! The table is tested against itself from both sides (every attribute taken away, every other added) and printed as a
//! whole for review.

use super::*;
use crate::attributes::{AlternatePath, Capabilities, MigrationState};
use alloc::string::{String, ToString};
use core::fmt::Write;
use wire::access::Access;
use wire::{Mtu, Psn, Qkey};

/// A request that gives exactly the attributes of `mask`, with values nobody objects to.
fn request(from: State, to: State, mask: AttributeMask) -> Modify {
    fn given<T>(mask: AttributeMask, name: AttributeMask, value: T) -> Option<T> {
        mask.contains(name).then_some(value)
    }
    use AttributeMask as A;
    Modify {
        state: given(mask, A::STATE, to),
        current_state: given(mask, A::CUR_STATE, from),
        sqd_async_notify: given(mask, A::EN_SQD_ASYNC_NOTIFY, true),
        access: given(mask, A::ACCESS_FLAGS, Access::REMOTE_WRITE),
        pkey_index: given(mask, A::PKEY_INDEX, 0),
        port: given(mask, A::PORT, 1),
        qkey: given(mask, A::QKEY, Qkey::GSI),
        av: given(mask, A::AV, AddressVector::default()),
        path_mtu: given(mask, A::PATH_MTU, Mtu::B4096),
        timeout: given(mask, A::TIMEOUT, 31),
        retry_cnt: given(mask, A::RETRY_CNT, 7),
        rnr_retry: given(mask, A::RNR_RETRY, 7),
        rq_psn: given(mask, A::RQ_PSN, Psn::new(0xff_ffff)),
        max_rd_atomic: given(mask, A::MAX_QP_RD_ATOMIC, 16),
        alternate: given(mask, A::ALT_PATH, AlternatePath { port: 1, timeout: 31, ..AlternatePath::default() }),
        min_rnr_timer: given(mask, A::MIN_RNR_TIMER, 31),
        sq_psn: given(mask, A::SQ_PSN, Psn::new(0)),
        max_dest_rd_atomic: given(mask, A::MAX_DEST_RD_ATOMIC, 16),
        migration: given(mask, A::PATH_MIG_STATE, MigrationState::Rearm),
        capabilities: given(mask, A::CAP, Capabilities::default()),
        dest_qpn: given(mask, A::DEST_QPN, Qpn::new(0x11)),
        rate_limit: given(mask, A::RATE_LIMIT, RateLimit::kbps(1000)),
    }
}

fn every_pair() -> impl Iterator<Item = (Kind, State, State)> {
    Kind::ALL.into_iter().flat_map(|kind| {
        State::ALL.into_iter().flat_map(move |from| State::ALL.into_iter().map(move |to| (kind, from, to)))
    })
}

fn verdict(kind: Kind, from: State, modify: &Modify) -> Result<State, ModifyError> {
    check(kind, from, modify, &Limits::default())
}

#[test]
fn the_request_builder_gives_what_it_was_asked_for() {
    for name in AttributeMask::all().iter() {
        assert_eq!(request(State::Init, State::Error, name).mask(), name);
    }
    assert_eq!(Modify::default().mask(), AttributeMask::empty());
}

#[test]
fn every_transition_takes_its_required_attributes_alone_and_with_all_optional_ones() {
    for (kind, from, to) in every_pair() {
        let Some(Requirements { required, optional }) = requirements(kind, from, to) else { continue };
        assert_eq!(required & optional, AttributeMask::empty(), "{kind} {from} -> {to}");
        let least = required | AttributeMask::STATE;
        assert_eq!(verdict(kind, from, &request(from, to, least)), Ok(to), "{kind} {from} -> {to}");
        assert_eq!(verdict(kind, from, &request(from, to, least | optional)), Ok(to), "{kind} {from} -> {to}");
    }
}

#[test]
fn a_required_attribute_left_out_is_named() {
    let mut tried = 0;
    for (kind, from, to) in every_pair() {
        let Some(Requirements { required, optional }) = requirements(kind, from, to) else { continue };
        for missing in required.iter() {
            let modify = request(from, to, (required | optional | AttributeMask::STATE).difference(missing));
            assert_eq!(verdict(kind, from, &modify), Err(ModifyError::Missing { kind, from, to, missing }));
            tried += 1;
        }
        if !required.is_empty() {
            let all = Err(ModifyError::Missing { kind, from, to, missing: required });
            assert_eq!(verdict(kind, from, &request(from, to, AttributeMask::STATE)), all);
        }
    }
    assert_eq!(tried, 50, "required attributes in the table");
}

#[test]
fn an_attribute_that_is_not_taken_is_named() {
    let mut tried = 0;
    for (kind, from, to) in every_pair() {
        let Some(Requirements { required, optional }) = requirements(kind, from, to) else { continue };
        let taken = required | optional | AttributeMask::STATE;
        for excess in AttributeMask::all().difference(taken).iter() {
            let modify = request(from, to, taken | excess);
            assert_eq!(verdict(kind, from, &modify), Err(ModifyError::NotAllowed { kind, from, to, excess }));
            tried += 1;
        }
        let excess = AttributeMask::all().difference(taken);
        let all = Err(ModifyError::NotAllowed { kind, from, to, excess });
        assert_eq!(verdict(kind, from, &request(from, to, AttributeMask::all())), all);
    }
    assert!(tried > 1000, "only {tried}");
}

#[test]
fn what_is_not_in_the_table_is_not_a_transition() {
    let mut refused = 0;
    for (kind, from, to) in every_pair() {
        if requirements(kind, from, to).is_some() {
            continue;
        }
        for mask in [AttributeMask::STATE, AttributeMask::all()] {
            let modify = request(from, to, mask);
            assert_eq!(verdict(kind, from, &modify), Err(ModifyError::NotATransition { kind, from, to }));
        }
        refused += 1;
    }
    // Of 49 pairs 14 end in RESET or ERR and 9 are steps, one of which (SQE -> RTS) only the unreliable kinds know.
    assert_eq!(refused, 6 * (49 - 14 - 9) + 3);
}

#[test]
fn without_a_state_one_stays_where_staying_is_a_transition() {
    use State::*;
    for kind in Kind::ALL {
        for from in State::ALL {
            let stays = [Reset, Init, ReadyToSend, SendQueueDrained, Error].contains(&from);
            assert_eq!(verdict(kind, from, &Modify::default()).is_ok(), stays, "{kind} in {from}");
        }
    }
    let modify = Modify { access: Some(Access::REMOTE_READ), ..Modify::default() };
    assert_eq!(verdict(Kind::ReliableConnected, ReadyToSend, &modify), Ok(ReadyToSend));
}

#[test]
fn a_wrong_belief_about_the_present_state_is_refused() {
    let back =
        |believed| Modify { state: Some(State::ReadyToSend), current_state: Some(believed), ..Modify::default() };
    let uc = Kind::UnreliableConnected;
    for actual in [State::ReadyToSend, State::SendQueueDrained, State::SendQueueError] {
        for believed in State::ALL {
            let expected = if believed == actual {
                Ok(State::ReadyToSend)
            } else {
                Err(ModifyError::NotInState { believed, actual })
            };
            assert_eq!(verdict(uc, actual, &back(believed)), expected);
        }
    }
}

#[test]
fn errors_read_as_sentences() {
    let sentence = |kind, from, modify: Modify| verdict(kind, from, &modify).unwrap_err().to_string();
    let (rc, uc) = (Kind::ReliableConnected, Kind::UnreliableConnected);
    let full = requirements(rc, State::Init, State::ReadyToReceive).unwrap().required | AttributeMask::STATE;
    let to_rtr = |mask| request(State::Init, State::ReadyToReceive, mask);

    let modify = to_rtr(full.difference(AttributeMask::DEST_QPN | AttributeMask::RQ_PSN));
    assert_eq!(sentence(rc, State::Init, modify), "INIT -> RTR of an RC queue pair needs RQ_PSN and DEST_QPN");
    let modify = to_rtr(full | AttributeMask::SQ_PSN);
    assert_eq!(sentence(rc, State::Init, modify), "INIT -> RTR of an RC queue pair does not take SQ_PSN");
    let modify = Modify { state: Some(State::ReadyToSend), ..Modify::default() };
    assert_eq!(
        sentence(uc, State::Init, modify),
        "INIT -> RTS is not a transition of a UC queue pair; from INIT one may go to RESET, INIT, RTR or ERR"
    );
    assert_eq!(
        sentence(rc, State::SendQueueError, modify),
        "SQE -> RTS is not a transition of an RC queue pair; from SQE one may go to RESET or ERR"
    );
    let modify = Modify { current_state: Some(State::ReadyToSend), ..modify };
    assert_eq!(sentence(uc, State::SendQueueError, modify), "the queue pair is in SQE, not in RTS as CUR_STATE says");
    let modify = Modify { timeout: Some(32), ..Modify::default() };
    assert_eq!(sentence(rc, State::SendQueueDrained, modify), "TIMEOUT is 32; it may be 0 to 31");
}

#[test]
fn values_are_bounded_on_both_sides() {
    /// Sets one attribute of SQD -> SQD or RESET -> INIT or INIT -> RTR to a value and reports whether it was taken.
    fn taken(from: State, to: State, set: impl FnOnce(&mut Modify)) -> Result<(), String> {
        let kind = Kind::ReliableConnected;
        let needed = requirements(kind, from, to).unwrap();
        let mut modify = request(from, to, needed.required | needed.optional | AttributeMask::STATE);
        set(&mut modify);
        let limits = Limits { pkeys: 2, ports: 3, gids: 4, max_mtu: Mtu::B1024, ..Limits::default() };
        // The builder gives 4096 for the path MTU.
        modify.path_mtu = modify.path_mtu.map(|mtu| if mtu == Mtu::B4096 { Mtu::B1024 } else { mtu });
        check(kind, from, &modify, &limits).map(|_| ()).map_err(|error| error.to_string())
    }
    fn bounds(name: &str, from: State, to: State, min: u8, max: u8, set: fn(&mut Modify, u8)) {
        for value in [min, max] {
            assert_eq!(taken(from, to, |modify| set(modify, value)), Ok(()), "{name} {value}");
        }
        for value in [min.checked_sub(1), max.checked_add(1), Some(255)].into_iter().flatten() {
            let sentence = alloc::format!("{name} is {value}; it may be {min} to {max}");
            assert_eq!(taken(from, to, |modify| set(modify, value)), Err(sentence));
        }
    }
    let (reset, init, rtr, sqd) = (State::Reset, State::Init, State::ReadyToReceive, State::SendQueueDrained);
    bounds("PKEY_INDEX", reset, init, 0, 1, |modify, value| modify.pkey_index = Some(value.into()));
    bounds("PORT", reset, init, 1, 3, |modify, value| modify.port = Some(value));
    bounds("TIMEOUT", sqd, sqd, 0, 31, |modify, value| modify.timeout = Some(value));
    bounds("RETRY_CNT", sqd, sqd, 0, 7, |modify, value| modify.retry_cnt = Some(value));
    bounds("RNR_RETRY", sqd, sqd, 0, 7, |modify, value| modify.rnr_retry = Some(value));
    bounds("MIN_RNR_TIMER", sqd, sqd, 0, 31, |modify, value| modify.min_rnr_timer = Some(value));
    bounds("MAX_QP_RD_ATOMIC", sqd, sqd, 0, 128, |modify, value| modify.max_rd_atomic = Some(value));
    bounds("MAX_DEST_RD_ATOMIC", sqd, sqd, 0, 128, |modify, value| modify.max_dest_rd_atomic = Some(value));
    bounds("AV.sgid_index", init, rtr, 0, 3, |modify, value| modify.av.as_mut().unwrap().sgid_index = value);
    bounds("AV.port", init, rtr, 1, 3, |modify, value| modify.av.as_mut().unwrap().port = value);
    bounds("ALT_PATH.sgid_index", init, rtr, 0, 3, |modify, value| {
        modify.alternate.as_mut().unwrap().av.sgid_index = value;
    });
    bounds("ALT_PATH.port", init, rtr, 1, 3, |modify, value| modify.alternate.as_mut().unwrap().port = value);
    bounds("ALT_PATH.pkey_index", init, rtr, 0, 1, |modify, value| {
        modify.alternate.as_mut().unwrap().pkey_index = value.into();
    });
    bounds("ALT_PATH.timeout", init, rtr, 0, 31, |modify, value| modify.alternate.as_mut().unwrap().timeout = value);

    assert_eq!(taken(init, rtr, |modify| modify.path_mtu = Some(Mtu::B1024)), Ok(()));
    let error = taken(init, rtr, |modify| modify.path_mtu = Some(Mtu::B2048)).unwrap_err();
    assert_eq!(error, "PATH_MTU is 2048 bytes and the port carries 1024");
    assert_eq!(taken(init, rtr, |modify| modify.dest_qpn = Some(Qpn::new(0xff_fffe))), Ok(()));
    let error = taken(init, rtr, |modify| modify.dest_qpn = Some(Qpn::MULTICAST)).unwrap_err();
    assert_eq!(error, "DEST_QPN 0xffffff stands for multicast and is no queue pair to connect to");
    let error = taken(init, rtr, |modify| modify.av.as_mut().unwrap().is_global = false).unwrap_err();
    assert_eq!(error, "AV has no global route (is_global is 0); on RoCE the peer is found by its GID alone");
    let error = taken(init, rtr, |modify| modify.alternate.as_mut().unwrap().av.is_global = false).unwrap_err();
    assert!(error.starts_with("ALT_PATH has no global route"));
}

#[test]
fn codes_and_names_are_those_of_the_verbs() {
    for (code, state) in State::ALL.into_iter().enumerate() {
        assert_eq!((usize::from(state.code()), State::from_code(code as u8)), (code, Some(state)));
    }
    assert_eq!(State::from_code(7), None);
    for kind in Kind::ALL {
        assert_eq!(Kind::from_code(kind.code()), Some(kind));
    }
    assert_eq!([0, 1, 5, 7, 11].map(Kind::from_code), [None; 5]);
    assert_eq!(AttributeMask::all().bits(), 0x021f_ffff);
}

/// Everything the table says, for review when it changes.
#[test]
fn the_transition_matrix() {
    let mut page = String::new();
    for kind in Kind::ALL {
        writeln!(page, "{kind}").unwrap();
        for from in State::ALL {
            for to in State::ALL {
                let Some(Requirements { required, optional }) = requirements(kind, from, to) else { continue };
                write!(page, "  {:<5} -> {:<5}", from.name(), to.name()).unwrap();
                let mut separator = "  ";
                for (word, attributes) in [("needs", required), ("takes", optional)] {
                    if !attributes.is_empty() {
                        write!(page, "{separator}{word} {attributes}").unwrap();
                        separator = "; ";
                    }
                }
                while page.ends_with(' ') {
                    page.pop();
                }
                page.push('\n');
            }
        }
        page.push('\n');
    }
    insta::assert_snapshot!(page);
}
