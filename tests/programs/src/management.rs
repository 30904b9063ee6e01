//! `rdma` of iproute2, which asks `NETLINK_RDMA`, and files of counters, while programs run: what is told is what is
//! there.

use crate::scoreboard::{Row, Version, all_of};
use crate::stage::{Link, NOBODY_UID, Pair, Running, Stage, Where};
use crate::{Test, expect, host};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

const ROW: Row = Row {
    program: "`rdma`",
    version: Version::Package("iproute2"),
    what: "devices, links, resources and statistics of programs that run; as nobody; with a stopped process",
};

pub fn tests() -> Vec<Test> {
    let mut tests = all_of(
        &ROW,
        vec![
            Test::new("rdma dev and link", devices),
            Test::new("rdma dev and link, as nobody", |stage| look_at_devices(stage, Some(NOBODY_UID))).for_root(),
            Test::new("rdma res, while programs run", resources),
            Test::new("rdma res, while a process is stopped", stopped),
            Test::new("rdma res show cm_id, while a server listens", connection_ids),
            Test::new("rdma statistic, before and after", statistics).alone(),
            Test::new("rdma: what cannot be set", refused),
        ],
    );
    for link in Link::BOTH {
        let name = format!("counters of a port are exact, {}", link.name());
        tests.push(Test::new(name, move |stage| counters(stage, link)).alone());
    }
    tests
}

fn rdma(stage: &Stage, user: Option<u32>, line: &str) -> Result<String, String> {
    stage.run(user, &[], &format!("rdma {line}"))
}

fn devices(stage: &Stage) -> Result<(), String> {
    look_at_devices(stage, None)
}

fn look_at_devices(stage: &Stage, user: Option<u32>) -> Result<(), String> {
    expect(&rdma(stage, user, "dev")?, &["ubi_lo: node_type ca", " fw ", "node_guid ", "sys_image_guid "])?;
    expect(&rdma(stage, user, "-d dev show ubi_lo")?, &["caps: <", "MEM_WINDOW", "XRC"])?;
    expect(&rdma(stage, user, "link")?, &["link ubi_lo/1 state ACTIVE physical_state LINK_UP netdev lo"])?;
    expect(&rdma(stage, user, "-j link show ubi_lo/1")?, &["\"ifname\":\"ubi_lo\"", "\"netdev\":\"lo\""])?;
    expect(&rdma(stage, user, "system")?, &["netns exclusive", "copy-on-fork on"])
}

/// Two programs that talk to each other until they are told to end.
struct Talk([Running; 2]);

impl Talk {
    fn begin(stage: &Stage) -> Result<Talk, String> {
        let port = stage.next_port();
        let line = format!("ibv_rc_pingpong -g 0 -d ubi_lo -n 2000000000 -p {port}");
        let server = stage.start("talk-server", &mut stage.run_on(&stage.alone, None, &[], &line))?;
        let listens = || host::listens(server.id(), port).is_ok_and(|it| it);
        host::wait("the server listens", listens).map_err(|e| format!("{e}\n{}", server.text()))?;
        let line = format!("{line} {}", stage.alone.address);
        let client = stage.start("talk-client", &mut stage.run_on(&stage.alone, None, &[], &line))?;
        let talk = Talk([server, client]);
        let both = || rdma(stage, None, "res show qp link ubi_lo/1").is_ok_and(|text| text.matches("RTS").count() == 2);
        host::wait("both are connected", both)?;
        Ok(talk)
    }

    fn signal(&self, index: usize, signal: Signal) -> Result<(), String> {
        let process = Pid::from_raw(self.0[index].id() as i32).ok_or("no process")?;
        kill_process(process, signal).map_err(|e| e.to_string())
    }

    fn end(self) -> Result<(), String> {
        self.signal(0, Signal::TERM)?;
        self.signal(1, Signal::TERM)?;
        self.0.into_iter().try_for_each(|running| running.end().map(drop))
    }
}

/// The word behind another.
fn after<'a>(line: &'a str, word: &str) -> Result<&'a str, String> {
    let mut words = line.split_whitespace().skip_while(|other| *other != word);
    words.nth(1).ok_or_else(|| format!("no {word} in {line:?}"))
}

