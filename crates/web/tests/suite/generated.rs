//! Runs that nobody recorded: what the page must be able to show, made by a small model of two ends and a wire.

use web::timeline::{
    Access, Event, EventId, EventKind, Lane, LaneId, Message, MessageId, Name, Process, ProcessId, Queue, Region,
    RegionId, Timeline, Value, flags,
};

/// 19 November 2026, 17:00:00 UTC.
const ORIGIN: u64 = 1_795_107_600_000_000_000;
const PATH_MTU: u64 = 4_096;

/// What becomes of a message's packets on their way.
#[derive(Clone, Copy, Default)]
pub struct Fate {
    /// The packet that is lost the first time, and how often in a row.
    pub lost: Option<(u64, u32)>,
    /// The packet that the receiver drops, and why.
    pub dropped: Option<(u64, &'static str)>,
    /// The responder refuses it: the NAK's name and the completion's status.
    pub refused: Option<(&'static str, &'static str)>,
}

/// One end of a connection.
#[derive(Clone, Copy)]
pub struct End {
    pub process: ProcessId,
    pub lane: LaneId,
    pub region: RegionId,
    psn: u64,
}

/// A run that grows.
pub struct Model {
    pub run: Timeline,
    seed: u64,
    next_qpn: u32,
}

impl Model {
    pub fn new(title: &str) -> Self {
        let mut run = Timeline::new(title, ORIGIN);
        run.clock = "All processes ran on one host and share its clock.".into();
        run.clock_error = Some(0);
        Self { run, seed: 0x9E37_79B9_7F4A_7C15, next_qpn: 0x11 }
    }

    pub fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % below.max(1)
    }

    pub fn process(&mut self, name: &str, pid: u32, host: &str) -> ProcessId {
        let (name, host) = (self.run.names.add(name), self.run.names.add(host));
        let outcome = self.run.names.add("exited with 0");
        self.run.add_process(Process { name, pid, host, began: Some(0), ended: None, outcome })
    }

    /// A connection of two processes, through its states.
    pub fn connect(&mut self, a: ProcessId, b: ProcessId, time: i64) -> (End, End) {
        let ends = [a, b].map(|process| {
            let kind = self.run.names.add("RC");
            let link = self.run.names.add("UDP");
            let lane = self.run.add_lane(Lane { qpn: self.next_qpn, kind, link, ..Lane::new(process) });
            self.next_qpn += 0x101;
            let rights = self.run.names.add("local write, remote write, remote read");
            let number = u64::from(lane.0);
            let region = self.run.add_region(Region {
                process,
                address: 0x7f3a_4000_0000 + number * 0x100_0000,
                length: 4 << 20,
                lkey: 0x1000 + lane.0,
                rkey: 0x8_1000 + lane.0 * 0x111,
                rights,
                registered: Some(time),
                deregistered: None,
            });
            let psn = self.random(1 << 23);
            End { process, lane, region, psn }
        });
        let labels = ends.map(|end| self.run.lanes()[end.lane.0 as usize].qpn);
        for (index, end) in ends.iter().enumerate() {
            let label = self.run.names.add(&format!("10.0.0.{} QP {:#x}", 2 - index, labels[1 - index]));
            if let Some(lane) = self.run.lane_mut(end.lane) {
                lane.peer = Some(ends[1 - index].lane);
                lane.peer_label = label;
            }
            self.call(end.process, Some(end.lane), time + 1_000, 41_000, "ibv_create_qp", &[]);
            for (step, name) in ["RESET \u{2192} INIT", "INIT \u{2192} RTR", "RTR \u{2192} RTS"].iter().enumerate() {
                let at = time + 52_000 + 20_000 * step as i64 + 3_000 * index as i64;
                self.call(end.process, Some(end.lane), at - 6_000, 6_200, "ibv_modify_qp", &[]);
                self.event(at, end, EventKind::State, 0, name, "", &[]);
            }
        }
        let [a, b] = ends;
        (a, b)
    }

