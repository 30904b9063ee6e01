//! Which figures there are, and their names.

use super::exposition::{Exposition, FamilyType};
use crate::snapshot::{ProcessSnapshot, Snapshot, is_stuck, kind_name, state_name, waits_for};
use FamilyType::{Counter, Gauge, Info};
use inventory::{Counters, Port, QueuePair, Report};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Queue pairs of one process that have series of their own.
const MAX_QUEUE_PAIR_SERIES: usize = 10_000;

/// Octets in the unit of InfiniBand's data counters.
const OCTETS_PER_DATA_UNIT: u64 = 4;

/// How a counter is named, what it counts, and where it comes from.
type CounterFamily = (&'static str, &'static str, fn(&Counters) -> u64);

/// As node_exporter's infiniband collector names them: `node_infiniband_…{device,port}`. What cannot happen on this NIC
/// (a link that is retrained) has no series.
const PORT_FAMILIES: &[CounterFamily] = &[
    ("port_data_received_bytes", "Octets received, from the IP header to the ICRC.", |it| {
        it.traffic.received_octets / OCTETS_PER_DATA_UNIT * OCTETS_PER_DATA_UNIT
    }),
    ("port_data_transmitted_bytes", "Octets sent, from the IP header to the ICRC.", |it| {
        it.traffic.sent_octets / OCTETS_PER_DATA_UNIT * OCTETS_PER_DATA_UNIT
    }),
    ("port_packets_received", "Packets received.", |it| it.traffic.received_packets),
    ("port_packets_transmitted", "Packets sent.", |it| it.traffic.sent_packets),
    ("port_errors_received", "Packets received that make no sense.", |it| it.incidents.receive_errors),
    ("port_discards_transmitted", "Packets that did not get onto their link.", |it| it.incidents.send_errors),
    ("port_transmit_wait", "Microseconds in which there was something to send and no room for it.", |it| {
        it.incidents.wait_nanos / 1000
    }),
    ("multicast_packets_received", "Packets received from a multicast group.", |it| {
        it.incidents.multicast_received_packets
    }),
    ("multicast_packets_transmitted", "Packets sent to a multicast group.", |it| it.incidents.multicast_sent_packets),
    ("unicast_packets_received", "Packets received, but for those from a multicast group.", |it| {
        it.traffic.received_packets.saturating_sub(it.incidents.multicast_received_packets)
    }),
    ("unicast_packets_transmitted", "Packets sent, but for those to a multicast group.", |it| {
        it.traffic.sent_packets.saturating_sub(it.incidents.multicast_sent_packets)
    }),
    ("duplicate_requests_packets", "Requests that had been executed before.", |it| it.incidents.duplicate_requests),
    ("implied_nak_seq_errors", "Answers that showed by their number that one before them was lost.", |it| {
        it.incidents.implied_naks
    }),
    ("local_ack_timeout_errors", "Times that no acknowledgement came in time.", |it| it.incidents.timeouts),
    ("np_cnp_packets_sent", "Congestion notifications sent.", |it| it.incidents.cnps_sent),
    ("np_ecn_marked_roce_packets_received", "Packets received with the mark of congestion.", |it| {
        it.incidents.marked_packets
    }),
    ("out_of_buffer_drops", "Requests for which there was no receive.", |it| it.incidents.no_receives),
    ("out_of_sequence_packets_received", "Requests that came though one before them was missing.", |it| {
        it.incidents.out_of_sequence_requests
    }),
    ("packet_sequence_errors", "NAKs received for a sequence error.", |it| it.incidents.sequence_naks_received),
    ("resp_remote_access_errors", "Requests refused because memory must not be touched so.", |it| {
        it.incidents.access_refused
    }),
    ("rnr_nak_retry_packets_received", "NAKs received because the receiver was not ready.", |it| {
        it.incidents.rnr_naks_received
    }),
    ("rp_cnp_packets_handled", "Congestion notifications that were believed.", |it| it.incidents.cnps_handled),
    ("rp_cnp_ignored_packets_received", "Congestion notifications that were not believed.", |it| {
        it.incidents.cnps_ignored
    }),
    ("rx_atomic_requests", "Atomics that peers asked for.", |it| it.incidents.atomic_requests),
    ("rx_read_requests", "READs that peers asked for.", |it| it.incidents.read_requests),
];