fn resources(stage: &Stage) -> Result<(), String> {
    let talk = Talk::begin(stage)?;
    let outcome = look_at_resources(stage, &talk);
    talk.end()?;
    outcome
}

fn look_at_resources(stage: &Stage, talk: &Talk) -> Result<(), String> {
    expect(&rdma(stage, None, "res show ubi_lo")?, &["pd 2 cq 2 qp 2 cm_id 0 mr 2 ctx 2 srq 0"])?;
    let text = rdma(stage, None, "res show qp link ubi_lo/1")?;
    let lines: Vec<&str> = text.lines().collect();
    let [one, other] = lines[..] else { return Err(format!("not two queue pairs:\n{text}")) };
    // Each is the other's peer, and each process has one.
    if after(one, "lqpn")? != after(other, "rqpn")? || after(one, "rqpn")? != after(other, "lqpn")? {
        return Err(format!("no peers:\n{text}"));
    }
    let mut wanted: Vec<String> = talk.0.iter().map(|running| running.id().to_string()).collect();
    let mut found = vec![after(one, "pid")?.to_owned(), after(other, "pid")?.to_owned()];
    wanted.sort();
    found.sort();
    if wanted != found {
        return Err(format!("processes {wanted:?}, and not:\n{text}"));
    }
    for line in [one, other] {
        expect(line, &["link ubi_lo/1", "type RC", "state RTS", "path-mig-state MIGRATED", "comm ibv_rc_pingpong"])?;
    }
    expect(&rdma(stage, None, "res show mr")?, &["dev ubi_lo", "mrlen 4096", "comm ibv_rc_pingpong"])?;
    expect(&rdma(stage, None, "res show cq")?, &["dev ubi_lo", "cqe ", "users 1", "comm ibv_rc_pingpong"])?;
    expect(&rdma(stage, None, "res show pd")?, &["dev ubi_lo", "users 2", "comm ibv_rc_pingpong"])?;
    expect(&rdma(stage, None, "res show ctx")?, &["dev ubi_lo", "ctxn ", "comm ibv_rc_pingpong"])?;
    // One by its number, and one that is not there.
    let number = after(one, "lqpn")?;
    expect(&rdma(stage, None, &format!("res show qp lqpn {number}"))?, &[&format!("lqpn {number} ")])?;
    match rdma(stage, None, "res show qp lqpn 5")? {
        text if text.is_empty() => Ok(()),
        text => Err(text),
    }
}

/// How long an answer may take, on a busy machine, where a process that is asked as well cannot answer.
const STOPPED_ANSWER_MAX: Duration = Duration::from_secs(60);

fn stopped(stage: &Stage) -> Result<(), String> {
    let talk = Talk::begin(stage)?;
    talk.signal(0, Signal::STOP)?;
    let begun = Instant::now();
    let text = rdma(stage, None, "res show qp");
    let took = begun.elapsed();
    talk.signal(0, Signal::CONT)?;
    let other = talk.0[1].id();
    talk.end()?;
    let text = text?;
    if took > STOPPED_ANSWER_MAX {
        return Err(format!("it took {took:?}"));
    }
    if text.lines().count() != 1 {
        return Err(format!("not one queue pair:\n{text}"));
    }
    expect(&text, &[&format!("pid {other} ")])
}

fn connection_ids(stage: &Stage) -> Result<(), String> {
    let port = stage.next_port();
    let line = format!("rping -s -a 127.0.0.1 -p {port}");
    let server = stage.start("listener", &mut stage.run_on(&stage.alone, None, &[], &line))?;
    let wanted = ["state LISTEN", "ps TCP", "comm rping", &format!("src-addr 127.0.0.1:{port}")];
    let seen = || rdma(stage, None, "res show cm_id").is_ok_and(|text| expect(&text, &wanted).is_ok());
    let outcome = host::wait("the id that listens", seen)
        .map_err(|e| format!("{e}:\n{}\n{}", rdma(stage, None, "res show cm_id").unwrap_or_default(), server.text()));
    let process = Pid::from_raw(server.id() as i32).ok_or("no process")?;
    kill_process(process, Signal::TERM).map_err(|e| e.to_string())?;
    server.end()?;
    outcome
}

