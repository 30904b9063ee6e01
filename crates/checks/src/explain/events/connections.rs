//! Connections of the connection manager that were not made, and how others ended.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use trace::{Call, ConnectionEnd};
use wire::cm::RejectReason;
use wire::{Gid, Qpn};

use super::{CONNECTION_LOST, DISCONNECTED, NOBODY_LISTENS, NOT_CONNECTED, REJECTED_BY_PROGRAM};
use crate::finding::{Finding, Subject};
use crate::map::{Map, Set};
use crate::model::Model;
use crate::rule::Number;

/// The rules about events of ids that say that something was not to be.
pub(in crate::explain) const RULES: &[Number] = &[REJECTED_BY_PROGRAM, NOBODY_LISTENS, NOT_CONNECTED, CONNECTION_LOST];

/// Whether the reason why a call failed is an event that [`not_made`] has explained: a call of an id without a channel
/// waits for its event.
pub(in crate::explain) fn tells_of(reason: &str) -> bool {
    let event = reason.split(' ').next().unwrap_or_default();
    event.starts_with("RDMA_CM_EVENT_") && not_made(&Places::default(), 0, None, event, -1).is_some()
}

/// How many ids are remembered.
const MAX_PLACES: usize = 4096;

/// An address, a port and a port space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ServiceAddress {
    address: [u8; 16],
    port: u32,
    space: &'static str,
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, port {} ({})", Gid::new(self.address).to_ip(), self.port, self.space)
    }
}

/// Where ids connect to, and listen.
#[derive(Default, Debug)]
pub(super) struct Places {
    goals: Map<u64, ServiceAddress>,
    /// The id of each queue pair that connects.
    connecting: Map<Qpn, u64>,
    listeners: Map<u64, ServiceAddress>,
    /// Ids without a channel of the program's: their calls wait for their events, and fail as those say.
    synchronous: Set<u64>,
}

impl Places {
    pub fn observe(&mut self, call: &Call) {
        match *call {
            Call::CmPlace { function, id, space, address, port } => {
                let places = if function == "rdma_listen" { &mut self.listeners } else { &mut self.goals };
                if places.len() < MAX_PLACES || places.contains_key(&id) {
                    places.insert(id, ServiceAddress { address, port, space });
                }
            }
            Call::CmChannel { id, synchronous: true, .. } if self.synchronous.len() < MAX_PLACES => {
                self.synchronous.insert(id);
            }
            Call::CmChannel { id, .. } => {
                self.synchronous.remove(&id);
            }
            Call::CmOffer { function: "rdma_connect", id, offered_qpn: Some(qpn), .. }
                if self.connecting.len() < MAX_PLACES || self.connecting.contains_key(&qpn) =>
            {
                self.connecting.insert(qpn, id);
            }
            Call::CmCall { function: "rdma_destroy_id", id, .. } => {
                self.connecting.retain(|_, of| *of != id);
                self.synchronous.remove(&id);
                self.goals.remove(&id);
                self.listeners.remove(&id);
            }
            _ => {}
        }
    }

    /// Where a queue pair connects to.
    pub fn of_pair(&self, qpn: Qpn) -> Option<ServiceAddress> {
        self.of(*self.connecting.get(&qpn)?)
    }

    fn of(&self, id: u64) -> Option<ServiceAddress> {
        self.goals.get(&id).copied()
    }

    /// What may be wrong with a place where no program listens.
    fn hints(&self, place: ServiceAddress) -> Vec<String> {
        let mut hints = Vec::new();
        let listens = |port: u32, same_space: bool| {
            let found =
                |(_, one): &(&u64, &ServiceAddress)| one.port == port && (one.space == place.space) == same_space;
            self.listeners.iter().find(found).map(|(id, one)| format!("id {id:#x} of this process listens at {one}"))
        };
        hints.extend(listens(place.port, false));
        let turned = u16::try_from(place.port).map_or(0, u16::swap_bytes).into();
        let turned_listens = listens(turned, true);
        if turned != place.port && (turned_listens.is_some() || (1024..place.port).contains(&turned)) {
            hints.push(format!(
                "port {} is {turned} with its bytes in reverse: sin_port and sin6_port want htons(port)",
                place.port
            ));
            hints.extend(turned_listens);
        }
        hints
    }
}

