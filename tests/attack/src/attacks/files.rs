//! Files that a victim is about to write, and that an attacker has put something else in place of.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Attack, Verdict};
use crate::actor::Outcome;
use crate::network::{Network, User};

pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "capture-symlink",
        what: "in a directory that all may write to, a link to a victim's file stands where its capture is to be",
        run: |network, _| capture(network, Trap::Link),
    },
    Attack {
        name: "capture-next-symlink",
        what: "the same where the capture goes if its name is taken",
        run: |network, _| capture(network, Trap::NextLink),
    },
    Attack {
        name: "capture-fifo",
        what: "a pipe that nobody reads stands there: the victim must not wait for a reader",
        run: |network, _| capture(network, Trap::Pipe),
    },
    Attack {
        name: "capture-read",
        what: "a user reads the captures and logs that another one's program writes",
        run: |network, _| read(network),
    },
    Attack {
        name: "capture-set-user-id",
        what: "a user starts a set-user-id program of another and asks for a capture in the other's name",
        run: |network, _| set_user_id(network),
    },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trap {
    Link,
    NextLink,
    Pipe,
}

const PRECIOUS: &str = "what the victim must not lose\n";

fn capture(network: &Network, trap: Trap) -> Outcome<Verdict> {
    in_directory(|directory| trapped(network, trap, directory))
}

/// A directory like `/tmp`: all users may make files there, and remove only their own.
pub fn in_directory(attack: impl FnOnce(&Path) -> Outcome<Verdict>) -> Outcome<Verdict> {
    let directory = std::env::temp_dir().join(format!("ubiverbs-attack-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    std::fs::set_permissions(&directory, Permissions::from_mode(0o1777))?;
    let verdict = attack(&directory);
    let _ = std::fs::remove_dir_all(&directory);
    verdict
}

fn read(network: &Network) -> Outcome<Verdict> {
    in_directory(|directory| {
        let files = ["capture.pcapng", "events.log"].map(|name| directory.join(name));
        let [pcap, log] = files.each_ref().map(|path| path.to_str().unwrap_or_default());
        let home = &network.home;
        let variables = [("UBIVERBS_PCAP", pcap), ("UBIVERBS_LOG", log)];
        let arguments = [home.address.to_string(), "idle".into()];
        let mut started = home.start_with(User::Victim, "listener", &arguments, &variables)?;
        started.hear("listening")?;
        for path in &files {
            let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
            if mode & 0o077 != 0 {
                return Ok(Verdict::Broken(format!("everybody may read {}: mode {mode:o}", path.display())));
            }
        }
        Ok(Verdict::Held("only their owner may read them".into()))
    })
}

fn set_user_id(network: &Network) -> Outcome<Verdict> {
    in_directory(|directory| {
        let (program, wanted) = (directory.join("program"), directory.join("capture.pcapng"));
        std::fs::copy(std::env::current_exe()?, &program)?;
        let owner = User::Victim.id();
        chown(&program, Some(owner), Some(owner))?;
        std::fs::set_permissions(&program, Permissions::from_mode(0o4755))?;
        let variables = [("UBIVERBS_PCAP", wanted.to_str().ok_or("a path that is no text")?)];
        let home = &network.home;
        let arguments = [home.address.to_string(), "idle".into()];
        let mut started = home.start_program(&program, User::Attacker, "listener", &arguments, &variables)?;
        started.hear("listening")?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", started.id()))?;
        let ids: Vec<&str> =
            status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or("").split('\t').collect();
        if !ids.contains(&owner.to_string().as_str()) {
            return Err("programs are not set-user-id where temporary files are".into());
        }
        Ok(match wanted.try_exists()? {
            true => Verdict::Broken("the caller chose a file that was written in the owner's name".into()),
            false => Verdict::Held("the program took no notice of its caller's variables".into()),
        })
    })
}

fn trapped(network: &Network, trap: Trap, directory: &Path) -> Outcome<Verdict> {
    let (victim, attacker) = (User::Victim.id(), User::Attacker.id());
    let precious = directory.join("precious");
    std::fs::write(&precious, PRECIOUS)?;
    chown(&precious, Some(victim), Some(victim))?;
    let wanted = directory.join("capture.pcapng");
    let traps = match trap {
        Trap::Link => vec![wanted.clone()],
        Trap::Pipe => vec![wanted.clone()],
        // Process numbers can be guessed.
        Trap::NextLink => {
            std::fs::write(&wanted, "")?;
            let next = std::fs::read_to_string("/proc/sys/kernel/ns_last_pid").unwrap_or_default();
            let next: u32 = next.trim().parse().unwrap_or(0);
            (next..next + 2000).map(|pid| directory.join(format!("capture-{pid}.pcapng"))).collect()
        }
    };
    for place in &traps {
        if trap == Trap::Pipe {
            Command::new("mkfifo").arg("-m").arg("666").arg(place).status()?;
        } else {
            symlink(&precious, place)?;
        }
        std::os::unix::fs::lchown(place, Some(attacker), Some(attacker))?;
    }
    let home = &network.home;
    let variables = [("UBIVERBS_PCAP", wanted.to_str().ok_or("a path that is no text")?)];
    let mut started =
        home.start_with(User::Victim, "listener", &[home.address.to_string(), "idle".into()], &variables)?;
    let listening = started.try_hear("listening", Duration::from_secs(20))?;
    let pid = started.id();
    started.kill();
    if listening.is_none() {
        return Ok(Verdict::Broken("the victim does not start: it waits for a reader of the pipe".into()));
    }
    let now = std::fs::read_to_string(&precious).unwrap_or_default();
    let trapped = traps.len() == 1 || traps.iter().any(|place| place.ends_with(format!("capture-{pid}.pcapng")));
    Ok(match (now == PRECIOUS, trapped) {
        (true, true) => Verdict::Held("the victim's file is as it was".into()),
        (true, false) => Verdict::Held("the victim's file is as it was; its process had another number".into()),
        (false, _) => Verdict::Broken("the victim's own file was written over".into()),
    })
}
