//! What can be asked for, and that the texts agree with the tables of the code.

use super::entry::Kind;
use super::{Options, entries, find, find_among, find_errno, find_sentence, run, unknown};
use crate::exit::Exit;
use std::fs;
use std::path::Path;
use transport::Status;
use wire::cm::RejectReason;

fn names(found: &[super::ExplainedWord]) -> Vec<&str> {
    found.iter().map(|entry| entry.name.as_str()).collect()
}

#[test]
fn statuses_are_those_of_the_transport() {
    let entries = entries(Kind::Status);
    assert_eq!(entries.iter().map(|entry| entry.number).collect::<Vec<_>>(), (0..24).map(Some).collect::<Vec<_>>());
    for status in [
        Status::Success,
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::WorkRequestFlushed,
        Status::MemoryWindowBind,
        Status::BadResponse,
        Status::LocalAccess,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
        Status::RemoteAborted,
        Status::General,
        Status::TagOperation,
        Status::RendezvousIncomplete,
    ] {
        assert_eq!(entries[usize::from(status.code())].name, status.name());
    }
}

#[test]
fn reasons_of_rejection_are_those_of_the_wire() {
    let entries = entries(Kind::Reject);
    for code in 0..=u16::MAX {
        let known = !matches!(RejectReason::from_code(code), RejectReason::Other(_));
        let has = entries.iter().any(|entry| entry.number == Some(code.into()));
        assert_eq!(known, has, "reason {code}");
    }
}

#[test]
fn events_have_the_numbers_of_the_headers() {
    for kind in [Kind::AsyncEvent, Kind::CmEvent] {
        let entries = entries(kind);
        let numbers: Vec<_> = entries.iter().map(|entry| entry.number).collect();
        assert_eq!(numbers, (0..entries.len() as u32).map(Some).collect::<Vec<_>>());
    }
}

#[test]
fn every_errno_is_of_a_call_that_exists_and_has_a_number() {
    let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/link");
    let symbols = ["symbols.txt", "rdmacm.txt"].map(|file| fs::read_to_string(link.join(file)).expect(file)).concat();
    // Functions of the header, which no library exports.
    const INLINE: [&str; 6] =
        ["ibv_post_send", "ibv_post_recv", "ibv_post_srq_recv", "ibv_poll_cq", "ibv_alloc_mw", "ibv_bind_mw"];
    for entry in entries(Kind::Errno) {
        let call = entry.name.split(' ').next().unwrap();
        let exported = symbols.split_whitespace().any(|symbol| symbol == call);
        assert!(exported || INLINE.contains(&call) || call == "ibv_advise_mr", "{}", entry.name);
        assert!(entry.number.is_some(), "{}", entry.name);
    }
}

#[test]
fn numbers_names_and_parts_are_found() {
    assert_eq!(names(&find("12")), ["IBV_WC_RETRY_EXC_ERR"]);
    assert_eq!(names(&find("201")), ["UV-0201"]);
    assert_eq!(names(&find("uv-0201")), ["UV-0201"]);
    assert_eq!(names(&find("UV201")), ["UV-0201"]);
    assert_eq!(names(&find("IBV_EVENT_QP_ACCESS_ERR")), ["IBV_EVENT_QP_ACCESS_ERR"]);
    assert_eq!(names(&find("rnr_retry_exc")), ["IBV_WC_RNR_RETRY_EXC_ERR"]);
    assert_eq!(names(&find_among(Kind::Reject, "28")), ["CONSUMER"]);
    assert_eq!(names(&find_among(Kind::CmEvent, "8")), ["RDMA_CM_EVENT_REJECTED"]);
    assert_eq!(names(&find_errno("ibv_modify_qp", "einval")), ["ibv_modify_qp EINVAL"]);
    assert_eq!(names(&find_errno("ibv_modify_qp", "22")), ["ibv_modify_qp EINVAL"]);
    assert!(find("ibv_modify_qp").len() >= 2);
    assert!(find("250").is_empty());
}

#[test]
fn an_errno_of_which_nothing_special_is_known_is_explained_in_general() {
    assert!(unknown(&["ibv_query_gid", "ENODEV"]).contains("no RDMA device is there"));
    assert!(unknown(&["nonsense"]).contains("nonsense"));
}

#[test]
fn sentences_of_the_library_are_found() {
    for sentence in ["transport retry counter exceeded", "Transport Retry counter exceeded"] {
        let words: Vec<&str> = sentence.split(' ').collect();
        assert_eq!(names(&find_sentence(&words)), ["IBV_WC_RETRY_EXC_ERR"], "{sentence}");
    }
    assert_eq!(names(&find_sentence(&["Work", "Request", "Flushed", "Error"])), ["IBV_WC_WR_FLUSH_ERR"]);
    assert!(find_sentence(&[]).is_empty());
    let strings = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi/src/strings.rs")).unwrap();
    for sentence in super::SENTENCES {
        assert!(strings.contains(&format!("c\"{sentence}\",")), "{sentence}");
    }
}

#[test]
fn no_word_is_not_every_word() {
    let told = |words: &[&str]| {
        let mut out = Vec::new();
        let options = Options { words: words.iter().map(|word| (*word).to_owned()).collect() };
        (run(&options, &mut out).unwrap(), String::from_utf8(out).unwrap())
    };
    for words in [&[""][..], &[" "], &["", " "], &["ibv_modify_qp", "EINVAL", "nonsense"], &["no", "such", "thing"]] {
        assert_eq!(told(words), (Exit::Job, String::new()), "{words:?}");
    }
    for words in [&["transport retry counter exceeded"][..], &["transport", "retry", "counter", "exceeded"]] {
        assert!(told(words).1.contains("IBV_WC_RETRY_EXC_ERR"), "{words:?}");
    }
    assert!(told(&["ibv_modify_qp EINVAL"]).1.contains("ibv_modify_qp EINVAL"));
}