/// An event of the connection manager that says that something was not to be.
pub(super) fn not_made(places: &Places, id: u64, id_qpn: Option<Qpn>, event: &str, status: i32) -> Option<Finding> {
    let short = event.trim_start_matches("RDMA_CM_EVENT_");
    let subject = Subject::Id(id);
    let what = |happened: &str| format!("{short} (status {status}) for id {id:#x}: {happened}");
    let reason = u16::try_from(status).map(RejectReason::from_code);
    let finding = match (short, status) {
        // The second is the answer to who asks for a queue pair of datagrams: the service is not supported.
        ("REJECTED", 8) | ("UNREACHABLE", 1) => {
            let place = places.of(id);
            let at = place.map_or_else(|| "the address and port".into(), |place| format!("{place}"));
            let mut finding = Finding::new(
                NOBODY_LISTENS,
                subject,
                what(&format!("nobody listens at {at}")),
                "start the server first, and let both use one port space (RDMA_PS_TCP or RDMA_PS_UDP) and port; RDMA ports \
                 are not TCP's",
            )
            .because("the peer's host answered that no program listens there (invalid service id)");
            finding.evidence.extend(place.into_iter().flat_map(|place| places.hints(place)));
            finding
        }
        ("UNREACHABLE", 2) => Finding::new(
            REJECTED_BY_PROGRAM,
            subject,
            what("the peer's program rejected the request for a queue pair of datagrams"),
            "at the peer, look for rdma_reject, and for a request whose id was destroyed",
        )
        .because("the peer called rdma_reject, or destroyed the id of the request"),
        ("UNREACHABLE", 3..=5) => Finding::new(
            NOT_CONNECTED,
            subject,
            what("the peer answered that it has no queue pair of datagrams for this request"),
            "at the peer, give rdma_accept an id with a queue pair (rdma_create_qp, IBV_QPT_UD)",
        ),
        ("REJECTED", 28) => Finding::new(
            REJECTED_BY_PROGRAM,
            subject,
            what("the peer's program rejected the connection"),
            "read the private data of the event: the peer may say why. At the peer, look for rdma_reject, and for a \
             request whose id was destroyed",
        )
        .because("the peer called rdma_reject, or destroyed the id of the request"),
        ("REJECTED", _) => Finding::new(
            NOT_CONNECTED,
            subject,
            what(&reason.map_or_else(|_| "the peer rejected the connection".into(), |reason| format!("{reason}"))),
            match status {
                1 | 3 => "look at the peer: it has no queue pair or no other object left for the connection",
                4 => "have the peer call rdma_accept sooner: its answer came after this side, or the peer, had given up",
                9 => "use one port space on both sides: RDMA_PS_TCP is for connections, RDMA_PS_UDP for datagrams",
                10 => "connect again with a new id: the peer still had a connection of these numbers, and has ended it now",
                26 => "set the smaller MTU on both network interfaces, or lower path_mtu",
                27 => "lower initiator_depth of rdma_conn_param",
                _ => "compare the parameters of rdma_connect with what the peer can do",
            },
        ),
        ("UNREACHABLE", _) => Finding::new(
            NOT_CONNECTED,
            subject,
            what("the peer did not answer"),
            "check the address, and that UDP port 4791 is open between both hosts; does the peer run ubiverbs or RoCE? A \
             server that listens must answer RDMA_CM_EVENT_CONNECT_REQUEST with rdma_accept or rdma_reject in time",
        )
        .because("the request was sent several times and not answered"),
        ("ADDR_ERROR" | "ROUTE_ERROR", _) => Finding::new(
            NOT_CONNECTED,
            subject,
            what("the address could not be resolved"),
            "use an address that this host has a route to, over an interface that `ubiverbs devices` lists",
        ),
        ("CONNECT_ERROR" | "MULTICAST_ERROR", _) => Finding::new(
            NOT_CONNECTED,
            subject,
            what("the connection, or the group, could not be set up"),
            "look at the finding about the queue pair before: it could not be moved to RTR or RTS",
        ),
        ("DEVICE_REMOVAL", _) => Finding::new(
            CONNECTION_LOST,
            subject,
            what("the device is gone"),
            "destroy the id, and connect again over another device",
        ),
        _ => return None,
    };
    let finding = match (places.synchronous.contains(&id), short) {
        (false, _) => finding,
        (true, "REJECTED") => {
            finding.shown_by("the id has no event channel: its call failed with ECONNREFUSED for this")
        }
        (true, _) => finding.shown_by("the id has no event channel: the call that waited for this event failed"),
    };
    Some(match id_qpn {
        Some(qpn) => finding.shown_by(format!("the queue pair of the id is {qpn}")),
        None => finding,
    })
}

/// A connection ended; none if this program itself ended it.
pub(super) fn ended(model: &Model, qpn: Option<Qpn>, local_comm_id: u32, by: ConnectionEnd) -> Option<Finding> {
    if by == ConnectionEnd::Local {
        return None;
    }
    let (rule, happened, advice) = match by {
        ConnectionEnd::Peer => (
            DISCONNECTED,
            "the peer called rdma_disconnect, or destroyed its id",
            "answer with rdma_disconnect, for which the peer waits, poll what is flushed, and destroy queue pair and id; if \
             the peer was not done, look there for why it ended",
        ),
        ConnectionEnd::PeerDied => (
            CONNECTION_LOST,
            "the peer's process exited, crashed or was killed without a word",
            "look at how the peer ended: its exit status, its log, the kernel's (out of memory?)",
        ),
        ConnectionEnd::PeerLost => (
            CONNECTION_LOST,
            "the peer's host says that it has no such connection",
            "look at the peer: it was restarted, or dropped the connection after a timeout",
        ),
        _ => (CONNECTION_LOST, "the device of the connection is gone", "connect again over another device"),
    };
    let subject = qpn.map_or(Subject::Process, Subject::QueuePair);
    let pair = qpn.and_then(|qpn| model.pairs.get(&qpn));
    let under_way = pair.map_or(0, |pair| pair.sends.len());
    let name = qpn.map_or_else(|| "a connection".into(), |qpn| format!("the connection of QP {qpn}"));
    let finding =
        Finding::new(rule, subject, format!("{name} (communication id {local_comm_id:#010x}) ended: {by}"), advice)
            .because(happened);
    let finding = match under_way {
        0 => finding,
        count => finding.shown_by(format!("{count} sends of this side were under way")),
    };
    Some(match pair.and_then(|pair| pair.connection.dest_qpn.map(|peer| (pair.qpn, peer))) {
        Some((local, peer)) => finding.between(local, peer, None),
        None => finding,
    })
}
