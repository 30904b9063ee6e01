//! `ubiverbs explain`: what a completion status means, and what to look at.

use crate::exit::{Exit, Failure};
use crate::style;
use clap::Args;
use std::io::Write;
use transport::Status;

/// Explain a completion status
///
/// A completion status is what a program finds in `ibv_wc.status`. Says what it means and where to look for the cause.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// A number, a name, or a part of a name; without it, all are listed
    #[arg(add = crate::completions::statuses())]
    status: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  ubiverbs explain 12
  ubiverbs explain IBV_WC_RETRY_EXC_ERR
  ubiverbs explain retry";

/// Explains.
pub fn run(options: &Options, out: &mut impl Write) -> Result<Exit, Failure> {
    let Some(asked) = &options.status else {
        for status in STATUSES {
            writeln!(out, "{:>3}  {:<26} {}", status.code(), status.name(), short(status)).map_err(Failure::Output)?;
        }
        return Ok(Exit::Ok);
    };
    let wanted = asked.to_ascii_uppercase();
    let found: Vec<Status> = STATUSES
        .into_iter()
        .filter(|status| match wanted.parse::<u8>() {
            Ok(code) => status.code() == code,
            Err(_) => status.name().contains(&wanted),
        })
        .collect();
    if found.is_empty() {
        let bad = style::BAD;
        anstream::eprintln!(
            "{bad}ubiverbs:{bad:#} no completion status is called {asked:?}; `ubiverbs explain` lists them"
        );
        return Ok(Exit::Job);
    }
    let title = style::TITLE;
    for status in found {
        writeln!(out, "{title}{} ({}){title:#}: {}\n", status.name(), status.code(), short(status))
            .and_then(|()| writeln!(out, "{}\n", causes(status)))
            .map_err(Failure::Output)?;
    }
    Ok(Exit::Ok)
}

/// All of them.
pub const STATUSES: [Status; 17] = [
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
];

/// What it means, in a few words.
pub fn short(status: Status) -> &'static str {
    match status {
        Status::Success => "the work was done",
        Status::LocalLength => "a message was longer than the space for it",
        Status::LocalQpOperation => "the queue pair is not set up for this work",
        Status::LocalProtection => "local memory named by the work request may not be touched",
        Status::WorkRequestFlushed => "the queue pair was already in error",
        Status::MemoryWindowBind => "the memory window could not be bound, or the key not be invalidated",
        Status::BadResponse => "the peer answered something that cannot be right",
        Status::LocalAccess => "local memory failed while a peer's message was placed",
        Status::RemoteInvalidRequest => "the peer found the request wrong",
        Status::RemoteAccess => "the peer's memory may not be touched that way",
        Status::RemoteOperation => "the peer could not carry out the request",
        Status::RetryExceeded => "the peer did not answer",
        Status::RnrRetryExceeded => "the peer had no receive posted",
        Status::RemoteAborted => "the peer gave the request up",
        Status::General => "something that should not happen did",
        Status::TagOperation => "the tagged buffer is not there any more",
        Status::RendezvousIncomplete => "a message was matched whose data was not read",
    }
}

fn causes(status: Status) -> &'static str {
    match status {
        Status::Success => "Nothing to do.",
        Status::LocalLength => {
            "- A receive is too small for the message. On UD the first 40 bytes of every receive are the GRH: add 40.\n\
             - A UD send is longer than the port's MTU.\n\
             - An atomic's local piece is shorter than 8 bytes."
        }
        Status::LocalQpOperation => "- READ or atomic on a queue pair whose max_rd_atomic is 0.",
        Status::LocalProtection => {
            "- The lkey is wrong, or its region was deregistered.\n- The range reaches outside the region.\n\
             - The region is of another protection domain than the queue pair.\n\
             - A receive, READ or atomic writes into a region without LOCAL_WRITE."
        }
        Status::WorkRequestFlushed => {
            "This is never the first error. Look at the completion before it, on both sides: that one says what happened.\n\
             It is also what outstanding receives end with when a connection is closed: normal then."
        }
        Status::MemoryWindowBind => {
            "- The region behind the window lacks MW_BIND.\n- The window is to be written by peers, and the region lacks LOCAL_WRITE.\n\
             - The range reaches outside the region, or protection domains differ.\n\
             - Local invalidate of a key that does not exist, or of a window that another queue pair bound."
        }
        Status::BadResponse => {
            "- The two sides disagree about the connection: path MTU, queue pair numbers.\n- A peer with a bug."
        }
        Status::LocalAccess => "- The region a WRITE with immediate went to was deregistered meanwhile.",
        Status::RemoteInvalidRequest => {
            "- A SEND was longer than the peer's receive.\n- The operation is not enabled in the peer's queue pair (qp_access_flags).\n\
             - An atomic at an address that is no multiple of 8.\n\
             - More READs and atomics at once than the peer's max_dest_rd_atomic."
        }
        Status::RemoteAccess => {
            "- The rkey is wrong, of another protection domain, or of a region that is gone.\n- Address and length reach outside the region.\n\
             - The region lacks REMOTE_WRITE, REMOTE_READ or REMOTE_ATOMIC."
        }
        Status::RemoteOperation => {
            "- The peer's receive names memory that may not be written: look at the peer's completion."
        }
        Status::RetryExceeded => {
            "- The peer is gone, its queue pair is not in RTR or RTS, or it is in error.\n\
             - Wrong queue pair number, GID or PSN in the exchange of addresses.\n\
             - Packets do not arrive: UDP port 4791 blocked, no route, an MTU the path cannot carry.\n\
             - timeout and retry_cnt are too small for the loss on the way."
        }
        Status::RnrRetryExceeded => {
            "- The receiver posts too few receives, or too late. rnr_retry 7 waits for ever.\n- min_rnr_timer is very short."
        }
        Status::RemoteAborted | Status::General => "- Look at the trace of both sides.",
        Status::TagOperation => {
            "- A message took the buffer before it was deleted: its own completion comes, or has come.\n\
             - The handle is of a buffer that was deleted, or was never added."
        }
        Status::RendezvousIncomplete => {
            "The tagged buffer has the headers of the message. The program reads the data and sends the FIN.\n\
             - The buffer is shorter than the data.\n\
             - The queue pair cannot READ: it is not in RTS, or its max_rd_atomic is 0."
        }
    }
}
