//! How errors read, as `main` prints them.

use std::io;
use ubiverbs::cm::ConnectError;
use ubiverbs::{CloseReason, CompletionError, CompletionKind, Error, Failed, Failure, Psn, Qpn, Status};
use wire::NakCode;

fn denied() -> CompletionError {
    let cause = Some(Failure::Nak { code: NakCode::RemoteAccess, psn: Psn::new(7), peer: None });
    CompletionError::new(Status::RemoteAccess, CompletionKind::Write, Qpn::new(0x11), cause, None)
}

#[test]
fn an_error_prints_its_sentence_its_hint_and_what_it_comes_from() {
    let system = Error::System { what: "cannot make a channel", source: io::Error::from_raw_os_error(24) };
    assert_eq!(format!("{system:?}"), "cannot make a channel: Too many open files (os error 24)");
    let connect = Error::from(ConnectError::NobodyListens { at: ([127, 0, 0, 1], 7).into() });
    let text = "connection refused: nobody listens at 127.0.0.1:7 (hint: is the server running, and is this its port? RDMA ports \
                are not TCP's)";
    assert_eq!((format!("{connect:?}"), connect.to_string()), (text.to_owned(), text.to_owned()));
    let failed = Failed { error: Error::Revoked, buffer: vec![1, 2, 3] };
    assert_eq!(format!("{failed:?}"), "the region has been revoked");
    // One whose sentence does not name its source.
    #[derive(Debug)]
    struct Outer(io::Error);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("something else")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    let error = Error::Create { what: "a thing", source: Box::new(Outer(io::Error::other("the reason"))) };
    assert_eq!(format!("{error:?}"), "cannot create a thing: something else\n  caused by: the reason");
}

#[test]
fn work_that_was_flushed_says_why_and_what_to_do() {
    let (status, kind) = (Status::WorkRequestFlushed, CompletionKind::Receive);
    let flushed = |reason| CompletionError::new(status, kind, Qpn::new(0x11), Some(Failure::Flushed), reason);
    let died = flushed(Some(CloseReason::PeerDied)).to_string();
    assert_eq!(
        died,
        "RECV on queue pair 0x11 ended with IBV_WC_WR_FLUSH_ERR: the peer's process has ended (hint: see what became of the peer's \
         program; connect again when it runs)"
    );
    let failed = flushed(Some(CloseReason::Failed(denied()))).to_string();
    let first = "RDMA_WRITE on queue pair 0x11 ended with IBV_WC_REM_ACCESS_ERR: the peer answered packet 7 with ";
    assert!(
        failed.contains(first) && failed.matches("hint:").count() == 1 && failed.contains("check the remote slice")
    );
    // Of a NIC that does not say.
    assert!(flushed(None).to_string().contains("`close_reason` says why"));
}