    pub fn call(
        &mut self,
        process: ProcessId,
        lane: Option<LaneId>,
        time: i64,
        duration: u64,
        name: &str,
        fields: &[(&'static str, Value)],
    ) -> EventId {
        let name = self.run.names.add(name);
        let event = Event { lane, name, duration, ..Event::new(time, process, EventKind::Call) };
        self.run.add_event(event, fields)
    }

    #[allow(clippy::too_many_arguments)]
    pub fn event(
        &mut self,
        time: i64,
        end: &End,
        kind: EventKind,
        flags: u8,
        name: &str,
        text: &str,
        fields: &[(&'static str, Value)],
    ) -> EventId {
        let (name, text) = (self.run.names.add(name), self.run.names.add(text));
        let event = Event { lane: Some(end.lane), flags, name, text, ..Event::new(time, end.process, kind) };
        self.run.add_event(event, fields)
    }

    /// A packet that leaves one end; `flight` nanoseconds later it is at the other, unless it is lost.
    #[allow(clippy::too_many_arguments)]
    fn packet(
        &mut self,
        from: &End,
        to: &End,
        time: i64,
        flight: i64,
        flags: u8,
        opcode: Name,
        message: Option<MessageId>,
        fields: &[(&'static str, Value)],
    ) -> (EventId, Option<EventId>) {
        let sent = Event {
            lane: Some(from.lane),
            flags,
            name: opcode,
            message,
            ..Event::new(time, from.process, EventKind::PacketSent)
        };
        let sent = self.run.add_event(sent, fields);
        if flags & flags::LOST != 0 {
            return (sent, None);
        }
        let arrived = Event {
            lane: Some(to.lane),
            flags,
            name: opcode,
            message,
            partner: Some(sent),
            ..Event::new(time + flight, to.process, EventKind::PacketReceived)
        };
        let arrived = self.run.add_event(arrived, fields);
        if let Some(sent) = self.run.event_mut(sent) {
            sent.partner = Some(arrived);
        }
        (sent, Some(arrived))
    }

    /// An RDMA WRITE, from posting to polling. Returns when the program had its completion.
    pub fn write(&mut self, from: &mut End, to: &mut End, wr_id: u64, bytes: u64, posted: i64, fate: Fate) -> i64 {
        let packets = bytes.div_ceil(PATH_MTU).max(1);
        let opcode = self.run.names.add("RDMA_WRITE");
        let message = self.run.add_message(Message {
            opcode,
            bytes,
            posted: Some(posted),
            queue: Queue::Send,
            ..Message::new(from.lane, wr_id)
        });
        let post_fields =
            [("wr_id", Value::Number(wr_id)), ("opcode", Value::Name(opcode)), ("bytes", Value::Number(bytes))];
        let took = 180 + self.random(120);
        let call = self.call(from.process, Some(from.lane), posted - 60, took, "ibv_post_send", &post_fields);
        self.of_message(call, message);

        let region = self.run.regions()[to.region.0 as usize];
        let flight = 900 + self.random(500) as i64;
        let first_psn = from.psn;
        let offset = wr_id.wrapping_mul(bytes) % (region.length - bytes.min(region.length - 1));
        let mut time = posted + 250;
        let (mut arrived_first, mut arrived_last, mut first_packet, mut last_packet) = (None, time, None, None);
        let mut index = 0;
        let mut lost = fate.lost;
        let mut again_until = 0;
        while index < packets {
            let kind = match (index == 0, index + 1 == packets) {
                (true, true) => "RDMA_WRITE_ONLY",
                (true, false) => "RDMA_WRITE_FIRST",
                (false, true) => "RDMA_WRITE_LAST",
                (false, false) => "RDMA_WRITE_MIDDLE",
            };
            let name = self.run.names.add(kind);
            let length = PATH_MTU.min(bytes - index * PATH_MTU);
            let is_lost = lost.is_some_and(|(which, _)| which == index);
            let again = if index < again_until { flags::AGAIN } else { 0 };
            let fields = [
                ("psn", Value::Number((first_psn + index) & 0xFF_FFFF)),
                ("packets", Value::Number(1)),
                ("bytes", Value::Number(length)),
                ("dest_qp", Value::Hex(u64::from(self.run.lanes()[to.lane.0 as usize].qpn))),
                ("ack_request", Value::Flag(index + 1 == packets)),
                ("solicited", Value::Flag(false)),
                ("pkey", Value::Hex(0xFFFF)),
                ("address", Value::Hex(region.address + offset)),
                ("rkey", Value::Hex(u64::from(region.rkey))),
                ("length", Value::Number(bytes)),
            ];
            let fields = if index == 0 { &fields[..] } else { &fields[..7] };
            if fate.dropped.is_some_and(|(which, _)| which == index) && again == 0 {
                let (sent, arrived) = self.packet(from, to, time, flight, 0, name, Some(message), fields);
                let reason = self.run.names.add(fate.dropped.map_or("", |(_, reason)| reason));
                if let Some(event) = arrived.and_then(|arrived| self.run.event_mut(arrived)) {
                    event.kind = EventKind::PacketDropped;
                    event.text = reason;
                }
                first_packet = first_packet.or(Some(sent));
                time = self.go_back(from, time, first_psn + index);
                again_until = index + 1;
                continue;
            }
            let mark = if is_lost { flags::LOST } else { 0 };
            let (sent, arrived) = self.packet(from, to, time, flight, again | mark, name, Some(message), fields);
            first_packet = first_packet.or(Some(sent));
            last_packet = Some(sent);
            if let Some(arrived) = arrived {
                arrived_first = arrived_first.or(Some(time + flight));
                arrived_last = arrived_last.max(time + flight);
                if fate.refused.is_none() {
                    self.run.add_access(Access {
                        event: arrived,
                        region: to.region,
                        offset: offset + index * PATH_MTU,
                        length,
                        write: true,
                    });
                }
            }
            if is_lost {
                let (which, times) = lost.unwrap_or_default();
                lost = (times > 1).then_some((which, times - 1));
                // What follows is under way before the timer fires.
                let mut follows = index + 1;
                while follows < packets.min(index + 4) {
                    time += 330;
                    let name = self.run.names.add("RDMA_WRITE_MIDDLE");
                    let psn = Value::Number((first_psn + follows) & 0xFF_FFFF);
                    let fields = [("psn", psn), ("packets", Value::Number(1)), ("bytes", Value::Number(PATH_MTU))];
                    let (_, arrived) = self.packet(from, to, time, flight, 0, name, Some(message), &fields);
                    let reason = self.run.names.add("a packet before it is missing");
                    if let Some(event) = arrived.and_then(|arrived| self.run.event_mut(arrived)) {
                        event.kind = EventKind::PacketDropped;
                        event.text = reason;
                    }
                    follows += 1;
                }
                time = self.go_back(from, time, first_psn + index);
                again_until = follows;
                continue;
            }
            index += 1;
            time += 330 + self.random(40) as i64;
        }
        from.psn += packets;

        let (name, mark, syndrome) = match fate.refused {
            Some((nak, _)) => (nak, flags::NAK | flags::ANSWER, 0x60),
            None => ("ACKNOWLEDGE", flags::ANSWER, 0),
        };
        let name = self.run.names.add(name);
        let answer = [
            ("psn", Value::Number((from.psn - 1) & 0xFF_FFFF)),
            ("dest_qp", Value::Hex(u64::from(self.run.lanes()[from.lane.0 as usize].qpn))),
            ("syndrome", Value::Hex(syndrome)),
            ("msn", Value::Number(wr_id & 0xFF_FFFF)),
        ];
        let answered = arrived_last + 240;
        self.packet(to, from, answered, flight, mark, name, Some(message), &answer);
        let completed = answered + flight + 150;
        let status = fate.refused.map_or("SUCCESS", |(_, status)| status);
        let mark = if fate.refused.is_some() { flags::ERROR } else { 0 };
        let shown = [("wr_id", Value::Number(wr_id)), ("bytes", Value::Number(bytes))];
        let completion = self.event(completed, from, EventKind::Completion, mark, status, "", &shown);
        self.of_message(completion, message);
        let polled = completed + 200 + self.random(900) as i64;
        let taken = [("completions", Value::Number(1)), ("wr_id", Value::Number(wr_id))];
        let poll = self.event(polled, from, EventKind::Poll, 0, "ibv_poll_cq", "", &taken);
        self.of_message(poll, message);
        let status = self.run.names.add(status);
        if let Some(message) = self.run.message_mut(message) {
            message.status = status;
            message.sent = Some(posted + 250);
            message.arrived = arrived_first;
            message.placed = fate.refused.is_none().then_some(arrived_last + 90);
            message.completed = Some(completed);
            message.polled = Some(polled);
            message.first_packet = first_packet;
            message.last_packet = last_packet;
        }
        if let Some((nak, _)) = fate.refused {
            let text = format!("the peer refused the request: {nak}");
            self.event(completed - 100, from, EventKind::State, flags::ERROR, "RTS \u{2192} ERR", &text, &[]);
        }
        polled
    }

    fn go_back(&mut self, from: &End, time: i64, psn: u64) -> i64 {
        let fields = [("psn", Value::Number(psn & 0xFF_FFFF)), ("left", Value::Number(6))];
        let at = time + 6_800;
        self.event(at, from, EventKind::Retry, 0, "ack timeout", "no acknowledgement came in time", &fields);
        at + 120
    }

    fn of_message(&mut self, event: EventId, message: MessageId) {
        if let Some(event) = self.run.event_mut(event) {
            event.message = Some(message);
        }
    }

    fn end(&mut self, process: ProcessId, time: i64, outcome: Option<&str>) {
        let outcome = outcome.map(|outcome| self.run.names.add(outcome));
        if let Some(process) = self.run.process_mut(process) {
            process.ended = Some(time);
            process.outcome = outcome.unwrap_or(process.outcome);
        }
    }
}

/// Writes of several sizes from one process to another; `per_mille` of the packets are lost.
pub fn writes(title: &str, count: u64, per_mille: u64) -> Timeline {
    let mut model = Model::new(title);
    let client = model.process("ib_write_bw", 4711, "left");
    let server = model.process("ib_write_bw", 4712, "right");
    model.call(client, None, 5_000, 310_000, "ibv_open_device", &[]);
    model.call(server, None, 2_000, 305_000, "ibv_open_device", &[]);
    for process in [client, server] {
        let bytes = [("length", Value::Number(4 << 20))];
        model.call(process, None, 330_000, 22_000, "ibv_reg_mr", &bytes);
    }
    let (mut a, mut b) = model.connect(client, server, 360_000);
    let mut time = 500_000;
    let mut last = 0;
    for wr_id in 0..count {
        let bytes = [64_u64, 4_096, 16_384, 65_536][model.random(4) as usize];
        let mut fate = Fate::default();
        if model.random(1_000) < per_mille * bytes.div_ceil(PATH_MTU) {
            let which = model.random(bytes.div_ceil(PATH_MTU));
            match model.random(8) {
                0 => fate.dropped = Some((which, "its ICRC is wrong")),
                1 => fate.lost = Some((which, 2)),
                _ => fate.lost = Some((which, 1)),
            }
        }
        last = model.write(&mut a, &mut b, wr_id, bytes, time, fate).max(last);
        time += 1_400 + bytes as i64 / 13 + model.random(600) as i64;
    }
    if per_mille > 0 {
        let what = "loss 1% between 10.0.0.1 and 10.0.0.2";
        let (name, text) = (model.run.names.add("lossy.toml:4"), model.run.names.add(what));
        let event = Event { name, text, ..Event::new(499_000, client, EventKind::Injected) };
        model.run.add_event(event, &[]);
    }
    for process in [client, server] {
        model.end(process, last + 400_000, None);
    }
    model.run
}

/// A WRITE with a wrong key, what follows, and why.
pub fn failing() -> Timeline {
    let mut model = Model::new("rping -c -a 10.0.0.2");
    let client = model.process("rping", 812, "left");
    let server = model.process("rping", 815, "left");
    let (mut a, mut b) = model.connect(client, server, 20_000);
    let mut time = 200_000;
    for wr_id in 1..6 {
        time = model.write(&mut a, &mut b, wr_id, 64, time, Fate::default()) + 9_000;
    }
    let refused = Fate { refused: Some(("NAK remote access error", "REM_ACCESS_ERR")), ..Fate::default() };
    let end = model.write(&mut a, &mut b, 6, 64, time, refused);
    let text = "The WRITE shows R_Key 0x81222, which the peer deregistered 9 us before: ask the peer for the new key after \
                each ibv_reg_mr.";
    model.event(end + 2_000, &a, EventKind::Finding, flags::ERROR, "UV-0104", text, &[]);
    model.event(end + 900, &a, EventKind::Async, flags::ERROR, "IBV_EVENT_QP_FATAL", "", &[]);
    for wr_id in 7..10 {
        let status = model.run.names.add("WR_FLUSH_ERR");
        let opcode = model.run.names.add("RDMA_WRITE");
        let posted = time + 500 + wr_id as i64 * 40;
        let message = model.run.add_message(Message {
            opcode,
            bytes: 64,
            status,
            posted: Some(posted),
            completed: Some(end - 50 + wr_id as i64),
            polled: Some(end + 300),
            ..Message::new(a.lane, wr_id)
        });
        let fields = [("wr_id", Value::Number(wr_id))];
        let event =
            model.event(end - 50 + wr_id as i64, &a, EventKind::Completion, flags::ERROR, "WR_FLUSH_ERR", "", &fields);
        model.of_message(event, message);
    }
    model.end(client, end + 60_000, Some("exited with 1"));
    model.end(server, end + 90_000, Some("killed by SIGTERM"));
    model.run
}

/// Four ranks that each exchange with all others.
pub fn ranks(rounds: u64) -> Timeline {
    let mut model = Model::new("mpirun -n 4 ./allreduce");
    let ranks: Vec<ProcessId> = (0..4).map(|rank| model.process("allreduce", 9_000 + rank, "node1")).collect();
    let mut pairs = Vec::new();
    for first in 0..4 {
        for second in first + 1..4 {
            pairs.push(model.connect(ranks[first], ranks[second], 10_000 + 40_000 * pairs.len() as i64));
        }
    }
    let mut time = 400_000;
    for round in 0..rounds {
        let mut end = time;
        for (a, b) in &mut pairs {
            let start = time + model.random(3_000) as i64;
            let bytes = 8_192 << (round % 3);
            end = end.max(model.write(a, b, round, bytes, start, Fate::default()));
            end = end.max(model.write(b, a, round, bytes, start + 200, Fate::default()));
        }
        for (rank, process) in ranks.iter().enumerate() {
            let name = model.run.names.add("MPI_Allreduce");
            let begin = time - 800 - 100 * rank as i64;
            let duration = (end + 500 - begin) as u64;
            let event = Event { name, duration, ..Event::new(begin, *process, EventKind::Span) };
            model.run.add_event(event, &[("round", Value::Number(round))]);
        }
        time = end + 5_000 + model.random(5_000) as i64;
    }
    for process in ranks {
        model.end(process, time, None);
    }
    model.run.clock = "The clocks of 4 processes were aligned by 24 messages.".into();
    model.run.clock_error = Some(340);
    model.run
}

/// Texts and numbers that a hostile process would record.
pub fn hostile() -> Timeline {
    let script = "<script>window.hacked=1</script><img src=x onerror=window.hacked=2>";
    let mut model = Model::new("</title><script>window.hacked=3</script>");
    model.run.clock = "</script><script>window.hacked=4</script>".into();
    model.run.notes.push("<b onclick=window.hacked=5>\u{1b}[31mred\u{202e}</b>".into());
    let process = model.process(script, u32::MAX, "\"><svg onload=window.hacked=6>");
    let (mut a, mut b) = model.connect(process, process, i64::MIN);
    model.write(&mut a, &mut b, u64::MAX, 64, -5, Fate::default());
    let huge =
        [("address", Value::Hex(u64::MAX)), ("psn", Value::Number(u64::MAX)), ("packets", Value::Number(u64::MAX))];
    for time in [i64::MIN, i64::MAX, 0, -1, 1 << 40] {
        model.event(time, &a, EventKind::Finding, 0xFF, script, script, &huge);
    }
    let stray = Event {
        lane: Some(LaneId(77)),
        message: Some(MessageId(1 << 30)),
        partner: Some(EventId(u32::MAX)),
        duration: u64::MAX,
        ..Event::new(3, ProcessId(99), EventKind::Call)
    };
    model.run.add_event(stray, &[("__proto__", Value::Number(1)), ("constructor", Value::Flag(true))]);
    model.run.add_access(Access {
        event: EventId(0),
        region: RegionId(0),
        offset: u64::MAX,
        length: u64::MAX,
        write: true,
    });
    model.run.add_access(Access { event: EventId(9_999), region: RegionId(42), offset: 0, length: 1, write: true });
    model.run.add_message(Message { first_packet: Some(EventId(u32::MAX)), ..Message::new(LaneId(66), 1) });
    for number in 0..5_000 {
        let name = format!("{script}{number}");
        model.event(number, &b, EventKind::Other, 0, &name, "", &[]);
    }
    model.run
}