/// Of a port, too, under names of our own: `ubiverbs_port_…`.
const OWN_PORT_FAMILIES: &[CounterFamily] = &[
    ("retransmissions", "Times that the requester went back to send again.", |it| it.incidents.retries),
    ("retries_exceeded", "Work that failed because it was sent again too often.", |it| it.incidents.retries_exceeded),
    ("rnr_retries_exceeded", "Work that failed because the receiver was too often not ready.", |it| {
        it.incidents.rnr_retries_exceeded
    }),
    ("discards_received", "Packets received that nobody wanted in the state of their queue pair.", |it| {
        it.incidents.receive_discards
    }),
    ("messages_sent", "SENDs whose last packet was sent.", |it| it.traffic.sends),
    ("messages_received", "Messages that used up a receive.", |it| it.traffic.receives),
];

/// Of a queue pair: `ubiverbs_queue_pair_…`.
const PAIR_FAMILIES: &[CounterFamily] = &[
    ("sent_bytes", "Octets sent, from the IP header to the ICRC.", |it| it.traffic.sent_octets),
    ("received_bytes", "Octets received, from the IP header to the ICRC.", |it| it.traffic.received_octets),
    ("sent_packets", "Packets sent.", |it| it.traffic.sent_packets),
    ("received_packets", "Packets received.", |it| it.traffic.received_packets),
    ("messages_sent", "SENDs whose last packet was sent.", |it| it.traffic.sends),
    ("messages_received", "Messages that used up a receive.", |it| it.traffic.receives),
    ("retransmissions", "Times that the requester went back to send again.", |it| it.incidents.retries),
    ("rnr_naks_received", "NAKs received because the receiver was not ready.", |it| it.incidents.rnr_naks_received),
];

