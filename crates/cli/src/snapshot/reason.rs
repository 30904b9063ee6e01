//! Why a queue pair makes no progress, in a sentence that names what to look at.

use super::{ProcessSnapshot, Snapshot};
use inventory::{QueuePair, Waiting};
use transport::WaitReason;

/// The queue pair at the other end, where it is on this host.
type Peer<'a> = Option<(&'a ProcessSnapshot, &'a QueuePair)>;

impl Snapshot {
    /// What a queue pair waits for, or why it stopped; none if it does neither.
    pub fn reason(&self, pair: &QueuePair) -> Option<String> {
        if !pair.stop.is_empty() {
            return Some(format!("stopped: {}", pair.stop));
        }
        let waiting = pair.waiting.as_ref()?;
        let peer = self.peer_of(pair);
        let Some(reason) = WaitReason::from_code(waiting.reason) else {
            return Some("waits for what this version does not know".to_owned());
        };
        let Waiting { psn, operation, .. } = waiting;
        let sentence = match reason {
            WaitReason::Acknowledgement => format!("no acknowledgement of PSN {psn}{}", tries(waiting, "sent again")),
            WaitReason::Answer => format!("no answer to the {operation} at PSN {psn}{}", tries(waiting, "asked again")),
            WaitReason::NotReady => format!("the peer has no receive{}", tries(waiting, "refused")),
            WaitReason::Rate => "a rate limit holds it back".to_owned(),
            WaitReason::Drained => "the program drained the send queue (SQD)".to_owned(),
            WaitReason::Room => no_room(pair),
        };
        let hint = match reason {
            WaitReason::Acknowledgement | WaitReason::Answer => self.silent_peer(pair, peer),
            WaitReason::NotReady => peer.map(|(process, theirs)| unready(process, theirs)),
            _ => None,
        };
        Some(hint.map_or(sentence.clone(), |hint| format!("{sentence}; {hint}")))
    }

    /// What is known of a peer that does not answer.
    fn silent_peer(&self, pair: &QueuePair, peer: Peer<'_>) -> Option<String> {
        if let Some((process, theirs)) = peer {
            let state = super::state_name(theirs);
            return match (process.is_stopped(), state, theirs.peer == pair.number) {
                (true, ..) => Some(format!("its process {} is stopped", process.pid)),
                (_, "RTR" | "RTS" | "SQD" | "SQE" | "busy", true) => None,
                (_, "RTR" | "RTS" | "SQD" | "SQE", false) => {
                    Some(format!("that is connected to QP {:#08x} instead", theirs.peer))
                }
                _ => Some(format!("that is in {state}")),
            };
        }
        let owner = self.owners.get(&pair.peer);
        let process = owner.and_then(|pid| self.processes.iter().find(|process| process.pid == *pid));
        match (owner, process) {
            (Some(pid), Some(process)) if process.is_stopped() => Some(format!("its process {pid} is stopped")),
            (Some(pid), Some(process)) if process.report.is_err() => Some(format!("its process {pid} is silent")),
            (Some(pid), Some(_)) => Some(format!("process {pid} has no such queue pair any more")),
            (Some(pid), None) => Some(format!("process {pid} has it, and may be another user's")),
            (None, _) if self.is_here(pair) => Some("no process has that queue pair".to_owned()),
            (None, _) => None,
        }
    }
}

/// A peer without a receive.
fn unready(process: &ProcessSnapshot, theirs: &QueuePair) -> String {
    match theirs.shared_queue {
        0 => format!("PID {} has {} receives posted there", process.pid, theirs.receives),
        _ => format!("PID {} posts receives to the shared receive queue", process.pid),
    }
}

/// How often, of how many times.
fn tries(waiting: &Waiting, done: &str) -> String {
    match (waiting.tries, waiting.tries_allowed) {
        (0, _) => String::new(),
        (tries, Some(allowed)) => format!(" ({done} {tries} of {allowed} times)"),
        (tries, None) => format!(" ({done} {tries} times, without limit)"),
    }
}

fn no_room(pair: &QueuePair) -> String {
    match &pair.congestion {
        Some(way) if way.window > 0 && way.in_flight >= way.window => {
            format!("the congestion window is full: {} of {} bytes are under way", way.in_flight, way.window)
        }
        _ => format!("it was not sent: the link ({}) has no room, or something is before it", pair.link),
    }
}

#[cfg(test)]
mod tests {
    use crate::snapshot::tests::sample;

    #[test]
    fn what_is_known_of_both_ends_is_said() {
        let mut snapshot = sample();
        let client = snapshot.processes[0].report.as_ref().unwrap().queue_pairs[0].clone();
        let told = "no acknowledgement of PSN 77 (sent again 2 of 7 times)";
        assert_eq!(snapshot.reason(&client).unwrap(), told);
        let theirs =
            |snapshot: &mut super::Snapshot| snapshot.processes[1].report.as_mut().unwrap().queue_pairs.remove(0);
        let server = theirs(&mut snapshot);
        let put = |snapshot: &mut super::Snapshot, pair| {
            snapshot.processes[1].report.as_mut().unwrap().queue_pairs = vec![pair];
        };
        let cases = [
            (super::QueuePair { peer: 9, ..server.clone() }, "; that is connected to QP 0x000009 instead"),
            (super::QueuePair { state: 6, ..server.clone() }, "; that is in ERR"),
            (super::QueuePair { state: 1, ..server.clone() }, "; that is in INIT"),
        ];
        for (pair, hint) in cases {
            put(&mut snapshot, pair);
            assert_eq!(snapshot.reason(&client).unwrap(), format!("{told}{hint}"));
        }
        put(&mut snapshot, server);
        snapshot.processes[1].condition = Some('T');
        assert!(snapshot.reason(&client).unwrap().ends_with("; its process 4250 is stopped"));
        snapshot.places.clear();
        let ends = |snapshot: &super::Snapshot, hint| assert!(snapshot.reason(&client).unwrap().ends_with(hint));
        ends(&snapshot, "; no process has that queue pair");
        for (pid, hint) in [
            (4250, "; its process 4250 is stopped"),
            (4242, "; process 4242 has no such queue pair any more"),
            (1, "; process 1 has it, and may be another user's"),
        ] {
            snapshot.owners.insert(client.peer, pid);
            ends(&snapshot, hint);
        }
        let snapshot = sample();
        let mut refused = client.clone();
        let waiting = refused.waiting.as_mut().unwrap();
        (waiting.reason, waiting.tries_allowed) = (3, None);
        let told = "the peer has no receive (refused 2 times, without limit); PID 4250 has 0 receives posted there";
        assert_eq!(snapshot.reason(&refused).unwrap(), told);
        refused.waiting.as_mut().unwrap().reason = 99;
        assert!(snapshot.reason(&refused).unwrap().contains("this version does not know"));
        refused.stop = "the program stopped the queue pair".into();
        assert_eq!(snapshot.reason(&refused).unwrap(), "stopped: the program stopped the queue pair");
    }
}
