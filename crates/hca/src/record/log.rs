//! Events for a person at a terminal or a program that reads lines, while the program runs: each is out before the next
//! happens, so that nothing is missing after a crash.

#[cfg(feature = "capture")]
use ::host::stamp;
use ::host::standard_error::say_stamped;
#[cfg(feature = "capture")]
use std::io::{self, Write};
use trace::{ConnectionEnd, DropReason, Event, Kind, Sink};

/// Events as text on standard error.
#[derive(Debug)]
pub(crate) struct Text {
    /// Only what goes wrong.
    pub trouble_only: bool,
}

impl Sink for Text {
    fn record(&mut self, event: &Event) {
        // The C library says itself, in any case, which calls were refused.
        let said = matches!(event.kind, Kind::Called { call: trace::Call::Refused { .. }, .. });
        if !said && (!self.trouble_only || is_trouble(&event.kind)) {
            match event.qpn {
                Some(qpn) => say_stamped(format_args!("QP {qpn} {}", event.kind)),
                None => say_stamped(event.kind),
            }
        }
    }
}

/// What the user of a program that does not work would want to know.
fn is_trouble(kind: &Kind) -> bool {
    match kind {
        Kind::PostRefused { .. } | Kind::Retry { .. } | Kind::AccessRefused { .. } => true,
        Kind::Injected { .. } | Kind::CaptureEnded { .. } | Kind::Flushed { .. } | Kind::CqOverflowed { .. } => true,
        Kind::NakSent { .. } | Kind::NakReceived { .. } | Kind::AsyncEvent { .. } => true,
        // The program asked for these.
        Kind::PacketDropped { reason, .. } => !matches!(
            reason,
            DropReason::RingRefused | DropReason::OwnMulticast | DropReason::FlowDrops | DropReason::CnpUnwanted
        ),
        // Messages are repeated, and the second of two alike is ignored.
        Kind::CmMessageDropped { reason, .. } => *reason == DropReason::CmCrowded,
        // That work is flushed was told at once for all of it.
        Kind::Completed { status, .. } => {
            ![transport::Status::Success.name(), transport::Status::WorkRequestFlushed.name()].contains(status)
        }
        Kind::StateChanged { to, .. } => {
            [transport::State::Error.name(), transport::State::SendQueueError.name()].contains(to)
        }
        Kind::ConnectionEnded { by, .. } => !matches!(by, ConnectionEnd::Local | ConnectionEnd::Peer),
        _ => false,
    }
}

/// What stands on every line of JSON beside the event.
#[cfg(feature = "capture")]
pub(crate) fn stamp() -> trace::Stamp {
    let stamp::Stamp { wall, process, thread } = stamp::Stamp::now();
    trace::Stamp { wall: wall.as_nanos() as u64, process, thread }
}

/// Collects what is written until a line is whole, and then writes it at once.
#[cfg(feature = "capture")]
#[derive(Debug)]
pub(crate) struct WholeLines<W> {
    to: W,
    line: Vec<u8>,
}

#[cfg(feature = "capture")]
impl<W> WholeLines<W> {
    pub fn new(to: W) -> WholeLines<W> {
        WholeLines { to, line: Vec::new() }
    }
}

#[cfg(feature = "capture")]
impl<W: Write> Write for WholeLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        if self.line.last() == Some(&b'\n') {
            let written = self.to.write_all(&self.line);
            self.line.clear();
            written?;
            self.to.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "capture")]
    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    #[cfg(feature = "capture")]
    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[cfg(feature = "capture")]
    #[test]
    fn every_event_is_one_write() {
        let mut sink = trace::JsonLines::new(WholeLines::new(Writes::default()));
        for wr_id in [1, 2] {
            let kind = Kind::PostRefused { wr_id, queue: trace::Queue::Send, reason: "full" };
            sink.record(&Event { at: 0, qpn: None, kind });
        }
        let writes = sink.finish().unwrap().to.0;
        assert_eq!(writes.len(), 2);
        assert!(writes.iter().all(|line| line.starts_with(b"{") && line.ends_with(b"}\n")), "{writes:?}");
    }

    #[test]
    fn trouble_is_told_from_the_rest() {
        let state = |to| Kind::StateChanged { from: "RTS", to, cause: trace::StateCause::Modify };
        assert!(is_trouble(&state("ERR")) && is_trouble(&state("SQE")) && !is_trouble(&state("SQD")));
        let completed = |status| Kind::Completed {
            wr_id: 1,
            queue: trace::Queue::Send,
            status,
            opcode: "SEND",
            bytes: 0,
            failure: None,
        };
        let dropped = |reason| Kind::PacketDropped { headers: None, reason };
        assert!(is_trouble(&dropped(DropReason::BadIcrc)) && !is_trouble(&dropped(DropReason::OwnMulticast)));
        let ignored = |reason| Kind::CmMessageDropped { message: "RTU", local_comm_id: 1, reason };
        assert!(is_trouble(&ignored(DropReason::CmCrowded)) && !is_trouble(&ignored(DropReason::CmWrongState)));
        assert!(is_trouble(&completed("IBV_WC_RETRY_EXC_ERR")) && !is_trouble(&completed("IBV_WC_SUCCESS")));
        // A thousand flushes are one line.
        assert!(is_trouble(&Kind::Flushed { sends: 1, receives: 999 }));
        assert!(!is_trouble(&completed(transport::Status::WorkRequestFlushed.name())));
    }
}
