//! The examples that people learn from: each must compile with every warning an error, and do in one command what its page says.

use crate::Test;
use crate::expect;
use crate::scoreboard::{Row, Version, all_of};
use crate::stage::Stage;
use std::path::Path;

/// Each example, and what it must print.
const EXAMPLES: [(&str, &[&str]); 11] = [
    ("events", &["client: received: hello from the server", "server: received: hello from the client"]),
    ("buffers", &["client: wrote 4096 bytes and read them back: the same", "server: the client left this: abcdefg"]),
    ("file", &["client: sent ", "the file arrived as it was"]),
    ("device_memory", &["client: read: this text is in the device", "server: the client counted to 10"]),
    ("structs", &["hello, server", "gathered from two", "struct rdma_addrinfo"]),
    ("states", &["refused: RESET -> RTR", "what was posted in SQD is done", "and it can begin anew"]),
    ("cm_events", &["14 of 16 events were seen"]),
    ("async_events", &["limit reached", "drained"]),
    ("cq_ex", &["ibv_cq:    wr_id 20", "ibv_cq_ex: wr_id 20"]),
    ("memory_kinds", &["shared memory", "text segment, to be written: refused"]),
    ("datagrams", &["received 104 bytes: 40 of GRH, then \"a datagram\""]),
];

/// Those that are a server and a client, and find each other by an address.
const PAIRS: [&str; 4] = ["events", "buffers", "file", "device_memory"];

const ROW: Row = Row {
    program: "the examples in C",
    version: Version::Ours,
    what: "each by the one command that its page names; IPv4 and IPv6",
};

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (name, wanted) in EXAMPLES {
        // Without an address, `rdma_getaddrinfo` finds one of IPv4 for a server.
        let both = PAIRS.contains(&name) && name != "device_memory";
        let addresses: &[&str] = if both { &["127.0.0.1", "::1"] } else { &["127.0.0.1"] };
        for address in addresses {
            tests.push(Test::new(format!("example {name} over {address}"), move |stage| {
                expect(&example(stage, name, address)?, wanted)
            }));
        }
    }
    all_of(&ROW, tests)
}

/// `make run-NAME`, as the page says.
fn example(stage: &Stage, name: &str, address: &str) -> Result<String, String> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/c");
    let mut command = stage.alone.command(None, Path::new("make"));
    command.arg("--no-print-directory").arg("-C").arg(examples).arg(format!("run-{name}"));
    // A place of their own: other programs have the same names.
    command.arg(format!("OUT={}", stage.place.join("examples").display()));
    command.arg(format!("UBIVERBS={}", stage.dist.join("bin/ubiverbs").display()));
    command.env("ADDRESS", address).env_remove("LD_LIBRARY_PATH");
    let ended = stage.end(&mut command)?;
    if ended.status.success() { Ok(ended.text) } else { Err(format!("run-{name}: {}\n{}", ended.status, ended.last())) }
}