fn pingpong(stage: &Stage, link: Link) -> Result<(), String> {
    let line = "ibv_rc_pingpong -g 0 -d ubi_lo -s 4096 -m 1024 -n 1000".to_owned();
    let pair = Pair { at: Where::OneHost, user: None, options: link.options(), line, server: "", clients: 1 };
    stage.pair(&pair).map(drop)
}

fn statistic(stage: &Stage, name: &str) -> Result<u64, String> {
    let text = rdma(stage, None, "statistic show link ubi_lo/1")?;
    after(&text, name)?.parse().map_err(|e| format!("{name}: {e} in\n{text}"))
}

/// Programs that have ended count, too.
fn statistics(stage: &Stage) -> Result<(), String> {
    let read = || Ok::<_, String>((statistic(stage, "rdma_sends")?, statistic(stage, "rdma_recvs")?));
    let before = read()?;
    pingpong(stage, Link::SharedMemory)?;
    let after = read()?;
    match (after.0 - before.0, after.1 - before.1) {
        (2000, 2000) => Ok(()),
        other => Err(format!("2000 messages were sent and received, and counted are {other:?}")),
    }
}

fn refused(stage: &Stage) -> Result<(), String> {
    let fails = |user, line: &str, why: &str| {
        let command = format!("rdma {line}");
        let ended = stage.end(&mut stage.run_on(&stage.alone, user, &[], &command))?;
        if ended.status.success() {
            return Err(format!("rdma {line} went well:\n{}", ended.text));
        }
        expect(&ended.text, &[why])
    };
    let why = if crate::is_root() { "Operation not supported" } else { "Operation not permitted" };
    fails(None, "dev set ubi_lo name other", why)?;
    fails(None, "link add other type rxe netdev lo", why)?;
    if crate::is_root() {
        fails(Some(NOBODY_UID), "dev set ubi_lo name other", "Operation not permitted")?;
    }
    Ok(())
}

fn file(stage: &Stage, name: &str) -> Result<u64, String> {
    let text = stage.run(None, &[], &format!("cat /sys/class/infiniband/ubi_lo/ports/1/{name}"))?;
    text.trim().parse().map_err(|e| format!("{name}: {e}: {text:?}"))
}

/// Two processes send each other a thousand messages of four packets; what else they send is acknowledgements.
fn counters(stage: &Stage, link: Link) -> Result<(), String> {
    const NAMES: [&str; 7] = [
        "counters/port_xmit_packets",
        "counters/port_rcv_packets",
        "counters/port_xmit_data",
        "counters/port_rcv_data",
        "hw_counters/rdma_sends",
        "hw_counters/rdma_recvs",
        "hw_counters/completer_retry_err",
    ];
    let read = || NAMES.iter().map(|name| file(stage, name)).collect::<Result<Vec<u64>, String>>();
    let before = read()?;
    pingpong(stage, link)?;
    let after = read()?;
    let more: Vec<u64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let [sent, received, sent_data, received_data, sends, receives, retries] = more[..] else { return Err("?".into()) };
    let wrong = || Err(format!("{NAMES:?} grew by {more:?}"));
    if (sends, receives) != (2000, 2000) || sent < 8000 || received < 8000 {
        return wrong();
    }
    // Where a machine is busy packets are lost over UDP, or late, and come again. Messages are counted once all the same.
    if retries > 0 && link == Link::Udp {
        return if sent > 8000 && sent_data >= 8000 * 267 { Ok(()) } else { wrong() };
    }
    // IPv6 first: 40 and 8, BTH 12, ICRC 4; an acknowledgement has an AETH of 4.
    let octets = 2000 * (4096 + 4 * (40 + 8 + 12 + 4)) + (sent - 8000) * (40 + 8 + 12 + 4 + 4);
    let is_exact = sent_data * 4 == octets || sent_data * 4 == octets - 20 * sent;
    if is_exact && sent == received && sent_data == received_data && retries == 0 { Ok(()) } else { wrong() }
}
