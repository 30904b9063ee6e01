//! What can be asked for, and that the texts agree with the tables of the code.

use super::entry::Kind;
use super::line::{Recognised, recognise};
use super::log::Log;
use super::search::{find, find_among, find_errno, find_sentence, near};
use super::{Options, entries, run, unknown};
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
    for [one, other] in [["EINVAL", "ibv_modify_qp"], ["-22", "ibv_modify_qp"], ["ibv_modify_qp", "-22"]] {
        assert_eq!(names(&find_errno(one, other)), ["ibv_modify_qp EINVAL"], "{one} {other}");
    }
    assert_eq!(names(&find_errno("rdma_connect", "111")), ["rdma_connect ECONNREFUSED"]);
    assert!(find("ibv_modify_qp").len() >= 2);
    assert!(find("250").is_empty());
}

#[test]
fn an_errno_of_which_nothing_special_is_known_is_explained_in_general() {
    let found = find_errno("ibv_query_gid", "ENODEV");
    assert_eq!((names(&found), found.len()), (vec!["ibv_query_gid ENODEV"], 1));
    assert!(found[0].short.contains("no RDMA device is there"), "{found:?}");
    assert!(find_errno("nonsense", "ENODEV").is_empty());
    assert!(unknown(&["nonsense"], &[]).contains("nonsense"));
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
    for sentence in super::WC_STATUS_SENTENCES {
        assert!(strings.contains(&format!("c\"{sentence}\",")), "{sentence}");
    }
}

#[test]
fn no_word_is_not_every_word() {
    let told = |words: &[&str]| {
        let mut out = Vec::new();
        let options = Options { words: words.iter().map(|word| (*word).to_owned()).collect(), json: false };
        (run(&options, &mut out).unwrap(), String::from_utf8(out).unwrap())
    };
    for words in [&[""][..], &[" "], &["", " "], &["no", "such", "thing"]] {
        assert_eq!(told(words), (Exit::Job, String::new()), "{words:?}");
    }
    for words in [&["transport retry counter exceeded"][..], &["transport", "retry", "counter", "exceeded"]] {
        assert!(told(words).1.contains("IBV_WC_RETRY_EXC_ERR"), "{words:?}");
    }
    assert!(told(&["ibv_modify_qp EINVAL"]).1.contains("ibv_modify_qp EINVAL"));
}

#[test]
fn words_that_are_nearly_right_get_the_right_ones() {
    for (words, meant) in [
        (&["RETRY_EXC_ER"][..], "RETRY_EXC_ERR"),
        (&["IBV_WC_LOC_PORT_ERR"], "IBV_WC_LOC_PROT_ERR"),
        (&["statsu"], "status"),
        (&["ibv_reg_mr", "ENOMEN"], "ibv_reg_mr ENOMEM"),
        (&["EINVLA", "ibv_modify_qp"], "ibv_modify_qp EINVAL"),
        (&["ibv_modfy_qp", "22"], "ibv_modify_qp EINVAL"),
        (&["transport", "retry", "counter", "exceded"], "transport retry counter exceeded"),
    ] {
        assert!(near(words).iter().any(|near| near == meant), "{words:?}: {:?}", near(words));
    }
    assert!(find_errno("ibv_modfy_qp", "22").is_empty());
    let said = unknown(&["ibv_reg_mr", "ENOMEN"], &near(&["ibv_reg_mr", "ENOMEN"]));
    assert!(said.ends_with("did you mean ibv_reg_mr ENOMEM?"), "{said}");
}

