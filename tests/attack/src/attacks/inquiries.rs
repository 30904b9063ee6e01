//! Processes that are asked what they have, and lie, say nothing or send something that cannot be closed; and what a
//! tool, or a server that a stranger has ask, makes of it.

use std::path::Path;
use std::time::{Duration, Instant};

use wire::mad::{MAD_LEN, MadHeader};
use wire::{Deth, Headers, Opcode, Pkey, Psn, Qkey, Qpn};

use super::{Attack, Verdict};
use crate::actor::{Outcome, say};
use crate::hand::Hand;
use crate::network::{Network, User};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "inquiry-endless-reports",
        what: "five processes of a user answer root's tool with 128 MiB of objects in sparse memory",
        run: |network, _| tool(network, "endless"),
    },
    Attack {
        name: "inquiry-lingering-reports",
        what: "the same with sockets that have unsent data and linger for ten minutes when they are closed",
        run: |network, _| tool(network, "lingering"),
    },
    Attack {
        name: "inquiry-silence",
        what: "the same, and they answer nothing",
        run: |network, _| tool(network, "silent"),
    },
    Attack {
        name: "inquiry-counter-files",
        what: "a user locks 400 files that are named like its counters, and adds its own to root's sums once each",
        run: |network, _| files(network),
    },
    Attack {
        name: "inquiry-by-request",
        what: "strangers ask a port of root's server for its counters, while other users' processes lie in wait",
        run: |network, _| requests(network),
    },
];

/// What a tool may need at most, beside the attacker's lies: it has 2^17 objects in memory then.
const TOOL_KIB: u64 = 300 << 10;

/// How long it may take on a slow, busy machine. Without bounds it was 20 s, or as long as the attacker liked.
const TOOL_TIME: Duration = Duration::from_secs(8);

/// A tool of root's: asks everybody, and says how long that took, how much memory, and what was counted.
pub fn role(_: &[String]) -> Outcome {
    use inventory::Users;
    let begun = Instant::now();
    let processes = inventory::gather(Users::All)?.len();
    let sums = inventory::port_counters(Users::All)?;
    let (took, sent) = (begun.elapsed().as_millis(), sums.get("ubi_lo").map(|sum| sum.traffic.sent_packets));
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let peak = peak.trim().trim_end_matches("kB").trim();
    say("asked", format_args!("{took} {peak} {processes} {}", sent.unwrap_or(0)));
    Ok(())
}

/// Runs the tool: how long it took, from its start to its end, its memory in KiB, and what it counted.
fn asks(network: &Network) -> Outcome<(Duration, u64, u64)> {
    let begun = Instant::now();
    let mut tool = network.home.start(User::Root, "tool", &[])?;
    let Some(said) = tool.try_hear("asked", 2 * TOOL_TIME)? else { return Ok((begun.elapsed(), 0, 0)) };
    while tool.is_alive() {
        if begun.elapsed() > crate::actor::ACTOR_REPLY_TIMEOUT {
            return Err("the tool does not end".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let words: Vec<&str> = said.split_whitespace().collect();
    let [_, peak, _, sent] = words[..] else { return Err(format!("a tool says {said:?}").into()) };
    Ok((begun.elapsed(), peak.parse()?, sent.parse()?))
}

fn liars(network: &Network, kind: &str) -> Outcome<Vec<Hand>> {
    let mut hands = Vec::new();
    for _ in 0..5 {
        let mut hand = Hand::attacker(&network.home)?;
        hand.must(format_args!("lie {kind} 20"))?;
        hands.push(hand);
    }
    Ok(hands)
}

fn inquiries(hands: &mut [Hand]) -> Outcome<u64> {
    hands.iter_mut().map(|hand| Ok(hand.must("asked")?.parse::<u64>()?)).sum()
}

fn tool(network: &Network, kind: &str) -> Outcome<Verdict> {
    let mut hands = liars(network, kind)?;
    let (took, peak, _) = asks(network)?;
    if inquiries(&mut hands)? < 5 {
        return Err("not all liars were asked".into());
    }
    let what = format!("the tool took {} ms and {} MiB", took.as_millis(), peak >> 10);
    Ok(if took > TOOL_TIME || peak > TOOL_KIB { Verdict::Broken(what) } else { Verdict::Held(what) })
}

fn files(network: &Network) -> Outcome<Verdict> {
    let remove = || {
        let Ok(files) = std::fs::read_dir("/dev/shm") else { return };
        let id = User::Attacker.id().to_string();
        let is_ours = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("ubiverbs-counters-") && name.ends_with(&id)
        };
        files.flatten().map(|file| file.path()).filter(|path| is_ours(path)).for_each(|path| {
            let _ = std::fs::remove_file(path);
        });
    };
    remove();
    let mut hand = Hand::attacker(&network.home)?;
    let (_, _, before) = asks(network)?;
    let tried = hand.must("counter-files 400").and_then(|_| asks(network));
    remove();
    let (took, _, after) = tried?;
    let counted = after.wrapping_sub(before);
    let what = format!("the tool took {} ms and counted the user's packet {counted} times", took.as_millis());
    Ok(if took > TOOL_TIME || counted != 1 { Verdict::Broken(what) } else { Verdict::Held(what) })
}

/// A request for the counters of port 1.
fn performance(transaction: u64) -> Outcome<[u8; MAD_LEN]> {
    const PORT_COUNTERS: u16 = 0x12;
    let mut bytes = [0; MAD_LEN];
    let header = MadHeader {
        base_version: MadHeader::BASE_VERSION,
        management_class: MadHeader::CLASS_PERFORMANCE,
        class_version: 1,
        method: MadHeader::METHOD_GET,
        transaction_id: transaction,
        attribute_id: PORT_COUNTERS,
        ..MadHeader::default()
    };
    header.encode(&mut bytes)?;
    bytes[65] = 1;
    Ok(bytes)
}

fn requests(network: &Network) -> Outcome<Verdict> {
    let home = &network.home;
    let mut server = home.start(User::Root, "listener", &[home.address.to_string(), "idle".into()])?;
    server.hear("listening")?;
    let mut hands = liars(network, "endless")?;
    let mut stranger = Hand::stranger(&network.strange, network.strange.address, home)?;
    stranger.must(format_args!("hold {}:4791", network.strange.address))?;
    let (before, _) = server.size()?;
    let mut most = before;
    let begun = Instant::now();
    let mut answers = 0;
    // Some may get lost, or find the port busy.
    while answers < 5 && begun.elapsed() < Duration::from_secs(20) {
        let mut headers = Headers::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(1));
        headers.bth.pkey = Pkey::DEFAULT;
        headers.deth = Some(Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI });
        let packet = stranger.way.packet(&headers, &performance(1)?);
        stranger.throw(&packet, 4)?;
        std::thread::sleep(Duration::from_millis(50));
        answers = stranger.heard()?;
        if !server.is_alive() {
            return Ok(Verdict::Broken("the server ended".into()));
        }
        most = most.max(server.size()?.0);
    }
    let asked = inquiries(&mut hands)?;
    let what = format!(
        "{answers} answers within {} ms; other users' processes were asked {asked} times; {before} KiB, then {most}",
        begun.elapsed().as_millis()
    );
    let held = answers >= 5 && asked == 0 && most < before + (64 << 10);
    Ok(if held { Verdict::Held(what) } else { Verdict::Broken(what) })
}