/// What was counted on each port since this program runs. A counter never goes back: a process that is killed takes
/// its own along, and one that is stopped does not say them.
#[derive(Default)]
pub struct PortTotals {
    /// What each process said last.
    last: HashMap<i32, Vec<Port>>,
    /// What was lost of each number so far, and its sum before.
    kept: BTreeMap<(String, &'static str), (u64, u64)>,
}

/// The numbers of a port by their names.
pub type PortNumbers = BTreeMap<(String, &'static str), u64>;

impl PortTotals {
    /// Adds up what living processes and those that have ended have counted.
    pub fn add_up(&mut self, snapshot: &Snapshot, ended: BTreeMap<String, Counters>) -> PortNumbers {
        self.last.retain(|pid, _| snapshot.processes.iter().any(|process| process.pid == *pid));
        for process in &snapshot.processes {
            if let Ok(report) = &process.report {
                self.last.insert(process.pid, report.ports.clone());
            }
        }
        let mut sums = ended;
        for port in self.last.values().flatten() {
            *sums.entry(port.device.clone()).or_default() += port.counters;
        }
        let mut numbers = PortNumbers::new();
        for (device, counters) in &sums {
            for (name, _, value) in PORT_FAMILIES.iter().chain(OWN_PORT_FAMILIES) {
                let sum = value(counters);
                let (lost, before) = self.kept.entry((device.clone(), name)).or_default();
                *lost += before.saturating_sub(sum);
                *before = sum;
                numbers.insert((device.clone(), name), sum.saturating_add(*lost));
            }
        }
        numbers
    }
}

/// All families.
pub fn text(snapshot: &Snapshot, ports: &PortNumbers, queue_pairs: bool, took: Duration) -> String {
    let mut out = Exposition::default();
    for (prefix, families) in [("node_infiniband_", PORT_FAMILIES), ("ubiverbs_port_", OWN_PORT_FAMILIES)] {
        for (name, help, _) in families {
            out.family(&format!("{prefix}{name}"), Counter, help);
            for ((device, _), value) in ports.iter().filter(|((_, known), _)| known == name) {
                let (device, port) = device.split_once('/').unwrap_or((device, "1"));
                let device = trace::printable(device).to_string();
                out.sample(&[("device", &device), ("port", &trace::printable(port).to_string())], value);
            }
        }
    }
    of_processes(snapshot, &mut out);
    if queue_pairs {
        of_queue_pairs(snapshot, &mut out);
    }
    out.family("ubiverbs_scrape_duration_seconds", Gauge, "How long it took to ask all processes.");
    out.sample(&[], took.as_secs_f64());
    out.finish()
}

/// A family with a sample for each process that answered.
fn each(out: &mut Exposition, snapshot: &Snapshot, name: &str, help: &str, value: impl Fn(&Report) -> u64) {
    out.family(&format!("ubiverbs_process_{name}"), Gauge, help);
    for process in &snapshot.processes {
        if let Ok(report) = &process.report {
            out.sample(&labels(process), value(report));
        }
    }
}

/// A process that is named as another one has the same labels but for its number.
fn labels(process: &ProcessSnapshot) -> [(&str, &str); 2] {
    [("pid", &process.pid_text), ("command", &process.command)]
}

fn of_processes(snapshot: &Snapshot, out: &mut Exposition) {
    let answered = || snapshot.processes.iter().filter_map(|process| Some((process, process.report.as_ref().ok()?)));
    out.family("ubiverbs_process", Info, "A process that has a device open.");
    for (process, report) in answered() {
        let more = [("user", process.user.as_str()), ("version", report.activity.version.as_str())];
        out.sample(&[&labels(process)[..], &more].concat(), 1);
    }
    out.family("ubiverbs_process_answered", Gauge, "Whether a process answered: 0 if it is stopped, hangs or lies.");
    for process in &snapshot.processes {
        out.sample(&labels(process), u8::from(process.report.is_ok()));
    }
    out.family("ubiverbs_process_engine_seconds", Counter, "Processor time of the thread of the NIC.");
    for (process, _) in answered() {
        if let Some(nanos) = process.engine_nanos {
            out.sample(&labels(process), nanos as f64 / 1e9);
        }
    }
    out.family("ubiverbs_process_engine_wakes", Counter, "How often the thread of the NIC woke, and why.");
    for (process, report) in answered() {
        let mut wakes = inventory::Counters::default();
        report.ports.iter().for_each(|port| wakes += port.counters);
        let names = transport::packet_counters::EngineWakes::NAMES;
        for (reason, count) in names.iter().zip(wakes.engine_wakes.values()) {
            out.sample(&[&labels(process)[..], &[("reason", reason)]].concat(), count);
        }
    }
    out.family("ubiverbs_process_drops", Counter, "Packets and messages that went no further, and why.");
    for (process, report) in answered() {
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        report.activity.drops.iter().for_each(|drops| *reasons.entry(&drops.reason).or_default() += drops.count);
        for (reason, count) in reasons {
            out.sample(&[&labels(process)[..], &[("reason", reason)]].concat(), count);
        }
    }
    out.family("ubiverbs_process_queue_pairs", Gauge, "Queue pairs by type and state.");
    for (process, report) in answered() {
        let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        report.queue_pairs.iter().for_each(|pair| *kinds.entry((kind_name(pair), state_name(pair))).or_default() += 1);
        for ((kind, state), count) in kinds {
            out.sample(&[&labels(process)[..], &[("type", kind), ("state", state)]].concat(), count);
        }
    }
    let count = |of: usize| of as u64;
    each(out, snapshot, "queue_pairs_stuck", "Queue pairs whose oldest work has not moved for a second.", |report| {
        count(report.queue_pairs.iter().filter(|pair| is_stuck(pair)).count())
    });
    each(out, snapshot, "sends_outstanding", "Work of send queues that is not done.", |report| {
        report.queue_pairs.iter().map(|pair| u64::from(pair.sends)).sum()
    });
    each(out, snapshot, "completions_not_polled", "Completions that wait to be polled.", |report| {
        report.completion_queues.iter().map(|queue| u64::from(queue.waiting)).sum()
    });
    each(out, snapshot, "completion_queues", "Completion queues.", |report| count(report.completion_queues.len()));
    each(out, snapshot, "memory_regions", "Memory regions.", |report| count(report.regions.len()));
    each(out, snapshot, "registered_memory_bytes", "Bytes of memory regions.", |report| {
        report.regions.iter().fold(0, |sum, region| sum.saturating_add(region.length))
    });
    each(out, snapshot, "cm_ids", "Ids of the connection manager.", |report| count(report.ids.len()));
}

fn of_queue_pairs(snapshot: &Snapshot, out: &mut Exposition) {
    let pairs = || {
        let answered = snapshot.processes.iter().filter_map(|process| Some((process, process.report.as_ref().ok()?)));
        answered.flat_map(|(process, report)| {
            report.queue_pairs.iter().take(MAX_QUEUE_PAIR_SERIES).map(move |pair| (process, pair))
        })
    };
    let mut gauge = |name: &str, help: &str, value: &dyn Fn(&QueuePair) -> Option<f64>| {
        out.family(&format!("ubiverbs_queue_pair_{name}"), Gauge, help);
        for (process, pair) in pairs() {
            if let Some(value) = value(pair) {
                out.sample(&pair_labels(process, pair).each_ref().map(|(name, value)| (*name, value.as_str())), value);
            }
        }
    };
    gauge("sends_outstanding", "Work of the send queue that is not done.", &|pair| Some(pair.sends.into()));
    gauge("waiting_seconds", "How long the oldest work has not moved.", &|pair| {
        Some(waits_for(pair).map_or(0.0, |time| time.as_secs_f64()))
    });
    gauge("congestion_window_bytes", "How much may be on its way.", &|pair| {
        pair.congestion.as_ref().filter(|way| way.window > 0).map(|way| way.window as f64)
    });
    gauge("round_trip_seconds", "The smoothed round trip to the peer.", &|pair| {
        pair.congestion.as_ref()?.round_trip_nanos.map(|nanos| nanos as f64 / 1e9)
    });
    for (name, help, value) in PAIR_FAMILIES {
        out.family(&format!("ubiverbs_queue_pair_{name}"), Counter, help);
        for (process, pair) in pairs() {
            let labels = pair_labels(process, pair);
            out.sample(&labels.each_ref().map(|(name, value)| (*name, value.as_str())), value(&pair.counters));
        }
    }
}

fn pair_labels(process: &ProcessSnapshot, pair: &QueuePair) -> [(&'static str, String); 5] {
    [
        ("pid", process.pid.to_string()),
        ("command", process.command.clone()),
        ("qp", format!("{:#08x}", pair.number)),
        ("device", process.device(pair.interface, pair.port).to_owned()),
        ("type", kind_name(pair).to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::DASHBOARD;
    use crate::metrics::exposition::tests::parse;
    use crate::snapshot::tests::sample;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn counters(sent: u64) -> Counters {
        let mut counters = Counters::default();
        (counters.traffic.sent_packets, counters.traffic.sent_octets) = (sent, 100 * sent);
        counters
    }

    fn shown(queue_pairs: bool) -> (String, BTreeMap<String, f64>) {
        let mut snapshot = sample();
        let client = snapshot.processes[0].report.as_mut().unwrap();
        client.ports[0].counters = counters(3);
        client.ports[0].counters.engine_wakes.bell = 5;
        client.activity.drops = vec![inventory::Drops { reason: "duplicate".into(), count: 2 }];
        snapshot.processes[0].command = "evil\"} 1\n".into();
        let ended = [("ubi_lo".to_owned(), counters(4)), ("ubi_lo/2".to_owned(), counters(1))].into();
        let ports = PortTotals::default().add_up(&snapshot, ended);
        let text = text(&snapshot, &ports, queue_pairs, Duration::from_millis(5));
        let samples = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        (text, samples)
    }

    #[test]
    fn figures_have_the_names_of_node_exporter_where_they_mean_the_same() {
        let (_, samples) = shown(false);
        for (sample, value) in [
            ("node_infiniband_port_packets_transmitted_total{device=\"ubi_lo\",port=\"1\"}", 7.0),
            ("node_infiniband_port_data_transmitted_bytes_total{device=\"ubi_lo\",port=\"1\"}", 700.0),
            ("node_infiniband_port_packets_transmitted_total{device=\"ubi_lo\",port=\"2\"}", 1.0),
            ("ubiverbs_process_queue_pairs_stuck{pid=\"4242\",command=\"evil\\\"} 1\\n\"}", 1.0),
            ("ubiverbs_process_queue_pairs{pid=\"4250\",command=\"server\",type=\"RC\",state=\"RTS\"}", 1.0),
            ("ubiverbs_process_answered{pid=\"4300\",command=\"frozen\"}", 0.0),
            ("ubiverbs_process_drops_total{pid=\"4242\",command=\"evil\\\"} 1\\n\",reason=\"duplicate\"}", 2.0),
            ("ubiverbs_process_engine_wakes_total{pid=\"4242\",command=\"evil\\\"} 1\\n\",reason=\"bell\"}", 5.0),
            ("ubiverbs_scrape_duration_seconds", 0.005),
        ] {
            assert_eq!(samples.get(sample), Some(&value), "{sample}: {samples:#?}");
        }
        assert!(!samples.keys().any(|name| name.starts_with("ubiverbs_queue_pair_")), "not asked for");
    }

    #[test]
    fn queue_pairs_have_series_if_they_are_asked_for() {
        let (_, samples) = shown(true);
        let of_pair = "{pid=\"4250\",command=\"server\",qp=\"0x01f00d\",device=\"ubi_lo\",type=\"RC\"}";
        assert_eq!(samples[&format!("ubiverbs_queue_pair_sent_bytes_total{of_pair}")], 0.0);
        assert_eq!(samples[&format!("ubiverbs_queue_pair_waiting_seconds{of_pair}")], 0.0);
    }

    #[test]
    fn a_counter_never_goes_back_while_the_exporter_runs() {
        let mut totals = PortTotals::default();
        let (mut snapshot, name) = (sample(), ("ubi_lo".to_owned(), "port_packets_transmitted"));
        let mut set = |snapshot: &mut Snapshot, sent| {
            snapshot.processes[0].report.as_mut().unwrap().ports[0].counters = counters(sent);
            totals.add_up(snapshot, BTreeMap::new())[&name]
        };
        assert_eq!(set(&mut snapshot, 10), 10);
        assert_eq!(set(&mut snapshot, 12), 12);
        // Another process of the same number, after the first was killed.
        assert_eq!([set(&mut snapshot, 0), set(&mut snapshot, 3)], [12, 15]);
        // One that is stopped has counted what it last said.
        snapshot.processes[0].report = Err(inventory::NoReport::Silent);
        assert_eq!(totals.add_up(&snapshot, BTreeMap::new())[&name], 15);
        // It ends, and the host remembers it.
        snapshot.processes.clear();
        assert_eq!(totals.add_up(&snapshot, [("ubi_lo".to_owned(), counters(3))].into())[&name], 15);
        assert_eq!(totals.add_up(&snapshot, [("ubi_lo".to_owned(), counters(4))].into())[&name], 16);
    }

    /// The names of series in an expression.
    fn series(expression: &str) -> impl Iterator<Item = &str> {
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        words.filter(|word| word.starts_with("ubiverbs_") || word.starts_with("node_"))
    }

    #[test]
    fn the_dashboard_shows_series_that_there_are_in_panels_that_do_not_overlap() {
        const GRID_COLUMNS: u64 = 24;
        let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
        assert!(dashboard["schemaVersion"].as_u64() >= Some(36) && dashboard["id"].is_null());
        assert!(dashboard["uid"].as_str().is_some_and(|uid| uid.len() <= 40) && dashboard["title"].is_string());
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        assert!(variables.iter().any(|variable| variable["name"] == "datasource" && variable["type"] == "datasource"));
        let (text, _) = shown(true);
        let known: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.to_owned(),
            })
            .collect();
        let (mut ids, mut cells, mut shown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
            assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
            let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
            assert!(place("w") > 0 && place("h") > 0 && place("x") + place("w") <= GRID_COLUMNS, "{panel}");
            for column in place("x")..place("x") + place("w") {
                for row in place("y")..place("y") + place("h") {
                    assert!(cells.insert((column, row)), "it lies on another one: {panel}");
                }
            }
            assert!(["timeseries", "stat", "table"].contains(&panel["type"].as_str().unwrap()), "{panel}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}");
            let mut references = BTreeSet::new();
            for target in panel["targets"].as_array().unwrap() {
                assert!(references.insert(target["refId"].as_str().unwrap()), "{panel}");
                let expression = target["expr"].as_str().unwrap();
                for name in series(expression) {
                    assert!(known.contains(name), "no such series: {name}");
                    shown.insert(name.to_owned());
                    let is_counter = name.ends_with("_total");
                    let rated = expression.contains("rate(") || expression.contains("increase(");
                    assert_eq!(is_counter, rated, "{expression}");
                }
            }
            assert!(!references.is_empty(), "{panel}");
        }
        assert!(shown.len() >= 12, "{shown:?}");
    }
}
