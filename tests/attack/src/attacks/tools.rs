//! What our own programs open to others: servers of `ubiverbs bench`, and meetings of groups.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::time::Duration;

use cluster::{Group, Topology};
use ubiverbs::Error;
use ubiverbs::cm::{self, ConnectError};

use super::files::in_directory;
use super::{Attack, Verdict, judge};
use crate::actor::{Actor, Outcome, say};
use crate::network::{Network, User};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "server-order",
        what: "a stranger tells a server of `ubiverbs bench` to map a file of the victim's, and to write to it",
        run: |network, _| order(network),
    },
    Attack {
        name: "server-address",
        what: "a stranger calls a server that was given no address",
        run: |network, _| unasked(network),
    },
    Attack {
        name: "group-request",
        what: "a user of the host asks to be let into a group that meets, with another size and no secret",
        run: |network, _| request(network),
    },
];

/// The file that the stranger wants: as long as the memory that a benchmark shares.
const FILE_SIZE: usize = 5 << 20;

/// A server of the victim's, and where it says that it waits.
fn server(network: &Network, address: &[&str]) -> Outcome<(Actor, String)> {
    let program = std::env::current_exe()?.with_file_name("ubiverbs");
    if !program.exists() {
        return Err(format!("there is no {}: cargo build --bin ubiverbs", program.display()).into());
    }
    let arguments: Vec<&str> = ["bench", "--server"].iter().chain(address).copied().collect();
    let mut server = network.home.start_command(&program, User::Victim, "bench", &arguments, &[])?;
    let place = server.hear("Waiting on ")?.split(' ').next().unwrap_or_default().to_owned();
    Ok((server, place))
}

fn order(network: &Network) -> Outcome<Verdict> {
    in_directory(|directory| {
        let precious = directory.join("precious");
        std::fs::write(&precious, vec![0x5a; FILE_SIZE])?;
        chown(&precious, Some(User::Victim.id()), Some(User::Victim.id()))?;
        let (mut server, place) = server(network, &[&format!("{}:0", network.home.address)])?;
        let path = precious.to_str().ok_or("a path that is no text")?;
        let mut stranger = network.strange.start(User::Root, "caller", &[place, path.into()])?;
        let said = stranger.hear("said")?;
        let changed = std::fs::read(&precious)?.iter().any(|byte| *byte != 0x5a);
        Ok(match (changed, server.is_alive()) {
            (true, _) => Verdict::Broken("a file that the stranger named was written to".into()),
            (_, false) => Verdict::Broken("the stranger has ended the server".into()),
            _ if !said.is_empty() => Verdict::Broken(format!("the server answered the stranger: {said}")),
            _ => Verdict::Held("the server said a number, heard no proof, and waits on".into()),
        })
    })
}

fn unasked(network: &Network) -> Outcome<Verdict> {
    let (_server, place) = server(network, &[])?;
    let place: SocketAddr = place.parse()?;
    let wanted = SocketAddr::from((network.home.address, place.port()));
    let mut stranger = network.strange.start(User::Root, "caller", &[wanted.to_string(), "/".into()])?;
    let said = stranger.hear("said")?;
    Ok(match said.strip_prefix("nothing: ") {
        Some(why) => Verdict::Held(format!("it listens on {place} only: {why}")),
        None => Verdict::Broken("it took a call from another host".into()),
    })
}

/// Plays the stranger: calls a server, gives the order, and says what came after the first line.
pub fn caller(arguments: &[String]) -> Outcome {
    let [place, path] = arguments else { return Err("ADDRESS:PORT PATH".into()) };
    let stream = match TcpStream::connect_timeout(&place.parse()?, Duration::from_secs(5)) {
        Ok(stream) => stream,
        Err(error) => {
            say("said", format_args!("nothing: {error}"));
            return Ok(());
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let hello = r#"{"ubiverbs":1,"process":1,"device":"ubi_veth0","address":"10.77.0.3"}"#;
    let _ = lines.next();
    let orders = format!("{hello}\n{{\"measure\":{{\"bare\":{{\"ring\":\"{path}\",\"largest\":8}}}}}}\n");
    let run = r#"{"measure":{"run":{"point":{"kind":"stream","size":8,"carrier":"ring","waiting":"spin","udp":false},"count":1}}}"#;
    let _ = (&stream).write_all(format!("{orders}{run}\n").as_bytes());
    let answers: Vec<String> = lines.map_while(Result::ok).collect();
    say("said", answers.join(" "));
    Ok(())
}

const SECRET: &str = "the victims'";

fn request(network: &Network) -> Outcome<Verdict> {
    let home = &network.home;
    let place = |port: &str| format!("{}:{port}", home.address);
    // A port that is free: the program that had it a moment ago lets it go.
    let mut free = home.start(User::Victim, "listener", &[home.address.to_string(), "idle".into()])?;
    let at = place(&free.hear("listening")?);
    free.kill();
    let mut first = home.start(User::Victim, "member", &[at.clone(), "0".into()])?;
    let mut intruder = home.start(User::Attacker, "intruder", std::slice::from_ref(&at))?;
    let asked = intruder.hear("refused")?;
    let mut second = home.start(User::Victim, "member", &[at, "1".into()])?;
    let ended = [&mut first, &mut second].map(|member| member.hear("joined").err().map(|error| error.to_string()));
    Ok(judge(ended.into_iter().flatten().next(), format!("{asked} requests without a proof; the group has met")))
}

/// A member of a group of two.
pub fn member(arguments: &[String]) -> Outcome {
    let [at, rank] = arguments else { return Err("ADDRESS:PORT RANK".into()) };
    let group = Group::builder(2).topology(Topology::Ring).secret(SECRET);
    let group = group.meeting_limit(Duration::from_secs(20)).rendezvous(at.parse()?, rank.parse::<u32>()?);
    let mut group = group.join().wait()?;
    group.barrier().wait()?;
    group.leave().wait()?;
    say("joined", "");
    Ok(())
}

/// Asks member 0 to be let in, as all versions of the protocol did it: it says another size, has no secret, and answers
/// the number of the meeting as soon as it was told it.
pub fn intruder(arguments: &[String]) -> Outcome {
    let at: SocketAddr = arguments.first().ok_or("ADDRESS:PORT")?.parse()?;
    let mut refused = 0;
    for version in [2, 3] {
        let mut introduction = [0; 56];
        introduction[..6].copy_from_slice(&[b'u', b'b', b'i', b'G', version, 1]);
        introduction[6..8].copy_from_slice(&9u16.to_le_bytes());
        introduction[32] = 99;
        for _ in 0..3 {
            let answer = ask(at, &introduction, refused == 0)?;
            if let Some(number) = answer.strip_prefix(b"ubiC").and_then(|rest| rest.first_chunk::<8>()) {
                introduction[48..].copy_from_slice(number);
            }
            refused += 1;
        }
    }
    say("refused", refused);
    Ok(())
}

/// What member 0 says to one that it refuses. It may not be there yet, the first time, and never again if it was ended.
fn ask(at: SocketAddr, introduction: &[u8], first: bool) -> Outcome<Vec<u8>> {
    for _ in 0..1000 {
        match cm::resolve(at).wait()?.connect().private_data(introduction).wait() {
            Err(Error::Connect(ConnectError::Rejected { private_data, .. })) => return Ok(private_data.to_vec()),
            Err(Error::Connect(ConnectError::NobodyListens { .. })) if first => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(_) => return Ok(Vec::new()),
            Ok(_) => return Err("it was let in".into()),
        }
    }
    Err("there is no member 0".into())
}
