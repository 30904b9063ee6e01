//! NICs that are like cards, under an ordinary C program: patterns that are known to fail on a card fail here at the same
//! call with the same errno, and succeed on the NIC as it is.

use crate::library::{Link, alone, compile, on_link, show, succeed};

/// A pattern, the card on which it fails, and its errno there.
const PATTERNS: &[(&str, &str, i32)] = &[
    // github.com/ggml-org/llama.cpp issue 22111
    ("inline", "irdma", libc::EINVAL),
    // github.com/NVIDIA/nvshmem issue 41
    ("srq", "irdma", libc::EOPNOTSUPP),
    // github.com/ROCm/rocm-systems issue 6145
    ("uc", "ionic", libc::ENOTSUP),
    ("uc", "bnxt", libc::EINVAL),
    // github.com/ggml-org/llama.cpp pull request 28494
    ("by-hand", "iwarp", libc::EINVAL),
    ("by-hand", "siw", libc::EINVAL),
    // github.com/pytorch-labs/monarch issue 2721
    ("loopback", "efa", libc::EIO),
    // github.com/NVIDIA/nccl issues 1587 and 1573
    ("first-gid", "pod", libc::EINVAL),
    ("atomics", "mana", libc::EINVAL),
    ("atomics", "irdma", libc::EINVAL),
];

#[test]
fn what_fails_on_a_card_fails_here_at_the_same_call_and_only_on_that_card() {
    let program = compile("cc", "cards.c");
    let _turn = alone();
    let run = |what: &str, card: &str, errno: i32| {
        let mut command = on_link(Link::SharedMemory, &program);
        let errno = errno.to_string();
        succeed(command.args([what, &errno]).env("UBIVERBS_NIC", card).env("UBIVERBS_NICS", "1"));
    };
    for (what, card, errno) in PATTERNS {
        run(what, card, *errno);
        run(what, "", 0);
    }
    run("many", "apple", 0);
}

#[test]
fn what_cards_leave_out_of_completions_stays_as_it_was() {
    let program = compile("cc", "cards.c");
    let _turn = alone();
    let tells = |card: &str, line: &str| {
        let mut command = on_link(Link::SharedMemory, &program);
        let said = succeed(command.arg("tells").env("UBIVERBS_NIC", card).env("UBIVERBS_NICS", "1"));
        assert!(said.lines().any(|own| own == line), "{card}: {line}\n{said}");
    };
    let rest = "source kept, immediate kept, pkey kept, slid kept, sl kept, path kept";
    let sent = format!("SEND: status 0, opcode 0, bytes kept, vendor kept, flags 0, {rest}");
    tells("cx5", &sent);
    tells("cx5", &format!("READ with a wrong key: status 10, opcode kept, bytes kept, vendor 136, flags 0, {rest}"));
    let own = "source own, immediate kept, pkey kept, slid kept, sl kept, path kept";
    tells("irdma", &format!("SEND: status 0, opcode 0, bytes 64, vendor kept, flags 0, {own}"));
    let zero = "source 0, immediate 0, pkey 0, slid 0, sl 0, path 0";
    tells("rxe", &format!("READ with a wrong key: status 10, opcode 0, bytes 0, vendor 0, flags 0, {zero}"));
    tells("rxe", &format!("FLUSH: status 2, opcode 0, bytes 0, vendor 0, flags 0, {zero}"));
    tells("rxe", "overrun: 3 events, the rest is there, and then 0; posted later: 0, polled 1");
    tells("rxe", "rkey of local memory is 0");
    tells("rxe", "iova at another place of a page 22");
    tells("", "iova at another place of a page 0");
    tells("siw", "empty region 22");
}

#[test]
fn words_of_a_profile_of_ones_own_are_obeyed() {
    let program = compile("cc", "cards.c");
    let place = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("mine.toml");
    let text = "[gids]\nmoves = '1s'\n[timers]\nrnr-timer-least = '300ms'\n[completions]\nerrors = ['wr_id', 'status']\n\
                [memory]\nkey-layout = 'small'\n[refuses.calls]\nibv_alloc_mw = 'EOPNOTSUPP'\n";
    std::fs::write(&place, text).unwrap();
    let _turn = alone();
    for (what, mine, usual) in [("moving-gid", "1", "0"), ("rnr-wait", "300", "0"), ("failed-opcode", "1", "0")] {
        for (card, asked) in [(place.as_os_str(), mine), ("".as_ref(), usual)] {
            let mut command = on_link(Link::SharedMemory, &program);
            succeed(command.args([what, asked]).env("UBIVERBS_NIC", card).env("UBIVERBS_NICS", "1"));
        }
    }
}

#[test]
fn a_card_tells_and_grants_what_its_profile_says() {
    let program = compile("cc", "cards.c");
    let _turn = alone();
    let tells = |card: &str| {
        let mut command = on_link(Link::SharedMemory, &program);
        succeed(command.arg("tells").env("UBIVERBS_NIC", card).env("UBIVERBS_NICS", "1"))
    };
    let siw = tells("siw");
    for line in [
        "node 4, transport 1",
        "vendor_id 0x626d74",
        "max_sge 0x6",
        "port: gids 1, pkeys 0, message 0xffffffff, vl 0",
        "keys are equal",
        "UC 95",
        "window 95",
        "resize 95",
        "grants 100: cqe 128, srq 128, send 100, receive 100",
        "inline 0: 80, pieces 2",
        "inline 128: -22, pieces -1",
    ] {
        assert!(siw.lines().any(|own| own == line), "{line}\n{siw}");
    }
    let rxe = tells("rxe");
    for line in [
        "RAW_PACKET 95",
        "grants 100: cqe 127, srq 100, send 100, receive 100",
        "inline 128: 128, pieces 8",
        "keys are equal",
    ] {
        assert!(rxe.lines().any(|own| own == line), "{line}\n{rxe}");
    }
    let usual = tells("");
    assert!(usual.lines().any(|line| line == "keys are distinct"), "{usual}");
}

#[test]
fn a_profile_that_cannot_be_read_is_told_and_left_out() {
    let program = compile("cc", "cards.c");
    let output = {
        let _turn = alone();
        let mut command = on_link(Link::SharedMemory, &program);
        command.args(["inline", "0"]).env("UBIVERBS_NIC", "cx6").env("UBIVERBS_NICS", "1").output().unwrap()
    };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && told.contains("UBIVERBS_NIC: cx6 is none of cx5"),
        "{}",
        show("inline", &output)
    );
}
