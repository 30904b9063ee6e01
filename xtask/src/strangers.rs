//! What other users of the host, and other hosts, can hold, send or lengthen, and the few files that may touch it. The
//! polling threads and the engine stay away from it: a call of the left column in a file that is not in the table is an
//! error, and so is a row that no call needs any more.

use std::fs;
use std::path::{Path, PathBuf};

/// A call that touches what strangers hold, and where it may stand.
struct Touch {
    call: &'static str,
    /// What a stranger does with it.
    risk: &'static str,
    /// Files, and why nothing that a program waits for is kept by a stranger there.
    allowed: &'static [(&'static str, &'static str)],
}

const TOUCHES: &[Touch] = &[
    Touch {
        call: "libc::accept4(",
        risk: "connects as often as it likes",
        allowed: &[("host/src/callers.rs", "the thread ubiverbs-door")],
    },
    Touch {
        call: "passing::receive(",
        risk: "sends what it likes, with descriptors whose last close sleeps",
        allowed: &[
            ("host/src/forward/connections.rs", "other users' connections have threads of their own, ubiverbs-guest"),
            (
                "host/src/inquiry.rs",
                "tools, and a thread of its own, with a deadline for all and descriptors closed aside",
            ),
            ("link/src/shared/exchange.rs", "the owner of the name was asked for first: our own user"),
            ("link/src/shared/link.rs", "a ring's connection, which is our own user's"),
        ],
    },
    Touch {
        call: "libc::recvmsg(",
        risk: "passes descriptors",
        allowed: &[("host/src/passing.rs", "called by the files above")],
    },
    Touch {
        call: "socket_table::read(",
        risk: "opens sockets by the thousand, which lengthen each look",
        allowed: &[("host/src/holders.rs", "see survey, holders and holders_at")],
    },
    Touch {
        call: "survey(",
        risk: "as above",
        allowed: &[
            ("host/src/callers.rs", "the thread ubiverbs-door, before what is known is too old"),
            ("host/src/holders.rs", "a new peer, or a port that was never seen: bounded by READ_INTERVAL"),
        ],
    },
    Touch {
        call: "holders_at(",
        risk: "as above",
        allowed: &[
            ("host/src/holders.rs", "whose forwarded packets are believed: every BELIEF, by ubiverbs-guest"),
            ("host/src/steering.rs", "a round of probes: when the group changes, and with a growing pause"),
            ("link/src/udp/socket.rs", "when a socket is bound"),
        ],
    },
    Touch {
        call: "holders(",
        risk: "as above",
        allowed: &[
            ("host/src/holders.rs", "whether another user holds the port, when a NIC opens"),
            ("link/src/udp/socket.rs", "when a socket is bound"),
        ],
    },
    Touch {
        call: "of_this_host()",
        risk: "binds names by the thousand, which lengthen the list",
        allowed: &[
            ("host/src/slots.rs", "when a slot is taken, and for those who ask what there is"),
            ("host/src/inquiry.rs", "tools"),
            ("host/src/connection_records.rs", "when a connection is to be handed on, which is seldom"),
            ("host/src/holders.rs", "why a port cannot be had, when a NIC opens"),
            ("host/src/names.rs", "its definition"),
            ("host/src/forward/all_slots.rs", "multicast of a host that changed, and with a pause"),
        ],
    },
    Touch {
        call: "read_dir(\"/dev/shm\")",
        risk: "makes files by the thousand",
        allowed: &[("inventory/src/ended.rs", "tools")],
    },
];

/// The crates whose threads programs wait for.
const CRATES: [&str; 7] = ["host", "link", "hca", "inventory", "memory", "sockets", "capi"];

/// Reads the sources and returns how many calls there are, or those that are not in the table.
pub fn check(root: &Path) -> Result<String, String> {
    let (mut used, mut wrong) = (vec![0_usize; TOUCHES.iter().map(|touch| touch.allowed.len()).sum()], Vec::new());
    for crate_name in CRATES {
        let mut files = Vec::new();
        list(&root.join("crates").join(crate_name).join("src"), &mut files)?;
        for file in files {
            let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let place = file.strip_prefix(root.join("crates")).map_or_else(|_| file.clone(), PathBuf::from);
            look(&place.to_string_lossy(), &text, &mut used, &mut wrong);
        }
    }
    let rows = TOUCHES.iter().flat_map(|touch| touch.allowed.iter().map(|(file, _)| (touch.call, *file)));
    let unused = rows.zip(&used).filter(|(_, uses)| **uses == 0);
    wrong.extend(unused.map(|((call, file), _)| format!("{file} has no `{call}` any more (xtask/src/strangers.rs)")));
    match wrong.is_empty() {
        true => Ok(format!("{} calls that touch what strangers hold", used.iter().sum::<usize>())),
        false => Err(wrong.join("\n")),
    }
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Looks at one file, and notes which rows it needs.
fn look(file: &str, text: &str, used: &mut [usize], wrong: &mut Vec<String>) {
    // Tests come last in a file.
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut row = 0;
    for touch in TOUCHES {
        let lines = code.lines().filter_map(|line| line.split("//").next());
        let calls = lines.filter(|line| has_call(line, touch.call)).count();
        match touch.allowed.iter().position(|(allowed, _)| *allowed == file) {
            Some(at) => used[row + at] += calls,
            None if calls > 0 => wrong.push(format!(
                "{file}: `{}` is for threads that nothing waits for: a stranger {} (xtask/src/strangers.rs)",
                touch.call, touch.risk
            )),
            None => {}
        }
        row += touch.allowed.len();
    }
}

/// Whether a line has this call, and not another whose name ends like it.
fn has_call(line: &str, call: &str) -> bool {
    line.match_indices(call).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_') && !line[..at].ends_with("fn ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(file: &str, text: &str) -> usize {
        let (mut used, mut wrong) = (vec![0; 100], Vec::new());
        look(file, text, &mut used, &mut wrong);
        wrong.len()
    }

    #[test]
    fn what_strangers_hold_is_touched_where_the_table_says() {
        let call = "let users = holders_at(family, address, port)?;";
        assert_eq!(wrong("hca/src/drive.rs", call), 1);
        assert_eq!(wrong("host/src/steering.rs", call), 0);
        assert_eq!(wrong("hca/src/drive.rs", "let it = other_holders(1); // holders(2)"), 0);
        assert_eq!(wrong("hca/src/drive.rs", &format!("// {call}\n#[cfg(test)]\nmod tests {{ {call} }}")), 0);
    }
}