/// Lines as programs and drivers print them, and what is to be known of each.
const LINES: &[(&str, &[&str])] = &[
    (
        "h:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<44206> with status=12 \
         opcode=129 len=65536 vendor err 129 (Recv) localGid ::ffff:10.0.0.1 remoteGids::ffff:10.0.0.2",
        &["IBV_WC_RETRY_EXC_ERR"],
    ),
    (
        "NET/IB: Got completion from peer 10.0.0.2<50606> with status=IBV_WC_RETRY_EXC_ERR(12) \
         opcode=IBV_WC_RDMA_WRITE(1) vendor_err=129",
        &["IBV_WC_RETRY_EXC_ERR"],
    ),
    ("NET/IB : Got completion with error 5, opcode 1, len 0, vendor err 249", &["IBV_WC_WR_FLUSH_ERR"]),
    (
        "NCCL WARN NET/IB : Got completion from peer x with status=4 opcode=0 len=0 vendor err 102 (Send)",
        &["IBV_WC_LOC_PROT_ERR", "UV-0102"],
    ),
    (
        "misc/ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
        &["ibv_modify_qp EINVAL"],
    ),
    (
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1",
        &["ibv_modify_qp ETIMEDOUT"],
    ),
    ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", &["ibv_reg_mr ENOMEM"]),
    (
        "[h:19546:0] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)",
        &["IBV_WC_RETRY_EXC_ERR"],
    ),
    ("ib_mlx5_log.c:143 Remote access on mlx5_2:1/IB (synd 0x13 vend 0x88 hw_synd 0/0)", &["IBV_WC_REM_ACCESS_ERR"]),
    (
        "rc_verbs_iface.c:124  send completion with error: local protection error [qpn 0xf9db wrid 0x149vendor_err 0x51]",
        &["IBV_WC_LOC_PROT_ERR"],
    ),
    ("UCX ERROR ibv_reg_mr(address=0x7f0, length=4096, access=0xf) failed: Bad address", &["ibv_reg_mr EFAULT"]),
    (
        "libfabric:ofi_rxm:cq:rxm_cq_read_write_error():819<warn> fi_cq_readerr: err: 5, prov_err: remote access error (10)",
        &["IBV_WC_REM_ACCESS_ERR"],
    ),
    ("Completion with error: Operation canceled (err 125 prov_errno 5)", &["IBV_WC_WR_FLUSH_ERR"]),
    (" Failed status 12: wr_id 0 syndrom 0x81", &["IBV_WC_RETRY_EXC_ERR"]),
    ("Failed status transport retry counter exceeded (12) for wr_id 2", &["IBV_WC_RETRY_EXC_ERR"]),
    ("Failed to modify QP 1023 to RTR", &["Failed to modify QP … to RTR"]),
    (
        "error polling LP CQ with status RETRY EXCEEDED ERROR status number 12 for wr_id 0x1 opcode 1 vendor error 129",
        &["IBV_WC_RETRY_EXC_ERR"],
    ),
    ("cma event RDMA_CM_EVENT_REJECTED, error 8", &["RDMA_CM_EVENT_REJECTED", "INVALID_SERVICE_ID"]),
    ("rdma_connect: Connection refused", &["rdma_connect ECONNREFUSED"]),
    (
        "nvme nvme0: Connect rejected: status 8 (invalid service ID).",
        &["INVALID_SERVICE_ID", "nvme … Connect rejected"],
    ),
    (
        "[12.5] infiniband mlx5_0: mlx5_poll_one:530:(pid 0): syndrome 0x5, vendor syndrome 0xf9",
        &["IBV_WC_WR_FLUSH_ERR"],
    ),
    ("00000000 00008813 10012abe 0dd0c1d3", &["IBV_WC_REM_ACCESS_ERR"]),
    ("00000030: 00 00 00 00 9D 00 53 04 0A 00 15 42 00 19 B0 D2 | ......S....B....", &["IBV_WC_LOC_PROT_ERR"]),
    (
        "mlx5_core 0000:08:00.0: mlx5_cmd_check:782: CREATE_MKEY(0x200) op_mod(0x0) failed, status bad parameter(0x3), \
         syndrome (0x55b5c5)",
        &["op_mod … failed, status … syndrome"],
    ),
    ("rdma_rxe: bad ICRC from 10.0.0.2", &["rxe … bad ICRC"]),
    ("rxe0: qp#17 moved to error state", &["rxe … moved to error state"]),
    ("error: work request 7 failed with LOC_PROT_ERR [UV-0102]", &["UV-0102"]),
    ("got bad completion with status: 0xc, vendor syndrome: 0x81", &["IBV_WC_RETRY_EXC_ERR"]),
];

#[test]
fn lines_of_programs_and_drivers_are_recognised() {
    for (line, wanted) in LINES {
        assert_eq!(names(&recognise(line).entries), *wanted, "{line}");
    }
}

#[test]
fn the_number_of_a_vendor_is_told_from_that_of_a_rule() {
    let notes = |line: &str| recognise(line).notes.concat();
    assert!(notes(LINES[0].0).contains("0x81) is ConnectX's"), "{}", notes(LINES[0].0));
    assert!(notes(LINES[3].0).contains("on ubiverbs, the rule UV-0102"), "{}", notes(LINES[3].0));
}

#[test]
fn lines_of_other_things_are_not_recognised() {
    for line in [
        "",
        "exit status 12",
        "HTTP status=404, error 12",
        "ibv_rc_pingpong -d ubi_lo",
        "rdma_client: start",
        "  local address:  LID 0x0000, QPN 0x000011, PSN 0x8a2d1f, GID ::ffff:127.0.0.1",
        "test result: ok. 12 passed; 0 failed",
        "status 0 of completion",
        "fatal error: file.h: No such file or directory",
        "00000000 00000000 00000000 00000000",
    ] {
        let Recognised { entries, .. } = recognise(line);
        assert!(entries.is_empty(), "{line}: {:?}", names(&entries));
    }
}

#[test]
fn of_a_log_the_lines_that_matter_are_told_causes_first() {
    let flushed = "NCCL WARN NET/IB : Got completion from peer x with status=5 opcode=0 len=0 vendor err 249 (Recv)\n";
    let text = format!("starting\n{}rank 3 \u{1b}[31mis up\n{}\n{}", flushed.repeat(3), LINES[0].0, flushed.repeat(2));
    let log = Log::read(text.as_bytes()).unwrap();
    let mut out = Vec::new();
    log.print(&mut out).unwrap();
    let text = anstream::adapter::strip_str(&String::from_utf8(out).unwrap()).to_string();
    assert!(text.starts_with("6 of 8 lines tell of a failure. Begin with line 6."), "{text}");
    let (failed, followed) = text.split_once("What followed from a failure").unwrap();
    assert!(failed.contains("     6  h:984") && !failed.contains("WR_FLUSH"), "{text}");
    assert!(followed.contains("     2  NCCL") && followed.contains("and 4 lines like it"), "{text}");
    assert!(text.contains("IBV_WC_RETRY_EXC_ERR (12): the peer did not answer\n"), "{text}");
    let json = log.json();
    assert_eq!((&json["lines"][0]["consequence"], &json["lines"][0]["count"]), (&true.into(), &5.into()));
    assert_eq!(json["entries"][0]["name"], "IBV_WC_RETRY_EXC_ERR");
    assert!(Log::read(&b"nothing\n"[..]).unwrap().is_silent() && Log::read(&b""[..]).unwrap().is_empty());
}

#[test]
fn lines_without_an_end_and_without_meaning_are_read() {
    let mut long = vec![b'x'; 1 << 20];
    long.extend([0xff, 0xfe, b'\n']);
    long.extend(b"rdma_connect: Connection refused");
    let log = Log::read(&long[..]).unwrap();
    assert_eq!(log.json()["lines"][0]["line"], 2);
}
